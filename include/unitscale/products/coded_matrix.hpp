// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/products/half_codes.hpp>
#include <unitscale/products/pack_pairs.hpp>
#include <unitscale/tensor/code_table.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

// Operands that are given by 8-bit codes, on their way into the micro-kernels. Codes become numbers, or pairs of bf16,
// in registers between the load and the store. So reading them takes a quarter of the memory traffic of floats.
namespace unitscale::products {

/// A matrix, or a batch of matrices, of codes, one to a byte. The format has at most 8 bits. Examples: a saved
/// activation, a stored weight.
struct CodedMatrix {
    MatrixView<const std::uint8_t> codes;
    FloatFormat format;
};

/// The element type of operands that are given by codes.
template <class P>
struct Coded;

/// Codes as the packing reads them: element (i, j) is table->values[codes(i, j)]. Data and strides refer to the codes.
template <class P>
struct MatrixView<const Coded<P>> {
    const std::uint8_t* data = nullptr;
    std::ptrdiff_t row_stride = 0;
    std::ptrdiff_t col_stride = 1;
    std::ptrdiff_t batch_stride = 0;
    const CodeTable<P>* table = nullptr;

    MatrixView(const MatrixView<const std::uint8_t>& codes, const CodeTable<P>* numbers) noexcept
        : data(codes.data),
          row_stride(codes.row_stride),
          col_stride(codes.col_stride),
          batch_stride(codes.batch_stride),
          table(numbers) {}
    MatrixView() = default;
    [[nodiscard]] const std::uint8_t* at(std::ptrdiff_t i, std::ptrdiff_t j) const noexcept {
        return data + i * row_stride + j * col_stride;
    }
    [[nodiscard]] MatrixView block(std::ptrdiff_t i, std::ptrdiff_t j) const noexcept {
        return {{at(i, j), row_stride, col_stride, batch_stride}, table};
    }
    [[nodiscard]] MatrixView item(std::ptrdiff_t b) const noexcept {
        return {{data + b * batch_stride, row_stride, col_stride, batch_stride}, table};
    }
    [[nodiscard]] MatrixView transposed() const noexcept {
        return {{data, col_stride, row_stride, batch_stride}, table};
    }
};
template <class P>
using CodedView = MatrixView<const Coded<P>>;

#if UNITSCALE_X86

/// The words of 32 codes, each code in a word of its own. The table fills four registers; one instruction searches two.
struct CodeWords512 {
    __m512i table[4];
    HalfWords512 sign, wrong, nan;

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX512 explicit CodeWords512(const CodeTable<float>& from) {
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) table[i] = _mm512_loadu_si512(from.words.data() + 32 * i);
        sign = HalfWords512{} + from.sign_word;
        wrong = HalfWords512{} + from.wrong_word;
        nan = HalfWords512{} + CodeTable<float>::nan_word;
    }
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 HalfWords512 operator()(HalfWords512 codes) const {
        const HalfWords512 words = of_finite(codes);
        return words == wrong ? nan : words;
    }
    /// The words of codes among which there is no NaN.
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 HalfWords512 of_finite(HalfWords512 codes) const {
        const auto index = reinterpret_cast<__m512i>(codes);
        const auto low = reinterpret_cast<HalfWords512>(_mm512_permutex2var_epi16(table[0], index, table[1]));
        const auto high = reinterpret_cast<HalfWords512>(_mm512_permutex2var_epi16(table[2], index, table[3]));
        return ((codes & 0x40) != 0 ? high : low) | ((codes << 8) & sign);
    }
};

// Without optimisation GCC's masked loads and conversions are macros, which convert masks in the caller's code.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
/// Loads sixteen codes, each into a double word of its own.
[[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline Unsigned512 load_codes(const std::uint8_t* codes,
                                                                                        __mmask16 mask) {
    return reinterpret_cast<Unsigned512>(_mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_maskz_loadu_epi8(mask, codes)));
}

/// out[i out_row + j] = the float of codes[i row + j].
UNITSCALE_TARGET_AVX512 inline void widen_codes_avx512(const std::uint8_t* codes, std::ptrdiff_t row,
                                                       std::ptrdiff_t rows, std::ptrdiff_t cols,
                                                       const CodeTable<float>& table, float* out,
                                                       std::ptrdiff_t out_row) noexcept {
    const CodeWords512 words_of(table);
    for (std::ptrdiff_t i = 0; i < rows; ++i, codes += row, out += out_row)
        for (std::ptrdiff_t j = 0; j < cols;
             // A double word holds one code in its low half and another in its high half.
             j += 32) {
            const std::ptrdiff_t left = cols - j;
            const auto low = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1 << left) - 1);
            const auto high = static_cast<__mmask16>(left >= 32 ? 0xFFFF : left <= 16 ? 0 : (1 << (left - 16)) - 1);
            const Unsigned512 two = load_codes(codes + j, low) | load_codes(codes + j + 16, high) << 16;
            const auto words = reinterpret_cast<Unsigned512>(words_of(reinterpret_cast<HalfWords512>(two)));
            _mm512_mask_storeu_ps(out + j, low, reinterpret_cast<__m512>(words << 16));
            _mm512_mask_storeu_ps(out + j + 16, high, reinterpret_cast<__m512>(words & 0xFFFF0000u));
        }
}

