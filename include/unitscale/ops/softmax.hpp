// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/softmax.hpp>
#include <unitscale/record/operands.hpp>

#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// Which factors `softmax` takes under `unit`.
///   fitted: between flat and peaked probabilities, by m
///   flat: those of flat probabilities, as in the Unit Scaling paper
enum class SoftmaxRule { fitted, flat };

struct SoftmaxOptions {
    double mult = 1.0;  ///< m, the logit multiplier
    SoftmaxRule rule = SoftmaxRule::fitted;
    std::optional<std::size_t> factor_length{};  ///< s in the factors; empty: the length of the rows
    std::optional<Constraint> constraint{};      ///< joins {alpha, beta_x}; empty: the recipe's rule
};

struct SoftmaxFactors {
    double alpha = 1.0, beta_x = 1.0;
};

/// Ideal factors of a softmax over `length` elements under `unit`: see `softmax`.
[[nodiscard]] inline SoftmaxFactors softmax_unit_factors(double m, std::size_t length, SoftmaxRule rule) noexcept {
    if (length == 0) return {};
    const auto s = static_cast<double>(length);
    if (rule == SoftmaxRule::flat) return {.alpha = s, .beta_x = s / m};
    const double a = 1.0 / (1.0 + 4.0 / (m * m));
    return {.alpha = logint(a, s, std::sqrt(s)), .beta_x = logint(a, s / m, std::sqrt(s / m))};
}

/// Unit-scaled softmax over the last axis.
///   y = alpha p, p = softmax(m x)    dx = beta m p (dy - sum of dy p)    x, y [...,s]
/// Factors under `unit`, for the root mean square (all values are positive): for m -> 0 every p is 1/s, hence s for the value
/// and s/m for the gradient m p (dy - mean dy); for m -> infinity one p of a row is 1, its mean square 1/s, hence s^1/2 and
/// (s/m)^1/2; between them logint with weight 1 / (1 + 4/m^2), a fit that is poor near m = 1 (rms 0.7 to 1.15). `flat` takes the first
/// limit for every m: rms 1.65 at m = 1. Alpha and beta share one value by the constraint. `factor_length` fixes s where rows
/// differ in length between training and use.
/// Scale under `propagate`: 1 / alpha, rounded; dx: dy's times 1 / (s_x beta), rounded; alpha and beta are those of m s_x.
/// Errors: x of rank 0; mult not positive.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2 (flat); Blake et al. 2024, arXiv:2407.17465, appendix B.
/// Test: tests/ops/softmax_test.cpp
template <class T>
[[nodiscard]] Variable<T> softmax(Variable<T> x, const SoftmaxOptions& options = {}) {
    Tape<T>& tape = x.tape("softmax");
    const Tensor<T>& input = x.scaled();
    const std::size_t length = last_extent("softmax", "x", input.shape());
    check_positive("softmax", "mult", options.mult);
    const Site site = tape.next_site("softmax");
    SoftmaxFactors factors{};
    JoinedBy joined_by = JoinedBy::plan;
    if (tape.uses_factors()) {
        factors =
            softmax_unit_factors(options.mult * input.scale(), options.factor_length.value_or(length), options.rule);
        factors.beta_x *= input.scale();  // of m p (...), where the rule is of m s_x p (...)
        joined_by = join_factors("softmax", site, tape, options.constraint, factors.alpha, factors.beta_x);
    }
    const auto rows = static_cast<std::ptrdiff_t>(row_count(input.shape())), s = static_cast<std::ptrdiff_t>(length);
    const Scaled scaled = tape.scaled_alpha(site, factors.alpha, 1.0);
    const auto m = static_cast<Accum<T>>(options.mult), alpha = static_cast<Accum<T>>(scaled.factor);
    Tensor<T> output = tape.make(input.shape());
    kernels::softmax_forward<T>(tape.execution(), input.data(), output.data(), rows, s,
                                static_cast<Accum<T>>(options.mult * input.scale()), alpha);
    output.set_scale(scaled.scale);
    return tape.record({.name = "softmax",
                        .site = site,
                        .alpha = factors.alpha,
                        .betas = {factors.beta_x},
                        .joined_by = joined_by,
                        .reads = reads_outputs,
                        .propagates = true},
                       {x}, std::move(output), [=](BackwardContext<T>& g) {
                           const Scaled dx_scaled = g.scaled_beta(0);
                           Tensor<T> dx = g.take_output_gradient();
                           kernels::softmax_backward<T>(g.execution(), g.output().data(), dx.data(), dx.data(), rows, s,
                                                        m, alpha, static_cast<Accum<T>>(dx_scaled.factor));
                           g.add(0, std::move(dx), dx_scaled.scale);
                       });
}

}  // namespace unitscale::ops
