// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/vectors.hpp>
#include <unitscale/kernels/softmax_rows.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

// Attention's operations on a row of scores between its products, dispatched by instruction set as the products are.
// Test: tests/kernels/attention_rows_test.cpp
namespace unitscale::kernels {

/// Rows of scores are padded to a multiple of this many elements, so that loops over them have whole vectors.
inline constexpr std::ptrdiff_t score_lanes = 32;
/// Distance below the maximum at which hidden scores enter the exponential. e^-80 is lost in a sum of at least 1, and
/// it is a normal number. The exponential of -infinity passes through subnormals, which cost more than the whole row.
inline constexpr float hidden_score = 80;

/// Sets the elements outside [first, last) of the whole vectors that hold [first, last).
template <class P>
void fill_around(P* x, std::ptrdiff_t first, std::ptrdiff_t last, P value) {
    std::fill(x + first / score_lanes * score_lanes, x + first, value);
    std::fill(x + last, x + (last + score_lanes - 1) / score_lanes * score_lanes, value);
}

/// max of x[0 .. n), n a multiple of score_lanes. A NaN is ignored: it shows in the sum.
template <class P>
[[gnu::always_inline]] inline P row_maximum_loop(const P* x, std::ptrdiff_t n) {
    std::array<P, static_cast<std::size_t>(score_lanes)> lanes;
    lanes.fill(-std::numeric_limits<P>::infinity());
    for (std::ptrdiff_t i = 0; i < n; i += score_lanes)
        for (std::size_t l = 0; l < lanes.size(); ++l) {
            const P value = x[static_cast<std::size_t>(i) + l];
            lanes[l] = value > lanes[l] ? value : lanes[l];
        }
    return largest_lane(lanes);
}

/// x = exp(x - shift); returns the sum. `fused`: see multiply_add.
template <bool fused, class P>
[[gnu::always_inline]] inline P row_exponential_loop(P* x, std::ptrdiff_t n, P shift) {
    std::array<P, static_cast<std::size_t>(score_lanes)> lanes;
    lanes.fill(P(0));
    for (std::ptrdiff_t i = 0; i < n; i += score_lanes)
        for (std::size_t l = 0; l < lanes.size(); ++l) {
            P& value = x[static_cast<std::size_t>(i) + l];
            value = exponential<fused>(value - shift);
            lanes[l] += value;
        }
    return sum_lanes(lanes);
}

/// d = p (d - sum(p d)): the gradient of a softmax with result p.
template <bool fused, class P>
[[gnu::always_inline]] inline void row_softmax_gradient_loop(const P* p, P* d, std::ptrdiff_t n) {
    std::array<P, static_cast<std::size_t>(score_lanes)> lanes;
    lanes.fill(P(0));
    for (std::ptrdiff_t i = 0; i < n; i += score_lanes)
        for (std::size_t l = 0; l < lanes.size(); ++l)
            lanes[l] =
                multiply_add<fused>(p[static_cast<std::size_t>(i) + l], d[static_cast<std::size_t>(i) + l], lanes[l]);
    const P sum = sum_lanes(lanes);
    for (std::ptrdiff_t i = 0; i < n; i += score_lanes)
        for (std::size_t l = 0; l < lanes.size(); ++l) {
            P& value = d[static_cast<std::size_t>(i) + l];
            value = p[static_cast<std::size_t>(i) + l] * (value - sum);
        }
}

#if UNITSCALE_X86
template <class P>
UNITSCALE_TARGET_AVX2 P row_maximum_avx2(const P* x, std::ptrdiff_t n) {
    return row_maximum_loop(x, n);
}
UNITSCALE_TARGET_AVX2 inline float row_maximum_avx2(const float* x, std::ptrdiff_t n) {
    return largest_avx2(x, n, -std::numeric_limits<float>::infinity());
}
template <class P>
UNITSCALE_TARGET_AVX2 P row_exponential_avx2(P* x, std::ptrdiff_t n, P shift) {
    return row_exponential_loop<true>(x, n, shift);
}
/// `row_exponential_avx2` for floats: 32 exponentials at a time.
UNITSCALE_TARGET_AVX2 inline float row_exponential_avx2(float* x, std::ptrdiff_t n, float shift) {
    const __m256 shifts = broadcast_avx2(shift);
    alignas(32) std::array<float, static_cast<std::size_t>(score_lanes)> lanes;
    __m256 sums[4];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < 4; ++v) sums[v] = broadcast_avx2(0.0f);
    for (std::ptrdiff_t i = 0; i < n; i += score_lanes) {
        __m256 values[4];
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; ++v) values[v] = _mm256_sub_ps(load_avx2(x + i + 8 * v), shifts);
        exponentials_256(values);
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; ++v) {
            store_avx2(x + i + 8 * v, values[v]);
            sums[v] = _mm256_add_ps(sums[v], values[v]);
        }
    }
