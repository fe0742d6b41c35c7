// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/products/pack.hpp>
#include <unitscale/products/round_lines.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// Operands of the bf16 instructions on their way into the micro-kernels of matmul_pairs.hpp: pairs of bf16, consecutive in k.
// A value is rounded to its format in a register between the load and the store.
namespace unitscale::products {

/// Whether every number of the format, infinity and NaN included, is a normal bf16 or zero.
[[nodiscard]] constexpr bool exact_in_bf16(const FloatFormat& format) noexcept {
    return format.mantissa_bits <= 7 && format.quantum_exponent() >= -126 && format.max_exponent() <= 127;
}

/// Two bf16, the one with the smaller k in the low half.
using Pair = std::uint32_t;

inline constexpr std::ptrdiff_t pair_columns = 32;  ///< of a panel of B
inline constexpr std::ptrdiff_t pair_depth = 32;    ///< k is padded with zeros to a multiple: one AMX tile
[[nodiscard]] constexpr std::ptrdiff_t pairs_of(std::ptrdiff_t k) noexcept { return round_up(k, pair_depth) / 2; }

/// B in panels of pairs: pair (p, j) of panel q, that is of rows 2p and 2p + 1, at panel(q)[p padded_columns(q) + j].
using RightPairs = RightPanels<Pair>;
[[nodiscard]] inline std::ptrdiff_t packed_right_pairs_size(std::ptrdiff_t k, std::ptrdiff_t n) noexcept {
    return pairs_of(k) * round_up(n, 16);
}

/// Floats of the buffer through which operands go that are not floats in lines, or not rounded in registers.
inline constexpr std::ptrdiff_t pair_buffer = 4096;

#if UNITSCALE_X86

/// Whether what a quantiser makes in a register is exact in bf16.
[[nodiscard]] constexpr bool rounds_to_pairs(const Quantiser& round) noexcept {
    return exact_in_bf16(round.format) && register_rounding(round) == RegisterRounding::by_exponent;
}

/// Where a block of pairs comes from and goes to. `lines` and `length` are what there is of the source, the rest counts as
/// zero.
template <class Element>
struct PairBlock {
    const Element* in = nullptr;
    std::ptrdiff_t row = 0;                ///< between the source's lines
    std::ptrdiff_t lines = 0, length = 0;  ///< lines of consecutive elements, and elements in each
    Pair* out = nullptr;
    std::ptrdiff_t out_row = 0, out_lines = 16;
};

/// Indices of the upper halves of 32 words: sixteen in one register, sixteen in a second. `FloatLines::along` joins these halves.
[[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512i upper_halves() {
    HalfWords512 index{};
    for (std::size_t i = 0; i < 32; ++i) index[i] = static_cast<std::uint16_t>(2 * i + 1);
    return reinterpret_cast<__m512i>(index);
}

/// Sixteen pairs from lines of floats, each rounded on the way if the rounder says so. Floats that are exact in bf16 are their upper
/// halves. What a source of pairs is: `along` makes them of 32 consecutive elements, `across` of 16 of each of two lines; elements
/// that a mask leaves out are not read, and zero.
struct FloatLines {
    using Element = float;
    RegisterRounder round;
    __m512i halves;

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX512 explicit FloatLines(const RegisterRounder& rounding)
        : round(rounding), halves(upper_halves()) {}
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 __m512 rounded(__m512 x) const {
        if (round.kind == RegisterRounding::none) return x;
        return round_in_register<RegisterRounding::by_exponent>(round, x);
    }
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 Words512 along(const float* in, __mmask16 low,
                                                                             __mmask16 high) const {
        const __m512 first = rounded(_mm512_maskz_loadu_ps(low, in)),
                     second = rounded(_mm512_maskz_loadu_ps(high, in + 16));
        return reinterpret_cast<Words512>(
            _mm512_permutex2var_epi16(reinterpret_cast<__m512i>(first), halves, reinterpret_cast<__m512i>(second)));
    }
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 Words512 across(const float* line, __mmask16 mask,
                                                                              const float* next,
                                                                              __mmask16 next_mask) const {
        const __m512 even = rounded(_mm512_maskz_loadu_ps(mask, line)),
                     odd = rounded(_mm512_maskz_loadu_ps(next_mask, next));
        const auto low = reinterpret_cast<Unsigned512>(even) >> 16,
                   high = reinterpret_cast<Unsigned512>(odd) & 0xFFFF0000u;
        return reinterpret_cast<Words512>(low | high);
    }
};

/// `lines` lines along k, of `length` elements each: to[i to_row + p] = pair(in[i row + 2p], in[i row + 2p + 1]). Loops are not
/// unrolled: they wait for memory, and every source has its own copy.
template <class Lines, class Source>
UNITSCALE_TARGET_AVX512 void load_pairs_along(const PairBlock<typename Lines::Element>& block, const Source& source,
                                              Pair* to, std::ptrdiff_t to_row) {
    const Lines from(source);
    const __mmask16 low = mask_of(block.length), high = mask_of(block.length - 16);
    const std::ptrdiff_t row = block.row;
    const auto* in = block.in;
#pragma GCC unroll 1
    for (std::ptrdiff_t i = block.lines; i > 0; --i, in += row, to += to_row)
        _mm512_storeu_si512(to, reinterpret_cast<__m512i>(from.along(in, low, high)));
}

/// As load_pairs_along, where a line runs across k. Two lines make one line of pairs: to[p to_row + i] = pair(in[2p row + i], in[(2p + 1) row + i]).
template <class Lines, class Source>
UNITSCALE_TARGET_AVX512 void load_pairs_across(const PairBlock<typename Lines::Element>& block, const Source& source,
                                               Pair* to, std::ptrdiff_t to_row) {
    const Lines from(source);
    const __mmask16 mask = mask_of(block.length);
    const std::ptrdiff_t row = block.row;
    const auto* in = block.in;
    std::ptrdiff_t lines = block.lines;
#pragma GCC unroll 1
    for (; lines >= 2; lines -= 2, in += 2 * row, to += to_row)
        _mm512_storeu_si512(to, reinterpret_cast<__m512i>(from.across(in, mask, in + row, mask)));
    if (lines == 1) _mm512_storeu_si512(to, reinterpret_cast<__m512i>(from.across(in, mask, in, 0)));
}

/// The first `count` lines of out[i out_row + j] = square[16 j + i].
UNITSCALE_TARGET_AVX512 inline void transpose_pairs(const Pair* square, Pair* out, std::ptrdiff_t out_row,
                                                    std::ptrdiff_t count) {
    Words512 words[16];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) words[i] = reinterpret_cast<Words512>(_mm512_load_si512(square + 16 * i));
    transpose_words(words);
    if (count == 16) {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i, out += out_row)
            _mm512_storeu_si512(out, reinterpret_cast<__m512i>(words[i]));
        return;
    }
    alignas(64) Words512 lines[16];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) lines[i] = words[i];
#pragma GCC unroll 1
    for (std::ptrdiff_t i = 0; i < count; ++i, out += out_row)
        _mm512_storeu_si512(out, reinterpret_cast<__m512i>(lines[i]));
}

