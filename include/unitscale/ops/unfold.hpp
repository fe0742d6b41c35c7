// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/op.hpp>
#include <unitscale/record/windows.hpp>

#include <cstddef>

namespace unitscale::ops {

/// The windows of images as rows of a matrix, for products with them.
///   y[b, (i,j), (c,u,v)] = x[b, c, i stride - padding + u dilation, j stride - padding + v dilation], 0 for padding
///   dx = the sum of dy over the windows that hold the pixel
///   x [B,C,H,W]   y [B,H' W',C kh kw]   H' = (H + 2 padding - (kh-1) dilation - 1) / stride + 1, W' likewise
/// alpha = beta = 1: the op moves values. The gradient of a pixel is a sum over kh kw / stride^2 windows, which the
/// factors of the product with the rows make up for: see `conv2d`.
/// Scale under `propagate`: s_x; gradients keep dy's.
/// Errors: x of another rank; a kernel, stride or dilation of 0; padded images smaller than the kernel's reach.
/// Test: tests/ops/unfold_test.cpp
template <class T>
[[nodiscard]] Variable<T> unfold(Variable<T> x, const WindowOptions::Pair& kernel, const WindowOptions& options = {}) {
    auto op = begin_op("unfold", x);
    const Tensor<T>& input = op.input(0);
    const kernels::Windows windows = windows_of("unfold", input.shape(), kernel, options);
    Tensor<T> output = op.make(Shape{input.shape()[0], static_cast<std::size_t>(windows.positions()),
                                     static_cast<std::size_t>(windows.channels * windows.taps())});
    kernels::unfold<T>(op.execution(), windows, input.data(), output.data());
    return op.record(std::move(output), input.scale(), {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [windows](BackwardContext<T>& g) {
                         const Tensor<T>& dy = g.output_gradient();
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::fold<T>(g.execution(), windows, dy.data(), dx.data(), Accum<T>(1));
                         g.add(0, std::move(dx), dy.scale());
                     });
}

}  // namespace unitscale::ops
