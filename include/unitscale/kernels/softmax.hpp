// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/kernels/reduce.hpp>
#include <unitscale/kernels/softmax_rows.hpp>

#include <array>
#include <cstddef>
#include <limits>
#include <type_traits>

// Softmax of rows and the losses on it: x, y, dy, dx [rows, n]. The largest logit is subtracted first, so no finite
// logit overflows. -inf counts as probability 0 (a row of -inf only gives NaN).
namespace unitscale::kernels {

/// max(m x) and log(sum of exp(m x - max)) of one row.
template <class A>
struct LogSum {
    A largest;
    A log_sum;
};
template <class T>
[[nodiscard]] LogSum<Accum<T>> row_log_sum(const T* x, std::ptrdiff_t n, Accum<T> m) noexcept {
    using A = Accum<T>;
    const A largest = max_range(
        n, [m](A v) { return m * v; }, x);
    const A total = sum_range<A>(
        n, [=](A v) { return exponential(multiply_add(m, v, -largest)); }, x);
    return {largest, std::log(total)};
}

/// Elements of a narrow row that is widened at once.
inline constexpr std::ptrdiff_t widened_row = 2048;

/// y = alpha softmax(m x) of one row. y may be x. Exponentials are kept in Accum<T> until their sum is known. Only for
/// a long row in a narrower T they are computed twice.   x, y [n], n >= 1
template <class T>
void softmax_row(Isa isa, const T* x, T* y, std::ptrdiff_t n, Accum<T> m, Accum<T> alpha) noexcept {
    using A = Accum<T>;
    if constexpr (std::is_same_v<T, A>) return softmax_row_of(isa, x, y, n, m, alpha);
    const auto copy = [](A v) { return v; };
    if (n <= widened_row) {
        alignas(64) std::array<A, static_cast<std::size_t>(widened_row)> row;
        map_range(std::ptrdiff_t{0}, n, row.data(), copy, x);
        softmax_row_of<A>(isa, row.data(), row.data(), n, m, alpha);
        map_range(std::ptrdiff_t{0}, n, y, copy, row.data());
        return;
    }
    const A largest = max_range(
        n, [m](A v) { return m * v; }, x);
    const auto exponential_of = [=](A v) { return exponential(multiply_add(m, v, -largest)); };
    const A k = alpha / sum_range<A>(n, exponential_of, x);
    map_range(
        std::ptrdiff_t{0}, n, y, [=](A v) { return k * exponential_of(v); }, x);
}

/// `softmax_backward` of one row.   k = beta m / alpha
template <class T>
void softmax_gradient_row(Isa isa, const T* y, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> k,
                          Accum<T> alpha) noexcept {
    using A = Accum<T>;
    if constexpr (std::is_same_v<T, A>) return softmax_gradient_row_of(isa, y, dy, dx, n, k, alpha);
    const A dot = accumulate_range<A>(
                      n, [](A sum, A a, A b) { return multiply_add(a, b, sum); }, y, dy) /
                  alpha;
    map_range(
        std::ptrdiff_t{0}, n, dx, [=](A a, A b) { return k * a * (b - dot); }, y, dy);
}

/// y = alpha softmax(m x) along rows. y may be x. Test: tests/kernels/softmax_test.cpp
template <class T>
void softmax_forward(const Execution& execution, const T* x, T* y, std::ptrdiff_t rows, std::ptrdiff_t n, Accum<T> m,
                     Accum<T> alpha) {
    if (n == 0) return;
    const Isa isa = active_isa();
    parallel_for(execution.threads, rows, row_grain(n), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t row = begin; row < end; ++row) softmax_row<T>(isa, x + row * n, y + row * n, n, m, alpha);
    });
}

/// With p = y / alpha = softmax(m x):  dx = beta m p (dy - sum(dy p)). y is the forward result. dx may be y or dy.
template <class T>
void softmax_backward(const Execution& execution, const T* y, const T* dy, T* dx, std::ptrdiff_t rows, std::ptrdiff_t n,
                      Accum<T> m, Accum<T> alpha, Accum<T> beta) {
    const Isa isa = active_isa();
    parallel_for(execution.threads, rows, row_grain(n), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        const Accum<T> k = beta * m / alpha;
        for (std::ptrdiff_t row = begin; row < end; ++row)
            softmax_gradient_row<T>(isa, y + row * n, dy + row * n, dx + row * n, n, k, alpha);
    });
}

