// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/rotation.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#if UNITSCALE_X86
#include <immintrin.h>
#endif

namespace unitscale::kernels {

/// The definition of `rotate`: one run, by a sum over the matrix in double.   x, y [size], y may not be x
template <class T>
void rotate_run_naive(const HadamardRotation& rotation, const T* x, T* y) {
    for (int j = 0; j < rotation.size; ++j) {
        double sum = 0.0;
        for (int i = 0; i < rotation.size; ++i) {
            const std::uint32_t parity = static_cast<std::uint32_t>(i & j), sign = rotation.signs >> i & 1u;
            const bool negative = (static_cast<std::uint32_t>(std::popcount(parity)) + sign) % 2 != 0;
            const auto value = static_cast<double>(widen(x[i]));
            sum += negative ? -value : value;
        }
        y[j] = narrow<T>(static_cast<Accum<T>>(sum / std::sqrt(static_cast<double>(rotation.size))));
    }
}

/// size^-1/2.
template <class A>
[[nodiscard]] constexpr A rotation_factor(const HadamardRotation& rotation) noexcept {
    return rotation.size == 16 ? A(0.25) : A(0.17677669529663688110);
}

/// Rotates `width` runs side by side in place: element i of run l is runs[i][l]. log2(size) rounds of sums and
/// differences, then one product with size^-1/2. Every sum is rounded once, in one order.
template <class A, std::size_t width>
void rotate_runs(const HadamardRotation& rotation, std::array<A, width>* runs) noexcept {
    const int size = rotation.size;
    for (int i = 0; i < size; ++i)
        if ((rotation.signs >> i & 1u) != 0)
            for (A& value : runs[i]) value = -value;
    for (int half = 1; half < size; half *= 2)
        for (int i = 0; i < size; ++i)
            if ((i & half) == 0)
                for (std::size_t l = 0; l < width; ++l) {
                    const A a = runs[i][l], b = runs[i + half][l];
                    runs[i][l] = a + b;
                    runs[i + half][l] = a - b;
                }
    const A factor = rotation_factor<A>(rotation);
    for (int i = 0; i < size; ++i)
        for (A& value : runs[i]) value *= factor;
}

#if UNITSCALE_X86

/// v, negative in the lanes with a sign bit in `signs`.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 flip_signs(__m512 v, __m512i signs) noexcept {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), signs));
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512i sign_lanes_avx512(std::uint32_t lanes) noexcept {
    return _mm512_maskz_set1_epi32(static_cast<__mmask16>(lanes), std::numeric_limits<std::int32_t>::min());
}
/// Four rounds within 16 lanes. In each round lane i adds two numbers: its own, negative where `rotate_runs` subtracts,
/// and the number of lane i ^ half.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 rotate_sixteen(__m512 v) noexcept {
    v = _mm512_add_ps(_mm512_maskz_permute_ps(0xFFFF, v, 0xB1), flip_signs(v, sign_lanes_avx512(0xAAAA)));
    v = _mm512_add_ps(_mm512_maskz_permute_ps(0xFFFF, v, 0x4E), flip_signs(v, sign_lanes_avx512(0xCCCC)));
    v = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xFFFF, v, v, 0xB1), flip_signs(v, sign_lanes_avx512(0xF0F0)));
    return _mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xFFFF, v, v, 0x4E), flip_signs(v, sign_lanes_avx512(0xFF00)));
}
/// `rotate_runs` for contiguous runs in place: element i of run r is x[r size + i].
UNITSCALE_TARGET_AVX512 inline void rotate_line_avx512(const HadamardRotation& rotation, float* x,
                                                       std::ptrdiff_t runs) noexcept {
    const __m512i low = sign_lanes_avx512(rotation.signs & 0xFFFFu), high = sign_lanes_avx512(rotation.signs >> 16);
    const __m512 factor = _mm512_set1_ps(rotation_factor<float>(rotation));
    if (rotation.size == 16) {
        for (std::ptrdiff_t r = 0; r < runs; ++r, x += 16)
            _mm512_storeu_ps(x, _mm512_mul_ps(rotate_sixteen(flip_signs(_mm512_loadu_ps(x), low)), factor));
        return;
    }
    for (std::ptrdiff_t r = 0; r < runs; ++r, x += 32) {
        const __m512 a = rotate_sixteen(flip_signs(_mm512_loadu_ps(x), low)),
                     b = rotate_sixteen(flip_signs(_mm512_loadu_ps(x + 16), high));
        _mm512_storeu_ps(x, _mm512_mul_ps(_mm512_add_ps(a, b), factor));
        _mm512_storeu_ps(x + 16, _mm512_mul_ps(_mm512_sub_ps(a, b), factor));
    }
}

