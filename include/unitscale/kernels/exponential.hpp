// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/select.hpp>
#include <unitscale/base/vectors.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

// The exponential, as functions that compilers vectorise: no branch, no call, no table.
namespace unitscale::kernels {

/// x = rest + exponent ln 2, |rest| < 0.35; below -104 |rest| < 0.7. Rounding to an integer is the truncation of a
/// positive number: no compiler option changes it. `fused` as in multiply_add.
struct ReducedExponent {
    float rest;
    std::int32_t exponent;
};
template <bool fused = has_multiply_add>
[[nodiscard, gnu::always_inline]] inline ReducedExponent reduced_exponent(float x) noexcept {
    const std::int32_t k =
        static_cast<std::int32_t>(multiply_add<fused>(x, std::numbers::log2e_v<float>, 152.5f)) - 152;
    const auto kf = static_cast<float>(k);
    // ln 2 in two parts; the first is exact times k
    return {multiply_add<fused>(kf, 2.12194440e-4f, multiply_add<fused>(kf, -0.693359375f, x)), k};
}

/// e^r = 1 + r + r^2 q, |r| < 0.35. These are the coefficients of the polynomial q, the one of r^4 first.
inline constexpr float exponential_terms[] = {1.39263256181e-3f, 8.36329275303e-3f, 4.16665537626e-2f,
                                              1.66665763056e-1f, 0.5f};
/// e^r for |r| < 0.35, in [0.7, 1.42].
template <bool fused = has_multiply_add>
[[nodiscard, gnu::always_inline]] inline float small_exponential(float r) noexcept {
    float p = multiply_add<fused>(exponential_terms[0], r, exponential_terms[1]);
    p = multiply_add<fused>(p, r, exponential_terms[2]);
    p = multiply_add<fused>(p, r, exponential_terms[3]);
    p = multiply_add<fused>(p, r, exponential_terms[4]);
    return multiply_add<fused>(p * r, r, r) + 1.0f;
}

/// 2^k, k in [-126, 127]; 0 for k = -127.
[[nodiscard]] inline float power_of_two(std::int32_t k) noexcept { return std::bit_cast<float>((k + 127) << 23); }

/// e^x for every float. Relative error under 1e-7 where the result is normal; 0 and infinity beyond the range of float;
/// NaN for NaN. Test: tests/kernels/exponential_test.cpp
template <bool fused = has_multiply_add>
[[nodiscard, gnu::always_inline]] inline float exponential(float x) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude = std::min(bits & 0x7FFFFFFFu, std::bit_cast<std::uint32_t>(176.06f));  // 254 ln 2
    const auto [rest, k] = reduced_exponent<fused>(std::bit_cast<float>(magnitude | (bits & 0x80000000u)));
    const float value = small_exponential<fused>(rest);
    const std::int32_t half = k >> 1;  // two factors: no overflow, subnormal results reached; -127 (-infinity) gives 0
    return select((bits & 0x7FFFFFFFu) > 0x7F800000u, x, value * power_of_two(half) * power_of_two(k - half));
}
template <bool fused = has_multiply_add>
[[nodiscard]] inline double exponential(double x) noexcept {
    return std::exp(x);
}

#if UNITSCALE_X86
/// Here the compiler computes all four vectors, before anything that uses them.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline void together_avx2(auto(&x)[4]) {
    asm("" : "+x"(x[0]), "+x"(x[1]), "+x"(x[2]), "+x"(x[3]));
}

