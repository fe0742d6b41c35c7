// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <optional>

namespace unitscale::ops {

struct SigmoidOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Ideal factors of sigmoid under `unit`: see `sigmoid`.
[[nodiscard]] constexpr Factors<1> sigmoid_unit_factors() noexcept { return {.alpha = 4.802, .betas = {4.722}}; }

/// Unit-scaled logistic function.
///   y = alpha / (1 + exp(-x))     dx = beta_x dy s (1 - s), s = sigmoid(x)     x, y [any shape]
/// Factors under `unit`, x unit normal, integrated numerically: the variance of sigmoid(x) is 4.802^-2, the mean square
/// of its derivative 4.722^-2. They share one value by the constraint. The value's mean is alpha/2, so that its rms is
/// 2.60 at a standard deviation of 1. As a gate, multiply by the plain function of a scaled input instead (see
/// `gated_silu`).
/// Scale under `propagate`: 1; gradients keep dy's.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/sigmoid_test.cpp
template <class T>
[[nodiscard]] Variable<T> sigmoid(Variable<T> x, const SigmoidOptions& options = {}) {
    auto op = begin_op("sigmoid", x);
    op.set_factors(sigmoid_unit_factors(), options.constraint);
    return record_pointwise(op, kernels::SigmoidFunction{});
}

}  // namespace unitscale::ops
