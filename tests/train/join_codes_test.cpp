// SPDX-License-Identifier: MIT
#include <unitscale/train/join_codes.hpp>

#include "support/catch.hpp"

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/tree_reducer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <vector>

using namespace unitscale;

namespace {

/// Gives a reducer gradients of one parameter by hand, and returns the step's gradient.
struct ByHand {
    explicit ByHand(const Communication& rule, std::size_t size = 40)
        : recipe(find_recipe("fp32")), parameter("p", {size}, {}) {
        recipe.communication = rule;
        static_cast<void>(parameter.write());
        tape = std::make_unique<Tape<float>>(recipe, state);
    }
    std::vector<float> step(const std::vector<std::vector<float>>& gradients, double seed = 1.0) {
        parameter.clear_gradient();
        state.set_step(state.step() + 1);
        const std::vector<Parameter<float>*> parameters = {&parameter};
        const auto share = reducer.begin(*tape, parameters, gradients.size(), seed);
        for (std::size_t i = share.first; i < share.last; ++i) {
            if (!gradients[i].empty()) {
                parameter.add_gradient(Tensor<float>(parameter.shape(), std::span<const float>(gradients[i])));
                reducer.add_gradient(i, parameter);
                CHECK_FALSE(parameter.has_gradient());
            }
            reducer.add_loss(i, 1.0);
        }
        CHECK(reducer.finish() == static_cast<double>(gradients.size()));
        const auto got = parameter.gradient().span();
        return {got.begin(), got.end()};
    }

    Recipe recipe;
    Parameter<float> parameter;
    ScalingState state{1};
    std::unique_ptr<Tape<float>> tape{};
    train::TreeReducer<float> reducer{};
};

/// `count` gradients of `size` elements.
std::vector<std::vector<float>> gradients_of(std::size_t count, std::size_t size) {
    std::vector<std::vector<float>> all(count, std::vector<float>(size));
    for (std::size_t i = 0; i < count; ++i)
        for (std::size_t e = 0; e < size; ++e)
            all[i][e] = static_cast<float>(std::ldexp(random_normal({9, i}, e), -static_cast<int>(e / 8)));
    return all;
}

/// Elements rounded with the power of two of their block's largest magnitude among all `rows`, without the library's
/// codes.
std::vector<std::vector<float>> rounded(const Communication& rule, std::vector<std::vector<float>> rows) {
    const std::size_t size = rows.front().size(), block = rule.block == 0 ? size : rule.block;
    for (std::size_t begin = 0; begin < size; begin += block) {
        const std::size_t end = std::min(begin + block, size);
        float largest = 0.0f;
        for (const auto& row : rows)
            for (std::size_t e = begin; e < end; ++e) largest = std::max(largest, std::abs(row[e]));
        const int bias = rule.scales() ? amax_bias(rule.element.format, largest, rule.margin) : 0;
        for (auto& row : rows)
            for (std::size_t e = begin; e < end; ++e)
                row[e] = std::ldexp(
                    quantise(rule.element.format, std::ldexp(row[e], bias), {.overflow = Overflow::saturate}), -bias);
    }
    return rows;
}

}  // namespace

TEST_CASE("gradients travel rounded, are summed in float, and travel rounded again") {
    for (const FloatFormat& format : {fp32, bf16, fp16, e5m2, e4m3})
        for (const std::size_t block : {0u, 16u})
            for (const int margin : {0, 1}) {
                const Communication rule{.element = {.format = format}, .block = block, .margin = margin};
                INFO(name(format) << " by " << block << ", margin " << margin);
                const auto gradients = gradients_of(4, 40);
                const auto sent = rounded(rule, gradients);
                std::vector<float> sum(40);
                for (std::size_t e = 0; e < 40; ++e) sum[e] = (sent[0][e] + sent[1][e]) + (sent[2][e] + sent[3][e]);
                CHECK(ByHand(rule).step(gradients) == rounded(rule, {sum}).front());
            }
}

TEST_CASE("a micro-batch that has no gradient of a parameter sends none") {
    const Communication rule{};
    auto gradients = gradients_of(3, 40);
    const auto sent = rounded(rule, {gradients[0], gradients[2]});
    std::vector<float> sum(40);
    for (std::size_t e = 0; e < 40; ++e) sum[e] = sent[0][e] + sent[1][e];
    gradients[1].clear();
    CHECK(ByHand(rule).step(gradients) == rounded(rule, {sum}).front());
}

TEST_CASE("a block of a gradient that is not finite arrives as NaN") {
    auto gradients = gradients_of(2, 40);
    gradients[1][20] = std::numeric_limits<float>::infinity();
    const std::vector<float> got = ByHand({.block = 16}).step(gradients);
    for (std::size_t e = 0; e < 40; ++e) CHECK(std::isnan(got[e]) == (e / 16 == 1));
}

TEST_CASE("error feedback sends later what rounding took, at any loss scale") {
    const auto gradients = gradients_of(2, 40);
    const auto error = [&](bool feedback, bool changes) {
        ByHand hand({.element = {.format = e4m3}, .error_feedback = feedback});
        std::vector<double> sum(40, 0.0);
        constexpr int steps = 64;
        for (int step = 0; step < steps; ++step) {
            const float seed = changes && step % 3 == 1 ? 4.0f : 1.0f;
            auto seeded = gradients;
            for (auto& gradient : seeded)
                for (float& element : gradient) element *= seed;
            const std::vector<float> got = hand.step(seeded, static_cast<double>(seed));
            for (std::size_t e = 0; e < 40; ++e) sum[e] += static_cast<double>(got[e] / seed) / steps;
        }
        double worst = 0.0;  // of the first rounding; the second one's error stays
        for (std::size_t e = 0; e < 40; ++e) {
            const double exact = static_cast<double>(gradients[0][e]) + static_cast<double>(gradients[1][e]);
            worst += std::abs(sum[e] - exact);
        }
        return worst;
    };
    const double without = error(false, false), with = error(true, false), changing = error(true, true);
    CHECK(with < 0.7 * without);
    CHECK(changing < 0.7 * without);
}
