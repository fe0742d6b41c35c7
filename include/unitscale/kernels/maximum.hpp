// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/kernels/strides.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
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
    const FoldedAxes axes(x_shape, y_shape);
    const A side = extreme == Extreme::largest ? A(1) : A(-1);  // the smallest is the largest of -x
    axes.for_pieces(execution,
                    [=, &axes](std::ptrdiff_t first, std::ptrdiff_t count, std::ptrdiff_t step, std::ptrdiff_t place) {
                        Block<A> best;
                        Block<std::ptrdiff_t> at;
                        for (std::ptrdiff_t l = 0; l < count; ++l) {
                            at[static_cast<std::size_t>(l)] = first + l * step;
                            best[static_cast<std::size_t>(l)] = side * widen(x[first + l * step]);
                        }
                        axes.for_offsets([&](std::ptrdiff_t from_first) {
                            const std::ptrdiff_t offset = first + from_first;
                            for (std::ptrdiff_t l = 0; l < count; ++l) {
                                const A v = side * widen(x[offset + l * step]);
                                A& top = best[static_cast<std::size_t>(l)];
                                const bool better = !(v <= top) && !std::isnan(top);
                                std::ptrdiff_t& top_at = at[static_cast<std::size_t>(l)];
                                top_at = better ? offset + l * step : top_at;
                                top = better ? v : top;
                            }
                        });
                        for (std::ptrdiff_t l = 0; l < count; ++l) {
                            if (y != nullptr)
                                y[place + l] = narrow<T>(alpha * (side * best[static_cast<std::size_t>(l)]));
                            index[place + l] = at[static_cast<std::size_t>(l)];
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
