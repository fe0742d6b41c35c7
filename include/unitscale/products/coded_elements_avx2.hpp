// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/vectors.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/products/coded_elements.hpp>
#include <unitscale/products/half_codes.hpp>
#include <unitscale/tensor/coded_weight.hpp>

#include <cstddef>
#include <cstdint>

// `coded_elements.hpp` for AVX2: elements and scales of the sixteen outputs of a group, as two vectors of floats. No
// gathers, which load one number after the other. Test: tests/products/coded_elements_avx2_test.cpp
namespace unitscale::products {

#if UNITSCALE_X86

// Without optimisation GCC's shifts and conversions are macros, which convert numbers in the caller's code.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

/// Decodes the elements p and p + 1, p even, of the sixteen outputs of a group.
template <WeightBits Bits>
struct ElementPairs256 {
    static constexpr std::ptrdiff_t bytes = 4 * static_cast<std::ptrdiff_t>(bits_of(Bits));  ///< of such a step

    HalfCodes256 halves;
    __m256 numbers;  ///< of the codes 0 to 7, with the code's bits flipped where `of_nibbles` flips them back

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX2 explicit ElementPairs256(const CodedWeight& weight)
        : halves(Bits == WeightBits::byte ? weight.format() : e4m3) {
        numbers = _mm256_setzero_ps();
        if constexpr (Bits == WeightBits::nibble) {
            const __m256i codes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            numbers = flipped(_mm256_loadu_ps(weight.table()->values.data()), codes);
        }
    }
    [[gnu::always_inline]] UNITSCALE_TARGET_AVX2 void floats(const std::uint8_t* at, __m256* even, __m256* odd) const {
        if constexpr (Bits == WeightBits::byte) {
            const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
            halves.floats(codes, halves.up_even, even);
            halves.floats(codes, halves.up_odd, odd);
            return;
        }
        constexpr std::ptrdiff_t step = Bits == WeightBits::nibble ? 8 : Bits == WeightBits::float16 ? 16 : 32;
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h, at += step) {
            if constexpr (Bits == WeightBits::float32) {
                even[h] = _mm256_loadu_ps(reinterpret_cast<const float*>(at));
                odd[h] = _mm256_loadu_ps(reinterpret_cast<const float*>(at + 2 * step));
            } else if constexpr (Bits == WeightBits::float16) {
                even[h] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
                odd[h] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 2 * step)));
            } else if constexpr (Bits == WeightBits::bfloat16) {
                const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
                even[h] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
                odd[h] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-0x10000)));
            } else {
                const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
                even[h] = of_nibbles(codes);
                odd[h] = of_nibbles(_mm256_srli_epi32(codes, 4));
            }
        }
    }

private:
    /// Numbers with their highest four bits flipped where the lowest four of a code are set.
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX2 static __m256 flipped(__m256 x, __m256i codes) {
        return _mm256_xor_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
    }
    /// The numbers of the lowest four bits of each double word. Bits 0 to 2 find a number, which they flip back, and
    /// bit 3 is the sign.
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX2 __m256 of_nibbles(__m256i codes) const {
        return flipped(_mm256_permutevar8x32_ps(numbers, codes), codes);
    }
};

/// The scales of a block of each of the sixteen outputs of a group, as `GroupScales512`.
struct GroupScales256 {
    const CodedWeight& weight;
    bool exponents, by_halves;
    HalfCodes256 halves;
    __m256 number, inverse;

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX2 GroupScales256(const CodedWeight& of, bool apart)
        : weight(of),
          exponents(of.scale_table() != nullptr && of.blocks()->scale == e8m0),
          by_halves(of.scale_table() != nullptr && has_half_words(of.blocks()->scale)),
          halves(by_halves ? of.blocks()->scale : e4m3) {
        const auto [a, b] = of.scale_factors(apart);
        number = _mm256_set1_ps(a);
        inverse = _mm256_set1_ps(b);
    }
    /// The scales of element p.
    [[gnu::always_inline]] UNITSCALE_TARGET_AVX2 void read(std::size_t group, std::ptrdiff_t p, __m256* out) const {
        const std::ptrdiff_t at = 16 * (p / static_cast<std::ptrdiff_t>(weight.along()));
        const float* floats = weight.group_scales(group);
        const std::uint8_t* const codes = floats != nullptr ? nullptr : weight.group_scale_codes(group) + at;
        alignas(32) float values[16];
        if (floats != nullptr) {
            floats += at;
        } else if (!exponents && !by_halves) {
            for (std::size_t l = 0; l < 16; ++l) values[l] = weight.scale_table()->values[codes[l]];
            floats = values;
        }
        if (floats != nullptr) {
            out[0] = _mm256_loadu_ps(floats);
            out[1] = _mm256_loadu_ps(floats + 8);
        } else if (exponents) {
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                const __m256i code =
                    _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * h)));
                const __m256i least = _mm256_and_si256(_mm256_cmpeq_epi32(code, _mm256_setzero_si256()),
                                                       _mm256_set1_epi32(0x00400000));  // 0: 2^-127
                out[h] = _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(code, 23), least));
            }
        } else {
            halves.floats(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))),
                          halves.up_even, out);
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) out[h] = _mm256_mul_ps(first_product(out[h], number), inverse);
    }
};

#pragma GCC diagnostic pop

#endif

}  // namespace unitscale::products
