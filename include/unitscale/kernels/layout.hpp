// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/strides.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <span>

// Copies that reorder, cut and join row-major arrays of any element type. Results are contiguous and never overlap the
// inputs.
namespace unitscale::kernels {

/// out[sum of index * step 1] = in[sum of index * step 0] over every combination of the axes. Runs that are contiguous
/// on both sides are copied whole. Where the innermost axes of the sides differ, square tiles are copied.
template <class T>
void copy_strided(const Execution& execution, const StridedLoop<2>& loop, const T* in, T* out) {
    const std::ptrdiff_t n = loop.inner_extent();
    const auto [in_step, out_step] = loop.inner_steps();
    if (loop.rank() == 0) {
        *out = *in;
        return;
    }
    if (in_step == 1 && out_step == 1) {
        parallel_for(execution.threads, loop.rows() * n, work_threshold,
                     [=, &loop](std::ptrdiff_t begin, std::ptrdiff_t end) {
                         while (begin < end) {
                             const auto [from, to] = loop.row_offsets(begin / n);
                             const std::ptrdiff_t j = begin % n, count = std::min(n - j, end - begin);
                             std::copy_n(in + from + j, count, out + to + j);
                             begin += count;
                         }
                     });
        return;
    }
    // The innermost axis is strided on one side. The axis that is contiguous on that side is the other side of the
    // tiles.
    std::size_t other = loop.rank() - 1;
    for (std::size_t axis = 0; axis + 1 < loop.rank(); ++axis)
        if (loop.steps(axis)[0] == 1 || loop.steps(axis)[1] == 1) other = axis;
    StridedLoop<2> outer;  // the remaining axes, in order
    for (std::size_t axis = 0; axis + 1 < loop.rank(); ++axis)
        if (axis != other) outer.add_axis(loop.extent(axis), loop.steps(axis));
    outer.add_axis(-1, {0, 0});  // an innermost axis that is never walked, so that rows() counts all the others
    const bool tiled = other + 1 < loop.rank();
    const std::ptrdiff_t m = tiled ? loop.extent(other) : 1;
    const std::ptrdiff_t in_across = tiled ? loop.steps(other)[0] : 0, out_across = tiled ? loop.steps(other)[1] : 0;
    constexpr std::ptrdiff_t tile = 32;
    const std::ptrdiff_t tiles = (m + tile - 1) / tile;
    parallel_for(execution.threads, outer.rows() * tiles, row_grain(std::min(m, tile) * n),
                 [=, &outer, in_walk = in_step, out_walk = out_step](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t item = begin; item < end; ++item) {
                         const auto [from, to] = outer.row_offsets(item / tiles);
                         const std::ptrdiff_t i0 = item % tiles * tile, i1 = std::min(m, i0 + tile);
                         for (std::ptrdiff_t j0 = 0; j0 < n; j0 += tile)
                             for (std::ptrdiff_t i = i0; i < i1; ++i)
                                 for (std::ptrdiff_t j = j0; j < std::min(n, j0 + tile); ++j)
                                     out[to + i * out_across + j * out_walk] = in[from + i * in_across + j * in_walk];
                     }
                 });
}

/// y[i_axes[0], i_axes[1], ...] = x[i_0, i_1, ...]: axis k of y is axis axes[k] of x. `axes` is a permutation.
/// The backward pass is the transpose by `inverse_permutation(axes)`. Test: tests/kernels/layout_test.cpp
template <class T>
void transpose(const Execution& execution, const T* x, const Shape& x_shape, const Shape& axes, T* y) {
    StridedLoop<2> loop;
    std::ptrdiff_t size = 1;
    for (const std::size_t extent : x_shape) size *= static_cast<std::ptrdiff_t>(extent);
    if (size == 0) return;
    std::ptrdiff_t y_step = size;
    for (const std::size_t axis : axes) {
        const auto extent = static_cast<std::ptrdiff_t>(x_shape[axis]);
        y_step /= extent;
        loop.add_axis(extent, {row_major_step(x_shape, axis), y_step});
    }
    copy_strided(execution, loop, x, y);
}

