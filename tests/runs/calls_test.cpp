// SPDX-License-Identifier: MIT
// The calls of docs/ops.md, as a user writes them: no template argument is named, options go by name, and lists are
// written in place or are vectors, arrays and spans. tests/structure/op_table.sh checks that no op is left out.
#include <unitscale/unitscale.hpp>

#include "support/catch.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {
using Values = std::vector<Variable<float>>;

/// Records an op on a tape of its own, on unit normals of the given shapes, and returns the result's shape.
template <class F>
Shape shape_of(const std::vector<Shape>& shapes, F f, bool gradients = true) {
    const Recipe recipe = find_recipe("fp32");
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.begin_step({.gradients = gradients});
    Values v;
    for (const Shape& shape : shapes) v.push_back(tape.input(normal<float>(shape, {1, v.size()}), true));
    return f(v).shape();
}
const ops::Factors<1> one{};
}  // namespace

TEST_CASE("calls: ops of one input") {
    const auto same = [](auto f) { CHECK(shape_of({{3, 4}}, [f](Values& v) { return f(v[0]); }) == Shape{3, 4}); };
    same([](auto x) { return ops::abs(x); });
    same([](auto x) { return ops::cast_on_backward(x, {.format = e5m2}); });
    same([](auto x) { return ops::cast_on_forward(x, {.format = e4m3}); });
    same([](auto x) { return ops::clamp(x, {.low = -1, .high = 1}); });
    same([](auto x) { return ops::cos(x); });
    same([](auto x) { return ops::cumsum(x, -1); });
    same([](auto x) { return ops::dropout(x, {.p = 0.1}); });
    same([](auto x) { return ops::dynamic_rescale_l1(x); });
    same([](auto x) { return ops::dynamic_rescale_l1_gradient(x); });
    same([](auto x) { return ops::dynamic_rescale_l2(x); });
    same([](auto x) { return ops::dynamic_rescale_l2_gradient(x); });
    same([](auto x) { return ops::dynamic_rescale_max(x); });
    same([](auto x) { return ops::dynamic_rescale_max_gradient(x); });
    same([](auto x) { return ops::erf(x, {.constraint = Constraint::none}); });
    same([](auto x) { return ops::exp(x, {.unit = one}); });
    same([](auto x) { return ops::gelu(x, {.mult = 2, .form = ops::GeluForm::tanh}); });
    same([](auto x) { return ops::get_data_and_scale(x).first; });
    same([](auto x) { return ops::layer_norm(x); });
    same([](auto x) { return ops::log(x); });
    same([](auto x) { return ops::log_softmax(x, {.mult = 2}); });
    same([](auto x) { return ops::multiplier(x, 3); });
    same([](auto x) { return ops::pow(x, 2); });
    same([](auto x) { return ops::rebalance(x, 2); });
    same([](auto x) { return ops::relu(x); });
    same([](auto x) { return ops::rms_norm(x, {}, {.epsilon = 1e-5}); });
    same([](auto x) { return ops::rsqrt(x, {.unit = one}); });
    same([](auto x) { return ops::scale_backward(x, 2); });
    same([](auto x) { return ops::scale_forward(x, 2); });
    same([](auto x) { return ops::set_scaling(x, 2); });
    same([](auto x) { return ops::sigmoid(x); });
    same([](auto x) { return ops::sign(x); });
    same([](auto x) { return ops::silu(x, {.mult = 2}); });
    same([](auto x) { return ops::sin(x); });
    same([](auto x) { return ops::softmax(x, {.mult = 2}); });
    same([](auto x) { return ops::sqrt(x); });
    same([](auto x) { return ops::stop_scaling(x); });
    same([](auto x) { return ops::tanh(x, {.constraint = Constraint::to_output_scale}); });
    same([](auto x) { return ops::residual_split(x, 0.5)[0]; });
}

