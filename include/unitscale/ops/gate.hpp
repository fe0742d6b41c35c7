// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/record/binary.hpp>

#include <optional>

namespace unitscale::ops {

struct GateOptions {
    /// Ideal factors under `unit` in place of `gate_unit_factors`. All 1 (`Factors<2>{}`) suit a gate of a state that
    /// many steps pass: an open gate then keeps the state as it is.
    std::optional<Factors<2>> unit{};
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_g}; empty: the recipe's rule
};

/// Ideal factors of a gate under `unit`: see `gate`.
[[nodiscard]] constexpr Factors<2> gate_unit_factors() noexcept { return {.alpha = 1.846, .betas = {1.846, 4.723}}; }

/// Unit-scaled gate: x times the logistic function of g, with broadcasting.
///   y = alpha x s     dx = beta_x sum over copies of dy s     dg = beta_g sum over copies of dy x s (1 - s)
///   s = 1 / (1 + exp(-g))          x, g broadcast to y: aligned at the last axis, extents equal or 1
/// Factors under `unit`, x and g independent unit normals: the mean squares of s and of its derivative, integrated
/// numerically, are 1.846^-2 and 4.723^-2. Products of independent numbers have the product of their mean squares.
/// Each beta is also divided by r^1/2 for an input that broadcasting repeats r times, as in `add`. All three share one
/// value by the constraint. `sigmoid` itself has a mean, and as a factor of unit variance it would be 2.6 large.
/// Scale under `propagate`: s_x / alpha, rounded; gradients: dy's / beta_x for x, dy's s_x / beta_g for g.
/// Errors: shapes that do not broadcast. Test: tests/ops/gate_test.cpp
template <class T>
[[nodiscard]] Variable<T> gate(Variable<T> x, Variable<T> g, const GateOptions& options = {}) {
    using A = Accum<T>;
    auto op = begin_op("gate", x, g);
    const Shape shape = broadcast_shape("gate", op.input(0).shape(), op.input(1).shape());
    Factors<2> ideal = options.unit.value_or(gate_unit_factors());
    const auto copies = broadcast_betas(op, shape);
    for (std::size_t i = 0; i < 2; ++i) ideal.betas[i] *= copies[i];
    op.set_factors(ideal, options.constraint);
    const auto t = static_cast<A>(op.input(1).scale());
    const double scale = op.input(0).scale();
    const BinaryScales scales{.value = scale, .slope_z = scale};
    return record_binary(
        op, scales, [t](A u, A v) { return u * kernels::logistic(t * v); },
        [t](A, A v) { return kernels::logistic(t * v); },
        [t](A u, A v) { return u * (kernels::logistic(t * v) * kernels::logistic(-(t * v))); });
}

}  // namespace unitscale::ops
