// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/reduce.hpp>
#include <unitscale/kernels/strides.hpp>
#include <unitscale/tensor/broadcast.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <span>
#include <string_view>

// Sums and products of arrays. The result may be one of the inputs of equal size.
namespace unitscale::kernels {

/// y = a x.   x, y [n]. Test: tests/kernels/elementwise_test.cpp
template <class T>
void scale(const Execution& execution, const T* x, T* y, std::ptrdiff_t n, Accum<T> a) {
    map_elements(
        execution, n, y, [a](Accum<T> v) { return a * v; }, x);
}

/// y = a u + b v.   u, v, y [n]. With v = y: y = a u + b y.
template <class T>
void add_scaled(const Execution& execution, const T* u, Accum<T> a, const T* v, Accum<T> b, T* y, std::ptrdiff_t n) {
    map_elements(
        execution, n, y, [=](Accum<T> s, Accum<T> t) { return multiply_add(a, s, b * t); }, u, v);
}

/// y = alpha u v, element by element.   u, v, y [n]
template <class T>
void multiply(const Execution& execution, const T* u, const T* v, T* y, std::ptrdiff_t n, Accum<T> alpha) {
    map_elements(
        execution, n, y, [=](Accum<T> s, Accum<T> t) { return alpha * (s * t); }, u, v);
}

/// y = sum over k of weights[k] x[k], rounded once (0 when there are no inputs).   x[k], y [n]
template <class T>
void weighted_sum(const Execution& execution, std::span<const T* const> x, std::span<const Accum<T>> weights, T* y,
                  std::ptrdiff_t n) {
    using A = Accum<T>;
    parallel_for(execution.threads, n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        Block<A> total, block;
        for (std::ptrdiff_t i = begin; i < end; i += block_size) {
            const std::ptrdiff_t count = std::min(block_size, end - i);
            total.fill(A(0));
            for (std::size_t k = 0; k < x.size(); ++k) {
                const A weight = weights[k];
                load_block(x[k] + i, count, block);
                for_lanes(count, [&](std::size_t l) { total[l] = multiply_add(weight, block[l], total[l]); });
            }
            store_block(total, count, y + i);
        }
    });
}

/// Step of a row-major array of shape `from` along axis `axis` of the shape to which it is broadcast. 0 along repeated
/// axes.
[[nodiscard]] inline std::ptrdiff_t broadcast_step(const Shape& from, const Shape& to, std::size_t axis) noexcept {
    const std::size_t missing = to.size() - from.size();
    if (axis < missing || from[axis - missing] == 1) return 0;
    return row_major_step(from, axis - missing);
}

/// y = a u + b v with broadcasting. y has the shape `broadcast_shape(u_shape, v_shape)`. It overlaps neither input
/// unless that input has the shape of y.
template <class T>
void broadcast_add(const Execution& execution, const T* u, const Shape& u_shape, Accum<T> a, const T* v,
                   const Shape& v_shape, Accum<T> b, T* y) {
    using A = Accum<T>;
    const Shape shape = broadcast_shape("add", u_shape, v_shape);
    StridedLoop<2> loop;
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
        loop.add_axis(static_cast<std::ptrdiff_t>(shape[axis]),
                      {broadcast_step(u_shape, shape, axis), broadcast_step(v_shape, shape, axis)});
    const std::ptrdiff_t n = loop.inner_extent();
    const auto [u_step, v_step] = loop.inner_steps();
    const bool u_repeats = u_step == 0, v_repeats = v_step == 0;
    parallel_for(execution.threads, loop.rows() * n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        while (begin < end) {
            const auto [u_row, v_row] = loop.row_offsets(begin / n);
            const std::ptrdiff_t j = begin % n;
            const std::ptrdiff_t count = std::min(n - j, end - begin);
            const T* const s = u + u_row + (u_repeats ? 0 : j);
            const T* const t = v + v_row + (v_repeats ? 0 : j);
            T* const out = y + begin;
            if (u_repeats) {
                const A repeated = widen(*s);
                if (v_repeats) std::fill_n(out, count, narrow<T>(multiply_add(a, repeated, b * widen(*t))));
                else
                    map_range(
                        std::ptrdiff_t{0}, count, out, [=](A w) { return multiply_add(a, repeated, b * w); }, t);
            } else if (v_repeats) {
                const A constant = b * widen(*t);
                map_range(
                    std::ptrdiff_t{0}, count, out, [=](A w) { return multiply_add(a, w, constant); }, s);
            } else {
                map_range(
                    std::ptrdiff_t{0}, count, out, [=](A w, A z) { return multiply_add(a, w, b * z); }, s, t);
            }
            begin += count;
        }
    });
}

