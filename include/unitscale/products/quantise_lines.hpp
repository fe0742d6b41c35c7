// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/products/register_quantiser.hpp>
#include <unitscale/tensor/backend.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

// Lines of consecutive elements (float, Half, BFloat16) copied or transposed as floats. Each element is quantised in a
// register on the way.
namespace unitscale::products {

#if UNITSCALE_X86

/// Element types of lines.
template <class T>
inline constexpr bool is_line_element =
    std::is_same_v<T, float> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// `lines` lines of `length` elements, `row` elements apart, to `out` with `out_row` elements between lines. Written
/// lines are `padded` floats long, with zeros at the end.
template <class T>
struct LineBlock {
    const T* in = nullptr;
    std::ptrdiff_t row = 0;
    std::ptrdiff_t lines = 0, length = 0, padded = 0;
    float* out = nullptr;
    std::ptrdiff_t out_row = 0;
};

/// The mask of the first `count` of sixteen elements.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __mmask16 mask_of(std::ptrdiff_t count) {
    return static_cast<__mmask16>(count >= 16 ? 0xFFFF : count <= 0 ? 0 : (1 << count) - 1);
}

// Without optimisation GCC's intrinsics with an immediate are macros. They convert a mask of sixteen ones in the
// caller's code.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Woverflow"
/// Up to sixteen elements as floats. The others are 0 and not read.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 load_floats(__mmask16 mask, const float* in) {
    return _mm512_maskz_loadu_ps(mask, in);
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 load_floats(__mmask16 mask, const Half* in) {
    return _mm512_maskz_cvtph_ps(0xFFFF, _mm256_maskz_loadu_epi16(mask, in));
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 load_floats(__mmask16 mask, const BFloat16* in) {
    const __m512i words = _mm512_maskz_cvtepu16_epi32(0xFFFF, _mm256_maskz_loadu_epi16(mask, in));
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, words, 16));
}
#pragma GCC diagnostic pop

