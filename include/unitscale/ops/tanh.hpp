// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <optional>

namespace unitscale::ops {

struct TanhOptions {
    /// Ideal factors under `unit` in place of `tanh_unit_factors`. All 1 (`Factors<1>{}`) suit a candidate for a state
    /// that stays between -1 and 1.
    std::optional<Factors<1>> unit{};
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Ideal factors of tanh under `unit`: see `tanh`.
[[nodiscard]] constexpr Factors<1> tanh_unit_factors() noexcept { return {.alpha = 1.593, .betas = {1.467}}; }

/// Unit-scaled hyperbolic tangent.
///   y = alpha tanh(x)     dx = beta_x dy (1 - tanh(x)^2)     x, y [any shape]
/// Factors under `unit`, x unit normal: the mean squares of tanh(x) and of its derivative, integrated numerically, are
/// 1.593^-2 and 1.467^-2. They share one value by the constraint.
/// Scale under `propagate`: 1; gradients keep dy's.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/tanh_test.cpp
template <class T>
[[nodiscard]] Variable<T> tanh(Variable<T> x, const TanhOptions& options = {}) {
    auto op = begin_op("tanh", x);
    op.set_factors(options.unit.value_or(tanh_unit_factors()), options.constraint);
    return record_pointwise(op, kernels::TanhFunction{});
}

}  // namespace unitscale::ops
