// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/op.hpp>

#include <algorithm>
#include <cstddef>

namespace unitscale::ops {

/// The elements of x in row-major order under another shape: y of `shape`, dx = dy reshaped back. alpha = beta = 1.
/// Scale under `propagate`: s_x; gradients keep dy's.
/// Error: the number of elements differs. Test: tests/ops/reshape_test.cpp
template <class T>
[[nodiscard]] Variable<T> reshape(Variable<T> x, const Shape& shape) {
    auto op = begin_op("reshape", x);
    const Tensor<T>& input = op.input(0);
    check(element_count(shape) == input.size(), "reshape: x ", shape_text(input.shape()), " has ", input.size(),
          " elements and cannot become ", shape_text(shape));
    Tensor<T> output = op.make(shape);
    std::copy_n(input.data(), input.size(), output.data());
    return op.record(std::move(output), input.scale(), {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [](BackwardContext<T>& g) {
                         Tensor<T> dx = g.take_output_gradient();
                         dx.reshape(g.input_shape(0));
                         g.add(0, std::move(dx));
                     });
}

}  // namespace unitscale::ops
