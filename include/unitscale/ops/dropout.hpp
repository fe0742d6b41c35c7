// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/dropout.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/operands.hpp>

#include <cmath>
#include <cstddef>

namespace unitscale::ops {

struct DropoutOptions {
    double p = 0.1;  ///< probability that an element becomes 0
};

/// Unit-scaled inverted dropout.
///   y = alpha x keep / (1 - p)      dx = beta dy keep / (1 - p)      keep is 0 with probability p, else 1      x, y [any shape]
/// In steps that do not train, keep / (1 - p) is 1.
/// Factors under `unit`: x keep / (1 - p) has variance 1 / (1 - p), hence alpha = beta = (1 - p)^1/2. They stay when not
/// training: they are part of the model.
/// Scale under `propagate`: s (1 - p)^-1/2, the root rounded; gradients likewise from dy's.
/// The mask is a function of the state's seed, the site, the step and the micro-batch. Errors: p outside [0, 1).
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/dropout_test.cpp
template <class T>
[[nodiscard]] Variable<T> dropout(Variable<T> x, const DropoutOptions& options = {}) {
    Tape<T>& tape = x.tape("dropout");
    const Tensor<T>& input = x.scaled();
    const double p = options.p;
    check(p >= 0.0 && p < 1.0, "dropout: p is ", p, "; expected a number in [0,1)");
    const double factor = tape.uses_factors() ? std::sqrt(1.0 - p) : 1.0;
    const bool training = tape.step_options().training;
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    const Site site = tape.next_site("dropout");
    const RandomKey key = tape.random_key(site);
    const Scaled scaled = tape.scaled_alpha(site, factor, input.scale());
    const auto alpha = static_cast<Accum<T>>(scaled.factor);
    Tensor<T> output = tape.make(input.shape());
    if (training) kernels::dropout<T>(tape.execution(), input.data(), output.data(), count, p, key, alpha);
    else kernels::scale<T>(tape.execution(), input.data(), output.data(), count, alpha);
    output.set_scale(scaled.scale);
    output.set_any_scale(tape.propagates() && input.any_scale());
    return tape.record({.name = "dropout",
                        .site = site,
                        .alpha = factor,
                        .betas = {factor},
                        .reads = reads_nothing,
                        .propagates = true},
                       {x}, std::move(output), [=](BackwardContext<T>& g) {
                           const Scaled dx_scaled = g.scaled_beta(0);
                           Tensor<T> dx = g.take_output_gradient();
                           const auto beta = static_cast<Accum<T>>(dx_scaled.factor);
                           if (training) kernels::dropout<T>(g.execution(), dx.data(), dx.data(), count, p, key, beta);
                           else kernels::scale<T>(g.execution(), dx.data(), dx.data(), count, beta);
                           g.add(0, std::move(dx), dx_scaled.scale);
                       });
}

}  // namespace unitscale::ops
