// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/add.hpp>

namespace unitscale::ops {

/// Unit-scaled difference, with broadcasting.
///   y = alpha (x - z)          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy          dz = -beta_z sum over copies of dy
/// Factors under `unit`: the factors of `add`, as the sign changes no variance.
/// Scale under `propagate`: as for `add`.
/// Errors: shapes that do not broadcast.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/sub_test.cpp
template <class T>
[[nodiscard]] Variable<T> sub(Variable<T> x, Variable<T> z, const AddOptions& options = {}) {
    auto op = begin_op("sub", x, z);
    return record_sum(op, -1.0, options);
}

}  // namespace unitscale::ops
