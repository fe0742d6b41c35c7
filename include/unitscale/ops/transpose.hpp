// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/layout.hpp>
#include <unitscale/record/operands.hpp>

#include <cstddef>

namespace unitscale::ops {

/// A permutation of the axes: axis k of y is axis axes[k] of x; dx = dy permuted back. alpha = beta = 1.
/// Scale under `propagate`: that of x; gradients keep dy's.
/// Error: `axes` is not a permutation of x's axes. Test: tests/ops/transpose_test.cpp
template <class T>
[[nodiscard]] Variable<T> transpose(Variable<T> x, const Shape& axes) {
    Tape<T>& tape = x.tape("transpose");
    const Tensor<T>& input = x.scaled();
    Shape seen(input.rank(), 0);
    bool permutes = axes.size() == input.rank();
    for (std::size_t k = 0; permutes && k < axes.size(); ++k) permutes = axes[k] < input.rank() && seen[axes[k]]++ == 0;
    check(permutes, "transpose: axes ", to_string(axes), " are not a permutation of the axes of x ",
          shape_text(input.shape()));
    Shape shape(axes.size());
    for (std::size_t k = 0; k < axes.size(); ++k) shape[k] = input.shape()[axes[k]];
    Tensor<T> output = tape.make(shape);
    kernels::transpose<T>(tape.execution(), input.data(), input.shape(), axes, output.data());
    output.set_scale(input.scale());
    output.set_any_scale(tape.propagates() && input.any_scale());
    return tape.record({.name = "transpose",
                        .site = tape.next_site("transpose"),
                        .alpha = 1.0,
                        .betas = {1.0},
                        .reads = reads_nothing,
                        .propagates = true},
                       {x}, std::move(output), [axes](BackwardContext<T>& g) {
                           const Tensor<T>& dy = g.output_gradient();
                           Tensor<T> dx = g.make(g.input_shape(0));
                           kernels::transpose<T>(g.execution(), dy.data(), dy.shape(),
                                                 kernels::inverse_permutation(axes), dx.data());
                           g.add(0, std::move(dx), dy.scale());
                       });
}

}  // namespace unitscale::ops
