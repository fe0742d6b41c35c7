// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/dropout.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/op.hpp>

#include <cmath>
#include <cstddef>

namespace unitscale::ops {

struct DropoutOptions {
    double p = 0.1;  ///< probability that an element becomes 0
};

/// Unit-scaled inverted dropout.
///   y = alpha x keep / (1 - p)      dx = beta dy keep / (1 - p)      x, y [any shape]
///   keep: 0 with probability p, else 1
/// In steps that do not train, keep / (1 - p) is 1.
/// Factors under `unit`: x keep / (1 - p) has variance 1 / (1 - p), hence alpha = beta = (1 - p)^1/2. They stay when
/// not training: they are part of the model.
/// Scale under `propagate`: s (1 - p)^-1/2, the root rounded; gradients likewise from dy's.
/// The mask is a function of the state's seed, the site, the step and the micro-batch. Errors: p outside [0, 1).
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/dropout_test.cpp
template <class T>
[[nodiscard]] Variable<T> dropout(Variable<T> x, const DropoutOptions& options = {}) {
    auto op = begin_op("dropout", x);
    const double p = options.p;
    check(p >= 0.0 && p < 1.0, "dropout: p is ", p, "; expected a number in [0,1)");
    const double factor = std::sqrt(1.0 - p);
    op.set_factors({.alpha = factor, .betas = {factor}});
    const Tensor<T>& input = op.input(0);
    const bool training = op.tape().step_options().training;
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    const RandomKey key = op.random_key();
    const Scaled scaled = op.scaled_alpha(input.scale());
    const auto alpha = static_cast<Accum<T>>(scaled.factor);
    Tensor<T> output = op.make(input.shape());
    if (training) kernels::dropout<T>(op.execution(), input.data(), output.data(), count, p, key, alpha);
    else kernels::scale<T>(op.execution(), input.data(), output.data(), count, alpha);
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [=](BackwardContext<T>& g) {
                         const Scaled dx_scaled = g.scaled_beta(0);
                         Tensor<T> dx = g.take_output_gradient();
                         const auto beta = static_cast<Accum<T>>(dx_scaled.factor);
                         if (training) kernels::dropout<T>(g.execution(), dx.data(), dx.data(), count, p, key, beta);
                         else kernels::scale<T>(g.execution(), dx.data(), dx.data(), count, beta);
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

}  // namespace unitscale::ops
