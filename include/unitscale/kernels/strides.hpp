// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/tensor/backend.hpp>
#include <unitscale/tensor/strided_loop.hpp>

#include <cstddef>

namespace unitscale::kernels {

/// Step in elements of axis `axis` of a row-major array. Test: tests/kernels/strides_test.cpp
[[nodiscard]] inline std::ptrdiff_t row_major_step(const Shape& shape, std::size_t axis) noexcept {
    std::size_t step = 1;
    for (std::size_t i = axis + 1; i < shape.size(); ++i) step *= shape[i];
    return static_cast<std::ptrdiff_t>(step);
}

}  // namespace unitscale::kernels
