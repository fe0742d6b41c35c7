// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/binary.hpp>
#include <unitscale/record/same_scale.hpp>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>

namespace unitscale::ops {

struct MaximumOptions {
    std::optional<Factors<2>> unit{};        ///< ideal factors under `unit` instead of those for unit-normal x and z
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_z}; empty: the recipe's rule
};

/// The common part of `maximum` and `minimum`: the larger of sign x and sign z, times sign. sign: 1 or -1.
template <class T>
[[nodiscard]] Variable<T> record_extreme(Op<T, 2>& op, double sign, const MaximumOptions& options) {
    using A = Accum<T>;
    const Tensor<T>&left = op.input(0), &right = op.input(1);
    Factors<2> ideal{.alpha = 1.0 / std::sqrt(1.0 - std::numbers::inv_pi),
                     .betas = broadcast_betas(op, broadcast_shape(op.name(), left.shape(), right.shape()))};
    for (double& beta : ideal.betas) beta *= std::numbers::sqrt2;
    op.set_factors(options.unit.value_or(ideal), options.constraint);
    LargestScale largest;
    largest.include(left);
    largest.include(right);
    const double scale = largest.value(), ratio_x = left.scale() / scale, ratio_z = right.scale() / scale;
    const auto record = [&]<class C>(C of_x, C of_z) {
        const auto side = static_cast<C>(sign);
        const auto takes_x = [=](A u, A v) { return side * (of_x * u) >= side * (of_z * v) || std::isnan(u); };
        return record_binary(
            op, BinaryScales{.value = scale, .one_of_both = true},
            [=](A u, A v) { return static_cast<A>(takes_x(u, v) ? of_x * u : of_z * v); },
            [=](A u, A v) { return takes_x(u, v) ? A(1) : A(0); },
            [=](A u, A v) { return takes_x(u, v) ? A(0) : A(1); });
    };
    // Scales that differ by 2^126 or more are compared in double.
    if (holds_factor<A>(ratio_x) && holds_factor<A>(ratio_z))
        return record(static_cast<A>(ratio_x), static_cast<A>(ratio_z));
    return record(ratio_x, ratio_z);
}

/// The larger of two elements, with broadcasting. For the largest element along axes: `max`; for a bound: `clamp`.
///   y = alpha max(x, z)          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy where x >= z          dz = beta_z the sum elsewhere
/// Factors under `unit`, our derivation, x and z independent unit normals: the larger has the mean pi^-1/2 and the mean
/// square 1, and each gradient passes at half of the elements. So alpha = (1 - 1/pi)^-1/2 = 1.211, and beta = (2/r)^1/2
/// for an input that broadcasting repeats r times. All three share one value by the constraint.
/// Scale under `propagate`: the larger of s_x and s_z times (1 - 1/pi)^1/2; gradients: dy's times (r/2)^1/2; rounded.
/// A NaN counts as the largest. Where both are NaN, x counts.
/// Errors: shapes that do not broadcast. Test: tests/ops/maximum_test.cpp
template <class T>
[[nodiscard]] Variable<T> maximum(Variable<T> x, Variable<T> z, const MaximumOptions& options = {}) {
    auto op = begin_op("maximum", x, z);
    return record_extreme(op, 1.0, options);
}

}  // namespace unitscale::ops
