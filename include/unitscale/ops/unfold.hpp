// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/op.hpp>
#include <unitscale/record/windows.hpp>

#include <cmath>
#include <cstddef>

namespace unitscale::ops {

/// Ideal factors of windows as rows under `unit`: see `unfold`.
[[nodiscard]] inline Factors<1> unfold_unit_factors(const kernels::Windows& windows) noexcept {
    return {.alpha = 1.0, .betas = {1.0 / std::sqrt(windows_per_pixel(windows))}};
}

/// The windows of images as rows of a matrix, for products with them.
///   y[b, (i,j), (c,u,v)] = alpha x[b, c, i stride - padding + u dilation, j stride - padding + v dilation]
///   dx = beta_x times the sum of dy over the windows that hold the pixel
///   x [B,C,H,W]   y [B,H' W',C kh kw]   H' = (H + 2 padding - (kh-1) dilation - 1) / stride + 1, W' likewise
/// Elements of padding are 0.
/// Factors under `unit`: the op moves values, hence alpha = 1. A pixel lies in n = kh kw / stride^2 windows. Its
/// gradient sums n numbers of unit variance, hence beta_x = n^-1/2. They share one value by the constraint.
/// Scale under `propagate`: s_x; gradients: dy's / beta_x, rounded.
/// Errors: x of another rank; a kernel, stride or dilation of 0; padded images smaller than the kernel's reach.
/// Test: tests/ops/unfold_test.cpp
template <class T>
[[nodiscard]] Variable<T> unfold(Variable<T> x, const WindowPair& kernel, const WindowOptions& options = {}) {
    auto op = begin_op("unfold", x);
    const Tensor<T>& input = op.input(0);
    const kernels::Windows windows = windows_of("unfold", input.shape(), kernel, options);
    op.set_factors(unfold_unit_factors(windows), options.constraint);
    const Scaled scaled = op.scaled_alpha(input.scale());
    Tensor<T> output = op.make(Shape{input.shape()[0], static_cast<std::size_t>(windows.positions()),
                                     static_cast<std::size_t>(windows.channels * windows.taps())});
    kernels::unfold<T>(op.execution(), windows, input.data(), output.data(), static_cast<Accum<T>>(scaled.factor));
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [windows](BackwardContext<T>& g) {
                         const Scaled part = g.scaled_beta(0);
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::fold<T>(g.execution(), windows, g.output_gradient().data(), dx.data(),
                                          static_cast<Accum<T>>(part.factor));
                         g.add(0, std::move(dx), part.scale);
                     });
}

}  // namespace unitscale::ops
