// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/maximum.hpp>

namespace unitscale::ops {

/// The smaller of two elements, with broadcasting. For the smallest element along axes: `min`; for a bound: `clamp`.
///   y = alpha min(x, z)          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy where x <= z          dz = beta_z the sum elsewhere
/// Factors under `unit`: the factors of `maximum`, as min(x, z) = -max(-x, -z).
/// Scale under `propagate`: as for `maximum`.
/// A NaN counts as the smallest. Where both are NaN, x counts.
/// Errors: shapes that do not broadcast. Test: tests/ops/minimum_test.cpp
template <class T>
[[nodiscard]] Variable<T> minimum(Variable<T> x, Variable<T> z, const MaximumOptions& options = {}) {
    auto op = begin_op("minimum", x, z);
    return record_extreme(op, -1.0, options);
}

}  // namespace unitscale::ops
