// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <utility>

namespace unitscale::ops {

/// Sign.
///   y = -1, 0 or 1     dx = 0     x, y [any shape]
/// Factors under `unit`: alpha = beta_x = 1, as y has a root mean square of 1 wherever x is not 0.
/// Scale under `propagate`: 1. The gradient consists of zeros by construction, so it has any scale.
/// NaN stays NaN. Test: tests/ops/sign_test.cpp
template <class T>
[[nodiscard]] Variable<T> sign(Variable<T> x) {
    auto op = begin_op("sign", x);
    const Tensor<T>& input = op.input(0);
    Tensor<T> output = op.make(input.shape());
    kernels::pointwise_forward<T>(op.execution(), input.data(), output.data(),
                                  static_cast<std::ptrdiff_t>(input.size()), kernels::SignFunction{}, Accum<T>(1));
    return op.record(std::move(output), 1.0, {.reads = reads_nothing}, [](BackwardContext<T>& g) {
        Tensor<T> dx = g.make(g.input_shape(0));
        fill_zero(dx);
        g.add(0, std::move(dx));
    });
}

}  // namespace unitscale::ops
