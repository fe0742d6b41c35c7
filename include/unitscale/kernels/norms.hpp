// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/reduce.hpp>

#include <limits>

// Normalisation of rows: x, y, dy, dx [rows, n]; gains w and shifts c [n], nullptr when absent; statistics [rows] in
// Accum<T>. y may be x, dx may be dy.
namespace unitscale::kernels {

/// Requested gradients, each nullptr when not wanted, and the factor of each.
template <class T>
struct NormGradients {
    T* dx = nullptr;  ///< [rows, n]
    T* dw = nullptr;  ///< [n]
    T* dc = nullptr;  ///< [n]
    Accum<T> beta_x = 1;
    Accum<T> beta_w = 1;
    Accum<T> beta_c = 1;
};

/// n parameters in Accum<T>: `x` itself if T is Accum<T>, else widened into `scratch`. nullptr stays nullptr.
template <class T>
[[nodiscard]] const Accum<T>* widened(const T* x, std::ptrdiff_t n, Accum<T>* scratch) noexcept {
    if constexpr (std::is_same_v<T, Accum<T>>) return x;
    else {
        if (x == nullptr) return nullptr;
        for (std::ptrdiff_t j = 0; j < n; ++j) scratch[j] = widen(x[j]);
        return scratch;
    }
}

/// Statistics of a row: its mean (0 for the norm that does not subtract it) and 1 / sqrt(mean square about it +
/// epsilon).
template <class A>
struct RowStatistics {
    A mean, inverse;
};

/// The mean (0 unless `centred`) and the mean square about it of factor x[j], j in [0, n). factor is 1 unless `scaled`.
template <bool scaled, class T>
[[nodiscard]] std::array<Accum<T>, 2> row_moments(const T* x, std::ptrdiff_t n, bool centred,
                                                  Accum<T> factor) noexcept {
    using A = Accum<T>;
    const auto add = [=](A v, A to) {
        if constexpr (scaled) return multiply_add(factor, v, to);
        else return v + to;
    };
    const A size = static_cast<A>(n);
    const A mu = centred ? accumulate_range<A>(
                               n, [add](A sum, A v) { return add(v, sum); }, x) /
                               size
                         : A(0);
    const A square = accumulate_range<A>(
                         n,
                         [add, mu](A sum, A v) {
                             const A difference = add(v, -mu);
                             return multiply_add(difference, difference, sum);
                         },
                         x) /
                     size;
    return {mu, square};
}

/// Where squares leave the range of Accum<T>, the row is multiplied by a power of two that brings its largest magnitude
/// near 1. So every finite row has statistics. An infinity or a NaN makes both NaN.
template <class T>
[[nodiscard]] RowStatistics<Accum<T>> row_statistics(const T* x, std::ptrdiff_t n, bool centred,
                                                     double epsilon) noexcept {
    using A = Accum<T>;
    using Limits = std::numeric_limits<A>;
    const auto [mu, square] = row_moments<false>(x, n, centred, A(1));
    const double sum = static_cast<double>(square) + epsilon;
    if (square <= Limits::max() && sum >= static_cast<double>(Limits::min()))
        return {mu, static_cast<A>(1.0 / std::sqrt(sum))};
    const A differences = sum_range<A>(
        n, [](A v) { return v - v; }, x);  // 0, or NaN if an element is not finite
    if (differences != A(0)) return {differences, differences};
    const A largest = max_range(
        n, [](A v) { return v < A(0) ? -v : v; }, x);
    const int exponent =
        largest == A(0) ? 0 : std::clamp(std::ilogb(largest), 2 - Limits::max_exponent, Limits::max_exponent - 2);
    const auto [scaled_mu, scaled_square] = row_moments<true>(x, n, centred, std::ldexp(A(1), -exponent));
    const double root = std::sqrt(static_cast<double>(scaled_square) + std::ldexp(epsilon, -2 * exponent));
    return {std::ldexp(scaled_mu, exponent), static_cast<A>(std::ldexp(1.0 / root, -exponent))};
}

/// Forward pass of both norms. mean is nullptr for the norm that does not subtract it.
template <class T>
void norm_forward(const Execution& execution, const T* x, const T* gains, const T* shifts, T* y, Accum<T>* mean,
                  Accum<T>* inverse, std::ptrdiff_t rows, std::ptrdiff_t n, double epsilon) {
    using A = Accum<T>;
    Scratch<A> scratch(execution, std::is_same_v<T, A> ? 0 : static_cast<std::size_t>(2 * n));
    const A* const w = widened(gains, n, scratch.data());
    const A* const c = widened(shifts, n, scratch.data() + (std::is_same_v<T, A> ? 0 : n));
    parallel_for(execution.threads, rows, row_grain(n), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t row = begin; row < end; ++row) {
            const T* const in = x + row * n;
            T* const out = y + row * n;
            const RowStatistics<A> statistics = row_statistics(in, n, mean != nullptr, epsilon);
            const A mu = statistics.mean, r = statistics.inverse;
            if (w != nullptr && c != nullptr)
                map_range(
                    std::ptrdiff_t{0}, n, out, [=](A v, A g, A s) { return multiply_add((v - mu) * r, g, s); }, in, w,
                    c);
            else if (w != nullptr)
                map_range(
                    std::ptrdiff_t{0}, n, out, [=](A v, A g) { return (v - mu) * r * g; }, in, w);
            else if (c != nullptr)
                map_range(
                    std::ptrdiff_t{0}, n, out, [=](A v, A s) { return multiply_add(v - mu, r, s); }, in, c);
            else
                map_range(
                    std::ptrdiff_t{0}, n, out, [=](A v) { return (v - mu) * r; }, in);
            if (mean != nullptr) mean[row] = mu;
            inverse[row] = r;
        }
    });
}

