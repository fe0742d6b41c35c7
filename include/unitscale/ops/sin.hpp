// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <cmath>
#include <optional>

namespace unitscale::ops {

struct SinOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Ideal factors of sin under `unit`: see `sin`.
[[nodiscard]] inline Factors<1> sin_unit_factors() noexcept {
    return {.alpha = std::sqrt(2.0 / (1.0 - std::exp(-2.0))), .betas = {std::sqrt(2.0 / (1.0 + std::exp(-2.0)))}};
}

/// Unit-scaled sine.
///   y = alpha sin(x)     dx = beta_x dy cos(x)     x, y [any shape]
/// Factors under `unit`, our derivation, x unit normal: cos(2 x) has the mean exp(-2). So sin(x) has the mean square
/// (1 - exp(-2)) / 2, and cos(x) has (1 + exp(-2)) / 2. Hence alpha = 1.521 and beta_x = 1.327. They share one value by
/// the constraint.
/// Scale under `propagate`: 1; gradients keep dy's.
/// An infinite x gives NaN.
/// Test: tests/ops/sin_test.cpp
template <class T>
[[nodiscard]] Variable<T> sin(Variable<T> x, const SinOptions& options = {}) {
    auto op = begin_op("sin", x);
    op.set_factors(sin_unit_factors(), options.constraint);
    return record_pointwise(op, kernels::SinFunction{});
}

}  // namespace unitscale::ops