/// One block, whichever way its source lies: lines of pairs from lines of the source, or with `transposed` through a square in the
/// first-level cache. Lines that the source has not are zero.
template <class Lines, class Source>
void pack_pairs_of(PairBlock<typename Lines::Element> block, const Source& source, bool along, bool transposed) {
    block.lines = std::min<std::ptrdiff_t>(block.lines, along ? 16 : 32);
    alignas(64) Pair square[16 * 16];
    Pair* const to = transposed ? square : block.out;
    const std::ptrdiff_t row = transposed ? 16 : block.out_row, lines = transposed ? 16 : block.out_lines;
    if (along) load_pairs_along<Lines>(block, source, to, row);
    else load_pairs_across<Lines>(block, source, to, row);
    for (std::ptrdiff_t i = along ? block.lines : (block.lines + 1) / 2; i < lines; ++i)
        std::fill_n(to + i * row, 16, Pair{0});
    if (transposed) transpose_pairs(square, block.out, block.out_row, block.out_lines);
}
inline void pack_pairs(const PairBlock<float>& block, const RegisterRounder& round, bool along, bool transposed) {
    pack_pairs_of<FloatLines>(block, round, along, transposed);
}

/// Whether blocks can be read from the operand itself, without a part of it widened and rounded in a buffer.
template <class View>
[[nodiscard]] bool has_lines(const View& view) noexcept {
    return view.col_stride == 1 || view.row_stride == 1;
}
template <class T>
[[nodiscard]] bool packs_in_place(const MatrixView<const T>& view, const Quantiser* round) noexcept {
    return std::is_same_v<T, float> && has_lines(view) && (round == nullptr || rounds_to_pairs(*round));
}

