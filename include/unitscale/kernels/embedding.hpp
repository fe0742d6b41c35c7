// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/tensor/coded_weight.hpp>

namespace unitscale::kernels {

/// The index of the first of n ids that is neither in [0, limit) nor *allowed (when given), or n if there is none. Ops
/// call it as a check, before the kernels read memory by these ids.
[[nodiscard]] inline std::ptrdiff_t first_outside(const std::int32_t* ids, std::ptrdiff_t n, std::ptrdiff_t limit,
                                                  const std::int32_t* allowed = nullptr) noexcept {
    for (std::ptrdiff_t i = 0; i < n; ++i)
        if ((ids[i] < 0 || ids[i] >= limit) && (allowed == nullptr || ids[i] != *allowed)) return i;
    return n;
}

/// y[i] = alpha table[ids[i]].   table [V, d]   ids [n] in [0, V)   y [n, d]
/// Test: tests/kernels/embedding_test.cpp
template <class T>
void embedding_forward(const Execution& execution, const T* table, const std::int32_t* ids, T* y, std::ptrdiff_t n,
                       std::ptrdiff_t d, Accum<T> alpha) {
    using A = Accum<T>;
    parallel_for(execution.threads, n, row_grain(d), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t i = begin; i < end; ++i) {
            const T* const row = table + std::ptrdiff_t{ids[i]} * d;
            if (alpha == A(1)) std::copy_n(row, d, y + i * d);
            else
                map_range(
                    std::ptrdiff_t{0}, d, y + i * d, [alpha](A v) { return alpha * v; }, row);
        }
    });
}

/// y[i] = the numbers of row ids[i] of a coded table [V,d], each rounded once to T.   ids [n] in [0, V)   y [n, d]
template <class T>
void coded_embedding_forward(const Execution& execution, const CodedWeight& table, const std::int32_t* ids, T* y,
                             std::ptrdiff_t n) {
    const auto d = static_cast<std::ptrdiff_t>(table.in());
    parallel_for(execution.threads, n, row_grain(d), [&, ids, y](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t i = begin; i < end; ++i)
            for (std::ptrdiff_t p = 0; p < d; ++p)
                y[i * d + p] =
                    element_cast<T>(table.value(static_cast<std::size_t>(ids[i]), static_cast<std::size_t>(p)));
    });
}

/// dtable[v] = beta * sum over i with ids[i] = v of dy[i], in the order of i; rows that no id names become zero.
///   dy [n, d]   ids [n] in [0, V)   dtable [V, d], overwritten whole
/// Threads share columns, so each sum is formed by one of them.
template <class T>
void embedding_backward(const Execution& execution, const T* dy, const std::int32_t* ids, T* dtable, std::ptrdiff_t n,
                        std::ptrdiff_t vocabulary, std::ptrdiff_t d, Accum<T> beta) {
    using A = Accum<T>;
    constexpr bool direct = std::is_same_v<T, A>;
    Scratch<A> scratch(execution, direct ? 0 : static_cast<std::size_t>(vocabulary * d));
    A* sums = scratch.data();
    if constexpr (direct) sums = dtable;
    const std::ptrdiff_t grain = std::max<std::ptrdiff_t>(16, (row_grain(n + vocabulary) + 15) / 16 * 16);
    parallel_for(execution.threads, d, grain, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t v = 0; v < vocabulary; ++v) std::fill(sums + v * d + begin, sums + v * d + end, A(0));
        for (std::ptrdiff_t i = 0; i < n; ++i) {
            A* const row = sums + std::ptrdiff_t{ids[i]} * d;
            map_range(
                begin, end, row, [](A sum, A g) { return sum + g; }, row, dy + i * d);
        }
        if (direct && beta == A(1)) return;
        for (std::ptrdiff_t v = 0; v < vocabulary; ++v)
            map_range(
                begin, end, dtable + v * d, [beta](A sum) { return beta * sum; }, sums + v * d);
    });
}

}  // namespace unitscale::kernels
