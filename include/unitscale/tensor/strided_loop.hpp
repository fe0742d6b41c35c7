// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <array>
#include <cstddef>

namespace unitscale {

/// The highest number of axes that strided loops walk after joining contiguous axes.
inline constexpr std::size_t max_axes = 8;

/// A loop nest over `operands` arrays at once. An axis has an extent and, per operand, a step in elements (0:
/// broadcast). Axes are added outermost first. Axes of extent 1 are dropped. Neighbouring axes are joined if every
/// operand walks them evenly, so the innermost axis is as long as possible. No allocation.
/// Test: tests/tensor/strided_loop_test.cpp
template <std::size_t operands>
class StridedLoop {
public:
    using Steps = std::array<std::ptrdiff_t, operands>;

    /// Error: more than `max_axes` axes that cannot be joined.
    void add_axis(std::ptrdiff_t extent, const Steps& steps) {
        if (extent == 1) return;
        if (rank_ > 0) {
            bool even = true;
            for (std::size_t k = 0; k < operands; ++k) even = even && steps_[rank_ - 1][k] == extent * steps[k];
            if (even) {
                extents_[rank_ - 1] *= extent;
                steps_[rank_ - 1] = steps;
                return;
            }
        }
        check(rank_ < max_axes, "strided loop: more than ", max_axes, " axes");
        extents_[rank_] = extent;
        steps_[rank_++] = steps;
    }

    [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
    [[nodiscard]] std::ptrdiff_t extent(std::size_t axis) const noexcept { return extents_[axis]; }
    [[nodiscard]] const Steps& steps(std::size_t axis) const noexcept { return steps_[axis]; }

    /// Extent and steps of the innermost axis (1 and zeros at rank 0).
    [[nodiscard]] std::ptrdiff_t inner_extent() const noexcept { return rank_ == 0 ? 1 : extents_[rank_ - 1]; }
    [[nodiscard]] Steps inner_steps() const noexcept { return rank_ == 0 ? Steps{} : steps_[rank_ - 1]; }

    /// Number of combinations of the axes outside the innermost one.
    [[nodiscard]] std::ptrdiff_t rows() const noexcept {
        std::ptrdiff_t count = 1;
        for (std::size_t axis = 0; axis + 1 < rank_; ++axis) count *= extents_[axis];
        return count;
    }

    /// Offset of each operand at combination `row` of the axes outside the innermost one, in row-major order.
    [[nodiscard]] Steps row_offsets(std::ptrdiff_t row) const noexcept {
        Steps offsets{};
        for (std::size_t axis = rank_ == 0 ? 0 : rank_ - 1; axis-- > 0; row /= extents_[axis]) {
            const std::ptrdiff_t index = row % extents_[axis];
            for (std::size_t k = 0; k < operands; ++k) offsets[k] += index * steps_[axis][k];
        }
        return offsets;
    }

private:
    std::size_t rank_ = 0;
    std::array<std::ptrdiff_t, max_axes> extents_{};
    std::array<Steps, max_axes> steps_{};
};

}  // namespace unitscale