/// `pack_left_pairs` of an operand that has lines. `source`: what `pack_pairs` of its elements takes.
template <class View, class Source>
void pack_left_lines(const View& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Source& source, std::ptrdiff_t group,
                     Pair* out) {
    const bool along = a.col_stride == 1;
    const auto pack = [&](std::ptrdiff_t i, std::ptrdiff_t p) {
        const std::ptrdiff_t height = std::min(group, rows - i), depth = std::min(pair_depth, k - p);
        const PairBlock<std::remove_cvref_t<decltype(*a.data)>> block{a.at(i, p),
                                                                      along ? a.row_stride : a.col_stride,
                                                                      along ? height : depth,
                                                                      along ? depth : height,
                                                                      out + i * pairs_of(k) + p / 2 * group,
                                                                      16,
                                                                      group};
        pack_pairs(block, source, along, !along);
    };
    if (along)
        for (std::ptrdiff_t i = 0; i < rows; i += group)
            for (std::ptrdiff_t p = 0; p < k; p += pair_depth) pack(i, p);
    else
        for (std::ptrdiff_t p = 0; p < k; p += pair_depth)
            for (std::ptrdiff_t i = 0; i < rows; i += group) pack(i, p);
}

/// `pack_left_pairs` of any operand that widen_block knows.
template <class View>
void pack_left_pairs_buffered(const View& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser* round,
                              std::ptrdiff_t group, Pair* out, float* buffer) {
    const bool in_register = round != nullptr && rounds_to_pairs(*round);
    const RegisterRounder constants = register_rounder(in_register ? round : nullptr);
    constexpr std::ptrdiff_t strip = pair_buffer / 16;
    for (std::ptrdiff_t i = 0; i < rows; i += group)
        for (std::ptrdiff_t p0 = 0; p0 < k; p0 += strip) {
            const std::ptrdiff_t height = std::min(group, rows - i), depth = std::min(strip, k - p0);
            widen_block(Isa::avx512, a.block(i, p0), height, depth, depth, buffer, depth);
            if (!in_register) round_packed(Isa::avx512, round, buffer, height * depth);
            for (std::ptrdiff_t p = 0; p < depth; p += pair_depth)
                pack_pairs({buffer + p, depth, height, std::min(pair_depth, depth - p),
                            out + i * pairs_of(k) + (p0 + p) / 2 * group, 16, group},
                           constants, true, false);
        }
}

/// Packs `rows` rows of A, k columns, in groups of `group` rows (at most 16; rows of padding are zero), each in the order in
/// which it is read: pair p of row i of group g at out[g group pairs_of(k) + p / 16 (16 group) + 16 i + p % 16].
template <class T>
void pack_left_pairs(const MatrixView<const T>& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser* round,
                     std::ptrdiff_t group, Pair* out, float* buffer) {
    if constexpr (std::is_same_v<T, float>)
        if (packs_in_place(a, round)) return pack_left_lines(a, rows, k, register_rounder(round), group, out);
    pack_left_pairs_buffered(a, rows, k, round, group, out, buffer);
}

