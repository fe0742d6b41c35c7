// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/layout.hpp>
#include <unitscale/record/op.hpp>

#include <cstddef>

namespace unitscale::ops {

/// The box starts[a] <= index < stops[a] of a tensor: y = x[box]; dx = dy inside the box, 0 outside. alpha = beta = 1.
/// Scale under `propagate`: s_x; gradients keep dy's.
/// Errors: not one start and stop per axis; a start after its stop; a stop past the end. Test: tests/ops/slice_test.cpp
template <class T>
[[nodiscard]] Variable<T> slice(Variable<T> x, const Shape& starts, const Shape& stops) {
    auto op = begin_op("slice", x);
    const Tensor<T>& input = op.input(0);
    check(starts.size() == input.rank() && stops.size() == input.rank(), "slice: starts ", to_string(starts),
          " and stops ", to_string(stops), " for x ", shape_text(input.shape()), "; expected one of each per axis");
    Shape shape(input.rank());
    for (std::size_t axis = 0; axis < input.rank(); ++axis) {
        check(starts[axis] <= stops[axis] && stops[axis] <= input.shape()[axis], "slice: axis ", axis, " from ",
              starts[axis], " to ", stops[axis], " is outside x ", shape_text(input.shape()));
        shape[axis] = stops[axis] - starts[axis];
    }
    Tensor<T> output = op.make(shape);
    kernels::slice<T>(op.execution(), input.data(), input.shape(), starts, stops, output.data());
    return op.record(std::move(output), input.scale(), {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [=](BackwardContext<T>& g) {
                         Tensor<T> dx = g.make(g.input_shape(0));
                         const Tensor<T>& dy = g.output_gradient();
                         kernels::slice_backward<T>(g.execution(), dy.data(), dx.data(), dx.shape(), starts, stops);
                         g.add(0, std::move(dx), dy.scale());
                     });
}

}  // namespace unitscale::ops
