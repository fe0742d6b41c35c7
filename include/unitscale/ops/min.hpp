// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/max.hpp>

namespace unitscale::ops {

/// The smallest element along axes, or of all. Element by element of two inputs: `minimum`; its place: `argmin`.
///   y = alpha min over the axes of x     dx = beta_x dy at the first smallest element in row-major order, else 0
///   x [any shape], y [x without the axes; [1] if none is left]
/// A NaN counts as the smallest.
/// No rule under `unit`, as for `max`: state the factors with `.unit`.
/// Scale under `propagate`: s_x; gradients keep dy's. Stated factors change both, inverted and rounded.
/// Errors: an axis that x has not, or named twice; nothing to compare; scaling `unit` without `.unit`.
/// Test: tests/ops/min_test.cpp
template <class T>
[[nodiscard]] Variable<T> min(Variable<T> x, const UnruledReductionOptions& options = {}) {
    auto op = begin_op("min", x);
    return record_along_axes(op, kernels::Extreme::smallest, options);
}

}  // namespace unitscale::ops
