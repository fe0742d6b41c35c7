// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/round.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/operand_rounding.hpp>

#include <cstddef>

namespace unitscale::ops {

/// Rounds the value to a format and passes the gradient through.
///   y = Q(x)    dx = dy    x, y [any shape]
/// Under `unit` as under `none` alpha = beta = 1: rounding keeps the scale of numbers in the format's range. The
/// gradient is the identity's (straight-through), since the derivative of a step function is 0 or infinite.
/// Scale under `propagate`: data is rounded and the scale kept, of x and of dy.
/// Stochastic rounding draws from the site's own stream.
/// For products, prefer the recipe's formats: they round without a pass over memory.
/// Errors: a quantiser that makes no sense; NaN to a format without NaN.
/// Reference: Balanca et al. 2024 (Scalify, WANT@ICML). Test: tests/ops/cast_test.cpp
template <class T>
[[nodiscard]] Variable<T> cast_on_forward(Variable<T> x, const Quantiser& quantiser) {
    auto op = begin_op("cast_on_forward", x);
    const Tensor<T>& input = op.input(0);
    Tensor<T> output = op.make(input.shape());
    kernels::round_elements<T>(op.execution(), op.name(), quantiser, op.random_key(activation_part), input.data(),
                               output.data(), static_cast<std::ptrdiff_t>(input.size()));
    return op.record(std::move(output), input.scale(), {.reads = reads_nothing},
                     [](BackwardContext<T>& g) { g.add(0, g.take_output_gradient()); });
}

/// Passes the value through and rounds the gradient to a format.
///   y = x    dx = Q(dy)    x, y [any shape]
/// Under `unit` as under `none` alpha = beta = 1.
/// Scale under `propagate`: as `cast_on_forward`.
/// Otherwise as `cast_on_forward`; a quantiser that makes no sense is an error of the forward pass already.
template <class T>
[[nodiscard]] Variable<T> cast_on_backward(Variable<T> x, const Quantiser& quantiser) {
    auto op = begin_op("cast_on_backward", x);
    check_options(op.name(), quantiser.format, quantiser.options());
    return op.template record_repeats<1>(
        {.reads = reads_nothing}, [=, name = op.name(), key = op.random_key(gradient_part)](BackwardContext<T>& g) {
            Tensor<T> dx = g.take_output_gradient();
            kernels::round_elements<T>(g.execution(), name, quantiser, key, dx.data(), dx.data(),
                                       static_cast<std::ptrdiff_t>(dx.size()));
            g.add(0, std::move(dx));
        })[0];
}

}  // namespace unitscale::ops