/// dx = scale * the sum of dy over the copies that broadcasting from x_shape to y_shape makes, in Accum<T>.
///   dy of y_shape   dx of x_shape, overwritten. dy and dx must not overlap.
template <class T>
void sum_to_shape(const Execution& execution, const T* dy, const Shape& y_shape, T* dx, const Shape& x_shape,
                  Accum<T> scale) {
    using A = Accum<T>;
    StridedLoop<1> kept, summed;  // over axes of dy
    StridedLoop<2> all;           // as alternating runs, to find the simple cases
    for (std::size_t axis = 0; axis < y_shape.size(); ++axis) {
        const auto extent = static_cast<std::ptrdiff_t>(y_shape[axis]);
        const std::ptrdiff_t step = row_major_step(y_shape, axis);
        const std::ptrdiff_t x_step = broadcast_step(x_shape, y_shape, axis);
        all.add_axis(extent, {step, x_step});
        (x_step == 0 && extent != 1 ? summed : kept).add_axis(extent, {step});
    }
    const std::ptrdiff_t n = kept.rows() * kept.inner_extent();
    const std::ptrdiff_t copies = summed.rows() * summed.inner_extent();
    if (all.rank() <= 2 && kept.rank() <= 1 && summed.rank() <= 1) {
        const bool last_kept = all.inner_steps()[1] != 0;
        if (summed.rank() == 0) return kernels::scale(execution, dy, dx, n, scale);
        if (kept.rank() == 0) {
            *dx = narrow<T>(scale * sum(execution, dy, copies));
            return;
        }
        return last_kept ? column_sums(execution, dy, dx, copies, n, scale)
                         : row_sums(execution, dy, dx, n, copies, scale);
    }
    // General case: runs of the innermost kept axis (step 1 or more), each the sum of all copies in row-major order.
    const std::ptrdiff_t width = kept.inner_extent(), step = kept.inner_steps()[0];
    const std::ptrdiff_t length = summed.inner_extent(), stride = summed.inner_steps()[0];
    parallel_for(execution.threads, kept.rows(), row_grain(width * copies),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t row = begin; row < end; ++row)
                         for (std::ptrdiff_t j = 0; j < width; j += block_size) {
                             const std::ptrdiff_t count = std::min(block_size, width - j);
                             const T* const from = dy + kept.row_offsets(row)[0] + j * step;
                             Block<A> total{};
                             for (std::ptrdiff_t outer = 0; outer < summed.rows(); ++outer) {
                                 const T* const in = from + summed.row_offsets(outer)[0];
                                 for (std::ptrdiff_t i = 0; i < length; ++i)
                                     for (std::ptrdiff_t l = 0; l < count; ++l)
                                         total[static_cast<std::size_t>(l)] += widen(in[i * stride + l * step]);
                             }
                             for_lanes(count, [&](std::size_t l) { total[l] *= scale; });
                             store_block(total, count, dx + row * width + j);
                         }
                 });
}

/// The sum of squares of all elements, in double, for clipping and statistics. Chunks are fixed, so bits do not depend
/// on the thread count.
template <class T>
[[nodiscard]] double square_norm(const Execution& execution, const T* x, std::ptrdiff_t n) {
    return accumulate_over<double>(
        execution, n,
        [](double sum, Accum<T> v) { return multiply_add(static_cast<double>(v), static_cast<double>(v), sum); }, x);
}

}  // namespace unitscale::kernels
