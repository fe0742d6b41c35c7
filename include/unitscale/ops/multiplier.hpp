// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/op.hpp>

#include <cmath>
#include <cstddef>
#include <utility>

namespace unitscale::ops {

/// A number that belongs to the model: µP's multipliers of embedding, branches and readout.
///   y = c x     dx = c dy     x, y [any shape]
/// Factors under `unit`: none, since c is part of the model. (To leave the gradient alone, see `scale_forward`.)
/// c = 1 records nothing and gives x.
/// Scale under `propagate`: s_x |c|, rounded; gradients: dy's times |c|, rounded.
/// Error: a number that is 0 or not finite.
/// Reference: Yang et al. 2022, arXiv:2203.03466, table 8. Test: tests/ops/multiplier_test.cpp
template <class T>
[[nodiscard]] Variable<T> multiplier(Variable<T> x, double c) {
    static_cast<void>(x.tape("multiplier"));
    check(std::isfinite(c) && c != 0.0, "multiplier: c is ", c, "; expected a finite number other than 0");
    if (c == 1.0) return x;
    auto op = begin_op("multiplier", x);
    const double ideal = op.tape().propagates() ? 1.0 / std::abs(c) : 1.0;
    op.set_factors({.alpha = ideal, .betas = {ideal}});
    const Tensor<T>& input = op.input(0);
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    const Scaled scaled = op.scaled_alpha(input.scale());
    Tensor<T> output = op.make(input.shape());
    kernels::scale<T>(op.execution(), input.data(), output.data(), count, static_cast<Accum<T>>(scaled.factor * c));
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [=](BackwardContext<T>& g) {
                         if (g.pass_item(0, g.beta(0) * c)) return;
                         const Scaled dx_scaled = g.scaled_beta(0);
                         Tensor<T> dx = g.take_output_gradient();
                         kernels::scale<T>(g.execution(), dx.data(), dx.data(), count,
                                           static_cast<Accum<T>>(dx_scaled.factor * c));
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

}  // namespace unitscale::ops