/// The two sums of a row's backward pass: sum(g) and sum(g h) with h = (x - mu) r and g = w dy. The row's share of the
/// gradients of gains and shifts is added to sums_w and sums_c (nullptr: not wanted). Used lanes past n are read.
template <class T>
[[nodiscard, gnu::flatten]] inline std::array<Accum<T>, 2> norm_row_sums(const T* x, const Accum<T>* w, const T* dy,
                                                                         Accum<T> mu, Accum<T> r, Accum<T>* sums_w,
                                                                         Accum<T>* sums_c, std::ptrdiff_t n) noexcept {
    using A = Accum<T>;
    Block<A> ones, blocks[3], h, added, sum_g, sum_gh;
    sum_g.fill(A(0));
    sum_gh.fill(A(0));
    ones.fill(A(1));
    for (std::ptrdiff_t j = 0; j < n; j += block_size) {
        const std::ptrdiff_t count = std::min(block_size, n - j);
        const A* const value = read_block(x + j, count, blocks[0]);
        const A* const d = read_block(dy + j, count, blocks[1]);
        const A* const gain = w == nullptr ? ones.data() : read_block(w + j, count, blocks[2]);
        for_lanes(count, [&](std::size_t l) {
            h[l] = (value[l] - mu) * r;
            sum_g[l] = multiply_add(d[l], gain[l], sum_g[l]);
            sum_gh[l] = multiply_add(d[l] * gain[l], h[l], sum_gh[l]);
        });
        if (sums_w != nullptr) {
            const A* const sums = sums_w + j;
            for_lanes(count, [&](std::size_t l) { added[l] = multiply_add(d[l], h[l], sums[l]); });
            store_block(added, count, sums_w + j);
        }
        if (sums_c != nullptr) {
            const A* const sums = sums_c + j;
            for_lanes(count, [&](std::size_t l) { added[l] = sums[l] + d[l]; });
            store_block(added, count, sums_c + j);
        }
    }
    return {sum_lanes(sum_g), sum_lanes(sum_gh)};
}