TEST_CASE("calls: reductions, shapes, places") {
    const auto check = [](const Shape& want, auto f) {
        CHECK(shape_of({{2, 4, 6}}, [f](Values& v) { return f(v[0]); }) == want);
    };
    check({2, 6}, [](auto x) { return ops::argmax(x, {.axis = 1}); });
    check({2, 4, 1}, [](auto x) { return ops::argmin(x, {.axis = -1, .keep_axis = true}); });
    check({2, 4}, [](auto x) { return ops::max(x, {.axes = {-1}}); });
    check({1}, [](auto x) { return ops::mean(x); });
    check({2, 1, 6}, [](auto x) { return ops::min(x, {.axes = {1}, .keep_axes = true}); });
    check({4}, [](auto x) { return ops::prod(x, {.axes = {0, 2}}); });
    check({4, 6}, [](auto x) { return ops::sum(x, {.axes = {0}}); });
    check({8, 6}, [](auto x) { return ops::reshape(x, {8, 6}); });
    check({1, 4, 6}, [](auto x) { return ops::slice(x, {1, 0, 0}, {2, 4, 6}); });
    check({2, 4, 3}, [](auto x) { return ops::split(x, 2, -1)[1]; });
    check({6, 2, 4}, [](auto x) { return ops::transpose(x, {2, 0, 1}); });
    check({2, 5, 7}, [](auto x) { return ops::pad(x, {0, 1, 0}, {0, 0, 1}, {.value = 1}); });
    check({2, 4, 6}, [](auto x) { return ops::rotary(x, {.heads = 3}); });
    const auto image = [](const Shape& want, auto f) {
        CHECK(shape_of({{1, 2, 4, 4}}, [f](Values& v) { return f(v[0]); }) == want);
    };
    image({1, 2, 2, 2}, [](auto x) { return ops::average_pool(x, {.kernel = {2, 2}}); });
    image({1, 2, 2, 2}, [](auto x) { return ops::max_pool(x, {.kernel = {2, 2}}); });
    image({1, 4, 18}, [](auto x) { return ops::unfold(x, {3, 3}); });
}

TEST_CASE("calls: ops of several inputs") {
    const std::vector<Shape> pair = {{3, 4}, {3, 4}};
    const auto same = [&](auto f) { CHECK(shape_of(pair, [f](Values& v) { return f(v[0], v[1]); }) == Shape{3, 4}); };
    const Tensor<std::int32_t> mask = full<std::int32_t>({3, 4}, 1);
    same([](auto x, auto z) { return ops::add(x, z); });
    same([](auto x, auto z) { return ops::div(x, z); });
    same([](auto x, auto z) { return ops::equal(x, z); });
    same([](auto x, auto z) { return ops::gate(x, z); });
    same([](auto x, auto z) { return ops::gated_silu(x, z, {.mult = 2}); });
    same([](auto x, auto z) { return ops::greater(x, z); });
    same([](auto x, auto) { return ops::greater_equal(x, 1); });
    same([](auto x, auto) { return ops::is_finite(x); });
    same([](auto x, auto z) { return ops::lerp(x, z, x); });
    same([](auto x, auto) { return ops::less(x, 0.5f); });
    same([](auto x, auto) { return ops::less_equal(x, full<float>({4}, 1.0f)); });
    same([](auto x, auto z) { return ops::maximum(x, z); });
    same([](auto x, auto z) { return ops::minimum(x, z); });
    same([](auto x, auto z) { return ops::mul(x, z); });
    same([](auto x, auto z) { return ops::not_equal(x, z); });
    same([](auto x, auto z) { return ops::residual_add(x, z, 0.5); });
    same([](auto x, auto z) { return ops::select(ops::greater(x, z), x, z); });
    same([&](auto x, auto) { return ops::select(mask, x, 0); });
    same([&](auto, auto z) { return ops::select(mask, 1.5, z); });
    same([](auto x, auto z) { return ops::sub(x, z); });
    same([](auto x, auto z) { return ops::weighted_add({x, z}, {1.0, -2.0}); });
    same([](auto x, auto z) { return ops::weighted_add(std::vector{x, z}, std::vector{1.0, -2.0}); });
    same([](auto x, auto z) { return x + z - 1.0 * x / 2.0 * -z; });
    const auto check = [](const std::vector<Shape>& shapes, const Shape& want, auto f) {
        CHECK(shape_of(shapes, f) == want);
    };
    check(pair, {6, 4}, [](Values& v) { return ops::concatenate({v[0], v[1]}, 0); });
    check(pair, {3, 8}, [](Values& v) { return ops::concatenate(v, -1); });
    check(pair, {3, 8}, [](Values& v) { return ops::concatenate(std::span<const Variable<float>>(v), 1); });
    check(pair, {1}, [](Values& v) { return ops::mse_loss(v[0], v[1], {.reduction = ops::Reduction::sum}); });
    check({{3, 4}, {4, 5}}, {3, 5}, [](Values& v) { return ops::matmul(v[0], v[1]); });
    check({{3, 4}, {5, 4}}, {3, 5}, [](Values& v) { return ops::readout(v[0], v[1]); });
    check({{3, 4}, {5, 4}, {5}}, {3, 5}, [](Values& v) { return ops::linear(v[0], v[1], v[2]); });
    check({{3, 4}, {5, 4}}, {3, 5}, [](Values& v) { return ops::linear(v[0], v[1]); });
    check({{3, 4}, {4}, {4}}, {3, 4}, [](Values& v) { return ops::layer_norm(v[0], v[1], v[2], {.epsilon = 1e-6}); });
    check({{3, 4}, {4}}, {3, 4}, [](Values& v) { return ops::rms_norm(v[0], std::optional(v[1])); });
    check({{2, 4, 7}, {5, 4, 3}, {5}}, {2, 5, 5}, [](Values& v) { return ops::conv1d(v[0], v[1], v[2]); });
    check({{2, 4, 7}, {5, 4, 3}}, {2, 5, 7}, [](Values& v) { return ops::conv1d(v[0], v[1], {.causal = true}); });
    check({{2, 4, 5, 5}, {3, 4, 2, 2}, {3}}, {2, 3, 4, 4}, [](Values& v) { return ops::conv2d(v[0], v[1], v[2]); });
    check({{2, 4, 5, 5}, {3, 4, 3, 3}}, {2, 3, 5, 5}, [](Values& v) {
        return ops::conv2d(v[0], v[1], {.padding = {1, 1}});
    });
    check({{2, 3, 4}, {2, 3, 4}, {2, 3, 4}}, {2, 3, 4},
          [](Values& v) { return ops::attention(v[0], v[1], v[2], {.heads = 2, .causal = true}); });
}

