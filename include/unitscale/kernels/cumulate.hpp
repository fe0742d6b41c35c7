// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <cstddef>

namespace unitscale::kernels {

/// y[o,i] = alpha * the sum of x[o,j] over j <= i, or over j >= i if `reverse`, each rounded once.
///   x, y [outer, n, inner]; y may be x
/// Sums are formed in Accum<T>, in the order of j. Test: tests/kernels/cumulate_test.cpp
template <class T>
void cumulative_sum(const Execution& execution, const T* x, T* y, std::ptrdiff_t outer, std::ptrdiff_t n,
                    std::ptrdiff_t inner, Accum<T> alpha, bool reverse = false) {
    using A = Accum<T>;
    const std::ptrdiff_t blocks = (inner + block_size - 1) / block_size;
    const std::ptrdiff_t first = reverse ? (n - 1) * inner : 0, step = reverse ? -inner : inner;
    parallel_for(execution.threads, outer * blocks, row_grain(n * std::min(inner, block_size)),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     Block<A> sums, block;
                     for (std::ptrdiff_t piece = begin; piece < end; ++piece) {
                         const std::ptrdiff_t j = piece % blocks * block_size, count = std::min(block_size, inner - j);
                         const std::ptrdiff_t start = piece / blocks * n * inner + first + j;
                         sums.fill(A(0));
                         if (count == 1) {  // a sum along the last axis: one lane
                             for (std::ptrdiff_t i = 0; i < n; ++i) {
                                 sums[0] += widen(x[start + i * step]);
                                 y[start + i * step] = narrow<T>(alpha * sums[0]);
                             }
                             continue;
                         }
                         for (std::ptrdiff_t i = 0; i < n; ++i) {
                             load_block(x + start + i * step, count, block);
                             for_lanes(count, [&](std::size_t l) {
                                 sums[l] += block[l];
                                 block[l] = alpha * sums[l];
                             });
                             store_block(block, count, y + start + i * step);
                         }
                     }
                 });
}

}  // namespace unitscale::kernels
