// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/vectors.hpp>
#include <unitscale/formats/format.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

// Codes of at most 8 bits become floats by way of FP16, whose fields hold theirs.
// Test: tests/products/half_codes_test.cpp
namespace unitscale::products {

/// Whether each finite code of at most 8 bits is an FP16 number times 2^(15 - bias), with the code's bits in FP16's
/// fields: the format has no more exponents than FP16. No number is a subnormal float, and the factor is a float.
[[nodiscard]] constexpr bool has_half_words(const FloatFormat& format) noexcept {
    return format.is_signed() && format.has_zero() && format.code_bits() <= 8 && format.exponent_bits <= 5 &&
           format.max_code() >> format.mantissa_bits < 31 && format.quantum_exponent() >= -126 &&
           format.bias >= 15 - 127;
}

#if UNITSCALE_X86

// Without optimisation GCC's shifts and conversions are macros, which convert numbers in the caller's code.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

/// A product that is rounded before another factor comes. Fast-math compilers would multiply the factors first.
[[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 first_product(__m256 a, __m256 b) {
    __m256 product = _mm256_mul_ps(a, b);
    asm("" : "+x"(product));
    return product;
}

/// Decodes bytes by way of FP16 (`has_half_words`). The code's sign goes to FP16's sign, and its other bits go to the
/// lowest bits of the exponent and the highest of the mantissa. So subnormals become subnormals. FP16's bias is 15, and
///   number = (FP16 number) 2^(15 - bias)
/// The conversion from FP16 keeps subnormals in every floating-point mode, and the product is exact.
struct HalfCodes256 {
    __m256i up_even, up_odd, bits;
    __m128i down;
    __m256 factor;

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX2 explicit HalfCodes256(const FloatFormat& format) {
        const int size = format.code_bits(), right = 5 - format.exponent_bits;
        up_even = _mm256_set1_epi16(static_cast<short>(1 << (16 - size)));
        up_odd = _mm256_set1_epi16(static_cast<short>(1 << (8 - size)));
        bits = _mm256_set1_epi16(static_cast<short>(0x8000 | ((1 << (size - 1)) - 1) << (16 - size - right)));
        down = _mm_cvtsi32_si128(right);
        factor = _mm256_set1_ps(std::bit_cast<float>(static_cast<std::uint32_t>(127 + 15 - format.bias) << 23));
    }
    /// The floats of sixteen codes, one in each word. A product with `up` moves a code's sign to the word's highest
    /// bit.
    [[gnu::always_inline]] UNITSCALE_TARGET_AVX2 void floats(__m256i codes, __m256i up, __m256* out) const {
        const __m256i halves = _mm256_and_si256(_mm256_sra_epi16(_mm256_mullo_epi16(codes, up), down), bits);
        out[0] = first_product(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), factor);
        out[1] = first_product(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), factor);
    }
};

/// Whether `widen_codes_avx2` serves: a code has eight bits, so that no bit of a byte is to be ignored.
[[nodiscard]] constexpr bool widens_by_halves(const FloatFormat& format) noexcept {
    return format.code_bits() == 8 && has_half_words(format);
}

/// out[i out_row + j] = numbers[codes[i row + j]], where `numbers` are those of all codes of a format. They are read at
/// the end of a row, and for sixteen codes of which one is not finite, such as a NaN in place of -0.
UNITSCALE_TARGET_AVX2 inline void widen_codes_avx2(const std::uint8_t* codes, std::ptrdiff_t row, std::ptrdiff_t rows,
                                                   std::ptrdiff_t cols, const FloatFormat& format, const float* numbers,
                                                   float* out, std::ptrdiff_t out_row) noexcept {
    const HalfCodes256 halves(format);
    const __m128i magnitudes = _mm_set1_epi8(0x7F), largest = _mm_set1_epi8(static_cast<char>(format.max_code())),
                  negative_zero = _mm_set1_epi8(static_cast<char>(0x80)),
                  no_negative_zero = _mm_set1_epi8(static_cast<char>(format.has_negative_zero() ? 0 : -1));
    for (std::ptrdiff_t i = 0; i < rows; ++i, codes += row, out += out_row) {
        std::ptrdiff_t j = 0;
        while (j + 8 <= cols) {
            const auto* const at = reinterpret_cast<const __m128i*>(codes + j);
            const std::ptrdiff_t count = cols - j >= 16 ? 16 : 8;
            const __m128i own = count == 16 ? _mm_loadu_si128(at) : _mm_loadl_epi64(at);
            const __m128i no_number = _mm_or_si128(_mm_cmpgt_epi8(_mm_and_si128(own, magnitudes), largest),
                                                   _mm_and_si128(_mm_cmpeq_epi8(own, negative_zero), no_negative_zero));
            if (_mm_movemask_epi8(no_number) != 0) {
                for (const std::ptrdiff_t end = j + count; j < end; ++j) out[j] = numbers[codes[j]];
                continue;
            }
            __m256 floats[2];
            halves.floats(_mm256_cvtepu8_epi16(own), halves.up_even, floats);
            store_avx2(out + j, floats[0]);
            if (count == 16) store_avx2(out + j + 8, floats[1]);
            j += count;
        }
        for (; j < cols; ++j) out[j] = numbers[codes[j]];
    }
}

#pragma GCC diagnostic pop

#endif

}  // namespace unitscale::products
