// SPDX-License-Identifier: MIT
// Losses that ops join before the backward pass, in 16 bits and with seeds that a 16-bit number does not hold.
// The reference is the step in double.
#include <unitscale/autograd/tape.hpp>

#include "support/op_checks.hpp"

#include <unitscale/ops/add.hpp>
#include <unitscale/ops/multiplier.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/ops/sub.hpp>
#include <unitscale/ops/weighted_add.hpp>
#include <unitscale/tensor/cast.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t rows = 64, classes = 5;

/// The gradients of the logits of two losses that `join` joins.
template <class T, class Join>
std::vector<double> gradients(Scaling scaling, Join join, float seed) {
    Tensor<std::int32_t> labels({rows});
    for (std::size_t i = 0; i < rows; ++i) labels(i) = static_cast<std::int32_t>(i % classes);
    test::OpTape<T> t(scaling);
    const auto logits = [&](std::uint64_t stream) {
        return t.tape.input(cast<T>(cast<Half>(normal<double>({rows, classes}, {1, stream}))), true);
    };
    const Variable<T> x = logits(1), z = logits(2);
    const Variable<T> loss = join(ops::softmax_cross_entropy(x, labels), ops::softmax_cross_entropy(z, labels));
    t.tape.backward(loss, static_cast<Accum<T>>(seed));
    std::vector<double> result;
    for (const auto& input : {x, z})
        for (const T element : input.gradient().span())
            result.push_back(static_cast<double>(element) * input.gradient().scale());
    return result;
}

/// Checks gradients in 16 bits against double. Elements below Half's range count as 0.
template <class Join>
void check_join(const std::string& name, Join join, float seed) {
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate}) {
        INFO(name << ", " << unitscale::name(scaling) << ", seed " << seed);
        const auto expected = gradients<double>(scaling, join, seed), found = gradients<Half>(scaling, join, seed);
        double size = 0.0, error = 0.0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            size += expected[i] * expected[i];
            error += (found[i] - expected[i]) * (found[i] - expected[i]);
        }
        CHECK(size > 0.0);
        CHECK(std::sqrt(error / size) < 2e-3);  // NaN fails
    }
}

}  // namespace

TEST_CASE("runs: a seed that Half does not hold reaches joined losses") {
    // The factor keeps the gradients of the logits within Half under `unit` too, where they have the seed's size.
    const auto small = [](auto loss) { return ops::multiplier(loss, 0x1p-12); };
    for (const float seed : {1024.0f, 65536.0f, 0x1p20f, -65536.0f}) {
        check_join(
            "add of small", [&](auto a, auto b) { return ops::add(small(a), small(b)); }, seed);
        check_join(
            "small add", [&](auto a, auto b) { return small(ops::add(a, b)); }, seed);
        check_join(
            "sub", [&](auto a, auto b) { return ops::sub(small(a), small(b)); }, seed);
        check_join(
            "weighted_add",
            [&](auto a, auto b) {
                return ops::weighted_add({small(a), small(b)}, {0.25, 3.0});
            },
            seed);
        check_join(
            "scale_backward", [&](auto a, auto b) { return ops::scale_backward(ops::add(a, b), 0x1p-12); }, seed);
        check_join(
            "scale_forward", [&](auto a, auto b) { return ops::scale_forward(ops::add(small(a), small(b)), 2.0); },
            seed);
    }
}

TEST_CASE("runs: a gradient of a loss that Half holds no more between two ops arrives") {
    check_join(
        "large, then small",
        [](auto a, auto b) {
            return ops::multiplier(ops::add(ops::multiplier(a, 0x1p-10), ops::multiplier(b, 0x1p-10)), 0x1p14);
        },
        16.0f);
    check_join(
        "small, then large",
        [](auto a, auto b) {
            return ops::multiplier(ops::add(ops::multiplier(a, 0x1p20), ops::multiplier(b, 0x1p20)), 0x1p-26);
        },
        16.0f);
}

TEST_CASE("runs: joined losses with a seed that Half holds have the gradients of one backward pass for both") {
    test::OpTape<Half> one(Scaling::none), two(Scaling::none);
    const Tensor<std::int32_t> labels({2}, {1, 0});
    const auto loss = [&](const Variable<Half>& x) { return ops::softmax_cross_entropy(x, labels); };
    const auto a = one.input({2, 3}, 1), b = one.input({2, 3}, 2), c = two.input({2, 3}, 1), d = two.input({2, 3}, 2);
    one.tape.backward(ops::add(loss(a), loss(b)), 1024.0f);
    two.tape.backward({loss(c), loss(d)}, {1024.0f, 1024.0f});
    for (std::size_t i = 0; i < 6; ++i) {
        CHECK(static_cast<float>(a.gradient().data()[i]) == static_cast<float>(c.gradient().data()[i]));
        CHECK(static_cast<float>(b.gradient().data()[i]) == static_cast<float>(d.gradient().data()[i]));
    }
}