[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m128 load_four(const float* in) { return _mm_loadu_ps(in); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m128 load_four(const Half* in) {
    return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in)));
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m128 load_four(const BFloat16* in) {
    const __m128i words = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in)));
    return _mm_castsi128_ps(_mm_slli_epi32(words, 16));
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 load_eight(const float* in) { return _mm256_loadu_ps(in); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 load_eight(const Half* in) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 load_eight(const BFloat16* in) {
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

/// rows[j][i] = rows[i][j] for 16 x 16 words.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline void transpose_words(Words512 (&rows)[16]) {
    Words512 t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        const Words512 a = rows[i], b = rows[i + 1];
        t[i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        t[i + 1] = __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)  // rows[i + r]: columns r, 4 + r, 8 + r, 12 + r of four rows
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const Words512 a = t[i + half], b = t[i + 2 + half];
            rows[i + 2 * half] =
                __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
            rows[i + 2 * half + 1] =
                __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
        }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
        const Words512 a = rows[r], b = rows[4 + r], c = rows[8 + r], d = rows[12 + r];
        const Words512 ab_even =
            __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
        const Words512 ab_odd =
            __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
        const Words512 cd_even =
            __builtin_shufflevector(c, d, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
        const Words512 cd_odd =
            __builtin_shufflevector(c, d, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
        t[r] = __builtin_shufflevector(ab_even, cd_even, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
        t[8 + r] =
            __builtin_shufflevector(ab_even, cd_even, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
        t[4 + r] = __builtin_shufflevector(ab_odd, cd_odd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
        t[12 + r] = __builtin_shufflevector(ab_odd, cd_odd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = t[i];
}

/// out[i out_row + j] = in[i row + j]. The kind of rounding is tested at each vector: an always predicted branch costs
/// less than another instance of this function for each kind.
template <class T>
UNITSCALE_TARGET_AVX512 void copy_lines_avx512(const LineBlock<T>& block, const RegisterQuantiser& constants) {
    const RegisterQuantiser quantiser = constants;
    const std::ptrdiff_t length = block.length, padded = block.padded, whole = length / 16 * 16;
    const T* in = block.in;
    float* out = block.out;
    if (length == 12 && padded == 12) {  // a panel of A: masks would take half as long again
        for (std::ptrdiff_t i = 0; i < block.lines; ++i, in += block.row, out += block.out_row) {
            const __m256 four = _mm256_zextps128_ps256(load_four(in + 8));
            const __m512 x = quantise_vector(quantiser, __builtin_shufflevector(load_eight(in), four, 0, 1, 2, 3, 4, 5,
                                                                                6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
            _mm256_storeu_ps(out, __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7));
            _mm_storeu_ps(out + 8, __builtin_shufflevector(x, x, 8, 9, 10, 11));
        }
        return;
    }
    for (std::ptrdiff_t i = 0; i < block.lines; ++i, in += block.row, out += block.out_row) {
        for (std::ptrdiff_t j = 0; j < whole; j += 16)
            _mm512_storeu_ps(out + j, quantise_vector(quantiser, load_floats(0xFFFF, in + j)));
        for (std::ptrdiff_t j = whole; j < padded; j += 16)
            _mm512_mask_storeu_ps(out + j, mask_of(padded - j),
                                  quantise_vector(quantiser, load_floats(mask_of(length - j), in + j)));
    }
}

/// out[j out_row + i] = in[i row + j], quantised, for sixteen lines. A line has `squares` times sixteen elements.
template <class T>
UNITSCALE_TARGET_AVX512 void transpose_squares_avx512(const T* in, std::ptrdiff_t row, std::ptrdiff_t squares,
                                                      float* out, std::ptrdiff_t out_row,
                                                      const RegisterQuantiser& constants) noexcept {
    const RegisterQuantiser quantiser = constants;
    for (; squares > 0; --squares, in += 16, out += 16 * out_row) {
        Words512 words[16];
#pragma GCC unroll 16
        for (std::ptrdiff_t i = 0; i < 16; ++i)
            words[i] = reinterpret_cast<Words512>(quantise_vector(quantiser, load_floats(0xFFFF, in + i * row)));
        transpose_words(words);
#pragma GCC unroll 16
        for (std::ptrdiff_t j = 0; j < 16; ++j) _mm512_storeu_ps(out + j * out_row, reinterpret_cast<__m512>(words[j]));
    }
}

/// out[j out_row + i] = in[i row + j] for 16 lines of 16 floats.
UNITSCALE_TARGET_AVX512 inline void transpose_square_avx512(const float* in, std::ptrdiff_t row, float* out,
                                                            std::ptrdiff_t out_row) noexcept {
    transpose_squares_avx512(in, row, 1, out, out_row, {});
}

/// The first `count` of eight floats, as a mask of loads and stores.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256i first_of_eight(std::ptrdiff_t count) {
    return reinterpret_cast<__m256i>(Words256{0, 1, 2, 3, 4, 5, 6, 7} < static_cast<std::int32_t>(count));
}
/// Loads fewer than eight elements. The others are 0 and not read.
template <class T>
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 load_some(const T* in, std::ptrdiff_t count) {
    if constexpr (std::is_same_v<T, float>) return _mm256_maskload_ps(in, first_of_eight(count));
    alignas(16) unsigned char bytes[8 * sizeof(T)] = {};
    if (count > 0) std::memcpy(bytes, in, static_cast<std::size_t>(count) * sizeof(T));
    return load_eight(reinterpret_cast<const T*>(bytes));
}

/// `copy_lines` with AVX2. It asks the caches for the line that is four lines ahead: the processor does not foresee
/// short lines that are far apart.
template <class T>
UNITSCALE_TARGET_AVX2 void copy_lines_avx2(const LineBlock<T>& block, const RegisterQuantiser& constants) {
    const QuantiserVectors256 quantiser(constants);
    const std::ptrdiff_t length = block.length, padded = block.padded, whole = length / 8 * 8, row = block.row;
    const T* in = block.in;
    float* out = block.out;
    std::ptrdiff_t i = 0;
    if (length == 4 && padded == 4 && block.out_row == 4)  // narrow panels: two lines to a vector
        for (; i + 2 <= block.lines; i += 2, in += 2 * row, out += 8)
            _mm256_storeu_ps(out, quantise_vector(quantiser, _mm256_set_m128(load_four(in + row), load_four(in))));
    for (; i < block.lines; ++i, in += row, out += block.out_row) {
        for (std::ptrdiff_t j = 0; j < whole; j += 8) {
            __builtin_prefetch(in + j + 4 * row);
            _mm256_storeu_ps(out + j, quantise_vector(quantiser, load_eight(in + j)));
        }
        for (std::ptrdiff_t j = whole; j < padded; j += 8)
            _mm256_maskstore_ps(out + j, first_of_eight(padded - j),
                                quantise_vector(quantiser, load_some(in + j, std::min<std::ptrdiff_t>(8, length - j))));
    }
}

/// Cuts lines into pieces of `Width` elements: piece q of line p goes to out + q out_row + p Width, quantised. The last
/// piece has the rest of the `padded` elements. Pieces q of all lines are one panel of a micro-kernel.
/// Four lines are read together, each along its memory, and the four after them are asked for. On a Zen 3 this reads
/// memory 1.5 to 3 times as fast as a copy of one panel after the other. Width: 4 or a multiple of 8.
template <std::ptrdiff_t Width, class T>
UNITSCALE_TARGET_AVX2 void split_lines_avx2(const LineBlock<T>& block, const RegisterQuantiser& constants) {
    const QuantiserVectors256 quantiser(constants);
    constexpr std::ptrdiff_t step = Width == 4 ? 8 : Width;  // a vector has two pieces of four
    constexpr auto cache_line = static_cast<std::ptrdiff_t>(64 / sizeof(T));
    const std::ptrdiff_t row = block.row, panel = block.out_row;
    const std::ptrdiff_t whole = block.length / step * step, whole_lines = block.lines / 4 * 4;
    for (std::ptrdiff_t p = 0; p < whole_lines; p += 4) {
        const T* in = block.in + p * row;
        float* out = block.out + p * Width;
        for (std::ptrdiff_t j = 0; j < whole; j += step, in += step, out += step / Width * panel) {
#pragma GCC unroll 4
            for (std::ptrdiff_t l = 0; l < 4; ++l) {
                const T* const line = in + l * row;
                float* const piece = out + l * Width;
                if (step >= cache_line || j % cache_line == 0) __builtin_prefetch(line + 4 * row);
                if constexpr (step > cache_line) __builtin_prefetch(line + 4 * row + cache_line);
                if constexpr (Width == 4) {
                    const __m256 x = quantise_vector(quantiser, load_eight(line));
                    _mm_storeu_ps(piece, _mm256_castps256_ps128(x));
                    _mm_storeu_ps(piece + panel, _mm256_extractf128_ps(x, 1));
                } else {
#pragma GCC unroll 3
                    for (std::ptrdiff_t v = 0; v < Width; v += 8)
                        _mm256_storeu_ps(piece + v, quantise_vector(quantiser, load_eight(line + v)));
                }
            }
        }
    }
    // The last lines of the pieces above, and all lines of the pieces after them.
    for (std::ptrdiff_t j = 0, q = 0; j < block.padded; j += Width, ++q) {
        const std::ptrdiff_t width = std::min(Width, block.padded - j), first = j < whole ? whole_lines : 0;
        copy_lines_avx2(
            LineBlock<T>{block.in + first * row + j, row, block.lines - first, std::min(width, block.length - j), width,
                         block.out + q * panel + first * width, width},
            constants);
    }
}

/// rows[j][i] = rows[i][j]
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline void transpose_eight(__m256 (&rows)[8]) {
    __m256 pairs[8];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 2
    for (std::size_t i = 0; i < 8; i += 4)  // rows[i + r]: columns r and 4 + r of four rows
#pragma GCC unroll 2
        for (std::size_t half = 0; half < 2; ++half) {
            rows[i + 2 * half] = _mm256_shuffle_ps(pairs[i + half], pairs[i + 2 + half], 0x44);
            rows[i + 2 * half + 1] = _mm256_shuffle_ps(pairs[i + half], pairs[i + 2 + half], 0xEE);
        }
#pragma GCC unroll 4
    for (std::size_t r = 0; r < 4; ++r) {
        const __m256 low = rows[r], high = rows[r + 4];
        rows[r] = _mm256_permute2f128_ps(low, high, 0x20);
        rows[r + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

/// out[j out_row + i] = in[i row + j], quantised, for eight lines. A line has `squares` times eight elements. The kind
/// of rounding is tested once for every eight of them.
template <class T>
UNITSCALE_TARGET_AVX2 void transpose_squares_avx2(const T* in, std::ptrdiff_t row, std::ptrdiff_t squares, float* out,
                                                  std::ptrdiff_t out_row, const RegisterQuantiser& constants) noexcept {
    const QuantiserVectors256 quantiser(constants);
    for (; squares > 0; --squares, in += 8, out += 8 * out_row) {
        __m256 rows[8];
#pragma GCC unroll 8
        for (std::ptrdiff_t i = 0; i < 8; ++i) rows[i] = load_eight(in + i * row);
        if (quantiser.kind == RegisterQuantisation::by_exponent) {
#pragma GCC unroll 8
            for (std::ptrdiff_t i = 0; i < 8; ++i)
                rows[i] = quantise_in_register<RegisterQuantisation::by_exponent>(quantiser, rows[i]);
        } else if (quantiser.kind == RegisterQuantisation::by_word) {
#pragma GCC unroll 8
            for (std::ptrdiff_t i = 0; i < 8; ++i)
                rows[i] = quantise_in_register<RegisterQuantisation::by_word>(quantiser, rows[i]);
        }
        transpose_eight(rows);
#pragma GCC unroll 8
        for (std::ptrdiff_t j = 0; j < 8; ++j) _mm256_storeu_ps(out + j * out_row, rows[j]);
    }
}

/// out[i out_row + j] = in[i row + j], quantised; with avx2 or avx512. `in` may equal `out`.
/// Test: tests/products/quantise_lines_test.cpp
template <class T>
void copy_lines(Isa isa, const LineBlock<T>& block, const RegisterQuantiser& quantiser) {
    if (isa == Isa::avx512) copy_lines_avx512(block, quantiser);
    else copy_lines_avx2(block, quantiser);
}

/// out[j out_row + i] = in[i row + j]. Here `padded` is the number of lines and of zero lines beside them. Blocks that
/// are not whole squares pass through a buffer of one square in the level 1 cache.
template <class T>
void transpose_lines(Isa isa, const LineBlock<T>& block, const RegisterQuantiser& quantiser) {
    const std::ptrdiff_t side = isa == Isa::avx512 ? 16 : 8;
    alignas(64) float buffer[16 * 16], transposed[16 * 16];
    const auto transpose_floats = isa == Isa::avx512 ? transpose_squares_avx512<float> : transpose_squares_avx2<float>;
    const auto transpose_squares = isa == Isa::avx512 ? transpose_squares_avx512<T> : transpose_squares_avx2<T>;
    for (std::ptrdiff_t i = 0; i < block.padded; i += side) {
        const std::ptrdiff_t lines = std::clamp<std::ptrdiff_t>(block.lines - i, 0, side),
                             padded = std::min(side, block.padded - i);
        std::ptrdiff_t j = 0;
        if (lines == side) {
            j = block.length / side * side;
            transpose_squares(block.in + i * block.row, block.row, j / side, block.out + i, block.out_row, quantiser);
        }
        for (; j < block.length; j += side) {
            const std::ptrdiff_t length = std::min(side, block.length - j);
            copy_lines(isa, LineBlock<T>{block.in + i * block.row + j, block.row, lines, length, side, buffer, side},
                       quantiser);
            std::fill(buffer + lines * side, buffer + side * side, 0.0f);
            transpose_floats(buffer, side, 1, transposed, side, {});
            for (std::ptrdiff_t l = 0; l < length; ++l)
                std::memcpy(block.out + (j + l) * block.out_row + i, transposed + l * side,
                            static_cast<std::size_t>(padded) * sizeof(float));
        }
    }
}

#endif

}  // namespace unitscale::products
