// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/products/pack.hpp>
#include <unitscale/products/quantise_lines.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// Operands of the bf16 instructions, on their way into the micro-kernels of pair_kernels.hpp. They are pairs of bf16
// that are consecutive in k. A value is quantised in a register between the load and the store.
namespace unitscale::products {

/// Whether every number of the format, infinity and NaN included, is a normal bf16 or zero.
[[nodiscard]] constexpr bool exact_in_bf16(const FloatFormat& format) noexcept {
    return format.mantissa_bits <= 7 && format.quantum_exponent() >= -126 && format.max_exponent() <= 127;
}

/// Two bf16; the one with the smaller k is in the low half.
using Pair = std::uint32_t;

inline constexpr std::ptrdiff_t pair_columns = 32;  ///< of a panel of B
inline constexpr std::ptrdiff_t pair_depth = 32;    ///< k is padded with zeros to a multiple: one AMX tile
[[nodiscard]] constexpr std::ptrdiff_t pairs_of(std::ptrdiff_t k) noexcept { return round_up(k, pair_depth) / 2; }

/// B in panels of pairs. Pair (p, j) of panel q holds rows 2p and 2p + 1, at panel(q)[p padded_columns(q) + j].
using RightPairs = RightPanels<Pair>;
[[nodiscard]] inline std::ptrdiff_t packed_right_pairs_size(std::ptrdiff_t k, std::ptrdiff_t n) noexcept {
    return pairs_of(k) * round_up(n, 16);
}

/// Floats of the buffer for operands that are not elements in lines, or are not quantised in registers.
inline constexpr std::ptrdiff_t pair_buffer = 4096;

#if UNITSCALE_X86

/// Whether a quantiser can run in a register and gives numbers that are exact in bf16.
[[nodiscard]] constexpr bool quantises_to_pairs(const Quantiser& quantiser) noexcept {
    return exact_in_bf16(quantiser.format) && register_quantisation(quantiser) == RegisterQuantisation::by_exponent;
}

/// Source and destination of a block of pairs. `lines` and `length` count the existing elements of the source. All
/// other elements count as zero. Lines along k may have several blocks one after the other, which all have 32 elements
/// but the last.
template <class Element>
struct PairBlock {
    const Element* in = nullptr;
    std::ptrdiff_t row = 0;                ///< between lines of the source
    std::ptrdiff_t lines = 0, length = 0;  ///< lines of consecutive elements, and elements in each
    Pair* out = nullptr;
    std::ptrdiff_t out_row = 0, out_lines = 16;
    std::ptrdiff_t blocks = 1;           ///< blocks of a line; `length` counts the last one's elements
    std::ptrdiff_t wrap = 16, skip = 0;  ///< of a transposed block: from line `wrap` on, lines stand `skip` pairs later
};

/// Indices of the upper halves of 32 words: sixteen in one register, sixteen in a second. `ElementLines::along` joins
/// these halves.
[[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512i upper_halves() {
    HalfWords512 index{};
    for (std::size_t i = 0; i < 32; ++i) index[i] = static_cast<std::uint16_t>(2 * i + 1);
    return reinterpret_cast<__m512i>(index);
}

/// Makes sixteen pairs from lines of float, Half or BFloat16, each element quantised as a float on the way if the
/// quantiser says so. A float that is exact in bf16 is its upper half. Every source of pairs has two functions. `along`
/// makes pairs of 32 consecutive elements. `across` makes pairs of 16 elements from each of two lines. Elements that a
/// mask leaves out are zero and not read.
template <class T>
struct ElementLines {
    using Element = T;
    RegisterQuantiser quantiser;
    __m512i halves;

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX512 explicit ElementLines(const RegisterQuantiser& rounding)
        : quantiser(rounding), halves(upper_halves()) {}
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 __m512 rounded(__m512 x) const {
        if (quantiser.kind == RegisterQuantisation::none) return x;
        return quantise_in_register<RegisterQuantisation::by_exponent>(quantiser, x);
    }
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 Words512 along(const T* in, __mmask16 low,
                                                                             __mmask16 high) const {
        const __m512 first = rounded(load_floats(low, in)), second = rounded(load_floats(high, in + 16));
        return reinterpret_cast<Words512>(
            _mm512_permutex2var_epi16(reinterpret_cast<__m512i>(first), halves, reinterpret_cast<__m512i>(second)));
    }
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 Words512 across(const T* line, __mmask16 mask,
                                                                              const T* next,
                                                                              __mmask16 next_mask) const {
        const __m512 even = rounded(load_floats(mask, line)), odd = rounded(load_floats(next_mask, next));
        const auto low = reinterpret_cast<Unsigned512>(even) >> 16,
                   high = reinterpret_cast<Unsigned512>(odd) & 0xFFFF0000u;
        return reinterpret_cast<Words512>(low | high);
    }
};

/// Loads `lines` lines along k, each of some blocks of 32 elements (the last of `length`):
///   to[i to_row + p] = pair(in[i row + 2p], in[i row + 2p + 1])
/// A block of sixteen pairs stands `to_block` pairs behind the one before. The next line is asked for while a line is
/// loaded. Loops are not unrolled: they wait for memory, and every source has its own copy.
template <class Lines, class Source>
UNITSCALE_TARGET_AVX512 void load_pairs_along(const PairBlock<typename Lines::Element>& block, const Source& source,
                                              Pair* to, std::ptrdiff_t to_row, std::ptrdiff_t to_block) {
    const Lines from(source);
    const __mmask16 low = mask_of(block.length), high = mask_of(block.length - 16), all = 0xFFFF;
    const std::ptrdiff_t row = block.row;
    const auto* line = block.in;
#pragma GCC unroll 1
    for (std::ptrdiff_t i = block.lines; i > 0; --i, line += row, to += to_row) {
        const auto* in = line;
        Pair* out = to;
#pragma GCC unroll 1
        for (std::ptrdiff_t left = block.blocks; left > 1; --left, in += 32, out += to_block) {
            _mm_prefetch(in + row, _MM_HINT_T0);
            _mm_prefetch(in + row + 16, _MM_HINT_T0);
            _mm512_storeu_si512(out, reinterpret_cast<__m512i>(from.along(in, all, all)));
        }
        _mm512_storeu_si512(out, reinterpret_cast<__m512i>(from.along(in, low, high)));
    }
}

/// Elements ahead of a line that are asked for while it is loaded. A processor sees few of a block's lines coming.
inline constexpr std::ptrdiff_t pairs_ahead = 32;

/// Counterpart of load_pairs_along where a line runs across k. Two lines make one line of pairs:
///   to[p to_row + i] = pair(in[2p row + i], in[(2p + 1) row + i])
template <class Lines, class Source>
UNITSCALE_TARGET_AVX512 void load_pairs_across(const PairBlock<typename Lines::Element>& block, const Source& source,
                                               Pair* to, std::ptrdiff_t to_row) {
    const Lines from(source);
    const __mmask16 mask = mask_of(block.length);
    const std::ptrdiff_t row = block.row;
    const auto* in = block.in;
    std::ptrdiff_t lines = block.lines;
#pragma GCC unroll 1
    for (; lines >= 2; lines -= 2, in += 2 * row, to += to_row) {
        _mm_prefetch(in + pairs_ahead, _MM_HINT_T0);
        _mm_prefetch(in + row + pairs_ahead, _MM_HINT_T0);
        _mm512_storeu_si512(to, reinterpret_cast<__m512i>(from.across(in, mask, in + row, mask)));
    }
    if (lines == 1) _mm512_storeu_si512(to, reinterpret_cast<__m512i>(from.across(in, mask, in, 0)));
}

/// The first `block.out_lines` lines of out[i out_row + j] = square[16 j + i]; from line `wrap` on they stand `skip`
/// pairs later.
template <class Element>
UNITSCALE_TARGET_AVX512 void transpose_pairs(const Pair* square, const PairBlock<Element>& block) {
    const std::ptrdiff_t out_row = block.out_row, count = block.out_lines, wrap = block.wrap, skip = block.skip;
    Pair* out = block.out;
    Words512 words[16];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) words[i] = reinterpret_cast<Words512>(_mm512_load_si512(square + 16 * i));
    transpose_words(words);
    if (count == 16) {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i, out += out_row) {
            if (static_cast<std::ptrdiff_t>(i) == wrap) out += skip;
            _mm512_storeu_si512(out, reinterpret_cast<__m512i>(words[i]));
        }
        return;
    }
    alignas(64) Words512 lines[16];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) lines[i] = words[i];
#pragma GCC unroll 1
    for (std::ptrdiff_t i = 0; i < count; ++i, out += out_row) {
        if (i == wrap) out += skip;
        _mm512_storeu_si512(out, reinterpret_cast<__m512i>(lines[i]));
    }
}

