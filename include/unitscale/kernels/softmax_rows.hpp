// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/vectors.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

// The softmax of one row and its gradient, dispatched by instruction set as the products are. Sums have the lanes and
// the tree of `sum_range` (vector_math.hpp). Test: tests/kernels/softmax_rows_test.cpp
namespace unitscale::kernels {

/// max of m x over a row. A NaN is ignored: it shows in the sum of exponentials.   x [n]
template <class P>
[[gnu::always_inline]] inline P scaled_maximum_loop(const P* x, std::ptrdiff_t n, P m) {
    Block<P> lanes;
    lanes.fill(m * x[0]);
    std::ptrdiff_t i = 0;
    for (; i + block_size <= n; i += block_size)
        for (std::size_t l = 0; l < lanes.size(); ++l) {
            const P value = m * x[static_cast<std::size_t>(i) + l];
            lanes[l] = value > lanes[l] ? value : lanes[l];
        }
    for (std::size_t l = 0; l < static_cast<std::size_t>(n - i); ++l) {
        const P value = m * x[static_cast<std::size_t>(i) + l];
        lanes[l] = value > lanes[l] ? value : lanes[l];
    }
    return largest_lane(lanes);
}

/// y = alpha softmax(m x). y may be x.   x, y [n], n >= 1. `fused`: see multiply_add.
template <bool fused, class P>
[[gnu::always_inline]] inline void softmax_row_loop(const P* x, P* y, std::ptrdiff_t n, P m, P alpha) {
    const P largest = scaled_maximum_loop(x, n, m);
    Block<P> lanes;
    lanes.fill(P(0));
    std::ptrdiff_t i = 0;
    for (; i + block_size <= n; i += block_size) {
        Block<P> values;  // y may be x: a loop that reads one and writes the other would be vectorised with a check
        for (std::size_t l = 0; l < values.size(); ++l)
            values[l] = exponential<fused>(multiply_add<fused>(m, x[static_cast<std::size_t>(i) + l], -largest));
        for (std::size_t l = 0; l < values.size(); ++l) {
            lanes[l] += values[l];
            y[static_cast<std::size_t>(i) + l] = values[l];
        }
    }
    for (std::size_t l = 0; l < static_cast<std::size_t>(n - i); ++l) {
        const std::size_t j = static_cast<std::size_t>(i) + l;
        y[j] = exponential<fused>(multiply_add<fused>(m, x[j], -largest));
        lanes[l] += y[j];
    }
    const P k = alpha / sum_lanes(lanes);
    for (std::ptrdiff_t j = 0; j < n; ++j) y[j] = k * y[j];
}

/// dx = k y (dy - sum(y dy) / alpha), with y = alpha softmax(m x). dx may be y or dy.   y, dy, dx [n]
template <bool fused, class P>
[[gnu::always_inline]] inline void softmax_gradient_row_loop(const P* y, const P* dy, P* dx, std::ptrdiff_t n, P k,
                                                             P alpha) {
    Block<P> lanes;
    lanes.fill(P(0));
    std::ptrdiff_t i = 0;
    for (; i + block_size <= n; i += block_size)
        for (std::size_t l = 0; l < lanes.size(); ++l) {
            const std::size_t j = static_cast<std::size_t>(i) + l;
            lanes[l] = multiply_add<fused>(y[j], dy[j], lanes[l]);
        }
    for (std::size_t l = 0; l < static_cast<std::size_t>(n - i); ++l) {
        const std::size_t j = static_cast<std::size_t>(i) + l;
        lanes[l] = multiply_add<fused>(y[j], dy[j], lanes[l]);
    }
    const P dot = sum_lanes(lanes) / alpha;
    for (std::ptrdiff_t j = 0; j < n; ++j) dx[j] = k * y[j] * (dy[j] - dot);
}

#if UNITSCALE_X86
template <class P>
UNITSCALE_TARGET_AVX2 void softmax_row_avx2(const P* x, P* y, std::ptrdiff_t n, P m, P alpha) {
    softmax_row_loop<true>(x, y, n, m, alpha);
}
/// `largest_lane` of eight lanes.
[[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline float largest_in_register(__m256 x) {
    const __m128 four =
        _mm_max_ps(__builtin_shufflevector(x, x, 4, 5, 6, 7), __builtin_shufflevector(x, x, 0, 1, 2, 3));
    const float even = four[2] > four[0] ? four[2] : four[0], odd = four[3] > four[1] ? four[3] : four[1];
    return odd > even ? odd : even;
}
/// The largest of `start` and x[0 .. n), n a multiple of 32. A NaN of x is ignored.
[[nodiscard]] UNITSCALE_TARGET_AVX2 inline float largest_avx2(const float* x, std::ptrdiff_t n, float start) {
    const __m256 first = broadcast_avx2(start);
    __m256 lanes[4] = {first, first, first, first};
    for (std::ptrdiff_t i = 0; i < n; i += 32)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; ++v) lanes[v] = _mm256_max_ps(load_avx2(x + i + 8 * v), lanes[v]);
    return largest_in_register(_mm256_max_ps(_mm256_max_ps(lanes[3], lanes[1]), _mm256_max_ps(lanes[2], lanes[0])));
}
/// Whether the largest x gives the largest product m x: a positive m rounds products in order.
[[nodiscard]] inline bool keeps_order(float m) noexcept { return m > 0 && m <= std::numeric_limits<float>::max(); }

/// `softmax_row_avx2` for floats, 32 at a time. Fewer are completed by -infinity: its exponential, 0, changes no sum.
UNITSCALE_TARGET_AVX2 inline void softmax_row_avx2(const float* x, float* y, std::ptrdiff_t n, float m, float alpha) {
    if (!keeps_order(m)) return softmax_row_avx2<float>(x, y, n, m, alpha);
    const std::ptrdiff_t whole = n / 32 * 32;
    alignas(32) std::array<float, 32> end;
    if (whole < n) {
        end.fill(-std::numeric_limits<float>::infinity());
        std::copy(x + whole, x + n, end.begin());
    }
    float largest = largest_avx2(x, whole, x[0]);
    if (whole < n) largest = largest_avx2(end.data(), 32, largest);
    const __m256 scale = broadcast_avx2(m), shift = broadcast_avx2(-(m * largest));
    alignas(32) Block<float> lanes;
    lanes.fill(0.0f);
    for (std::ptrdiff_t i = 0; i < n; i += 32) {
        const float* const in = i < whole ? x + i : end.data();
        float* const out = i < whole ? y + i : end.data();
        float* const sums = lanes.data() + i % block_size;
        __m256 values[4];
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; ++v) values[v] = fused_avx2(scale, load_avx2(in + 8 * v), shift);
        exponentials_256(values);
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; ++v) {
            store_avx2(out + 8 * v, values[v]);
            store_avx2(sums + 8 * v, _mm256_add_ps(load_avx2(sums + 8 * v), values[v]));
        }
    }
    std::copy_n(end.begin(), n - whole, y + whole);
    const float k = alpha / sum_lanes(lanes);
    for (std::ptrdiff_t j = 0; j < n; ++j) y[j] = k * y[j];
}
template <class P>
UNITSCALE_TARGET_AVX2 void softmax_gradient_row_avx2(const P* y, const P* dy, P* dx, std::ptrdiff_t n, P k, P alpha) {
    softmax_gradient_row_loop<true>(y, dy, dx, n, k, alpha);
}
template <class P>
UNITSCALE_TARGET_AVX512 void softmax_row_avx512(const P* x, P* y, std::ptrdiff_t n, P m, P alpha) {
    softmax_row_loop<true>(x, y, n, m, alpha);
}
/// The levels of `sum_lanes` and `largest_lane` below sixteen lanes, in registers.
[[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline float sum_in_register(__m512 x) {
    const auto eight = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto four =
        __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
}
[[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline float largest_in_register(__m512 x) {
    const __m256 low = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
                 high = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    return largest_in_register(_mm256_max_ps(high, low));
}

/// `softmax_row_avx512` for floats: sixteen elements in a register. Lanes behind the row's end add 0 to the sums.
UNITSCALE_TARGET_AVX512 inline void softmax_row_avx512(const float* x, float* y, std::ptrdiff_t n, float m,
                                                       float alpha) {
    if (!keeps_order(m)) return softmax_row_loop<true>(x, y, n, m, alpha);
    constexpr __mmask16 all = 0xFFFF;  // GCC warns of what instructions without a mask leave out
    const __m512 scale = broadcast_avx512(m);
    __m512 most[4], sums[4];
    for (std::size_t v = 0; v < 4; ++v) {
        most[v] = broadcast_avx512(x[0]);
        sums[v] = broadcast_avx512(0.0f);
    }
    std::ptrdiff_t j = 0;
    for (; j + block_size <= n; j += block_size)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; ++v) most[v] = _mm512_maskz_max_ps(all, load_avx512(x + j + 16 * v), most[v]);
    for (std::size_t v = 0; j < n; j += 16, ++v) {
        const unsigned mask = n - j >= 16 ? 0xFFFFu : (1u << (n - j)) - 1;
        most[v] = _mm512_mask_max_ps(most[v], static_cast<__mmask16>(mask), load_avx512(mask, x + j), most[v]);
    }
    const __m512 pair = _mm512_maskz_max_ps(all, most[2], most[0]), other = _mm512_maskz_max_ps(all, most[3], most[1]);
    const __m512 shift = broadcast_avx512(-(m * largest_in_register(_mm512_maskz_max_ps(all, other, pair))));
    for (j = 0; j + block_size <= n; j += block_size)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; ++v) {
            const __m512 value = exponential_512<true>(fused_avx512(scale, load_avx512(x + j + 16 * v), shift));
            sums[v] = _mm512_add_ps(sums[v], value);
            store_avx512(y + j + 16 * v, value);
        }
    for (std::size_t v = 0; j < n; j += 16, ++v) {
        const unsigned mask = n - j >= 16 ? 0xFFFFu : (1u << (n - j)) - 1;
        const __m512 value = exponential_512<true>(fused_avx512(scale, load_avx512(mask, x + j), shift));
        sums[v] = _mm512_mask_add_ps(sums[v], static_cast<__mmask16>(mask), sums[v], value);
        store_avx512(mask, y + j, value);
    }
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[2]), _mm512_add_ps(sums[1], sums[3]));
    const float k = alpha / sum_in_register(sum);
    for (j = 0; j < n; ++j) y[j] = k * y[j];
}
template <class P>
UNITSCALE_TARGET_AVX512 void softmax_gradient_row_avx512(const P* y, const P* dy, P* dx, std::ptrdiff_t n, P k,
                                                         P alpha) {
    softmax_gradient_row_loop<true>(y, dy, dx, n, k, alpha);
}
#endif

/// y = alpha softmax(m x) of a row. y may be x.   x, y [n], n >= 1
template <class P>
void softmax_row_of(Isa isa, const P* x, P* y, std::ptrdiff_t n, P m, P alpha) {
#if UNITSCALE_X86
    if (isa == Isa::avx512) return softmax_row_avx512(x, y, n, m, alpha);
    if (isa == Isa::avx2) return softmax_row_avx2(x, y, n, m, alpha);
#endif
    (void)isa;
    softmax_row_loop<has_multiply_add>(x, y, n, m, alpha);
}
/// Its gradient, dx = k y (dy - sum(y dy) / alpha). dx may be y or dy.   y, dy, dx [n]
template <class P>
void softmax_gradient_row_of(Isa isa, const P* y, const P* dy, P* dx, std::ptrdiff_t n, P k, P alpha) {
#if UNITSCALE_X86
    if (isa == Isa::avx512) return softmax_gradient_row_avx512(y, dy, dx, n, k, alpha);
    if (isa == Isa::avx2) return softmax_gradient_row_avx2(y, dy, dx, n, k, alpha);
#endif
    (void)isa;
    softmax_gradient_row_loop<has_multiply_add>(y, dy, dx, n, k, alpha);
}

}  // namespace unitscale::kernels
