// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/tensor/view.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace unitscale {

/// The shape that two shapes broadcast to: aligned at the last axis, an axis of extent 1 (or missing) is repeated.
/// Error, in the name of `op`: two extents differ and neither is 1. Test: tests/tensor/broadcast_test.cpp
[[nodiscard]] inline Shape broadcast_shape(std::string_view op, const Shape& a, const Shape& b) {
    Shape result(std::max(a.size(), b.size()), 1);
    for (std::size_t i = 0; i < result.size(); ++i) {
        const std::size_t from_a = i < a.size() ? a[a.size() - 1 - i] : 1;
        const std::size_t from_b = i < b.size() ? b[b.size() - 1 - i] : 1;
        check(from_a == from_b || from_a == 1 || from_b == 1, op, ": shapes ", to_string(a), " and ", to_string(b),
              " do not broadcast: ", from_a, " != ", from_b);
        result[result.size() - 1 - i] = from_a == 1 ? from_b : from_a;
    }
    return result;
}

/// A copy of the tensor with its elements repeated to the given shape. The scale is kept.
/// Error: an extent is neither 1 nor the shape's.
template <class T>
[[nodiscard]] Tensor<T> broadcast_to(const Tensor<T>& tensor, const Shape& shape) {
    return copy_of(view(tensor).broadcast_to(shape));
}

}  // namespace unitscale
