// SPDX-License-Identifier: MIT
#include <unitscale/record/record_linear.hpp>

#include "support/op_checks.hpp"

#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/sum.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

struct Outcome {
    std::vector<float> dx, dw;
    std::size_t codes = 0;  ///< elements of x that were kept as codes
    bool value = false;     ///< whether x itself was kept
};

/// The gradients of w1 x + w2 x with an x that the tape may free or, `held`, may not.
Outcome run(const Recipe& recipe, bool held) {
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.begin_step();
    Parameter<float> first("first", {24, 40}, {}), second("second", {24, 40}, {});
    fill_normal(first.write(), {1, 1});
    fill_normal(second.write(), {2, 2});
    const auto source = tape.input(normal<float>({2, 9, 40}, {3, 3}), true);
    auto x = ops::scale_forward(source, 1.5);  // slot 1
    const auto a = ops::linear(x, tape.parameter(first)), b = ops::linear(x, tape.parameter(second));
    Variable<float> keep;
    if (held) keep = x;
    x = {};
    static_cast<void>(tape.make(Shape{1}));
    Outcome outcome{.dx = {}, .dw = {}, .codes = tape.slot(1).codes.size(), .value = tape.slot(1).value != nullptr};
    const auto one = [&](Variable<float> y, std::uint64_t stream) {
        return ops::sum(ops::mul(y, tape.input(normal<float>({2, 9, 24}, {4, stream}))));
    };
    tape.backward({one(a, 1), one(b, 2)}, {1.0f, 1.0f});
    const auto copy = [](const Tensor<float>& t) { return std::vector<float>(t.data(), t.data() + t.size()); };
    outcome.dx = copy(source.gradient());
    outcome.dw = copy(first.gradient());
    const auto more = copy(second.gradient());
    outcome.dw.insert(outcome.dw.end(), more.begin(), more.end());
    return outcome;
}

Recipe rounding(const Quantiser& activation) {
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    recipe.products.push_back(
        {.formats = {
             .activation = activation, .weight = Quantiser{.format = e4m3}, .gradient = Quantiser{.format = e5m2}}});
    return recipe;
}

}  // namespace

TEST_CASE("record_linear: an input kept as codes gives the bits of the input itself") {
    for (const FloatFormat& format : {e4m3, e5m2, e4m3fnuz, e3m2, e2m1, e4m3b11fnuz}) {
        INFO(name(format));
        const Recipe recipe = rounding({.format = format});
        const Outcome freed = run(recipe, false), kept = run(recipe, true);
        CHECK(freed.codes == 2 * 9 * 40);
        CHECK_FALSE(freed.value);
        CHECK(kept.codes == 0);
        CHECK(kept.value);
        CHECK(freed.dw == kept.dw);
        CHECK(freed.dx == kept.dx);
    }
}

TEST_CASE("record_linear: the input itself is kept where codes do not do, and nothing where nobody reads it") {
    CHECK(run(analysis::plain_recipe(Scaling::unit), false).value);  // not rounded
    CHECK(run(rounding({.format = fp16}), false).value);             // more than 8 bits
    CHECK(
        run(rounding({.format = e4m3, .rounding = Rounding::stochastic}), false).value);  // two products, two roundings
    ScalingState state;
    const Recipe recipe = analysis::plain_recipe(Scaling::none);
    Tape<float> tape(recipe, state);
    tape.begin_step();
    const auto source = tape.input(normal<float>({4, 8}, {1, 1}), true);
    const auto frozen = tape.input(normal<float>({3, 8}, {1, 1}), false);
    const auto y = ops::linear(ops::scale_forward(source, 2.0), frozen);
    static_cast<void>(tape.make(Shape{1}));
    CHECK(tape.slot(2).value == nullptr);
}
