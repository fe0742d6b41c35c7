// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/binary.hpp>

#include <optional>

namespace unitscale::ops {

struct MulOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_z}; empty: the recipe's rule
};

/// Element-wise product, with broadcasting.
///   y = alpha x z          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy z          dz = beta_z sum over copies of dy x
/// Factors under `unit`: independent x and z of unit variance and zero mean have a product of unit variance, hence
/// alpha = 1; the gradient of an input that broadcasting repeats r times is a sum of r products, hence beta = r^-1/2 as
/// in `add` (the micro-batches of a step count). All three share one value, 1, unless the constraint says otherwise.
/// Scale under `propagate`: s_x s_z; gradients: dy's times the other input's, times r^1/2, rounded.
/// Errors: shapes that do not broadcast.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, appendix A. Test: tests/ops/mul_test.cpp
template <class T>
[[nodiscard]] Variable<T> mul(Variable<T> x, Variable<T> z, const MulOptions& options = {}) {
    using A = Accum<T>;
    auto op = begin_op("mul", x, z);
    const Tensor<T>&left = op.input(0), &right = op.input(1);
    const Shape shape = broadcast_shape("mul", left.shape(), right.shape());
    op.set_factors({.betas = broadcast_betas(op, shape)}, options.constraint);
    const BinaryScales scales{
        .value = left.scale() * right.scale(), .slope_x = right.scale(), .slope_z = left.scale(), .product = true};
    return record_binary(
        op, scales, [](A u, A v) { return u * v; }, [](A, A v) { return v; }, [](A u, A) { return u; });
}

}  // namespace unitscale::ops
