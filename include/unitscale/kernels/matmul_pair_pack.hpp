// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/kernels/matmul_pack.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// Operands of the bf16 instructions on their way into the micro-kernels of matmul_pairs.hpp: pairs of bf16, consecutive in k.
// A value is rounded to its format in a register between the load and the store.
namespace unitscale::kernels {

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

/// Rounding to nearest even, saturating, in a register. With magic = 1.5 2^(23 - M) times x's power of two, or that of the
/// smallest normal number if it is larger, a last place of x + magic is a step of the format at x: (x + magic) - magic is x
/// rounded. Both operations name their rounding mode, and neither has a subnormal result, so that no mode of the processor
/// and no fast-math changes them. A zero loses its sign, which no sum of products shows.
struct PairRounding {
    bool rounds = false;            ///< false: values are exact in bf16 already
    float largest = 0;              ///< of the format
    std::int32_t lowest_field = 0;  ///< exponent of the smallest normal number, in place in a float
    std::uint32_t to_magic = 0;     ///< added to a power of two makes it 1.5 2^(23 - M) times that
};

/// Whether PairRounding does what this quantiser says.
[[nodiscard]] constexpr bool rounds_in_register(const Quantiser& round) noexcept {
    const FloatFormat& format = round.format;
    return round.rounding == Rounding::nearest_even && round.overflow == Overflow::saturate && format.is_signed() &&
           format.mantissa_bits > 0 && exact_in_bf16(format) && format.max_exponent() + 23 - format.mantissa_bits <= 126;
}
[[nodiscard]] constexpr PairRounding pair_rounding(const Quantiser* round) noexcept {
    if (round == nullptr) return {};
    const FloatFormat& format = round->format;
    return {true, format.max(), (format.min_exponent() + 127) << 23,
            (static_cast<std::uint32_t>(23 - format.mantissa_bits) << 23) + (1u << 22)};
}

using Unsigned512 [[gnu::vector_size(64)]] = std::uint32_t;

// Without optimisation GCC's intrinsics with an immediate are macros, which convert a mask of sixteen ones in the user's name.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Woverflow"
/// Sixteen floats rounded. NaN stays NaN. (x + 1.5 2^e) - 1.5 2^e has the ties and the sign of rounding x.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512_BF16 inline __m512 round_in_register(const PairRounding& round, __m512 x) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC, smaller_magnitude = 2, keep_nan = 0x22;
    // Not a minimum and a maximum, which fast-math may take for those of numbers: these instructions name what they do to NaN.
    const __m512 bounded = _mm512_maskz_range_ps(0xFFFF, x, _mm512_set1_ps(round.largest), smaller_magnitude);
    const auto exponents = reinterpret_cast<Words512>(bounded) & 0x7F800000;
    const Words512 lowest = Words512{} + round.lowest_field, field = exponents > lowest ? exponents : lowest;
    const auto magic = reinterpret_cast<__m512>(reinterpret_cast<Unsigned512>(field) + round.to_magic);
    const __m512 rounded =
        _mm512_maskz_sub_round_ps(0xFFFF, _mm512_maskz_add_round_ps(0xFFFF, bounded, magic, nearest), magic, nearest);
    return _mm512_fixupimm_ps(rounded, x, _mm512_set1_epi32(keep_nan), 0);
}
#pragma GCC diagnostic pop

/// Where a block of pairs comes from and goes to. `lines` and `length` are what there is of the source, the rest counts as
/// zero.
struct PairBlock {
    const float* in = nullptr;
    std::ptrdiff_t row = 0;                ///< between the source's lines
    std::ptrdiff_t lines = 0, length = 0;  ///< lines of consecutive floats, and floats in each
    Pair* out = nullptr;
    std::ptrdiff_t out_row = 0, out_lines = 16;
};

[[gnu::always_inline]] UNITSCALE_TARGET_AVX512_BF16 inline __mmask16 mask_of(std::ptrdiff_t count) {
    return static_cast<__mmask16>(count >= 16 ? 0xFFFF : count <= 0 ? 0 : (1 << count) - 1);
}

