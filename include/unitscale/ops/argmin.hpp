// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/argmax.hpp>

#include <cstdint>

namespace unitscale::ops {

/// The place of the smallest element along an axis, the first of equal ones.
///   x [A,V,C] and axis 1: y [A,C], y[a,c] in [0,V)     without an axis: y [1], the place in row-major order
/// Integers have neither gradient nor scale. The result fits `gather`, `embedding` and labels.
/// Factors under `unit`: none. A positive scale does not change the order, so places do not depend on scaling.
/// A NaN counts as the smallest.
/// Errors: an axis that x has not; nothing to compare; more than 2^31 - 1 elements to compare.
/// Test: tests/ops/argmin_test.cpp
template <class T>
[[nodiscard]] Tensor<std::int32_t> argmin(Variable<T> x, const ArgmaxOptions& options = {}) {
    return places_along_axis("argmin", x, kernels::Extreme::smallest, options);
}

}  // namespace unitscale::ops