#pragma GCC unroll 4
    for (std::size_t v = 0; v < 4; ++v) store_avx2(lanes.data() + 8 * v, sums[v]);
    return sum_lanes(lanes);
}
template <class P>
UNITSCALE_TARGET_AVX2 void row_softmax_gradient_avx2(const P* p, P* d, std::ptrdiff_t n) {
    row_softmax_gradient_loop<true>(p, d, n);
}
template <class P>
UNITSCALE_TARGET_AVX512 P row_maximum_avx512(const P* x, std::ptrdiff_t n) {
    return row_maximum_loop(x, n);
}
template <class P>
UNITSCALE_TARGET_AVX512 P row_exponential_avx512(P* x, std::ptrdiff_t n, P shift) {
    return row_exponential_loop<true>(x, n, shift);
}
/// `row_exponential_avx512` for floats: sixteen exponentials in a register.
UNITSCALE_TARGET_AVX512 inline float row_exponential_avx512(float* x, std::ptrdiff_t n, float shift) {
    const __m512 shifts = broadcast_avx512(shift);
    __m512 low = broadcast_avx512(0.0f), high = low;
    for (std::ptrdiff_t i = 0; i < n; i += score_lanes) {
        const __m512 first = exponential_512(_mm512_sub_ps(load_avx512(x + i), shifts)),
                     second = exponential_512(_mm512_sub_ps(load_avx512(x + i + 16), shifts));
        store_avx512(x + i, first);
        store_avx512(x + i + 16, second);
        low = _mm512_add_ps(low, first);
        high = _mm512_add_ps(high, second);
    }
    alignas(64) std::array<float, static_cast<std::size_t>(score_lanes)> lanes;
    store_avx512(lanes.data(), low);
    store_avx512(lanes.data() + 16, high);
    return sum_lanes(lanes);
}
template <class P>
UNITSCALE_TARGET_AVX512 void row_softmax_gradient_avx512(const P* p, P* d, std::ptrdiff_t n) {
    row_softmax_gradient_loop<true>(p, d, n);
}
#endif

template <class P>
[[nodiscard]] P row_maximum(Isa isa, const P* x, std::ptrdiff_t n) {
#if UNITSCALE_X86
    if (isa == Isa::avx512) return row_maximum_avx512(x, n);
    if (isa == Isa::avx2) return row_maximum_avx2(x, n);
#endif
    (void)isa;
    return row_maximum_loop(x, n);
}
template <class P>
P row_exponential(Isa isa, P* x, std::ptrdiff_t n, P shift) {
#if UNITSCALE_X86
    if (isa == Isa::avx512) return row_exponential_avx512(x, n, shift);
    if (isa == Isa::avx2) return row_exponential_avx2(x, n, shift);
#endif
    (void)isa;
    return row_exponential_loop<has_multiply_add>(x, n, shift);
}
template <class P>
void row_softmax_gradient(Isa isa, const P* p, P* d, std::ptrdiff_t n) {
#if UNITSCALE_X86
    if (isa == Isa::avx512) return row_softmax_gradient_avx512(p, d, n);
    if (isa == Isa::avx2) return row_softmax_gradient_avx2(p, d, n);
#endif
    (void)isa;
    row_softmax_gradient_loop<has_multiply_add>(p, d, n);
}

}  // namespace unitscale::kernels