/// Source lines along k: line i of at most 16, pair p of at most 16.
///   out[i out_row + p] = pair(in[i row + 2p], in[i row + 2p + 1]), or with `Transposed` out[p out_row + i]
/// `Whole`: nothing is missing.
template <bool Round, bool Transposed, bool Whole>
UNITSCALE_TARGET_AVX512_BF16 void pack_pairs_along(const PairBlock& block, const PairRounding& constants) {
    const PairRounding round = constants;
    const __mmask16 low = Whole ? 0xFFFF : mask_of(block.length), high = Whole ? 0xFFFF : mask_of(block.length - 16);
    const std::ptrdiff_t row = block.row, out_row = block.out_row, lines = Whole ? 16 : block.lines;
    const float* in = block.in;
    Pair* out = block.out;
    Words512 words[16];
#pragma GCC unroll 16
    for (std::ptrdiff_t i = 0; i < 16; ++i, in += row) {
        words[i] = Words512{};
        if (i >= lines) continue;
        __m512 first = _mm512_maskz_loadu_ps(low, in), second = _mm512_maskz_loadu_ps(high, in + 16);
        if constexpr (Round) first = round_in_register(round, first), second = round_in_register(round, second);
        words[i] = reinterpret_cast<Words512>(_mm512_cvtne2ps_pbh(second, first));
    }
    if constexpr (Transposed) transpose_words(words);
#pragma GCC unroll 16
    for (std::ptrdiff_t i = 0; i < 16; ++i, out += out_row)
        if (Whole || i < block.out_lines) _mm512_storeu_si512(out, reinterpret_cast<__m512i>(words[i]));
}

/// Source lines across k: line 2p + half of at most 32, element i of at most 16.
///   out[p out_row + i] = pair(in[2p row + i], in[(2p + 1) row + i]), or with `Transposed` out[i out_row + p]
template <bool Round, bool Transposed, bool Whole>
UNITSCALE_TARGET_AVX512_BF16 void pack_pairs_across(const PairBlock& block, const PairRounding& constants) {
    const PairRounding round = constants;
    const __mmask16 mask = Whole ? 0xFFFF : mask_of(block.length);
    const std::ptrdiff_t row = block.row, out_row = block.out_row, lines = Whole ? 32 : block.lines;
    const float* in = block.in;
    Pair* out = block.out;
    Words512 words[16];
#pragma GCC unroll 16
    for (std::ptrdiff_t p = 0; p < 16; ++p, in += 2 * row) {
        words[p] = Words512{};
        if (2 * p >= lines) continue;
        __m512 even = _mm512_maskz_loadu_ps(mask, in), odd = _mm512_setzero_ps();
        if (2 * p + 1 < lines) odd = _mm512_maskz_loadu_ps(mask, in + row);
        if constexpr (Round) even = round_in_register(round, even), odd = round_in_register(round, odd);
        const __m512i shifted = _mm512_maskz_srli_epi32(0xFFFF, _mm512_castps_si512(even), 16);
        words[p] = reinterpret_cast<Words512>(
            _mm512_ternarylogic_epi32(shifted, _mm512_castps_si512(odd), _mm512_set1_epi32(0xFFFF), 0xF0 | (0xCC & 0x55)));
    }
    if constexpr (Transposed) transpose_words(words);
#pragma GCC unroll 16
    for (std::ptrdiff_t i = 0; i < 16; ++i, out += out_row)
        if (Whole || i < block.out_lines) _mm512_storeu_si512(out, reinterpret_cast<__m512i>(words[i]));
}

template <bool Round, bool Transposed>
void pack_pairs(const PairBlock& block, const PairRounding& round, bool along) {
    const bool whole = block.out_lines == 16 && block.lines >= (along ? 16 : 32) && block.length >= (along ? 32 : 16);
    if (along)
        whole ? pack_pairs_along<Round, Transposed, true>(block, round)
              : pack_pairs_along<Round, Transposed, false>(block, round);
    else
        whole ? pack_pairs_across<Round, Transposed, true>(block, round)
              : pack_pairs_across<Round, Transposed, false>(block, round);
}
/// One block, whichever way its source lies.
inline void pack_pairs(const PairBlock& block, const PairRounding& round, bool along, bool transposed) {
    if (round.rounds) transposed ? pack_pairs<true, true>(block, round, along) : pack_pairs<true, false>(block, round, along);
    else transposed ? pack_pairs<false, true>(block, round, along) : pack_pairs<false, false>(block, round, along);
}

/// A source that the blocks can be read from: the operand itself, or a part of it widened and rounded into a buffer.
template <class T>
[[nodiscard]] bool packs_in_place(const MatrixView<const T>& view, const Quantiser* round) noexcept {
    return std::is_same_v<T, float> && (view.col_stride == 1 || view.row_stride == 1) &&
           (round == nullptr || rounds_in_register(*round));
}