[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 flip_signs(__m256 v, __m256i signs) noexcept {
    return _mm256_castsi256_ps(_mm256_xor_si256(_mm256_castps_si256(v), signs));
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256i sign_lanes_avx2(std::uint32_t lanes) noexcept {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i found = _mm256_and_si256(_mm256_set1_epi32(static_cast<std::int32_t>(lanes & 0xFFu)), bit);
    return _mm256_slli_epi32(_mm256_cmpeq_epi32(found, bit), 31);
}
/// Three rounds within 8 lanes.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 rotate_eight(__m256 v) noexcept {
    v = _mm256_add_ps(_mm256_permute_ps(v, 0xB1), flip_signs(v, sign_lanes_avx2(0xAA)));
    v = _mm256_add_ps(_mm256_permute_ps(v, 0x4E), flip_signs(v, sign_lanes_avx2(0xCC)));
    return _mm256_add_ps(_mm256_permute2f128_ps(v, v, 1), flip_signs(v, sign_lanes_avx2(0xF0)));
}
UNITSCALE_TARGET_AVX2 inline void rotate_line_avx2(const HadamardRotation& rotation, float* x,
                                                   std::ptrdiff_t runs) noexcept {
    const int vectors = rotation.size / 8;
    const __m256 factor = _mm256_set1_ps(rotation_factor<float>(rotation));
    __m256 v[4] = {};
    for (std::ptrdiff_t r = 0; r < runs; ++r, x += rotation.size) {
        for (int i = 0; i < vectors; ++i)
            v[i] = rotate_eight(flip_signs(_mm256_loadu_ps(x + 8 * i), sign_lanes_avx2(rotation.signs >> (8 * i))));
        for (int half = 1; half < vectors; half *= 2)
            for (int i = 0; i < vectors; ++i)
                if ((i & half) == 0) {
                    const __m256 difference = _mm256_sub_ps(v[i], v[i + half]);
                    v[i] = _mm256_add_ps(v[i], v[i + half]);
                    v[i + half] = difference;
                }
        for (int i = 0; i < vectors; ++i) _mm256_storeu_ps(x + 8 * i, _mm256_mul_ps(v[i], factor));
    }
}

#endif

/// Rotates lines of numbers in place, run by run. A short last run stays as it is.
///   x [lines, length]     element k of line l at x[l line_stride + k stride]
/// Sums are in Accum<T> and rounded to T once. Bits do not depend on the number of threads.
/// Errors: as `check_rotation`.
/// Reference: arXiv:2509.25149, section on random Hadamard transforms. Test: tests/kernels/hadamard_test.cpp
template <class T>
void rotate(const Execution& execution, const HadamardRotation& rotation, T* x, std::ptrdiff_t lines,
            std::ptrdiff_t length, std::ptrdiff_t line_stride, std::ptrdiff_t stride) {
    check_rotation("rotate", rotation);
    constexpr std::ptrdiff_t width = 16;
    using Runs = std::array<std::array<Accum<T>, width>, 32>;
    const std::ptrdiff_t size = rotation.size, groups = (lines + width - 1) / width, runs = length / size;
#if UNITSCALE_X86
    if constexpr (std::is_same_v<T, float>)
        if (const Isa isa = active_isa(); stride == 1 && isa != Isa::baseline) {
            parallel_for(execution.threads, lines, row_grain(length), [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                for (std::ptrdiff_t line = begin; line < end; ++line)
                    isa == Isa::avx512 ? rotate_line_avx512(rotation, x + line * line_stride, runs)
                                       : rotate_line_avx2(rotation, x + line * line_stride, runs);
            });
            return;
        }
#endif
    parallel_for(execution.threads, groups * runs, row_grain(width * size),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     Runs values{};
                     for (std::ptrdiff_t item = begin; item < end; ++item) {
                         const std::ptrdiff_t line = item / runs * width, count = std::min(width, lines - line);
                         const std::ptrdiff_t first = line * line_stride + item % runs * size * stride;
                         if (line_stride == 1 && count == width) {  // neighbours, a fixed number: vectorised
                             for (std::ptrdiff_t i = 0; i < size; ++i) {
                                 const T* const from = x + first + i * stride;
                                 auto& run = values[static_cast<std::size_t>(i)];
                                 for (std::size_t l = 0; l < width; ++l) run[l] = widen(from[l]);
                             }
                             rotate_runs<Accum<T>, width>(rotation, values.data());
                             for (std::ptrdiff_t i = 0; i < size; ++i) {
                                 T* const to = x + first + i * stride;
                                 const auto& run = values[static_cast<std::size_t>(i)];
                                 for (std::size_t l = 0; l < width; ++l) to[l] = narrow<T>(run[l]);
                             }
                             continue;
                         }
                         for (std::ptrdiff_t i = 0; i < size; ++i)
                             for (std::ptrdiff_t l = 0; l < count; ++l)
                                 values[static_cast<std::size_t>(i)][static_cast<std::size_t>(l)] =
                                     widen(x[first + l * line_stride + i * stride]);
                         rotate_runs<Accum<T>, width>(rotation, values.data());
                         for (std::ptrdiff_t i = 0; i < size; ++i)
                             for (std::ptrdiff_t l = 0; l < count; ++l)
                                 x[first + l * line_stride + i * stride] =
                                     narrow<T>(values[static_cast<std::size_t>(i)][static_cast<std::size_t>(l)]);
                     }
                 });
}

}  // namespace unitscale::kernels
