// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/kernels/strides.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <array>
#include <cstddef>

namespace unitscale::kernels {

/// Which element a reduction looks for: the largest or the smallest.
enum class Extreme { largest, smallest };

/// y = alpha * the largest (smallest) element of x over the axes where y_shape has 1 and x_shape has not. index = the
/// offset of that element in x: the first in row-major order where several are equal. A NaN counts as the largest, and
/// as the smallest too.
///   x of x_shape   y, index of y_shape, which has the rank of x_shape. At least one element is compared for each of y.
/// y may be null: then only index is written.
/// Test: tests/kernels/maximum_test.cpp
template <class T>
void maximum_forward(const Execution& execution, const T* x, const Shape& x_shape, T* y, std::ptrdiff_t* index,
                     const Shape& y_shape, Accum<T> alpha, Extreme extreme = Extreme::largest) {
    using A = Accum<T>;
    constexpr auto lanes = static_cast<std::size_t>(block_size);
    StridedLoop<1> kept, compared;  // over axes of x
    for (std::size_t axis = 0; axis < x_shape.size(); ++axis)
        (y_shape[axis] == x_shape[axis] ? kept : compared)
            .add_axis(static_cast<std::ptrdiff_t>(x_shape[axis]), {row_major_step(x_shape, axis)});
    const std::ptrdiff_t width = kept.inner_extent(), step = kept.inner_steps()[0];
    const std::ptrdiff_t length = compared.inner_extent(), stride = compared.inner_steps()[0],
                         outer_rows = compared.rows();
    const A side = extreme == Extreme::largest ? A(1) : A(-1);  // the smallest is the largest of -x
    parallel_for(execution.threads, kept.rows(), row_grain(width * outer_rows * length),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     std::array<A, lanes> best;
                     std::array<std::ptrdiff_t, lanes> place;
                     for (std::ptrdiff_t row = begin; row < end; ++row)
                         for (std::ptrdiff_t j = 0; j < width; j += block_size) {
                             const std::ptrdiff_t count = std::min(block_size, width - j),
                                                  first = kept.row_offsets(row)[0] + j * step;
                             for (std::ptrdiff_t l = 0; l < count; ++l) {
                                 place[static_cast<std::size_t>(l)] = first + l * step;
                                 best[static_cast<std::size_t>(l)] = side * widen(x[first + l * step]);
                             }
                             for (std::ptrdiff_t outer = 0; outer < outer_rows; ++outer)
                                 for (std::ptrdiff_t i = 0; i < length; ++i) {
                                     const std::ptrdiff_t offset = first + compared.row_offsets(outer)[0] + i * stride;
                                     for (std::ptrdiff_t l = 0; l < count; ++l) {
                                         const A v = side * widen(x[offset + l * step]);
                                         A& top = best[static_cast<std::size_t>(l)];
                                         const bool better = !(v <= top) && !std::isnan(top);
                                         place[static_cast<std::size_t>(l)] =
                                             better ? offset + l * step : place[static_cast<std::size_t>(l)];
                                         top = better ? v : top;
                                     }
                                 }
                             for (std::ptrdiff_t l = 0; l < count; ++l) {
                                 if (y != nullptr)
                                     y[row * width + j + l] =
                                         narrow<T>(alpha * (side * best[static_cast<std::size_t>(l)]));
                                 index[row * width + j + l] = place[static_cast<std::size_t>(l)];
                             }
                         }
                 });
}

/// dx = beta dy at the indices, 0 elsewhere.   dy, index [n]   dx [size]
template <class T>
void maximum_backward(const T* dy, const std::ptrdiff_t* index, T* dx, std::ptrdiff_t n, std::ptrdiff_t size,
                      Accum<T> beta) {
    std::fill_n(dx, size, T(0));
    for (std::ptrdiff_t i = 0; i < n; ++i) dx[index[i]] = narrow<T>(beta * widen(dy[i]));
}

}  // namespace unitscale::kernels