/// Packs `rows` rows of A, k columns, in groups of `group` rows (at most 16; rows of padding are zero), each in the order in
/// which it is read: pair p of row i of group g at out[g group pairs_of(k) + p / 16 (16 group) + 16 i + p % 16].
template <class T>
void pack_left_pairs(const MatrixView<const T>& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser* round,
                     std::ptrdiff_t group, Pair* out, float* buffer) {
    if constexpr (std::is_same_v<T, float>)
        if (packs_in_place(a, round)) {
            const bool along = a.col_stride == 1;
            const PairRounding constants = pair_rounding(round);
            const auto pack = [&](std::ptrdiff_t i, std::ptrdiff_t p) {
                const std::ptrdiff_t height = std::min(group, rows - i), depth = std::min(pair_depth, k - p);
                pack_pairs({a.at(i, p), along ? a.row_stride : a.col_stride, along ? height : depth, along ? depth : height,
                            out + i * pairs_of(k) + p / 2 * group, 16, group},
                           constants, along, !along);
            };
            if (along)
                for (std::ptrdiff_t i = 0; i < rows; i += group)
                    for (std::ptrdiff_t p = 0; p < k; p += pair_depth) pack(i, p);
            else
                for (std::ptrdiff_t p = 0; p < k; p += pair_depth)
                    for (std::ptrdiff_t i = 0; i < rows; i += group) pack(i, p);
            return;
        }
    constexpr std::ptrdiff_t strip = pair_buffer / 16;
    for (std::ptrdiff_t i = 0; i < rows; i += group)
        for (std::ptrdiff_t p0 = 0; p0 < k; p0 += strip) {
            const std::ptrdiff_t height = std::min(group, rows - i), depth = std::min(strip, k - p0);
            widen_block(Isa::avx512, a.block(i, p0), height, depth, depth, buffer, depth);
            const bool in_register = round != nullptr && rounds_in_register(*round);
            if (!in_register) round_packed(Isa::avx512, round, buffer, height * depth);
            const PairRounding constants = pair_rounding(in_register ? round : nullptr);
            for (std::ptrdiff_t p = 0; p < depth; p += pair_depth)
                pack_pairs({buffer + p, depth, height, std::min(pair_depth, depth - p),
                            out + i * pairs_of(k) + (p0 + p) / 2 * group, 16, group},
                           constants, true, false);
        }
}

/// Where pair (p, j) of packed B stands.
[[nodiscard]] inline Pair* pair_at(const RightPairs& panels, Pair* out, std::ptrdiff_t p, std::ptrdiff_t j) noexcept {
    const std::ptrdiff_t q = j / pair_columns;
    return out + q * pair_columns * panels.packed_k + p * panels.padded_columns(q) + j % pair_columns;
}

/// `pack_right_pairs` from any source that widen_block knows.
template <class View>
[[nodiscard]] RightPairs pack_right_pairs_buffered(const View& b, std::ptrdiff_t k, std::ptrdiff_t n, const Quantiser* round,
                                                   Pair* out, float* buffer) {
    const RightPairs panels{out, k, n, pair_columns, 16, pairs_of(k), 0};
    const bool in_register = round != nullptr && rounds_in_register(*round);
    const PairRounding constants = pair_rounding(in_register ? round : nullptr);
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

/// Packs B into `out` (packed_right_pairs_size elements), rounding each element once on the way. `buffer`: pair_buffer floats.
/// Test: tests/kernels/matmul_pair_pack_test.cpp
template <class T>
[[nodiscard]] RightPairs pack_right_pairs(const MatrixView<const T>& b, std::ptrdiff_t k, std::ptrdiff_t n,
                                          const Quantiser* round, Pair* out, float* buffer) {
    if constexpr (std::is_same_v<T, float>)
        if (packs_in_place(b, round)) {
            const RightPairs panels{out, k, n, pair_columns, 16, pairs_of(k), 0};
            const PairRounding constants = pair_rounding(round);
            const bool along = b.col_stride != 1;
            const auto pack = [&](std::ptrdiff_t p, std::ptrdiff_t j) {
                const std::ptrdiff_t depth = std::min(pair_depth, k - p);
                pack_pairs({b.at(p, j), along ? b.col_stride : b.row_stride, along ? n - j : depth, along ? depth : n - j,
                            pair_at(panels, out, p / 2, j), panels.padded_columns(j / pair_columns)},
                           constants, along, along);
            };
            // Blocks in the order in which B lies.
            if (along)
                for (std::ptrdiff_t j = 0; j < n; j += 16)
                    for (std::ptrdiff_t p = 0; p < k; p += pair_depth) pack(p, j);
            else
                for (std::ptrdiff_t p = 0; p < k; p += pair_depth)
                    for (std::ptrdiff_t j = 0; j < n; j += 16) pack(p, j);
            return panels;
        }
    return pack_right_pairs_buffered(b, k, n, round, out, buffer);
}

#endif

}  // namespace unitscale::kernels