/// y = alpha log softmax(m x) = alpha (m x - log sum exp(m x)) along rows. y may be x.
template <class T>
void log_softmax_forward(const Execution& execution, const T* x, T* y, std::ptrdiff_t rows, std::ptrdiff_t n,
                         Accum<T> m, Accum<T> alpha) {
    using A = Accum<T>;
    if (n == 0) return;
    parallel_for(execution.threads, rows, row_grain(n), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t row = begin; row < end; ++row) {
            const auto [largest, log_sum] = row_log_sum(x + row * n, n, m);
            const A top = largest, rest = log_sum;
            map_range(
                std::ptrdiff_t{0}, n, y + row * n, [=](A v) { return alpha * (multiply_add(m, v, -top) - rest); },
                x + row * n);
        }
    });
}

/// dx = beta m (dy - exp(y / alpha) sum(dy)). y is the forward result. dx may be y or dy.
template <class T>
void log_softmax_backward(const Execution& execution, const T* y, const T* dy, T* dx, std::ptrdiff_t rows,
                          std::ptrdiff_t n, Accum<T> m, Accum<T> alpha, Accum<T> beta) {
    using A = Accum<T>;
    parallel_for(execution.threads, rows, row_grain(n), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        const A k = beta * m;
        const A inverse = A(1) / alpha;
        for (std::ptrdiff_t row = begin; row < end; ++row) {
            const A total = sum_range<A>(
                n, [](A v) { return v; }, dy + row * n);
            map_range(
                std::ptrdiff_t{0}, n, dx + row * n,
                [=](A a, A g) { return k * multiply_add(-exponential(inverse * a), total, g); }, y + row * n,
                dy + row * n);
        }
    });
}

/// Softmax cross-entropy with integer labels, summed over the rows with a label other than `ignored`:
///   sum of log sum exp(m x) - m x[label]
/// Saves log sum exp(m x) of every row (0 of ignored rows). The caller ensures that labels are in [0, n) or `ignored`
/// (`first_outside` in embedding.hpp).
template <class T>
[[nodiscard]] Accum<T> softmax_cross_entropy_forward(const Execution& execution, const T* x, const std::int32_t* labels,
                                                     Accum<T>* log_sums, std::ptrdiff_t rows, std::ptrdiff_t n,
                                                     Accum<T> m, std::int32_t ignored) {
    using A = Accum<T>;
    Scratch<A> scratch(execution, static_cast<std::size_t>(rows));
    A* const losses = scratch.data();
    parallel_for(execution.threads, rows, row_grain(n), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t row = begin; row < end; ++row) {
            losses[row] = log_sums[row] = A(0);
            if (labels[row] == ignored) continue;
            const T* const in = x + row * n;
            const auto [largest, log_sum] = row_log_sum(in, n, m);
            losses[row] = multiply_add(-m, static_cast<A>(in[labels[row]]), largest) + log_sum;
            log_sums[row] = largest + log_sum;
        }
    });
    return sum(execution, losses, rows);
}

/// dx = factor (softmax(m x) - onehot(label)), 0 in ignored rows. The gradient of the sum has factor = m. dx may be x.
template <class T>
void softmax_cross_entropy_backward(const Execution& execution, const T* x, const std::int32_t* labels,
                                    const Accum<T>* log_sums, T* dx, std::ptrdiff_t rows, std::ptrdiff_t n, Accum<T> m,
                                    Accum<T> factor, std::int32_t ignored) {
    using A = Accum<T>;
    parallel_for(execution.threads, rows, row_grain(n), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t row = begin; row < end; ++row) {
            const T* const in = x + row * n;
            T* const out = dx + row * n;
            if (labels[row] == ignored) {
                std::fill_n(out, n, T(0));
                continue;
            }
            const A log_sum = log_sums[row];
            const A hit = factor * (exponential(multiply_add(m, static_cast<A>(in[labels[row]]), -log_sum)) - A(1));
            map_range(
                std::ptrdiff_t{0}, n, out, [=](A v) { return factor * exponential(multiply_add(m, v, -log_sum)); }, in);
            out[labels[row]] = static_cast<T>(hit);
        }
    });
}

}  // namespace unitscale::kernels