/// x = e^x for four vectors of floats, with the bits of `exponential<true>`. All four take each part of the computation
/// before the next part. Within one vector, most instructions wait for the result of the one before.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline void exponentials_256(__m256 (&x)[4]) noexcept {
    __m256i exponent[4];  // the exponent of the result, plus 254
    __m256 p[4];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < 4; ++v) {
        // A NaN passes both, as the second operand.
        x[v] = _mm256_max_ps(_mm256_set1_ps(-176.06f), _mm256_min_ps(_mm256_set1_ps(176.06f), x[v]));
        exponent[v] = _mm256_cvttps_epi32(
            _mm256_fmadd_ps(x[v], _mm256_set1_ps(std::numbers::log2e_v<float>), _mm256_set1_ps(152.5f)));
    }
    together_avx2(exponent);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < 4; ++v) {
        exponent[v] = _mm256_add_epi32(exponent[v], _mm256_set1_epi32(254 - 152));
        const __m256 k = _mm256_sub_ps(_mm256_cvtepi32_ps(exponent[v]), _mm256_set1_ps(254.0f));
        x[v] = _mm256_fmadd_ps(k, _mm256_set1_ps(-0.693359375f), x[v]);
        x[v] = _mm256_fmadd_ps(k, _mm256_set1_ps(2.12194440e-4f), x[v]);
    }
    together_avx2(x);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < 4; ++v) {
        p[v] = _mm256_fmadd_ps(_mm256_set1_ps(exponential_terms[0]), x[v], _mm256_set1_ps(exponential_terms[1]));
        p[v] = _mm256_fmadd_ps(p[v], x[v], _mm256_set1_ps(exponential_terms[2]));
        p[v] = _mm256_fmadd_ps(p[v], x[v], _mm256_set1_ps(exponential_terms[3]));
        p[v] = _mm256_fmadd_ps(p[v], x[v], _mm256_set1_ps(exponential_terms[4]));
    }
    together_avx2(p);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < 4; ++v) {  // two factors, as in `exponential`: each is 2^(half of the exponent)
        const __m256i half = _mm256_srli_epi32(exponent[v], 1), rest = _mm256_sub_epi32(exponent[v], half);
        const __m256 value =
            _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(p[v], x[v]), x[v], x[v]), _mm256_set1_ps(1.0f));
        x[v] = _mm256_mul_ps(_mm256_mul_ps(value, _mm256_castsi256_ps(_mm256_slli_epi32(half, 23))),
                             _mm256_castsi256_ps(_mm256_slli_epi32(rest, 23)));
    }
    together_avx2(x);  // else a compiler might add the last product to a caller's sum in one instruction
}

// Without optimisation GCC's intrinsics with an immediate are macros. They convert a mask of sixteen ones in the
// caller's code.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
/// e^x of sixteen floats, with the bits of `exponential<true>` in half its instructions: one of them multiplies by 2^k,
/// whatever k is, and rounds once. It is left out where the result is 0, as for -infinity: underflow is slow.
/// `bounded`: x is at most 176.
template <bool bounded = false>
[[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 exponential_512(__m512 x) noexcept {
    constexpr __mmask16 all = 0xFFFF;  // GCC warns of what instructions without a mask leave out
    // A NaN passes: min and max return their second operand where either is one.
    if constexpr (!bounded) x = _mm512_maskz_min_ps(all, _mm512_set1_ps(176.06f), x);
    x = _mm512_maskz_max_ps(all, _mm512_set1_ps(-176.06f), x);
    // Beside 2^23 a float has no fraction, so rounding towards zero leaves an integer.
    const __m512 shifted = _mm512_maskz_add_round_ps(
        all, _mm512_fmadd_ps(x, _mm512_set1_ps(std::numbers::log2e_v<float>), _mm512_set1_ps(152.5f)),
        _mm512_set1_ps(0x1p23f), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __m512 kf = _mm512_sub_ps(shifted, _mm512_set1_ps(0x1p23f + 152.0f));
    const __m512 r =
        _mm512_fmadd_ps(kf, _mm512_set1_ps(2.12194440e-4f), _mm512_fmadd_ps(kf, _mm512_set1_ps(-0.693359375f), x));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(exponential_terms[0]), r, _mm512_set1_ps(exponential_terms[1]));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(exponential_terms[2]));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(exponential_terms[3]));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(exponential_terms[4]));
    const __m512 value = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r), _mm512_set1_ps(1.0f));
    // 1.42 2^-151 is below half of the smallest float. The comparison holds for a NaN.
    const __mmask16 counts = _mm512_cmp_ps_mask(kf, _mm512_set1_ps(-151.0f), _CMP_NLE_UQ);
    return _mm512_maskz_scalef_ps(counts, value, kf);
}
#pragma GCC diagnostic pop
#endif

}  // namespace unitscale::kernels
