// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

namespace unitscale::ops {

/// Absolute value.
///   y = |x|     dx = dy sign(x), 0 where x = 0     x, y [any shape]
/// Factors under `unit`, our choice, as the papers have none; x unit normal: |x| has the mean square of x, 1, and the
/// gradient has the magnitude of dy. So alpha = beta_x = 1 by the root mean square, and no constraint joins them. The
/// standard deviation of |x| is (1 - 2/pi)^1/2 = 0.60, about the mean (2/pi)^1/2.
/// Scale under `propagate`: s_x; gradients keep dy's.
/// Test: tests/ops/abs_test.cpp
template <class T>
[[nodiscard]] Variable<T> abs(Variable<T> x) {
    auto op = begin_op("abs", x);
    return record_pointwise(op, UnaryScales{.value = op.input(0).scale()}, kernels::AbsFunction{});
}

}  // namespace unitscale::ops
