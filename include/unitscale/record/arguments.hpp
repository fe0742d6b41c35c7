// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <cstddef>

// Checks and shapes of the arguments of ops.   Test: tests/record/arguments_test.cpp
namespace unitscale::ops {

/// Error unless an option of an op is a finite number above 0.
inline void check_positive(const char* op, const char* option, double value) {
    check(std::isfinite(value) && value > 0.0, op, ": ", option, " is ", value, "; expected a positive number");
}

/// Rows of a tensor seen as a matrix of its last dimension: the product of all other extents; 1 for rank 1.
[[nodiscard]] inline std::size_t row_count(const Shape& shape) noexcept {
    std::size_t rows = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    return rows;
}

/// An axis as a number from the front; negative axes count from the end. Error: `argument` has no such axis.
[[nodiscard]] inline std::size_t front_axis(const char* op, const char* argument, const Shape& shape,
                                            std::ptrdiff_t axis) {
    const auto rank = static_cast<std::ptrdiff_t>(shape.size());
    check(axis >= -rank && axis < rank, op, ": axis ", axis, " is outside ", argument, " ", shape_text(shape));
    return static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
}

/// Extent of the last dimension. Error: a tensor of rank 0, named `argument`.
[[nodiscard]] inline std::size_t last_extent(const char* op, const char* argument, const Shape& shape) {
    check(!shape.empty(), op, ": ", argument, " has rank 0; expected at least one dimension");
    return shape[shape.size() - 1];
}

/// The shape with another last extent.
[[nodiscard]] inline Shape with_last_extent(Shape shape, std::size_t extent) {
    shape[shape.size() - 1] = extent;
    return shape;
}

}  // namespace unitscale::ops
