// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/binary.hpp>

#include <optional>

namespace unitscale::ops {

struct DivOptions {
    std::optional<BinaryUnitRule>
        unit{};  ///< its factors under `unit`, where the caller knows the scales; required there
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_z}; empty: the recipe's rule
};

/// Element-wise quotient, with broadcasting.
///   y = alpha x / z          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy / z          dz = beta_z sum over copies of -dy x / z^2
/// No rule under `unit`: the quotient by a unit normal has no variance. State the factors with `.unit`, for a z away from 0.
/// Scale under `propagate`: s_x / s_z; gradients: dy's / s_z and dy's s_x / s_z^2, times r^1/2 for an input that broadcasting
/// repeats r times, rounded; stated factors count like others.
/// Division by 0 gives infinity, 0/0 NaN. Errors: shapes that do not broadcast; scaling `unit` without `.unit`.
/// Test: tests/ops/div_test.cpp
template <class T>
[[nodiscard]] Variable<T> div(Variable<T> x, Variable<T> z, const DivOptions& options = {}) {
    using A = Accum<T>;
    Tape<T>& tape = x.tape("div");
    check(!tape.unit_scaled() || options.unit.has_value(),
          "div: no rule for scaling 'unit'; state its factors with {.unit = BinaryUnitRule{.alpha = a, .beta_x = b, "
          ".beta_z = c}}");
    const Shape shape = broadcast_shape("div", x.shape(), z.shape());
    const Tensor<T>&left = x.scaled(), &right = z.scaled();
    const BinaryUnitRule sums{.beta_x = rsqrt_count(broadcast_copies(tape, left, shape)),
                              .beta_z = rsqrt_count(broadcast_copies(tape, right, shape))};
    const BinaryUnitRule factors = effective_factors("div", tape, options.unit.value_or(sums), options.constraint);
    const double quotient = left.scale() / right.scale();
    const BinaryScales scales{
        .value = quotient, .slope_x = 1.0 / right.scale(), .slope_z = quotient / right.scale(), .product = true};
    return record_binary(
        "div", x, z, factors, scales, [](A u, A v) { return u / v; }, [](A, A v) { return A(1) / v; },
        [](A u, A v) { return -u / (v * v); });
}

}  // namespace unitscale::ops
