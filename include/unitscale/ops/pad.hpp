// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/layout.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/same_scale.hpp>
#include <unitscale/tensor/cast.hpp>

#include <cmath>
#include <cstddef>

namespace unitscale::ops {

struct PadOptions {
    double value = 0.0;  ///< c, the number around x; -infinity before a maximum
};

/// Zeros, or another value c, around a tensor: before[a] places before it and after[a] behind it on each axis a.
///   y = x inside, c outside    dx = dy inside    x [s_0,...]   y [before[0] + s_0 + after[0],...]
/// Under `unit` as under `none` alpha = beta = 1: values are moved. Zeros lower the standard deviation of the whole
/// tensor, but not the standard deviation inside.
/// Scale under `propagate`: s_x if c is 0, infinite or NaN, which go with any scale; else 1. Gradients keep dy's.
/// Errors: not one number before and after per axis.
/// Test: tests/ops/pad_test.cpp
template <class T>
[[nodiscard]] Variable<T> pad(Variable<T> x, const Shape& before, const Shape& after, const PadOptions& options = {}) {
    auto op = begin_op("pad", x);
    const Tensor<T>& input = op.input(0);
    check(before.size() == input.rank() && after.size() == input.rank(), "pad: before ", to_string(before),
          " and after ", to_string(after), " for x ", shape_text(input.shape()), "; expected one of each per axis");
    Shape shape(input.rank()), stops(input.rank());
    for (std::size_t axis = 0; axis < input.rank(); ++axis) {
        stops[axis] = before[axis] + input.shape()[axis];
        shape[axis] = stops[axis] + after[axis];
    }
    const bool any_scale = options.value == 0.0 || !std::isfinite(options.value);  // of c
    const double scale = any_scale ? input.scale() : 1.0;
    const SameScale<T> box(op.tape(), &input, scale);
    Tensor<T> output = op.make(shape);
    kernels::slice_backward<T>(op.execution(), box.data(), output.data(), shape, before, stops,
                               element_cast<T>(options.value));  // x in the box
    return op.record(std::move(output), scale, {.reads = reads_nothing, .any_scale = any_scale && input.any_scale()},
                     [=](BackwardContext<T>& g) {
                         Tensor<T> dx = g.make(g.input_shape(0));
                         const Tensor<T>& dy = g.output_gradient();
                         kernels::slice<T>(g.execution(), dy.data(), shape, before, stops, dx.data());
                         g.add(0, std::move(dx), dy.scale());
                     });
}

}  // namespace unitscale::ops