/// Packs one block, in either layout of its source. Lines of the source become lines of pairs, or with `transposed`
/// pass through a square in the level 1 cache. Lines that the source does not have are zero.
template <class Lines, class Source>
void pack_pairs_of(PairBlock<typename Lines::Element> block, const Source& source, bool along, bool transposed) {
    block.lines = std::min<std::ptrdiff_t>(block.lines, along ? 16 : 32);
    alignas(64) Pair square[16 * 16];
    Pair* const to = transposed ? square : block.out;
    const std::ptrdiff_t row = transposed ? 16 : block.out_row, lines = transposed ? 16 : block.out_lines;
    const std::ptrdiff_t to_block = row * lines;
    if (along) load_pairs_along<Lines>(block, source, to, row, to_block);
    else load_pairs_across<Lines>(block, source, to, row);
    for (std::ptrdiff_t i = along ? block.lines : (block.lines + 1) / 2; i < lines; ++i)
        for (std::ptrdiff_t number = 0; number < block.blocks; ++number)
            std::fill_n(to + number * to_block + i * row, 16, Pair{0});
    if (transposed) transpose_pairs(square, block);
}
template <class T>
void pack_pairs(const PairBlock<T>& block, const RegisterQuantiser& quantiser, bool along, bool transposed) {
    pack_pairs_of<ElementLines<T>>(block, quantiser, along, transposed);
}

