// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/embedding.hpp>

// Rows along an axis picked and added up by number. Arrays are seen as [outer, extent, inner], with the axis in the
// middle. The caller ensures that ids lie in [0, extent) (`first_outside` in embedding.hpp).
namespace unitscale::kernels {

/// y[o, i] = alpha x[o, ids[i]].   x [outer, extent, inner]   ids [n]   y [outer, n, inner]
/// Test: tests/kernels/gather_test.cpp
template <class T>
void gather_rows(const Execution& execution, const T* x, const std::int32_t* ids, T* y, std::ptrdiff_t outer,
                 std::ptrdiff_t extent, std::ptrdiff_t n, std::ptrdiff_t inner, Accum<T> alpha) {
    using A = Accum<T>;
    parallel_for(execution.threads, outer * n, row_grain(inner), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t row = begin; row < end; ++row) {
            const T* const in = x + (row / n * extent + ids[row % n]) * inner;
            T* const out = y + row * inner;
            if (alpha == A(1)) std::copy_n(in, inner, out);
            else
                for (std::ptrdiff_t j = 0; j < inner; ++j) out[j] = narrow<T>(alpha * widen(in[j]));
        }
    });
}

/// y[o, v] = alpha * sum over i with ids[i] = v of x[o, i], in the order of i; 0 where no id is v.
///   x [outer, n, inner]   ids [n]   y [outer, extent, inner], overwritten whole
/// The transpose of `gather_rows`. One thread computes each sum, in Accum<T>.
template <class T>
void scatter_add_rows(const Execution& execution, const T* x, const std::int32_t* ids, T* y, std::ptrdiff_t outer,
                      std::ptrdiff_t extent, std::ptrdiff_t n, std::ptrdiff_t inner, Accum<T> alpha) {
    using A = Accum<T>;
    if (outer == 1) return embedding_backward<T>(execution, x, ids, y, n, extent, inner, alpha);
    constexpr bool direct = std::is_same_v<T, A>;
    const std::ptrdiff_t item = extent * inner;
    Scratch<A> scratch(execution, direct ? 0 : static_cast<std::size_t>(outer * item));
    A* sums = scratch.data();
    if constexpr (direct) sums = y;
    parallel_for(execution.threads, outer, row_grain((n + extent) * inner),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t o = begin; o < end; ++o) {
                         A* const own = sums + o * item;
                         std::fill_n(own, item, A(0));
                         for (std::ptrdiff_t i = 0; i < n; ++i) {
                             const T* const in = x + (o * n + i) * inner;
                             A* const row = own + std::ptrdiff_t{ids[i]} * inner;
                             for (std::ptrdiff_t j = 0; j < inner; ++j) row[j] += widen(in[j]);
                         }
                         if (direct && alpha == A(1)) continue;
                         for (std::ptrdiff_t j = 0; j < item; ++j) y[o * item + j] = narrow<T>(alpha * own[j]);
                     }
                 });
}

}  // namespace unitscale::kernels
