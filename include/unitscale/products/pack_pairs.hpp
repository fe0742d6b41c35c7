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
#include <utility>

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

/// Where pairs are stored. Line i of block b stands at out[i row + b % 2 block + b / 2 two_blocks].
struct PairsOut {
    Pair* out = nullptr;
    std::ptrdiff_t row = 0, block = 0, two_blocks = 0;

    [[nodiscard]] Pair* at(std::ptrdiff_t i, std::ptrdiff_t b) const noexcept {
        return out + i * row + b % 2 * block + b / 2 * two_blocks;
    }
};

/// Lines of consecutive elements, from which pairs are made. A line has blocks, one after the other. A block has 32
/// elements of a line along k, or 16 of a line across k.
template <class Element>
struct PairLines {
    const Element* in = nullptr;
    std::ptrdiff_t row = 0;     ///< between lines
    std::ptrdiff_t lines = 0;   ///< at most 16 along k, 32 across k
    std::ptrdiff_t length = 0;  ///< elements of the last block
    std::ptrdiff_t blocks = 1;
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

/// Makes pairs of lines along k. Line i of a block holds the pairs (in[i row + 2p], in[i row + 2p + 1]). The next line
/// is asked for while a line is loaded. Loops are not unrolled. They wait for memory, and every source has its own copy
/// of them.
template <class Lines, class Source>
UNITSCALE_TARGET_AVX512 void load_pairs_along(const PairLines<typename Lines::Element>& lines, const Source& source,
                                              const PairsOut& to) {
    const Lines from(source);
    const __mmask16 low = mask_of(lines.length), high = mask_of(lines.length - 16), all = 0xFFFF;
    const std::ptrdiff_t row = lines.row, to_row = to.row;
    const auto* line = lines.in;
    Pair* out_line = to.out;
#pragma GCC unroll 1
    for (std::ptrdiff_t i = lines.lines; i > 0; --i, line += row, out_line += to_row) {
        const auto* in = line;
        Pair* out = out_line;
        std::ptrdiff_t step = to.block, other_step = to.two_blocks - to.block;
#pragma GCC unroll 1
        for (std::ptrdiff_t left = lines.blocks; left > 1; --left, in += 32, out += step, std::swap(step, other_step)) {
            _mm_prefetch(in + row, _MM_HINT_T0);
            _mm_prefetch(in + row + 16, _MM_HINT_T0);
            _mm512_storeu_si512(out, reinterpret_cast<__m512i>(from.along(in, all, all)));
        }
        _mm512_storeu_si512(out, reinterpret_cast<__m512i>(from.along(in, low, high)));
    }
}

/// Makes pairs of lines across k. Two lines make one: line p of a block holds the pairs (in[2p row + i],
/// in[(2p + 1) row + i]). The lines are read whole, which memory likes best, and the lines after the next two are asked
/// for. On a Xeon, products with A^T from memory take 0.8 to 0.9 of the time that they took with one block at a time.
template <class Lines, class Source>
UNITSCALE_TARGET_AVX512 void load_pairs_across(const PairLines<typename Lines::Element>& lines, const Source& source,
                                               const PairsOut& to) {
    const Lines from(source);
    const __mmask16 last = mask_of(lines.length), all = 0xFFFF;
    const std::ptrdiff_t row = lines.row, to_row = to.row;
    const auto* line = lines.in;
    Pair* out_line = to.out;
#pragma GCC unroll 1
    for (std::ptrdiff_t left_lines = lines.lines; left_lines > 0;
         left_lines -= 2, line += 2 * row, out_line += to_row) {
        const bool both = left_lines > 1;
        const std::ptrdiff_t next = both ? row : 0;
        const auto* in = line;
        Pair* out = out_line;
        std::ptrdiff_t step = to.block, other_step = to.two_blocks - to.block;
#pragma GCC unroll 1
        for (std::ptrdiff_t left = lines.blocks; left > 0; --left, in += 16, out += step, std::swap(step, other_step)) {
            const __mmask16 mask = left > 1 ? all : last;
            _mm_prefetch(in + 4 * row, _MM_HINT_T0);
            _mm_prefetch(in + 5 * row, _MM_HINT_T0);
            const Words512 pairs = from.across(in, mask, in + next, both ? mask : __mmask16{0});
            _mm512_storeu_si512(out, reinterpret_cast<__m512i>(pairs));
        }
    }
}

/// Makes pairs of `lines`, and zeros for the lines that a depth of 32 or a group of `out_lines` rows misses.
template <class Lines, class Source>
void load_pairs_of(const PairLines<typename Lines::Element>& lines, const Source& source, bool along,
                   const PairsOut& to, std::ptrdiff_t out_lines) {
    if (along) load_pairs_along<Lines>(lines, source, to);
    else load_pairs_across<Lines>(lines, source, to);
    for (std::ptrdiff_t i = along ? lines.lines : (lines.lines + 1) / 2; i < out_lines; ++i)
        for (std::ptrdiff_t b = 0; b < lines.blocks; ++b) std::fill_n(to.at(i, b), 16, Pair{0});
}
template <class T>
void load_pairs(const PairLines<T>& lines, const RegisterQuantiser& quantiser, bool along, const PairsOut& to,
                std::ptrdiff_t out_lines = 16) {
    load_pairs_of<ElementLines<T>>(lines, quantiser, along, to, out_lines);
}

/// Squares of 16 x 16 pairs, one after the other.
[[nodiscard]] inline PairsOut squares_of_pairs(Pair* squares) noexcept { return {squares, 16, 256, 512}; }

/// The first `count` lines of out[i row + j] = square[16 j + i]; from line `wrap` on they stand `skip` pairs later.
UNITSCALE_TARGET_AVX512 inline void transpose_pairs(const Pair* square, std::ptrdiff_t count, Pair* out,
                                                    std::ptrdiff_t row, std::ptrdiff_t wrap = 16,
                                                    std::ptrdiff_t skip = 0) {
    Words512 words[16];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) words[i] = reinterpret_cast<Words512>(_mm512_load_si512(square + 16 * i));
    transpose_words(words);
    if (count == 16) {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i, out += row) {
            if (static_cast<std::ptrdiff_t>(i) == wrap) out += skip;
            _mm512_storeu_si512(out, reinterpret_cast<__m512i>(words[i]));
        }
        return;
    }
    alignas(64) Words512 lines[16];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) lines[i] = words[i];