/// Whether blocks can be read from the operand itself, without a widened and quantised copy in a buffer.
template <class View>
[[nodiscard]] bool has_lines(const View& view) noexcept {
    return view.col_stride == 1 || view.row_stride == 1;
}
template <class T>
[[nodiscard]] bool packs_in_place(const MatrixView<const T>& view, const Quantiser* quantiser) noexcept {
    if constexpr (!std::is_same_v<T, float> && !HalfElement<T>) return false;
    else return has_lines(view) && (quantiser == nullptr || quantises_to_pairs(*quantiser));
}

/// `pack_left_pairs` for an operand that has lines. `source`: the argument with which `pack_pairs` makes its pairs.
template <class View, class Source>
void pack_left_lines(const View& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Source& source, std::ptrdiff_t group,
                     Pair* out) {
    using Block = PairBlock<std::remove_cvref_t<decltype(*a.data)>>;
    if (k == 0) return;
    if (a.col_stride == 1) {  // a group's lines, whole
        const std::ptrdiff_t blocks = (k + pair_depth - 1) / pair_depth, last = k - (blocks - 1) * pair_depth;
        for (std::ptrdiff_t i = 0; i < rows; i += group)
            pack_pairs(Block{a.at(i, 0), a.row_stride, std::min(group, rows - i), last, out + i * pairs_of(k), 16,
                             group, blocks},
                       source, true, false);
        return;
    }
    // Sixteen rows at a time, which are lines of the source, whatever a group has.
    const std::ptrdiff_t padded = round_up(rows, group), group_size = group * pairs_of(k);
    for (std::ptrdiff_t p = 0; p < k; p += pair_depth)
        for (std::ptrdiff_t i = 0; i < padded; i += 16) {
            const std::ptrdiff_t first = i % group;
            Block block{a.at(i, p),
                        a.col_stride,
                        std::min(pair_depth, k - p),
                        std::max<std::ptrdiff_t>(std::min<std::ptrdiff_t>(16, rows - i), 0),
                        out + i / group * group_size + p / 2 * group + 16 * first,
                        16,
                        std::min<std::ptrdiff_t>(16, padded - i)};
            block.wrap = group - first;
            block.skip = group_size - 16 * group;
            pack_pairs(block, source, false, true);
        }
}

