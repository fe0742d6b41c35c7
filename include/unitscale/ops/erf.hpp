// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <cmath>
#include <numbers>
#include <optional>

namespace unitscale::ops {

struct ErfOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Ideal factors of erf under `unit`: see `erf`.
[[nodiscard]] inline Factors<1> erf_unit_factors() noexcept {
    return {.alpha = 1.0 / std::sqrt(2.0 / std::numbers::pi * std::asin(2.0 / 3.0)),
            .betas = {std::sqrt(std::numbers::pi * std::sqrt(5.0) / 4.0)}};
}

/// Unit-scaled error function.
///   y = alpha erf(x)     dx = beta_x dy 2 pi^-1/2 exp(-x^2)     x, y [any shape]
/// Factors under `unit`, our derivation, x unit normal: erf(x) has the mean square (2/pi) arcsin(2/3), and its slope
/// has (4/pi) 5^-1/2. So alpha = 1.467 and beta_x = 1.325. They share one value by the constraint.
/// Scale under `propagate`: 1; gradients keep dy's.
/// Test: tests/ops/erf_test.cpp
template <class T>
[[nodiscard]] Variable<T> erf(Variable<T> x, const ErfOptions& options = {}) {
    auto op = begin_op("erf", x);
    op.set_factors(erf_unit_factors(), options.constraint);
    return record_pointwise(op, kernels::ErfFunction{});
}

}  // namespace unitscale::ops
