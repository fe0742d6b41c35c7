// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/kernels/windows.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <array>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// Sizes {height, width}.
using WindowPair = std::array<std::size_t, 2>;

/// How windows lie in images.
struct WindowOptions {
    WindowPair stride{1, 1};
    WindowPair padding{0, 0};  ///< rows or columns on either side of the image
    WindowPair dilation{1, 1};
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// The sizes of windows of `kernel` {height, width} in x [B,C,H,W]. Errors, in the name of `op`: x of another rank; a
/// kernel, stride or dilation of 0; padded images smaller than the kernel's reach. Test: tests/record/windows_test.cpp
[[nodiscard]] inline kernels::Windows windows_of(const char* op, const Shape& x, const WindowPair& kernel,
                                                 const WindowOptions& options) {
    check(x.size() == 4, op, ": x ", to_string(x), " is not [B,C,H,W]");
    kernels::Windows windows{.batch = static_cast<std::ptrdiff_t>(x[0]), .channels = static_cast<std::ptrdiff_t>(x[1])};
    for (std::size_t axis = 0; axis < 2; ++axis) {
        const std::size_t extent = x[2 + axis], taps = kernel[axis], stride = options.stride[axis],
                          dilation = options.dilation[axis];
        check(taps >= 1 && stride >= 1 && dilation >= 1, op, ": kernel ", taps, ", stride ", stride, " and dilation ",
              dilation, " along axis ", 2 + axis, "; expected at least 1");
        const std::size_t reach = (taps - 1) * dilation + 1, padded = extent + 2 * options.padding[axis];
        check(padded >= reach, op, ": axis ", 2 + axis, " of x ", shape_text(x), " with padding is ", padded,
              " long; the kernel reaches over ", reach);
        windows.image[axis] = static_cast<std::ptrdiff_t>(extent);
        windows.count[axis] = static_cast<std::ptrdiff_t>((padded - reach) / stride + 1);
        windows.kernel[axis] = static_cast<std::ptrdiff_t>(taps);
        windows.stride[axis] = static_cast<std::ptrdiff_t>(stride);
        windows.padding[axis] = static_cast<std::ptrdiff_t>(options.padding[axis]);
        windows.dilation[axis] = static_cast<std::ptrdiff_t>(dilation);
    }
    return windows;
}

/// [B,C,H',W'], the shape of one number per window and channel.
[[nodiscard]] inline Shape window_shape(const kernels::Windows& windows) {
    const auto size = [](std::ptrdiff_t n) { return static_cast<std::size_t>(n); };
    return {size(windows.batch), size(windows.channels), size(windows.count[0]), size(windows.count[1])};
}

/// The number of windows that hold a pixel, but near the borders.
[[nodiscard]] inline double windows_per_pixel(const kernels::Windows& windows) noexcept {
    return static_cast<double>(windows.taps()) / static_cast<double>(windows.stride[0] * windows.stride[1]);
}

}  // namespace unitscale::ops