/// Backward pass of both norms, in one sweep over x and dy. Gradients of gains and shifts are summed by fixed chunks of
/// rows.
template <class T>
void norm_backward(const Execution& execution, const T* x, const T* gains, const T* dy, const Accum<T>* mean,
                   const Accum<T>* inverse, const NormGradients<T>& to, std::ptrdiff_t rows, std::ptrdiff_t n) {
    using A = Accum<T>;
    Scratch<A> scratch(execution, std::is_same_v<T, A> ? 0 : static_cast<std::size_t>(n));
    const A* const w = widened(gains, n, scratch.data());
    const std::ptrdiff_t chunk = rows_per_chunk(rows, n);
    const std::ptrdiff_t chunks = (rows + chunk - 1) / chunk;
    const auto stride = static_cast<std::ptrdiff_t>(used_lanes(n));
    const std::ptrdiff_t sums = chunks * stride;
    Scratch<A> partial(execution,
                       static_cast<std::size_t>((to.dw != nullptr ? sums : 0) + (to.dc != nullptr ? sums : 0)));
    A* const sums_w = to.dw != nullptr ? partial.data() : nullptr;
    A* const sums_c = to.dc != nullptr ? partial.data() + (to.dw != nullptr ? sums : 0) : nullptr;
    if (sums_w != nullptr) std::fill_n(sums_w, sums, A(0));
    if (sums_c != nullptr) std::fill_n(sums_c, sums, A(0));
    parallel_for(execution.threads, chunks, 1, [=](std::ptrdiff_t first, std::ptrdiff_t last) {
        for (std::ptrdiff_t c = first; c < last; ++c)
            for (std::ptrdiff_t row = c * chunk; row < std::min(rows, (c + 1) * chunk); ++row) {
                const T* const in = x + row * n;
                const T* const g = dy + row * n;
                const A mu = mean == nullptr ? A(0) : mean[row];
                const A r = inverse[row];
                const auto [sum_g, sum_gh] =
                    norm_row_sums(in, w, g, mu, r, sums_w == nullptr ? nullptr : sums_w + c * stride,
                                  sums_c == nullptr ? nullptr : sums_c + c * stride, n);
                if (to.dx == nullptr) continue;
                const A k = to.beta_x * r;
                const A a = mean == nullptr ? A(0) : sum_g / static_cast<A>(n);
                const A b = sum_gh / static_cast<A>(n);
                T* const out = to.dx + row * n;
                if (w != nullptr)
                    map_range(
                        std::ptrdiff_t{0}, n, out,
                        [=](A v, A d, A gain) { return k * multiply_add((mu - v) * r, b, multiply_add(d, gain, -a)); },
                        in, g, w);
                else
                    map_range(
                        std::ptrdiff_t{0}, n, out, [=](A v, A d) { return k * multiply_add((mu - v) * r, b, d - a); },
                        in, g);
            }
    });
    if (to.dw != nullptr) combine_chunks<T>(execution, sums_w, stride, to.dw, chunks, n, to.beta_w);
    if (to.dc != nullptr) combine_chunks<T>(execution, sums_c, stride, to.dc, chunks, n, to.beta_c);
}

/// y = w (x - mean) / std + c,  std = sqrt(variance + epsilon), variance over n (biased).
/// Saves mean and inverse = 1 / std of each row. Test: tests/kernels/norms_test.cpp
template <class T>
void layer_norm_forward(const Execution& execution, const T* x, const T* w, const T* c, T* y, Accum<T>* mean,
                        Accum<T>* inverse, std::ptrdiff_t rows, std::ptrdiff_t n, double epsilon = 1e-5) {
    norm_forward(execution, x, w, c, y, mean, inverse, rows, n, epsilon);
}

/// With h = (x - mean) / std and g = w dy:
///   dx = beta_x (g - mean(g) - h mean(g h)) / std
///   dw = beta_w sum over rows of dy h     dc = beta_c sum over rows of dy
template <class T>
void layer_norm_backward(const Execution& execution, const T* x, const T* w, const T* dy, const Accum<T>* mean,
                         const Accum<T>* inverse, const NormGradients<T>& gradients, std::ptrdiff_t rows,
                         std::ptrdiff_t n) {
    norm_backward(execution, x, w, dy, mean, inverse, gradients, rows, n);
}

/// y = w x / rms,  rms = sqrt(mean(x^2) + epsilon). Saves inverse = 1 / rms of each row.
template <class T>
void rms_norm_forward(const Execution& execution, const T* x, const T* w, T* y, Accum<T>* inverse, std::ptrdiff_t rows,
                      std::ptrdiff_t n, double epsilon = 1e-5) {
    norm_forward<T>(execution, x, w, nullptr, y, nullptr, inverse, rows, n, epsilon);
}

/// With h = x / rms and g = w dy:  dx = beta_x (g - h mean(g h)) / rms     dw = beta_w sum over rows of dy h
template <class T>
void rms_norm_backward(const Execution& execution, const T* x, const T* w, const T* dy, const Accum<T>* inverse,
                       const NormGradients<T>& gradients, std::ptrdiff_t rows, std::ptrdiff_t n) {
    norm_backward<T>(execution, x, w, dy, nullptr, inverse, gradients, rows, n);
}

}  // namespace unitscale::kernels
