// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/layout.hpp>
#include <unitscale/record/op.hpp>

#include <cstddef>

namespace unitscale::ops {

/// A permutation of the axes: axis k of y is axis axes[k] of x; dx = dy permuted back. alpha = beta = 1.
/// Scale under `propagate`: s_x; gradients keep dy's.
/// Error: `axes` is not a permutation of x's axes. Test: tests/ops/transpose_test.cpp
template <class T>
[[nodiscard]] Variable<T> transpose(Variable<T> x, const Shape& axes) {
    auto op = begin_op("transpose", x);
    const Tensor<T>& input = op.input(0);
    Shape seen(input.rank(), 0);
    bool permutes = axes.size() == input.rank();
    for (std::size_t k = 0; permutes && k < axes.size(); ++k) permutes = axes[k] < input.rank() && seen[axes[k]]++ == 0;
    check(permutes, "transpose: axes ", to_string(axes), " are not a permutation of the axes of x ",
          shape_text(input.shape()));
    Shape shape(axes.size());
    for (std::size_t k = 0; k < axes.size(); ++k) shape[k] = input.shape()[axes[k]];
    Tensor<T> output = op.make(shape);
    kernels::transpose<T>(op.execution(), input.data(), input.shape(), axes, output.data());
    return op.record(std::move(output), input.scale(), {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [axes](BackwardContext<T>& g) {
                         const Tensor<T>& dy = g.output_gradient();
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::transpose<T>(g.execution(), dy.data(), dy.shape(), kernels::inverse_permutation(axes),
                                               dx.data());
                         g.add(0, std::move(dx), dy.scale());
                     });
}

}  // namespace unitscale::ops