/// `pack_left_pairs` for any operand that widen_block accepts.
template <class View>
void pack_left_pairs_buffered(const View& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser* quantiser,
                              std::ptrdiff_t group, Pair* out, float* buffer) {
    const bool in_register = quantiser != nullptr && quantises_to_pairs(*quantiser);
    const RegisterQuantiser constants = register_quantiser(in_register ? quantiser : nullptr);
    constexpr std::ptrdiff_t strip = pair_buffer / 16;
    for (std::ptrdiff_t i = 0; i < rows; i += group)
        for (std::ptrdiff_t p0 = 0; p0 < k; p0 += strip) {
            const std::ptrdiff_t height = std::min(group, rows - i), depth = std::min(strip, k - p0);
            widen_block(Isa::avx512, a.block(i, p0), height, depth, depth, buffer, depth);
            if (!in_register) quantise_packed(Isa::avx512, quantiser, buffer, height * depth);
            for (std::ptrdiff_t p = 0; p < depth; p += pair_depth)
                pack_pairs(PairBlock<float>{buffer + p, depth, height, std::min(pair_depth, depth - p),
                                            out + i * pairs_of(k) + (p0 + p) / 2 * group, 16, group},
                           constants, true, false);
        }
}

/// Packs `rows` rows of A, k columns, in groups of `group` rows (at most 16; rows of padding are zero). Each group is
/// stored in the order in which the kernels read it:
///   pair p of row i of group g at out[g group pairs_of(k) + p / 16 (16 group) + 16 i + p % 16]
template <class T>
void pack_left_pairs(const MatrixView<const T>& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser* quantiser,
                     std::ptrdiff_t group, Pair* out, float* buffer) {
    if constexpr (std::is_same_v<T, float> || HalfElement<T>)
        if (packs_in_place(a, quantiser)) return pack_left_lines(a, rows, k, register_quantiser(quantiser), group, out);
    pack_left_pairs_buffered(a, rows, k, quantiser, group, out, buffer);
}

/// Address of pair (p, j) of packed B.
[[nodiscard]] inline Pair* pair_at(const RightPairs& panels, Pair* out, std::ptrdiff_t p, std::ptrdiff_t j) noexcept {
    const std::ptrdiff_t q = j / pair_columns;
    return out + q * pair_columns * panels.packed_k + p * panels.padded_columns(q) + j % pair_columns;
}

/// `pack_right_pairs` for any operand that widen_block accepts.
template <class View>
[[nodiscard]] RightPairs pack_right_pairs_buffered(const View& b, std::ptrdiff_t k, std::ptrdiff_t n,
                                                   const Quantiser* quantiser, Pair* out, float* buffer) {
    const RightPairs panels{out, k, n, pair_columns, 16, pairs_of(k), 0};
    const bool in_register = quantiser != nullptr && quantises_to_pairs(*quantiser);
    const RegisterQuantiser constants = register_quantiser(in_register ? quantiser : nullptr);
    constexpr std::ptrdiff_t strip = pair_buffer / pair_columns;
    for (std::ptrdiff_t j = 0; j < n; j += pair_columns)
        for (std::ptrdiff_t p0 = 0; p0 < k; p0 += strip) {
            const std::ptrdiff_t cols = std::min(pair_columns, n - j), rows = std::min(strip, k - p0);
            widen_block(Isa::avx512, b.block(p0, j), rows, cols, cols, buffer, cols);
            if (!in_register) quantise_packed(Isa::avx512, quantiser, buffer, rows * cols);
            for (std::ptrdiff_t p = 0; p < rows; p += pair_depth)
                for (std::ptrdiff_t l = 0; l < cols; l += 16)
                    pack_pairs(PairBlock<float>{buffer + p * cols + l, cols, std::min(pair_depth, rows - p), cols - l,
                                                pair_at(panels, out, (p0 + p) / 2, j + l),
                                                panels.padded_columns(j / pair_columns)},
                               constants, false, false);
        }
    return panels;
}

/// `pack_right_pairs` for an operand that has lines, in blocks in memory order.
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

/// Packs B into `out` (packed_right_pairs_size elements) and quantises each element once on the way. `buffer`:
/// pair_buffer floats. Test: tests/products/pack_pairs_test.cpp
template <class T>
[[nodiscard]] RightPairs pack_right_pairs(const MatrixView<const T>& b, std::ptrdiff_t k, std::ptrdiff_t n,
                                          const Quantiser* quantiser, Pair* out, float* buffer) {
    if constexpr (std::is_same_v<T, float> || HalfElement<T>)
        if (packs_in_place(b, quantiser)) return pack_right_lines(b, k, n, register_quantiser(quantiser), out);
    return pack_right_pairs_buffered(b, k, n, quantiser, out, buffer);
}

#endif

}  // namespace unitscale::products