TEST_CASE("calls: ids, labels, constants, caches and rules of one's own") {
    const Tensor<std::int32_t> ids({2}, {2, 0});
    const Tensor<std::int64_t> wide({3}, {0, 2, 1});
    const auto check = [](const Shape& want, auto f) {
        CHECK(shape_of({{3, 4}}, [&](Values& v) { return f(v[0]); }) == want);
    };
    check({2, 4}, [&](auto x) { return ops::embedding(x, ids); });
    check({3, 4}, [&](auto x) { return ops::embedding(x, wide, {.step_lookups = 6}); });
    check({3, 2}, [&](auto x) { return ops::gather(x, ids, {.axis = 1}); });
    check({3, 4}, [&](auto x) { return ops::gather(x, wide); });
    check({6, 4}, [&](auto x) { return ops::scatter_add(x, wide, 6); });
    check({1}, [&](auto x) { return ops::softmax_cross_entropy(x, wide, {.mult = 2}); });
    check({1}, [&](auto x) { return ops::softmax_cross_entropy(x, ops::argmax(x, {.axis = 1})); });
    check({2}, [](auto x) { return ops::constant(x.tape("constant"), 3, {2}); });
    check({3, 4}, [](auto x) {
        return ops::custom_scale(
            "twice", {x}, {.scale = x.scaled().scale()},
            [&](float factor) {
                Tensor<float> y = x.scaled();
                for (float& v : y.span()) v *= 2.0f * factor;
                return y;
            },
            [](auto& g) {
                Tensor<float> dx = g.take_output_gradient();
                for (float& v : dx.span()) v *= 2.0f * static_cast<float>(g.factor(0));
                g.add(0, std::move(dx));
            });
    });
    std::vector<float> keys(8), values(8);
    const ops::KeyValueRows<float> past{
        .keys = keys.data(), .values = values.data(), .batch = 1, .capacity = 2, .columns = 4, .length = 0};
    CHECK(shape_of(
              {{1, 2, 4}, {1, 2, 4}, {1, 2, 4}},
              [&](Values& v) { return ops::cached_attention(v[0], v[1], v[2], past, {.heads = 2, .causal = true}); },
              false) == Shape{1, 2, 4});
}