#pragma GCC unroll 1
    for (std::ptrdiff_t i = 0; i < count; ++i, out += row) {
        if (i == wrap) out += skip;
        _mm512_storeu_si512(out, reinterpret_cast<__m512i>(lines[i]));
    }
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

/// `pack_left_pairs` for an operand that has lines. `source`: the argument with which `load_pairs` makes its pairs.
template <class View, class Source>
void pack_left_lines(const View& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Source& source, std::ptrdiff_t group,
                     Pair* out) {
    using Lines = PairLines<std::remove_cvref_t<decltype(*a.data)>>;
    if (k == 0) return;
    const std::ptrdiff_t group_size = group * pairs_of(k);
    if (a.col_stride == 1) {  // a group's lines, whole
        const std::ptrdiff_t blocks = (k + pair_depth - 1) / pair_depth, last = k - (blocks - 1) * pair_depth;
        for (std::ptrdiff_t i = 0; i < rows; i += group)
            load_pairs(Lines{a.at(i, 0), a.row_stride, std::min(group, rows - i), last, blocks}, source, true,
                       PairsOut{out + i * pairs_of(k), 16, 16 * group, 32 * group}, group);
        return;
    }
    // The source's lines hold the rows. Squares of sixteen rows are transposed, whatever a group has.
    constexpr std::ptrdiff_t most_squares = 9;  // groups of 12 rows and of 16 rows end there
    alignas(64) Pair squares[most_squares * 256];
    for (std::ptrdiff_t i0 = 0; i0 < rows; i0 += 16 * most_squares) {
        const std::ptrdiff_t height = std::min(16 * most_squares, rows - i0), padded = round_up(height, group),
                             blocks = (height + 15) / 16;
        std::fill(squares + blocks * 256, squares + most_squares * 256, Pair{0});
        for (std::ptrdiff_t p = 0; p < k; p += pair_depth) {
            load_pairs(
                Lines{a.at(i0, p), a.col_stride, std::min(pair_depth, k - p), height - 16 * (blocks - 1), blocks},
                source, false, squares_of_pairs(squares));
            for (std::ptrdiff_t i = 0; i < padded; i += 16) {
                const std::ptrdiff_t first = i % group;
                transpose_pairs(squares + 16 * i, std::min<std::ptrdiff_t>(16, padded - i),
                                out + (i0 + i) / group * group_size + p / 2 * group + 16 * first, 16, group - first,
                                group_size - 16 * group);
            }
        }
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
                load_pairs(PairLines<float>{buffer + p, depth, height, std::min(pair_depth, depth - p)}, constants,
                           true, PairsOut{out + i * pairs_of(k) + (p0 + p) / 2 * group, 16}, group);
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
                    load_pairs(
                        PairLines<float>{buffer + p * cols + l, cols, std::min(pair_depth, rows - p), cols - l},
                        constants, false,
                        PairsOut{pair_at(panels, out, (p0 + p) / 2, j + l), panels.padded_columns(j / pair_columns)});
        }
    return panels;
}

/// `pack_right_pairs` for an operand that has lines, in memory order.
template <class View, class Source>
[[nodiscard]] RightPairs pack_right_lines(const View& b, std::ptrdiff_t k, std::ptrdiff_t n, const Source& source,
                                          Pair* out) {
    using Lines = PairLines<std::remove_cvref_t<decltype(*b.data)>>;
    const RightPairs panels{out, k, n, pair_columns, 16, pairs_of(k), 0};
    if (b.col_stride != 1) {  // along k, through a square in the level 1 cache
        alignas(64) Pair square[256];
        for (std::ptrdiff_t j = 0; j < n; j += 16)
            for (std::ptrdiff_t p = 0; p < k; p += pair_depth) {
                load_pairs(
                    Lines{b.at(p, j), b.col_stride, std::min<std::ptrdiff_t>(16, n - j), std::min(pair_depth, k - p)},
                    source, true, squares_of_pairs(square));
                transpose_pairs(square, 16, pair_at(panels, out, p / 2, j), panels.padded_columns(j / pair_columns));
            }
        return panels;
    }
    // Lines of k: of all panels with the full width, then of the last one if it is narrower.
    const std::ptrdiff_t last = n % pair_columns, narrow = last > 0 && last <= 16 ? last : 0;
    for (std::ptrdiff_t p = 0; p < k; p += pair_depth) {
        const auto pack = [&](std::ptrdiff_t j, std::ptrdiff_t columns) {
            if (columns == 0) return;
            const std::ptrdiff_t blocks = (columns + 15) / 16;
            load_pairs(
                Lines{b.at(p, j), b.row_stride, std::min(pair_depth, k - p), columns - 16 * (blocks - 1), blocks},
                source, false,
                PairsOut{pair_at(panels, out, p / 2, j), panels.padded_columns(j / pair_columns), 16,
                         pair_columns * panels.packed_k});
        };
        pack(0, n - narrow);
        pack(n - narrow, narrow);
    }
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
