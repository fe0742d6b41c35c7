// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/kernels/strides.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <array>
#include <cstddef>
#include <tuple>
#include <utility>

// Element-wise functions of several arrays with shapes that broadcast.
namespace unitscale::kernels {

/// An input of a broadcast function: row-major elements and their shape.
template <class X>
struct BroadcastInput {
    const X* data;
    const Shape& shape;
};
template <class X>
BroadcastInput(const X*, const Shape&) -> BroadcastInput<X>;

/// y = f(x0, x1, ...), element by element, in Accum of the inputs, rounded once.   y of `shape`; each input of a shape
/// that broadcasts to it. y overlaps no input unless that input has the shape of y.
/// Test: tests/kernels/broadcast_test.cpp
template <class T, class F, class... X>
void broadcast_map(const Execution& execution, const Shape& shape, T* y, F f, const BroadcastInput<X>&... x) {
    constexpr std::size_t inputs = sizeof...(X);
    StridedLoop<inputs> loop;
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
        loop.add_axis(static_cast<std::ptrdiff_t>(shape[axis]), {broadcast_step(x.shape, shape, axis)...});
    const std::ptrdiff_t n = loop.inner_extent();
    const auto steps = loop.inner_steps();
    const std::tuple<const X*...> data(x.data...);
    parallel_for(execution.threads, loop.rows() * n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        std::tuple<Block<Accum<X>>...> blocks;
        Block<Accum<T>> out;
        while (begin < end) {
            const auto offsets = loop.row_offsets(begin / n);
            const std::ptrdiff_t first = begin % n, row_end = std::min(n, first + end - begin);
            const auto load = [&]<std::size_t... k>(std::index_sequence<k...>, std::ptrdiff_t j, std::ptrdiff_t count) {
                ((steps[k] != 0 ? load_block(std::get<k>(data) + offsets[k] + j, count, std::get<k>(blocks))
                                : std::get<k>(blocks).fill(widen(std::get<k>(data)[offsets[k]]))),
                 ...);
            };
            for (std::ptrdiff_t j = first; j < row_end; j += block_size) {
                const std::ptrdiff_t count = std::min(block_size, row_end - j);
                load(std::make_index_sequence<inputs>(), j, count);
                std::apply([&](auto&... block) { for_lanes(count, [&](std::size_t l) { out[l] = f(block[l]...); }); },
                           blocks);
                store_block(out, count, y + begin);
                begin += count;
            }
        }
    });
}

/// The gradient of a broadcast input: dx = the sum of f(x0, x1, ...), of `shape`, over the copies that broadcasting
/// from dx_shape to `shape` makes. Terms are computed and summed in Accum<T>, and dx is rounded once.
///   dx of dx_shape, overwritten; overlaps no input.
template <class T, class F, class... X>
void broadcast_map_sum(const Execution& execution, const Shape& shape, T* dx, const Shape& dx_shape, F f,
                       const BroadcastInput<X>&... x) {
    using A = Accum<T>;
    const std::size_t count = element_count(shape), kept = element_count(dx_shape);
    if (count == kept) return broadcast_map(execution, shape, dx, f, x...);
    Scratch<A> terms(execution, count), sums(execution, kept);
    broadcast_map(execution, shape, terms.data(), f, x...);
    sum_to_shape(execution, terms.data(), shape, sums.data(), dx_shape, A(1));
    const A* const from = sums.data();
    map_elements(
        execution, static_cast<std::ptrdiff_t>(kept), dx, [](A v) { return v; }, from);
}

}  // namespace unitscale::kernels
