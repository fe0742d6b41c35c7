// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/binary.hpp>

#include <optional>

namespace unitscale::ops {

struct DivOptions {
    std::optional<Factors<2>> unit{};        ///< its ideal factors under `unit`, required there
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_z}; empty: the recipe's rule
};

/// Element-wise quotient, with broadcasting.
///   y = alpha x / z          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy / z          dz = beta_z sum over copies of -dy x / z^2
/// No rule under `unit`: the quotient by a unit normal has no variance. State the factors with `.unit`, for a z away
/// from 0.
/// Scale under `propagate`: s_x / s_z; gradients: dy's / s_z and dy's s_x / s_z^2, times r^1/2 for an input that
/// broadcasting repeats r times, rounded. Stated factors become scales like the factors of any op.
/// Division by 0 gives infinity, 0/0 NaN. Errors: shapes that do not broadcast; scaling `unit` without `.unit`.
/// Test: tests/ops/div_test.cpp
template <class T>
[[nodiscard]] Variable<T> div(Variable<T> x, Variable<T> z, const DivOptions& options = {}) {
    using A = Accum<T>;
    auto op = begin_op("div", x, z);
    const Tensor<T>&left = op.input(0), &right = op.input(1);
    const Shape shape = broadcast_shape("div", left.shape(), right.shape());
    op.set_factors(op.stated(options.unit, {.betas = broadcast_betas(op, shape)}), options.constraint);
    const double quotient = left.scale() / right.scale();
    const BinaryScales scales{
        .value = quotient, .slope_x = 1.0 / right.scale(), .slope_z = quotient / right.scale(), .product = true};
    return record_binary(
        op, scales, [](A u, A v) { return u / v; }, [](A, A v) { return A(1) / v; },
        [](A u, A v) { return -u / (v * v); });
}

}  // namespace unitscale::ops