/// Where pair (p, j) of packed B stands.
[[nodiscard]] inline Pair* pair_at(const RightPairs& panels, Pair* out, std::ptrdiff_t p, std::ptrdiff_t j) noexcept {
    const std::ptrdiff_t q = j / pair_columns;
    return out + q * pair_columns * panels.packed_k + p * panels.padded_columns(q) + j % pair_columns;
}

/// `pack_right_pairs` from any source that widen_block knows.
template <class View>
[[nodiscard]] RightPairs pack_right_pairs_buffered(const View& b, std::ptrdiff_t k, std::ptrdiff_t n,
                                                   const Quantiser* round, Pair* out, float* buffer) {
    const RightPairs panels{out, k, n, pair_columns, 16, pairs_of(k), 0};
    const bool in_register = round != nullptr && rounds_to_pairs(*round);
    const RegisterRounder constants = register_rounder(in_register ? round : nullptr);
    constexpr std::ptrdiff_t strip = pair_buffer / pair_columns;
    for (std::ptrdiff_t j = 0; j < n; j += pair_columns)
        for (std::ptrdiff_t p0 = 0; p0 < k; p0 += strip) {
            const std::ptrdiff_t cols = std::min(pair_columns, n - j), rows = std::min(strip, k - p0);
            widen_block(Isa::avx512, b.block(p0, j), rows, cols, cols, buffer, cols);
            if (!in_register) round_packed(Isa::avx512, round, buffer, rows * cols);
            for (std::ptrdiff_t p = 0; p < rows; p += pair_depth)
                for (std::ptrdiff_t l = 0; l < cols; l += 16)
                    pack_pairs({buffer + p * cols + l, cols, std::min(pair_depth, rows - p), cols - l,
                                pair_at(panels, out, (p0 + p) / 2, j + l), panels.padded_columns(j / pair_columns)},
                               constants, false, false);
        }
    return panels;
}

/// `pack_right_pairs` of an operand that has lines, in blocks in the order in which it lies.
template <class View, class Source>
[[nodiscard]] RightPairs pack_right_lines(const View& b, std::ptrdiff_t k, std::ptrdiff_t n, const Source& source,
                                          Pair* out) {
    const RightPairs panels{out, k, n, pair_columns, 16, pairs_of(k), 0};
    const bool along = b.col_stride != 1;
    const auto pack = [&](std::ptrdiff_t p, std::ptrdiff_t j) {
        const std::ptrdiff_t depth = std::min(pair_depth, k - p);
        const PairBlock<std::remove_cvref_t<decltype(*b.data)>> block{b.at(p, j),
                                                                      along ? b.col_stride : b.row_stride,
                                                                      along ? n - j : depth,
                                                                      along ? depth : n - j,
                                                                      pair_at(panels, out, p / 2, j),
                                                                      panels.padded_columns(j / pair_columns)};
        pack_pairs(block, source, along, along);
    };
    if (along)
        for (std::ptrdiff_t j = 0; j < n; j += 16)
            for (std::ptrdiff_t p = 0; p < k; p += pair_depth) pack(p, j);
    else
        for (std::ptrdiff_t p = 0; p < k; p += pair_depth)
            for (std::ptrdiff_t j = 0; j < n; j += 16) pack(p, j);
    return panels;
}

/// Packs B into `out` (packed_right_pairs_size elements), rounding each element once on the way. `buffer`: pair_buffer floats.
/// Test: tests/products/pack_pairs_test.cpp
template <class T>
[[nodiscard]] RightPairs pack_right_pairs(const MatrixView<const T>& b, std::ptrdiff_t k, std::ptrdiff_t n,
                                          const Quantiser* round, Pair* out, float* buffer) {
    if constexpr (std::is_same_v<T, float>)
        if (packs_in_place(b, round)) return pack_right_lines(b, k, n, register_rounder(round), out);
    return pack_right_pairs_buffered(b, k, n, round, out, buffer);
}

#endif

}  // namespace unitscale::products
