// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/tensor/backend.hpp>
#include <unitscale/tensor/strided_loop.hpp>

#include <algorithm>
#include <cstddef>

namespace unitscale::kernels {

/// Step in elements of axis `axis` of a row-major array. Test: tests/kernels/strides_test.cpp
[[nodiscard]] inline std::ptrdiff_t row_major_step(const Shape& shape, std::size_t axis) noexcept {
    std::size_t step = 1;
    for (std::size_t i = axis + 1; i < shape.size(); ++i) step *= shape[i];
    return static_cast<std::ptrdiff_t>(step);
}

/// The axes of a row-major array that a reduction keeps, and those that it folds into one element.
struct FoldedAxes {
    StridedLoop<1> kept{}, folded{};

    /// `kept_shape` has the rank of `shape`, and 1 where an axis is folded.
    FoldedAxes(const Shape& shape, const Shape& kept_shape) {
        for (std::size_t axis = 0; axis < shape.size(); ++axis)
            (kept_shape[axis] == shape[axis] ? kept : folded)
                .add_axis(static_cast<std::ptrdiff_t>(shape[axis]), {row_major_step(shape, axis)});
    }

    /// Calls body(first, count, step, place) for pieces of at most block_size kept elements, in parallel. `first` is
    /// the offset of the piece in the array, `step` the distance of its elements there, `place` its offset in the
    /// result.
    template <class Body>
    void for_pieces(const Execution& execution, Body body) const {
        const std::ptrdiff_t width = kept.inner_extent(), step = kept.inner_steps()[0];
        const std::ptrdiff_t pieces = (width + block_size - 1) / block_size;
        parallel_for(execution.threads, kept.rows() * pieces, row_grain(std::min(width, block_size) * length()),
                     [=, this](std::ptrdiff_t begin, std::ptrdiff_t end) {
                         for (std::ptrdiff_t piece = begin; piece < end; ++piece) {
                             const std::ptrdiff_t row = piece / pieces, j = piece % pieces * block_size;
                             body(kept.row_offsets(row)[0] + j * step, std::min(block_size, width - j), step,
                                  row * width + j);
                         }
                     });
    }
    /// Calls use(offset) for every element of those that become one, in row-major order: its offset from the first.
    template <class Use>
    void for_offsets(Use use) const {
        const std::ptrdiff_t inner = folded.inner_extent(), step = folded.inner_steps()[0];
        for (std::ptrdiff_t row = 0; row < folded.rows(); ++row) {
            const std::ptrdiff_t start = folded.row_offsets(row)[0];
            for (std::ptrdiff_t i = 0; i < inner; ++i) use(start + i * step);
        }
    }
    /// Number of elements that become one.
    [[nodiscard]] std::ptrdiff_t length() const noexcept { return folded.rows() * folded.inner_extent(); }
    /// The offset of element i of them, for loops in another order.
    [[nodiscard]] std::ptrdiff_t offset(std::ptrdiff_t i) const noexcept {
        const std::ptrdiff_t inner = folded.inner_extent();
        return folded.row_offsets(i / inner)[0] + i % inner * folded.inner_steps()[0];
    }
};

}  // namespace unitscale::kernels
