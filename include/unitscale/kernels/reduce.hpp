// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/vector_math.hpp>

// Sums with an order of additions that depends on the sizes alone: fixed chunks, combined in order, for any thread
// count.
namespace unitscale::kernels {

/// Rows of a chunk when rows are summed: enough for a thread, and at most 16 chunks.
[[nodiscard]] constexpr std::ptrdiff_t rows_per_chunk(std::ptrdiff_t rows, std::ptrdiff_t n) noexcept {
    return std::max(row_grain(n), (rows + 15) / 16);
}

/// out[j] = scale * sum over c of partial[c stride + j], c in [0, chunks), rounded once.   out [n]
template <class T>
void combine_chunks(const Execution& execution, const Accum<T>* partial, std::ptrdiff_t stride, T* out,
                    std::ptrdiff_t chunks, std::ptrdiff_t n, Accum<T> scale) {
    using A = Accum<T>;
    const std::ptrdiff_t grain = (row_grain(chunks) + block_size - 1) / block_size * block_size;
    parallel_for(execution.threads, n, grain, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        Block<A> sums, block;
        for (std::ptrdiff_t j = begin; j < end; j += block_size) {
            const std::ptrdiff_t count = std::min(block_size, end - j);
            sums.fill(A(0));
            for (std::ptrdiff_t c = 0; c < chunks; ++c) {
                load_block(partial + c * stride + j, count, block);
                for_lanes(count, [&](std::size_t l) { sums[l] += block[l]; });
            }
            for_lanes(count, [&](std::size_t l) { sums[l] *= scale; });
            store_block(sums, count, out + j);
        }
    });
}

/// out[j] = scale * sum over rows of x[row n + j].   x [rows, n]   out [n], overwritten
/// Bias gradients. Test: tests/kernels/reduce_test.cpp
template <class T>
void column_sums(const Execution& execution, const T* x, T* out, std::ptrdiff_t rows, std::ptrdiff_t n,
                 Accum<T> scale = Accum<T>(1)) {
    using A = Accum<T>;
    const std::ptrdiff_t chunk = rows_per_chunk(rows, n);
    const std::ptrdiff_t chunks = (rows + chunk - 1) / chunk;
    Scratch<A> partial(execution, static_cast<std::size_t>(chunks * n));
    A* const sums = partial.data();
    std::fill_n(sums, chunks * n, A(0));
    parallel_for(execution.threads, chunks, 1, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t c = begin; c < end; ++c)
            for (std::ptrdiff_t row = c * chunk; row < std::min(rows, (c + 1) * chunk); ++row)
                map_range(
                    std::ptrdiff_t{0}, n, sums + c * n, [](A sum, A v) { return sum + v; }, sums + c * n, x + row * n);
    });
    combine_chunks<T>(execution, sums, n, out, chunks, n, scale);
}

/// out[row] = scale * sum over j of x[row n + j].   x [rows, n]   out [rows], overwritten
template <class T>
void row_sums(const Execution& execution, const T* x, T* out, std::ptrdiff_t rows, std::ptrdiff_t n,
              Accum<T> scale = Accum<T>(1)) {
    using A = Accum<T>;
    parallel_for(execution.threads, rows, row_grain(n), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t row = begin; row < end; ++row)
            out[row] = static_cast<T>(scale * sum_range<A>(
                                                  n, [](A v) { return v; }, x + row * n));
    });
}

/// The sum of terms of x0[i], x1[i], ..., i in [0, n), in type R: chunks of `work_threshold` elements, added in order.
/// f(sum, x0[i], x1[i], ...) is the sum with one more term (`accumulate_range`).
template <class R, class F, class... X>
[[nodiscard]] R accumulate_over(const Execution& execution, std::ptrdiff_t n, F f, const X*... x) {
    const std::ptrdiff_t chunks = (n + work_threshold - 1) / work_threshold;
    if (chunks <= 1) return accumulate_range<R>(n, f, x...);
    Scratch<R> scratch(execution, static_cast<std::size_t>(chunks));
    R* const partial = scratch.data();
    parallel_for(execution.threads, chunks, 1, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t c = begin; c < end; ++c)
            partial[c] =
                accumulate_range<R>(std::min(work_threshold, n - c * work_threshold), f, (x + c * work_threshold)...);
    });
    return sum_range<R>(
        chunks, [](R v) { return v; }, partial);
}

/// The sum over i in [0, n) of f(x0[i], x1[i], ...) in type R, in the order of `accumulate_over`. f returns no product.
template <class R, class F, class... X>
[[nodiscard]] R sum_over(const Execution& execution, std::ptrdiff_t n, F f, const X*... x) {
    return accumulate_over<R>(
        execution, n, [f](R sum, auto... terms) { return sum + static_cast<R>(f(terms...)); }, x...);
}

/// The sum of all elements, in Accum<T>.
template <class T>
[[nodiscard]] Accum<T> sum(const Execution& execution, const T* x, std::ptrdiff_t n) {
    return sum_over<Accum<T>>(
        execution, n, [](Accum<T> v) { return v; }, x);
}

/// The mean of all elements; NaN when there are none.
template <class T>
[[nodiscard]] Accum<T> mean(const Execution& execution, const T* x, std::ptrdiff_t n) {
    return sum(execution, x, n) / static_cast<Accum<T>>(n);
}

}  // namespace unitscale::kernels
