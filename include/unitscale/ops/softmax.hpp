// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/softmax.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/softmax_factors.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct SoftmaxOptions {
    double mult = 1.0;  ///< m, the logit multiplier
    SoftmaxRule rule = SoftmaxRule::fitted;
    std::optional<std::size_t> factor_length{};  ///< s in the factors; empty: the length of the rows
    /// Ideal factors under `unit` in place of `softmax_unit_factors`, `rule` and `factor_length`: for rows of which a
    /// mask hides a part. Under `propagate` beta is relative to m s_x p (dy - sum of dy p).
    std::optional<Factors<1>> unit{};
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Unit-scaled softmax over the last axis.
///   y = alpha p, p = softmax(m x)    dx = beta m p (dy - sum of dy p)    x, y [...,s]
/// Factors under `unit`, for the root mean square (all values are positive): for m -> 0 every p is 1/s, hence s for the
/// value and s/m for the gradient m p (dy - mean dy); for m -> infinity one p of a row is 1, its mean square 1/s, hence
/// s^1/2 and (s/m)^1/2; between them logint with weight 1 / (1 + 4/m^2), a fit that is poor near m = 1 (rms 0.7 to
/// 1.15).
/// `flat` takes the first limit for every m: rms 1.65 at m = 1. Alpha and beta share one value by the constraint.
/// `factor_length` fixes s if rows differ in length between training and use.
/// Scale under `propagate`: 1 / alpha, rounded; dx: dy's times 1 / (s_x beta), rounded; alpha and beta for m s_x.
/// Errors: x of rank 0; mult not positive.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2 (flat); Blake et al. 2024, arXiv:2407.17465,
/// appendix B.
/// Test: tests/ops/softmax_test.cpp
template <class T>
[[nodiscard]] Variable<T> softmax(Variable<T> x, const SoftmaxOptions& options = {}) {
    auto op = begin_op("softmax", x);
    const Tensor<T>& input = op.input(0);
    const std::size_t length = last_extent("softmax", "x", input.shape());
    check_positive("softmax", "mult", options.mult);
    const double logit_mult = options.mult * input.scale();  // of data
    Factors<1> ideal = options.unit.value_or(
        softmax_unit_factors(logit_mult, static_cast<double>(options.factor_length.value_or(length)), options.rule));
    ideal.betas[0] *= input.scale();  // relative to m p (...), where the rule is relative to m s_x p (...)
    op.set_factors(ideal, options.constraint);
    const auto rows = static_cast<std::ptrdiff_t>(row_count(input.shape())), s = static_cast<std::ptrdiff_t>(length);
    const Scaled scaled = op.scaled_alpha(1.0);
    const auto m = static_cast<Accum<T>>(options.mult), alpha = static_cast<Accum<T>>(scaled.factor);
    Tensor<T> output = op.make(input.shape());
    kernels::softmax_forward<T>(op.execution(), input.data(), output.data(), rows, s, static_cast<Accum<T>>(logit_mult),
                                alpha);
    return op.record(std::move(output), scaled.scale, {.reads = reads_outputs}, [=](BackwardContext<T>& g) {
        const Scaled dx_scaled = g.scaled_beta(0);
        Tensor<T> dx = g.take_output_gradient();
        kernels::softmax_backward<T>(g.execution(), g.output().data(), dx.data(), dx.data(), rows, s, m, alpha,
                                     static_cast<Accum<T>>(dx_scaled.factor));
        g.add(0, std::move(dx), dx_scaled.scale);
    });
}

}  // namespace unitscale::ops
