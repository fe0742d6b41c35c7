// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/record/operands.hpp>

#include <cstddef>

namespace unitscale::ops {

/// Rounds the value to a format and passes the gradient through.
///   y = Q(x)    dx = dy    x, y [any shape]
/// Under `unit` as under `none` alpha = beta = 1: rounding keeps the scale of what is in the format's range, and the gradient is that
/// of the identity (straight-through), since a step function has none.
/// Scale under `propagate`: data is rounded and the scale kept, of x and of dy.
/// Stochastic rounding draws from the site's own stream.
/// For products, prefer the recipe's formats: they round without a pass over memory.
/// Errors: a quantiser that makes no sense; NaN to a format without NaN.
/// Reference: Balanca et al. 2024 (Scalify, WANT@ICML). Test: tests/ops/cast_test.cpp
template <class T>
[[nodiscard]] Variable<T> cast_on_forward(Variable<T> x, const Quantiser& quantiser) {
    const char* const op = "cast_on_forward";
    Tape<T>& tape = x.tape(op);
    const Tensor<T>& input = x.scaled();
    const Site site = tape.next_site(op);
    Tensor<T> output = tape.make(input.shape());
    kernels::round_elements<T>(tape.execution(), op, quantiser, tape.random_key(site, activation_part), input.data(),
                               output.data(), static_cast<std::ptrdiff_t>(input.size()));
    output.set_scale(input.scale());
    return tape.record(
        {.name = op, .site = site, .alpha = 1.0, .betas = {1.0}, .reads = reads_nothing, .propagates = true}, {x},
        std::move(output), [](BackwardContext<T>& g) { g.add(0, g.take_output_gradient()); });
}

/// Passes the value through and rounds the gradient to a format.
///   y = x    dx = Q(dy)    x, y [any shape]
/// Under `unit` as under `none` alpha = beta = 1.
/// Scale under `propagate`: as `cast_on_forward`.
/// Otherwise as `cast_on_forward`; a quantiser that makes no sense is an error of the forward pass already.
template <class T>
[[nodiscard]] Variable<T> cast_on_backward(Variable<T> x, const Quantiser& quantiser) {
    const char* const op = "cast_on_backward";
    Tape<T>& tape = x.tape(op);
    check_options(op, quantiser.format, quantiser.options());
    const Site site = tape.next_site(op);
    const RandomKey key = tape.random_key(site, gradient_part);
    return tape.template record_repeats<1>(
        {.name = op, .site = site, .alpha = 1.0, .betas = {1.0}, .reads = reads_nothing, .propagates = true}, {x},
        [=](BackwardContext<T>& g) {
            Tensor<T> dx = g.take_output_gradient();
            kernels::round_elements<T>(g.execution(), op, quantiser, key, dx.data(), dx.data(),
                                       static_cast<std::ptrdiff_t>(dx.size()));
            g.add(0, std::move(dx));
        })[0];
}

}  // namespace unitscale::ops
