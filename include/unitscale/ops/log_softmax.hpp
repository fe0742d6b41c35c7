// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/softmax.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct LogSoftmaxOptions {
    double mult = 1.0;                       ///< m, the logit multiplier
    std::optional<Factors<1>> unit{};        ///< its ideal factors under `unit`, required there
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Logarithm of the softmax over the last axis.
///   y = alpha (m x - ln sum_j exp(m x_j))    dx = beta m (dy - p sum of dy), p = softmax(m x)    x, y [...,s]
/// No rule under `unit`: the value is a log-probability near -ln s, and its size is its meaning. The gradient's scale
/// depends on the consumer (one label per row, or all of them). State the factors with `.unit`.
/// Scale under `propagate`: 1, m s_x being the multiplier; dx: dy's times m, rounded.
/// The loss on log-probabilities has factors of its own: softmax_cross_entropy.
/// Errors: x of rank 0; mult not positive; scaling `unit` without `.unit`; factors not positive.
/// Test: tests/ops/log_softmax_test.cpp
template <class T>
[[nodiscard]] Variable<T> log_softmax(Variable<T> x, const LogSoftmaxOptions& options = {}) {
    auto op = begin_op("log_softmax", x);
    const Tensor<T>& input = op.input(0);
    const auto s = static_cast<std::ptrdiff_t>(last_extent("log_softmax", "x", input.shape()));
    check_positive("log_softmax", "mult", options.mult);
    const bool propagates = op.tape().propagates();
    op.set_factors(propagates ? Factors<1>{.betas = {1.0 / options.mult}} : op.stated(options.unit),
                   options.constraint);
    const auto rows = static_cast<std::ptrdiff_t>(row_count(input.shape()));
    const auto m = static_cast<Accum<T>>(options.mult), alpha = static_cast<Accum<T>>(op.factors().alpha);
    Tensor<T> output = op.make(input.shape());
    kernels::log_softmax_forward<T>(op.execution(), input.data(), output.data(), rows, s,
                                    static_cast<Accum<T>>(options.mult * input.scale()), alpha);
    return op.record(std::move(output), 1.0, {.reads = reads_outputs}, [=](BackwardContext<T>& g) {
        const Scaled dx_scaled = g.scaled_beta(0);
        Tensor<T> dx = g.take_output_gradient();
        kernels::log_softmax_backward<T>(g.execution(), g.output().data(), dx.data(), dx.data(), rows, s, m, alpha,
                                         static_cast<Accum<T>>(dx_scaled.factor));
        g.add(0, std::move(dx), dx_scaled.scale);
    });
}

}  // namespace unitscale::ops
