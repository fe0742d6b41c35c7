// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <cmath>
#include <optional>

namespace unitscale::ops {

struct CosOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Ideal factors of cos under `unit`: see `cos`.
[[nodiscard]] inline Factors<1> cos_unit_factors() noexcept {
    return {.alpha = std::sqrt(2.0 / (1.0 + std::exp(-2.0))), .betas = {std::sqrt(2.0 / (1.0 - std::exp(-2.0)))}};
}

/// Unit-scaled cosine.
///   y = alpha cos(x)     dx = -beta_x dy sin(x)     x, y [any shape]
/// Factors under `unit`, our derivation, x unit normal: cos(x) has the mean square (1 + exp(-2)) / 2, and sin(x) has
/// (1 - exp(-2)) / 2. Hence alpha = 1.327 by the root mean square, as for `abs`, and beta_x = 1.521. They share one
/// value by the constraint. The mean of cos(x) is exp(-1/2), so the standard deviation of alpha cos(x) is 0.593.
/// Scale under `propagate`: 1; gradients keep dy's.
/// An infinite x gives NaN.
/// Test: tests/ops/cos_test.cpp
template <class T>
[[nodiscard]] Variable<T> cos(Variable<T> x, const CosOptions& options = {}) {
    auto op = begin_op("cos", x);
    op.set_factors(cos_unit_factors(), options.constraint);
    return record_pointwise(op, kernels::CosFunction{});
}

}  // namespace unitscale::ops
