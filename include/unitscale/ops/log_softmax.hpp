// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/softmax.hpp>
#include <unitscale/record/operands.hpp>
#include <unitscale/record/unary.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct LogSoftmaxOptions {
    double mult = 1.0;                       ///< m, the logit multiplier
    std::optional<UnitRule> unit{};          ///< its ideal factors under `unit`, required there
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Logarithm of the softmax over the last axis.
///   y = alpha (m x - ln sum_j exp(m x_j))    dx = beta m (dy - p sum of dy), p = softmax(m x)    x, y [...,s]
/// No rule under `unit`: the value is a log-probability near -ln s, whose size is its meaning, and the gradient's scale is that of the
/// consumer (one label per row, or all of them). State the factors with `.unit`.
/// Scale under `propagate`: 1, m s_x being the multiplier; dx: dy's times m, rounded.
/// The loss on log-probabilities has factors of its own: softmax_cross_entropy.
/// Errors: x of rank 0; mult not positive; scaling `unit` without `.unit`; factors not positive.
/// Test: tests/ops/log_softmax_test.cpp
template <class T>
[[nodiscard]] Variable<T> log_softmax(Variable<T> x, const LogSoftmaxOptions& options = {}) {
    const char* const op = "log_softmax";
    Tape<T>& tape = x.tape(op);
    const Tensor<T>& input = x.scaled();
    const auto s = static_cast<std::ptrdiff_t>(last_extent(op, "x", input.shape()));
    check_positive(op, "mult", options.mult);
    const UnitRule factors = tape.propagates()
                                 ? UnitRule{.beta_x = 1.0 / options.mult}
                                 : stated_factors(op, tape, {.unit = options.unit, .constraint = options.constraint});
    const auto rows = static_cast<std::ptrdiff_t>(row_count(input.shape()));
    const auto m = static_cast<Accum<T>>(options.mult), alpha = static_cast<Accum<T>>(factors.alpha);
    Tensor<T> output = tape.make(input.shape());
    kernels::log_softmax_forward<T>(tape.execution(), input.data(), output.data(), rows, s,
                                    static_cast<Accum<T>>(options.mult * input.scale()), alpha);
    return tape.record({.name = op,
                        .site = tape.next_site(op),
                        .alpha = factors.alpha,
                        .betas = {factors.beta_x},
                        .joined_by = factors.joined_by,
                        .reads = reads_outputs,
                        .propagates = true},
                       {x}, std::move(output), [=](BackwardContext<T>& g) {
                           const Scaled dx_scaled = g.scaled_beta(0);
                           Tensor<T> dx = g.take_output_gradient();
                           kernels::log_softmax_backward<T>(g.execution(), g.output().data(), dx.data(), dx.data(),
                                                            rows, s, m, alpha, static_cast<Accum<T>>(dx_scaled.factor));
                           g.add(0, std::move(dx), dx_scaled.scale);
                       });
}

}  // namespace unitscale::ops
