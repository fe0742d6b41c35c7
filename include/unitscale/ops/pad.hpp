// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/layout.hpp>
#include <unitscale/record/operands.hpp>
#include <unitscale/record/same_scale.hpp>
#include <unitscale/tensor/cast.hpp>

#include <cmath>
#include <cstddef>

namespace unitscale::ops {

struct PadOptions {
    double value = 0.0;  ///< what is put around x: for a maximum that is to come, -infinity
};

/// Zeros, or another value c, around a tensor: before[a] places before it and after[a] behind it on each axis a.
///   y = x inside, c outside    dx = dy inside    x [s_0,...]   y [before[0] + s_0 + after[0],...]
/// Under `unit` as under `none` alpha = beta = 1: values are moved; zeros lower the standard deviation of the whole, but not that
/// of what the next op finds where there is something.
/// Scale under `propagate`: that of x where c is 0, infinite or NaN, which any scale goes with; else 1, of the plain numbers.
/// Gradients keep dy's.
/// Errors: not one number before and after per axis.
/// Test: tests/ops/pad_test.cpp
template <class T>
[[nodiscard]] Variable<T> pad(Variable<T> x, const Shape& before, const Shape& after, const PadOptions& options = {}) {
    Tape<T>& tape = x.tape("pad");
    const Tensor<T>& input = x.scaled();
    check(before.size() == input.rank() && after.size() == input.rank(), "pad: before ", to_string(before),
          " and after ", to_string(after), " for x ", shape_text(input.shape()), "; expected one of each per axis");
    Shape shape(input.rank()), stops(input.rank());
    for (std::size_t axis = 0; axis < input.rank(); ++axis) {
        stops[axis] = before[axis] + input.shape()[axis];
        shape[axis] = stops[axis] + after[axis];
    }
    const bool any_scale = options.value == 0.0 || !std::isfinite(options.value);  // the constant's
    const SameScale<T> box(tape, x, any_scale ? input.scale() : 1.0);
    Tensor<T> output = tape.make(shape);
    kernels::slice_backward<T>(tape.execution(), box.data(), output.data(), shape, before, stops,
                               element_cast<T>(options.value));  // x in the box
    output.set_scale(any_scale ? input.scale() : 1.0);
    output.set_any_scale(tape.propagates() && any_scale && input.any_scale());
    return tape.record({.name = "pad",
                        .site = tape.next_site("pad"),
                        .alpha = 1.0,
                        .betas = {1.0},
                        .reads = reads_nothing,
                        .propagates = true},
                       {x}, std::move(output), [=](BackwardContext<T>& g) {
                           Tensor<T> dx = g.make(g.input_shape(0));
                           const Tensor<T>& dy = g.output_gradient();
                           kernels::slice<T>(g.execution(), dy.data(), shape, before, stops, dx.data());
                           g.add(0, std::move(dx), dy.scale());
                       });
}

}  // namespace unitscale::ops
