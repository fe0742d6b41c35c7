// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/layout.hpp>
#include <unitscale/record/operands.hpp>

#include <cstddef>

namespace unitscale::ops {

/// The box starts[a] <= index < stops[a] of a tensor: y = x[box]; dx = dy inside the box, 0 outside. alpha = beta = 1.
/// Scale under `propagate`: that of x; gradients keep dy's.
/// Errors: not one start and stop per axis; a start after its stop; a stop past the end. Test: tests/ops/slice_test.cpp
template <class T>
[[nodiscard]] Variable<T> slice(Variable<T> x, const Shape& starts, const Shape& stops) {
    Tape<T>& tape = x.tape("slice");
    const Tensor<T>& input = x.scaled();
    check(starts.size() == input.rank() && stops.size() == input.rank(), "slice: starts ", to_string(starts),
          " and stops ", to_string(stops), " for x ", shape_text(input.shape()), "; expected one of each per axis");
    Shape shape(input.rank());
    for (std::size_t axis = 0; axis < input.rank(); ++axis) {
        check(starts[axis] <= stops[axis] && stops[axis] <= input.shape()[axis], "slice: axis ", axis, " from ",
              starts[axis], " to ", stops[axis], " is outside x ", shape_text(input.shape()));
        shape[axis] = stops[axis] - starts[axis];
    }
    Tensor<T> output = tape.make(shape);
    kernels::slice<T>(tape.execution(), input.data(), input.shape(), starts, stops, output.data());
    output.set_scale(input.scale());
    output.set_any_scale(tape.propagates() && input.any_scale());
    return tape.record({.name = "slice",
                        .site = tape.next_site("slice"),
                        .alpha = 1.0,
                        .betas = {1.0},
                        .reads = reads_nothing,
                        .propagates = true},
                       {x}, std::move(output), [=](BackwardContext<T>& g) {
                           Tensor<T> dx = g.make(g.input_shape(0));
                           const Tensor<T>& dy = g.output_gradient();
                           kernels::slice_backward<T>(g.execution(), dy.data(), dx.data(), dx.shape(), starts, stops);
                           g.add(0, std::move(dx), dy.scale());
                       });
}

}  // namespace unitscale::ops
