// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/record/operands.hpp>

#include <algorithm>
#include <cstddef>

namespace unitscale::ops {

/// The same elements in row-major order under another shape: y of `shape`, dx = dy reshaped back. alpha = beta = 1.
/// Scale under `propagate`: that of x; gradients keep dy's.
/// Error: the number of elements differs. Test: tests/ops/reshape_test.cpp
template <class T>
[[nodiscard]] Variable<T> reshape(Variable<T> x, const Shape& shape) {
    Tape<T>& tape = x.tape("reshape");
    const Tensor<T>& input = x.scaled();
    check(element_count(shape) == input.size(), "reshape: x ", shape_text(input.shape()), " has ", input.size(),
          " elements and cannot become ", shape_text(shape));
    Tensor<T> output = tape.make(shape);
    std::copy_n(input.data(), input.size(), output.data());
    output.set_scale(input.scale());
    output.set_any_scale(tape.propagates() && input.any_scale());
    return tape.record({.name = "reshape",
                        .site = tape.next_site("reshape"),
                        .alpha = 1.0,
                        .betas = {1.0},
                        .reads = reads_nothing,
                        .propagates = true},
                       {x}, std::move(output), [](BackwardContext<T>& g) {
                           Tensor<T> dx = g.take_output_gradient();
                           dx.reshape(g.input_shape(0));
                           g.add(0, std::move(dx));
                       });
}

}  // namespace unitscale::ops