[[nodiscard]] inline Shape inverse_permutation(const Shape& axes) {
    Shape inverse(axes.size());
    for (std::size_t k = 0; k < axes.size(); ++k) inverse[axes[k]] = k;
    return inverse;
}

/// The loop over the box starts <= index < stops of an array, steps 0 for the array itself, 1 for the contiguous box.
/// `offset` becomes the place of the box's first element. An empty box gives `empty` = true.
struct BoxLoop {
    StridedLoop<2> loop;
    std::ptrdiff_t offset = 0;
    bool empty = false;
};
[[nodiscard]] inline BoxLoop box_loop(const Shape& shape, const Shape& starts, const Shape& stops, bool from_box) {
    BoxLoop result;
    std::ptrdiff_t box = 1;
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
        box *= static_cast<std::ptrdiff_t>(stops[axis] - starts[axis]);
    result.empty = box == 0;
    if (result.empty) return result;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        const auto extent = static_cast<std::ptrdiff_t>(stops[axis] - starts[axis]);
        const std::ptrdiff_t step = row_major_step(shape, axis);
        box /= extent;
        result.offset += static_cast<std::ptrdiff_t>(starts[axis]) * step;
        if (from_box) result.loop.add_axis(extent, {box, step});
        else result.loop.add_axis(extent, {step, box});
    }
    return result;
}

/// y = x[starts[0]:stops[0], starts[1]:stops[1], ...].   x of x_shape   y of shape stops - starts
template <class T>
void slice(const Execution& execution, const T* x, const Shape& x_shape, const Shape& starts, const Shape& stops,
           T* y) {
    const BoxLoop box = box_loop(x_shape, starts, stops, false);
    if (!box.empty) copy_strided(execution, box.loop, x + box.offset, y);
}

/// x[starts[0]:stops[0], ...] = y; the rest of x is unchanged.
template <class T>
void assign_slice(const Execution& execution, const T* y, T* x, const Shape& x_shape, const Shape& starts,
                  const Shape& stops) {
    const BoxLoop box = box_loop(x_shape, starts, stops, true);
    if (!box.empty) copy_strided(execution, box.loop, y, x + box.offset);
}

/// dx = dy inside the box, `outside` elsewhere.
template <class T>
void slice_backward(const Execution& execution, const T* dy, T* dx, const Shape& x_shape, const Shape& starts,
                    const Shape& stops, T outside = T(0)) {
    std::ptrdiff_t size = 1;
    for (const std::size_t extent : x_shape) size *= static_cast<std::ptrdiff_t>(extent);
    parallel_for(execution.threads, size, work_threshold,
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) { std::fill(dx + begin, dx + end, outside); });
    assign_slice(execution, dy, dx, x_shape, starts, stops);
}

/// One part of a concatenation along `axis`. Copies x, of extent part_extent there, to y[..., start : start +
/// part_extent, ...].
///   y of y_shape   x of y_shape but for that extent. All parts in turn make the concatenation.
template <class T>
void concatenate_part(const Execution& execution, const T* x, std::size_t part_extent, T* y, const Shape& y_shape,
                      std::size_t axis, std::size_t start) {
    Shape starts(y_shape.size(), 0), stops(y_shape);
    starts[axis] = start;
    stops[axis] = start + part_extent;
    assign_slice(execution, x, y, y_shape, starts, stops);
}

/// Backward pass of the concatenation: dx = dy[..., start : start + part_extent, ...].
template <class T>
void split_part(const Execution& execution, const T* dy, const Shape& y_shape, std::size_t axis, std::size_t start,
                T* dx, std::size_t part_extent) {
    Shape starts(y_shape.size(), 0), stops(y_shape);
    starts[axis] = start;
    stops[axis] = start + part_extent;
    slice(execution, dy, y_shape, starts, stops, dx);
}

}  // namespace unitscale::kernels