/// Pairs from lines of codes: see ElementLines.
struct CodeLines {
    using Element = std::uint8_t;
    CodeWords512 words_of;

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX512 explicit CodeLines(const CodeTable<float>& table)
        : words_of(table) {}
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 Words512 along(const std::uint8_t* in, __mmask16 low,
                                                                             __mmask16 high) const {
        const __mmask32 mask = static_cast<__mmask32>(low) | static_cast<__mmask32>(high) << 16;
        const auto codes = reinterpret_cast<HalfWords512>(_mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, in)));
        return reinterpret_cast<Words512>(words_of(codes));
    }
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 Words512 across(const std::uint8_t* line, __mmask16 mask,
                                                                              const std::uint8_t* next,
                                                                              __mmask16 next_mask) const {
        const Unsigned512 codes = load_codes(line, mask) | load_codes(next, next_mask) << 16;
        return reinterpret_cast<Words512>(words_of(reinterpret_cast<HalfWords512>(codes)));
    }
};
#pragma GCC diagnostic pop

inline void load_pairs(const PairLines<std::uint8_t>& lines, const CodeTable<float>& table, bool along,
                       const PairsOut& to, std::ptrdiff_t out_lines = 16) {
    load_pairs_of<CodeLines>(lines, table, along, to, out_lines);
}
#endif

/// `widen_block` for codes.
template <class P>
void widen_block(Isa isa, const CodedView<P>& a, std::ptrdiff_t rows, std::ptrdiff_t cols, std::ptrdiff_t padded_cols,
                 P* out, std::ptrdiff_t out_row) noexcept {
    if (a.row_stride == 1 && a.col_stride != 1) {  // through a buffer, in memory order
        constexpr std::ptrdiff_t strip = 64, width = 32;
        alignas(64) std::array<P, static_cast<std::size_t>(strip * width)> buffer;
        for (std::ptrdiff_t i = 0; i < rows; i += strip)
            for (std::ptrdiff_t j = 0; j < cols; j += width) {
                const std::ptrdiff_t height = std::min(strip, rows - i), count = std::min(width, cols - j);
                widen_block(isa, a.block(i, j).transposed(), count, height, height, buffer.data(), strip);
                transpose_block(isa, buffer.data(), strip, count, height, out + i * out_row + j, out_row);
            }
    } else {
        bool done = false;
#if UNITSCALE_X86
        if constexpr (std::is_same_v<P, float>) {
            const CodeTable<float>& table = *a.table;
            if (a.col_stride == 1 && isa == Isa::avx512 && table.has_words) {
                widen_codes_avx512(a.data, a.row_stride, rows, cols, table, out, out_row);
                done = true;
            } else if (a.col_stride == 1 && isa == Isa::avx2 && widens_by_halves(table.format)) {
                widen_codes_avx2(a.data, a.row_stride, rows, cols, table.format, table.values.data(), out, out_row);
                done = true;
            }
        }
#endif
        if (!done)
            for (std::ptrdiff_t i = 0; i < rows; ++i)
                for (std::ptrdiff_t j = 0; j < cols; ++j) out[i * out_row + j] = a.table->values[*a.at(i, j)];
    }
    if (cols < padded_cols)
        for (std::ptrdiff_t i = 0; i < rows; ++i)
            std::fill(out + i * out_row + cols, out + i * out_row + padded_cols, P{0});
}

/// `pack_left` and `pack_right` for codes, which are not rounded.
template <class P>
[[nodiscard]] LeftPanel<P> pack_left(Isa isa, const CodedView<P>& a, std::ptrdiff_t rows, std::ptrdiff_t k,
                                     const Quantiser*, P* out) {
    const std::ptrdiff_t padded = round_up(rows, 4);
    if (a.row_stride == 1 && a.col_stride != 1) {
        widen_block(isa, a.transposed(), k, rows, padded, out, padded);
        return {out, 1, padded};
    }
    widen_block(isa, a, rows, k, k, out, k);
    std::fill(out + rows * k, out + padded * k, P{0});
    return {out, k, 1};
}
template <class P>
[[nodiscard]] RightPanels<P> pack_right(Isa isa, const CodedView<P>& b, std::ptrdiff_t k, std::ptrdiff_t n,
                                        const Quantiser*, P* out) {
    return pack_right_from<P>(isa, b, k, n, nullptr, out);
}

#if UNITSCALE_X86
/// `pack_left_pairs` and `pack_right_pairs` for codes.
inline void pack_left_pairs(const CodedView<float>& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser*,
                            std::ptrdiff_t group, Pair* out, float* buffer) {
    if (a.table->has_words && has_lines(a)) pack_left_lines(a, rows, k, *a.table, group, out);
    else pack_left_pairs_buffered(a, rows, k, nullptr, group, out, buffer);
}
[[nodiscard]] inline RightPairs pack_right_pairs(const CodedView<float>& b, std::ptrdiff_t k, std::ptrdiff_t n,
                                                 const Quantiser*, Pair* out, float* buffer) {
    if (b.table->has_words && has_lines(b)) return pack_right_lines(b, k, n, *b.table, out);
    return pack_right_pairs_buffered(b, k, n, nullptr, out, buffer);
}
#endif

}  // namespace unitscale::products
