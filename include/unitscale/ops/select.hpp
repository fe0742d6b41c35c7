// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/constant.hpp>
#include <unitscale/record/binary.hpp>
#include <unitscale/record/same_scale.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace unitscale::ops {

struct SelectOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_z}; empty: the recipe's rule
};

/// Element-wise choice ("where"), with broadcasting.
///   y = x where the condition is not 0, else z          condition, x, z broadcast to y
///   dx = beta_x sum over copies of dy where the condition is not 0          dz = beta_z the sum elsewhere
/// The condition carries no gradient; its elements are integers or bool (see compare.hpp). x or z may be a number.
/// Factors under `unit`, our choice, as for every op which only moves values: alpha = 1; beta = 1, or r^-1/2 for an
/// input that broadcasting repeats r times, chosen or not, as in `add`. All three share one value, 1, unless the
/// constraint says otherwise.
/// Scale under `propagate`: the larger of s_x and s_z; gradients: dy's times r^1/2, rounded. The numbers 0,
/// infinity and NaN have any scale, so the result has the other input's.
/// Errors: shapes that do not broadcast.
/// Test: tests/ops/select_test.cpp
template <class T, std::integral C>
[[nodiscard]] Variable<T> select(const Tensor<C>& condition, Variable<T> x, Variable<T> z,
                                 const SelectOptions& options = {}) {
    using A = Accum<T>;
    using kernels::BroadcastInput;
    auto op = begin_op("select", x, z);
    const Tensor<T>&left = op.input(0), &right = op.input(1);
    const Shape shape =
        broadcast_shape("select", condition.shape(), broadcast_shape("select", left.shape(), right.shape()));
    op.set_factors({.betas = broadcast_betas(op, shape)}, options.constraint);
    Tensor<std::uint8_t> chosen(condition.shape(), op.tape().pool());
    std::transform(condition.data(), condition.data() + condition.size(), chosen.data(),
                   [](C c) { return static_cast<std::uint8_t>(c != C(0)); });
    LargestScale largest;
    largest.include(left);
    largest.include(right);
    const double alpha = op.tape().propagates() ? 1.0 : op.factors().alpha, scale = largest.value();
    const ScaledOperand<T> from_x(op.tape(), left, scale, alpha), from_z(op.tape(), right, scale, alpha);
    Tensor<T> output = op.make(shape);
    kernels::broadcast_map(
        op.execution(), shape, output.data(),
        [of_x = from_x.factor(), of_z = from_z.factor()](float c, A u, A v) { return c > 0.0f ? of_x * u : of_z * v; },
        BroadcastInput{chosen.data(), chosen.shape()}, BroadcastInput{from_x.data(), left.shape()},
        BroadcastInput{from_z.data(), right.shape()});
    return op.record(std::move(output), scale, {.reads = reads_nothing, .any_scale = largest.any_scale()},
                     [chosen = std::move(chosen)](BackwardContext<T>& g) {
                         const Tensor<T>& dy = g.output_gradient();
                         for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
                             if (!g.needs(i)) continue;
                             const Scaled scaled = g.scaled_beta(i);
                             Tensor<T> dx = g.make(g.input_shape(i));
                             kernels::broadcast_map_sum(
                                 g.execution(), dy.shape(), dx.data(), dx.shape(),
                                 [beta = static_cast<A>(scaled.factor), taken = i == 0 ? 1.0f : 0.0f](float c, A d) {
                                     return c == taken ? beta * d : A(0);
                                 },
                                 BroadcastInput{chosen.data(), chosen.shape()}, BroadcastInput{dy.data(), dy.shape()});
                             g.add(i, std::move(dx), scaled.scale);
                         }
                     });
}

template <class T, std::integral C>
[[nodiscard]] Variable<T> select(const Tensor<C>& condition, Variable<T> x, double z,
                                 const SelectOptions& options = {}) {
    return select(condition, x, constant(x.tape("select"), z), options);
}
template <class T, std::integral C>
[[nodiscard]] Variable<T> select(const Tensor<C>& condition, double x, Variable<T> z,
                                 const SelectOptions& options = {}) {
    return select(condition, constant(z.tape("select"), x), z, options);
}

}  // namespace unitscale::ops
