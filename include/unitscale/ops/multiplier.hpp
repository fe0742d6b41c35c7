// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/operands.hpp>

#include <cmath>
#include <cstddef>
#include <utility>

namespace unitscale::ops {

/// A number that belongs to the model: µP's multipliers of embedding, branches and readout.
///   y = c x     dx = c dy     x, y [any shape]
/// Factors under `unit`: none: the number is meant. (To leave the gradient alone, see `scale_forward`.)
/// c = 1 records nothing and gives x.
/// Scale under `propagate`: s_x |c|, rounded; gradients: dy's times |c|, rounded.
/// Error: a number that is 0 or not finite.
/// Reference: Yang et al. 2022, arXiv:2203.03466, table 8. Test: tests/ops/multiplier_test.cpp
template <class T>
[[nodiscard]] Variable<T> multiplier(Variable<T> x, double c) {
    Tape<T>& tape = x.tape("multiplier");
    check(std::isfinite(c) && c != 0.0, "multiplier: c is ", c, "; expected a finite number other than 0");
    if (c == 1.0) return x;
    const Tensor<T>& input = x.scaled();
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    const Site site = tape.next_site("multiplier");
    const double ideal = tape.propagates() ? 1.0 / std::abs(c) : 1.0;
    const Scaled scaled = tape.scaled_alpha(site, ideal, input.scale());
    Tensor<T> output = tape.make(input.shape());
    kernels::scale<T>(tape.execution(), input.data(), output.data(), count, static_cast<Accum<T>>(scaled.factor * c));
    output.set_scale(scaled.scale);
    output.set_any_scale(tape.propagates() && input.any_scale());
    return tape.record({.name = "multiplier",
                        .site = site,
                        .alpha = ideal,
                        .betas = {ideal},
                        .reads = reads_nothing,
                        .propagates = true},
                       {x}, std::move(output), [=](BackwardContext<T>& g) {
                           const Scaled dx_scaled = g.scaled_beta(0);
                           Tensor<T> dx = g.take_output_gradient();
                           kernels::scale<T>(g.execution(), dx.data(), dx.data(), count,
                                             static_cast<Accum<T>>(dx_scaled.factor * c));
                           g.add(0, std::move(dx), dx_scaled.scale);
                       });
}

}  // namespace unitscale::ops
