// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/multiply_add.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/windows.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <optional>

namespace unitscale::ops {

struct PoolOptions {
    WindowPair kernel{2, 2};
    std::optional<WindowPair> stride{};  ///< empty: the kernel
    WindowPair padding{0, 0};
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// The windows of a pooling op in x [B,C,H,W]. Errors, in the name of `op`: as `windows_of`.
[[nodiscard]] inline kernels::Windows pool_windows(const char* op, const Shape& x, const PoolOptions& options) {
    return windows_of(op, x, options.kernel,
                      {.stride = options.stride.value_or(options.kernel), .padding = options.padding});
}

/// Ideal factors of the mean of windows under `unit`: see `average_pool`.
[[nodiscard]] inline Factors<1> average_pool_unit_factors(const kernels::Windows& windows) noexcept {
    const auto taps = static_cast<double>(windows.taps());
    return {.alpha = std::sqrt(taps), .betas = {taps / std::sqrt(windows_per_pixel(windows))}};
}

/// Unit-scaled mean of windows of images; padding counts as 0.
///   y = alpha times the mean of each window     dx = beta_x times the gradient of the unscaled op
///   x [B,C,H,W]   y [B,C,H',W']   H' = (H + 2 padding - kh) / stride + 1, W' likewise
/// Factors under `unit`, pixels independent unit normals: the mean of n = kh kw numbers has variance 1/n, hence
/// alpha = n^1/2. A pixel lies in n / stride^2 windows with slope 1/n each, hence beta_x = n^1/2 stride. They share one
/// value by the constraint. Pixels of real images are alike, and their mean is then larger by up to n^1/2.
/// Scale under `propagate`: s_x / alpha, rounded; gradients: dy's / beta_x, rounded.
/// Errors: x of another rank; a kernel or stride of 0; padded images smaller than the kernel.
/// Test: tests/ops/pool_test.cpp
template <class T>
[[nodiscard]] Variable<T> average_pool(Variable<T> x, const PoolOptions& options = {}) {
    auto op = begin_op("average_pool", x);
    const Tensor<T>& input = op.input(0);
    const kernels::Windows windows = pool_windows("average_pool", input.shape(), options);
    op.set_factors(average_pool_unit_factors(windows), options.constraint);
    const double share = 1.0 / static_cast<double>(windows.taps());
    const Scaled scaled = op.scaled_alpha(input.scale());
    Tensor<T> output = op.make(window_shape(windows));
    kernels::window_sums<T>(op.execution(), windows, input.data(), output.data(),
                            static_cast<Accum<T>>(scaled.factor * share));
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [windows, share](BackwardContext<T>& g) {
                         const Scaled part = g.scaled_beta(0);
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::window_sums_backward<T>(g.execution(), windows, g.output_gradient().data(), dx.data(),
                                                          static_cast<Accum<T>>(part.factor * share));
                         g.add(0, std::move(dx), part.scale);
                     });
}

/// The mean square of the largest of n independent unit normals: the integral of n x^2 phi(x) Phi(x)^(n-1), by the
/// trapezoidal rule, which is exact to 1e-9 here because the integrand and its derivatives vanish at both ends.
[[nodiscard]] inline double mean_square_of_largest(std::size_t n) noexcept {
    constexpr double from = -9.0, step = 0.0625;
    double sum = 0.0;
    for (int i = 0; i <= 288; ++i) {
        const double x = multiply_add(step, static_cast<double>(i), from),
                     density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
        const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
        sum = multiply_add(x * x, density * std::pow(below, static_cast<double>(n) - 1.0), sum);
    }
    return static_cast<double>(n) * step * sum;
}

/// Ideal factors of the largest of windows under `unit`: see `max_pool`.
[[nodiscard]] inline Factors<1> max_pool_unit_factors(const kernels::Windows& windows) noexcept {
    return {.alpha = 1.0 / std::sqrt(mean_square_of_largest(static_cast<std::size_t>(windows.taps()))),
            .betas = {std::sqrt(static_cast<double>(windows.stride[0] * windows.stride[1]))}};
}

/// Unit-scaled largest element of windows of images; padding does not count.
///   y = alpha times the largest of each window     dx = beta_x times the sum of dy where the pixel is the largest
///   x [B,C,H,W]   y [B,C,H',W']   H' = (H + 2 padding - kh) / stride + 1, W' likewise
/// The first of equal elements counts; a NaN counts as the largest.
/// Factors under `unit`, pixels independent unit normals: the mean square of the largest of n = kh kw is integrated
/// numerically (1.551 for n = 4, 2.563 for n = 9); alpha makes it 1. The value's mean is not 0: for n = 4 it is 0.83.
/// A pixel lies in n / stride^2 windows and is the largest of one in n, hence beta_x = stride. They share one value by
/// the constraint.
/// Scale under `propagate`: s_x / alpha, rounded; gradients: dy's / beta_x, rounded.
/// Errors: as `average_pool`; padding as large as the kernel. Test: tests/ops/pool_test.cpp
template <class T>
[[nodiscard]] Variable<T> max_pool(Variable<T> x, const PoolOptions& options = {}) {
    auto op = begin_op("max_pool", x);
    const Tensor<T>& input = op.input(0);
    const kernels::Windows windows = pool_windows("max_pool", input.shape(), options);
    for (std::size_t axis = 0; axis < 2; ++axis)
        check(options.padding[axis] < options.kernel[axis], "max_pool: padding ", options.padding[axis], " along axis ",
              2 + axis, "; expected less than the kernel, ", options.kernel[axis]);
    op.set_factors(max_pool_unit_factors(windows), options.constraint);
    const Scaled scaled = op.scaled_alpha(input.scale());
    Tensor<T> output = op.make(window_shape(windows));
    Tensor<std::int32_t> places(output.shape(), op.tape().pool());
    kernels::window_maxima<T>(op.execution(), windows, input.data(), output.data(), places.data(),
                              static_cast<Accum<T>>(scaled.factor));
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [windows, places = std::move(places)](BackwardContext<T>& g) {
                         const Scaled part = g.scaled_beta(0);
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::window_maxima_backward<T>(g.execution(), windows, g.output_gradient().data(),
                                                            places.data(), dx.data(),
                                                            static_cast<Accum<T>>(part.factor));
                         g.add(0, std::move(dx), part.scale);
                     });
}

}  // namespace unitscale::ops
