// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/kernels/matmul_block.hpp>
#include <unitscale/kernels/matmul_pack.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#if UNITSCALE_X86 && defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define UNITSCALE_AMX 1
#define UNITSCALE_TARGET_AMX __attribute__((target("amx-tile,amx-bf16,avx512f"), noinline))
#else
#define UNITSCALE_AMX 0
#endif

// Products of operands that are exact in bf16, as every rounded 8-bit (and narrower) value is: pairs of bf16, consecutive in k, are
// multiplied exactly and added in float by the processor's bf16 instructions. They flush subnormals, so formats that have
// numbers below 2^-126 stay with the float kernels.
namespace unitscale::kernels {

/// The instructions that multiply pairs. dot: vdpbf16ps (AVX512_BF16). matrix: tdpbf16ps (AMX).
enum class PairKernel { none, dot, matrix };

/// Whether every number of the format, infinity and NaN included, is a normal bf16 or zero.
[[nodiscard]] constexpr bool exact_in_bf16(const FloatFormat& format) noexcept {
    return format.mantissa_bits <= 7 && format.quantum_exponent() >= -126 && format.max_exponent() <= 127;
}

/// Whether AMX is there and the operating system lets this process use it (which Linux has to be asked for).
[[nodiscard]] inline bool has_amx_bf16() {
#if UNITSCALE_AMX
    static const bool has = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        constexpr unsigned bf16_bit = 1u << 22, tile_bit = 1u << 24;
        constexpr long request_permission = 0x1023, tile_data = 18;
        return active_isa() == Isa::avx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & bf16_bit) != 0 &&
               (d & tile_bit) != 0 && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return has;
#else
    return false;
#endif
}

/// The fastest there is. Intel's vdpbf16ps runs at half the rate of its float multiply-adds' flops, AMD's at twice.
[[nodiscard]] inline PairKernel active_pair_kernel() {
    if (has_amx_bf16()) return PairKernel::matrix;
#if UNITSCALE_X86
    if (has_avx512_bf16() && !__builtin_cpu_is("intel")) return PairKernel::dot;
#endif
    return PairKernel::none;
}

/// Two bf16, the one with the smaller k in the low half.
using Pair = std::uint32_t;

inline constexpr std::ptrdiff_t pair_columns = 32;  ///< of a panel of B
inline constexpr std::ptrdiff_t pair_depth = 32;    ///< k is padded with zeros to a multiple: one AMX tile
inline constexpr std::ptrdiff_t pair_rows = 128;    ///< rows of A packed together
[[nodiscard]] constexpr std::ptrdiff_t pairs_of(std::ptrdiff_t k) noexcept { return round_up(k, pair_depth) / 2; }
[[nodiscard]] constexpr std::ptrdiff_t pair_tile_rows(PairKernel kernel) noexcept {
    return kernel == PairKernel::matrix ? 32 : 12;
}

#if UNITSCALE_X86

/// out[p, j] = pair of rows 2p and 2p + 1 of `in` [rows, cols], cols a multiple of 16; a missing row counts as zero.
// Shifts and conversions in their masked form: GCC 12 warns of the others' undefined operand.
UNITSCALE_TARGET_AVX512 inline void pair_rows_avx512(const float* in, std::ptrdiff_t rows, std::ptrdiff_t cols, Pair* out) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    for (std::ptrdiff_t p = 0; 2 * p < rows; ++p)
        for (std::ptrdiff_t j = 0; j < cols; j += 16) {
            const __m512i even = _mm512_castps_si512(_mm512_loadu_ps(in + 2 * p * cols + j));
            __m512i odd = _mm512_setzero_si512();
            if (2 * p + 1 < rows) odd = _mm512_castps_si512(_mm512_loadu_ps(in + (2 * p + 1) * cols + j));
            _mm512_storeu_si512(out + p * cols + j,
                                _mm512_or_si512(_mm512_maskz_srli_epi32(0xFFFF, even, 16), _mm512_and_si512(odd, high)));
        }
}

/// Consecutive floats as consecutive bf16, n a multiple of 16.
UNITSCALE_TARGET_AVX512 inline void pair_consecutive_avx512(const float* in, std::ptrdiff_t n, Pair* out) {
    for (std::ptrdiff_t i = 0; i < n; i += 16)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i / 2),
                            _mm512_maskz_cvtepi32_epi16(
                                0xFFFF, _mm512_maskz_srli_epi32(0xFFFF, _mm512_castps_si512(_mm512_loadu_ps(in + i)), 16)));
}

/// The sums of a tile: sums[i pair_columns + j] = sum_p A[i,p] B[p,j] over `pairs` pairs, A's rows a_row pairs apart, B's steps
/// `width` pairs apart (16 or 32).
struct PairTile {
    std::ptrdiff_t pairs = 0;
    const Pair* a = nullptr;
    std::ptrdiff_t a_row = 0;
    const Pair* b = nullptr;
    std::ptrdiff_t width = 0;
    float* sums = nullptr;
};

/// 4 Fours rows with vdpbf16ps.
template <std::size_t Fours>
UNITSCALE_TARGET_AVX512_BF16 void pair_tile_dot(const PairTile& tile) {
    const std::ptrdiff_t row = tile.a_row, width = tile.width;
    for (std::ptrdiff_t j = 0; j < width; j += 16) {
        __m512 sums[4 * Fours];
#pragma GCC unroll 12
        for (std::size_t i = 0; i < 4 * Fours; ++i) sums[i] = _mm512_setzero_ps();
        const Pair* a[Fours];
#pragma GCC unroll 3
        for (std::size_t four = 0; four < Fours; ++four) a[four] = tile.a + static_cast<std::ptrdiff_t>(4 * four) * row;
        const Pair* b = tile.b + j;
        for (std::ptrdiff_t p = tile.pairs; p > 0; --p, b += width) {
            const auto right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b));
#pragma GCC unroll 3
            for (std::size_t four = 0; four < Fours; ++four) {
#pragma GCC unroll 4
                for (std::size_t i = 0; i < 4; ++i) {
                    __m512i left = _mm512_set1_epi32(static_cast<int>(a[four][static_cast<std::ptrdiff_t>(i) * row]));
                    asm("" : "+v"(left));  // Clang 16 crashes on a broadcast that it sees as bf16
                    sums[4 * four + i] = _mm512_dpbf16_ps(sums[4 * four + i], reinterpret_cast<__m512bh>(left), right);
                }
                ++a[four];
            }
        }
#pragma GCC unroll 12
        for (std::size_t i = 0; i < 4 * Fours; ++i)
            _mm512_storeu_ps(tile.sums + static_cast<std::ptrdiff_t>(i) * pair_columns + j, sums[i]);
    }
}

/// Vectors of a row of C from the sums: C = alpha (sum + bias) + gamma C for `cols` <= pair_columns columns.
UNITSCALE_TARGET_AVX512 inline void finish_rows_avx512(const float* sums, std::ptrdiff_t rows, std::ptrdiff_t cols,
                                                       const float* bias, float alpha, float gamma, float* c,
                                                       std::ptrdiff_t c_row) {
    const __m512 scale = _mm512_set1_ps(alpha), keep = _mm512_set1_ps(gamma);
    for (std::ptrdiff_t j = 0; j < cols; j += 16) {
        const auto mask = static_cast<__mmask16>(cols - j >= 16 ? 0xFFFF : (1 << (cols - j)) - 1);
        const __m512 shift = bias != nullptr ? _mm512_maskz_loadu_ps(mask, bias + j) : _mm512_setzero_ps();
        for (std::ptrdiff_t i = 0; i < rows; ++i) {
            __m512 value = _mm512_mul_ps(scale, _mm512_add_ps(_mm512_loadu_ps(sums + i * pair_columns + j), shift));
            if (gamma != 0) value = _mm512_fmadd_ps(keep, _mm512_maskz_loadu_ps(mask, c + i * c_row + j), value);
            _mm512_mask_storeu_ps(c + i * c_row + j, mask, value);
        }
    }
}

#if UNITSCALE_AMX
/// Makes the eight tiles 16 rows of 64 bytes, for this thread.
UNITSCALE_TARGET_AMX inline void configure_tiles() {
    struct alignas(64) {
        std::uint8_t palette = 1, start = 0, reserved[14] = {};
        std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const config;
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}
UNITSCALE_TARGET_AMX inline void release_tiles() { _tile_release(); }

/// 16 or 32 rows with tdpbf16ps: tiles 0 to 3 hold sums, 4 and 5 rows of A, 6 and 7 columns of B.
UNITSCALE_TARGET_AMX inline void pair_tile_matrix(const PairTile& tile, bool two_rows) {
    const bool two_columns = tile.width > 16;
    const long a_bytes = static_cast<long>(tile.a_row) * 4, b_bytes = static_cast<long>(tile.width) * 4,
               sum_bytes = pair_columns * 4;
    const Pair* a = tile.a;
    const Pair* b = tile.b;
    asm volatile("" : : : "memory");  // the tile loads do not tell the compiler what they read
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::ptrdiff_t p = 0; p < tile.pairs; p += 16, a += 16, b += 16 * tile.width) {
        _tile_loadd(4, a, a_bytes);
        _tile_loadd(6, b, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        if (two_columns) {
            _tile_loadd(7, b + 16, b_bytes);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, a + 16 * tile.a_row, a_bytes);
            _tile_dpbf16ps(2, 5, 6);
            if (two_columns) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, tile.sums, sum_bytes);
    if (two_columns) _tile_stored(1, tile.sums + 16, sum_bytes);
    if (two_rows) {
        _tile_stored(2, tile.sums + 16 * pair_columns, sum_bytes);
        if (two_columns) _tile_stored(3, tile.sums + 16 * pair_columns + 16, sum_bytes);
    }
    asm volatile("" : : : "memory");
}
#endif

/// B in panels of pairs: element (p, j) of panel q is in pair (p / 2, j) at panel(q)[p / 2 padded_columns(q) + j]. Elements of `out`:
/// packed_right_pairs_size. `buffer`: right_buffer floats.
using RightPairs = RightPanels<Pair>;
inline constexpr std::ptrdiff_t right_strip = 128;
inline constexpr std::ptrdiff_t right_buffer = right_strip * pair_columns;
[[nodiscard]] inline std::ptrdiff_t packed_right_pairs_size(std::ptrdiff_t k, std::ptrdiff_t n) noexcept {
    return pairs_of(k) * round_up(n, 16);
}

template <class T>
[[nodiscard]] RightPairs pack_right_pairs(const MatrixView<const T>& b, std::ptrdiff_t k, std::ptrdiff_t n,
                                          const Quantiser* round, Pair* out, float* buffer) {
    const RightPairs panels{out, k, n, pair_columns, 16, pairs_of(k), 0};
    for (std::ptrdiff_t q = 0; q < panels.count(); ++q) {
        const std::ptrdiff_t width = panels.padded_columns(q);
        Pair* const panel = out + q * panels.width * panels.packed_k;
        for (std::ptrdiff_t p = 0; p < k; p += right_strip) {
            const std::ptrdiff_t rows = std::min(right_strip, k - p);
            widen_block(Isa::avx512, b.block(p, q * panels.width), rows, panels.columns(q), width, buffer, width);
            round_packed(Isa::avx512, round, buffer, rows * width);
            pair_rows_avx512(buffer, rows, width, panel + p / 2 * width);
        }
        std::fill(panel + (k + 1) / 2 * width, panel + panels.packed_k * width, Pair{0});
    }
    return panels;
}

/// Scratch of multiply_block_pairs, in floats: a tile's rows on their way, pairs of A, and sums where C cannot hold them.
template <class T>
[[nodiscard]] std::ptrdiff_t pair_scratch_size(std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k) noexcept {
    const std::ptrdiff_t rows = std::min(round_up(m, 32), pair_rows + 32), depth = round_up(std::min(k, block_depth), pair_depth);
    return (32 + rows / 2) * depth + (!std::is_same_v<T, float> && k > block_depth ? rows * round_up(n, pair_columns) : 0);
}

/// As multiply_block, with pairs. A's elements must be exact in bf16 once rounded. C's element type: T; sums in float.
/// Test: tests/kernels/matmul_pairs_test.cpp
template <class TA, class TC>
void multiply_block_pairs(PairKernel kernel, const BlockProduct<TA, TC>& product, const RightPairs& b, float* scratch) {
    const std::ptrdiff_t k = b.k, tile_rows = pair_tile_rows(kernel), block = pair_rows / tile_rows * tile_rows;
    const std::ptrdiff_t most_depth = round_up(std::min(k, block_depth), pair_depth);
    const std::ptrdiff_t most_rows = std::min(round_up(product.m, 32), pair_rows + 32);
    Pair* const left = reinterpret_cast<Pair*>(scratch + 32 * most_depth);
    float* const sums_of_blocks =
        !std::is_same_v<TC, float> && k > block_depth ? scratch + (32 + most_rows / 2) * most_depth : nullptr;
    alignas(64) std::array<float, 32 * pair_columns> sums, old;
#if UNITSCALE_AMX
    if (kernel == PairKernel::matrix) configure_tiles();
#endif
    for (std::ptrdiff_t i0 = 0; i0 < product.m; i0 += block) {
        const std::ptrdiff_t height = std::min(block, product.m - i0);
        std::ptrdiff_t p0 = 0;
        do {
            const std::ptrdiff_t depth = std::min(block_depth, k - p0), padded_depth = round_up(depth, pair_depth),
                                 a_row = padded_depth / 2;
            for (std::ptrdiff_t i = 0; i < height; i += tile_rows) {  // 16-row tiles read rows of padding: they are there
                const std::ptrdiff_t count = std::min(tile_rows, height - i),
                                     padded = round_up(count, kernel == PairKernel::matrix ? 16 : 4);
                widen_block(Isa::avx512, product.a.block(i0 + i, p0), count, depth, padded_depth, scratch, padded_depth);
                round_packed(Isa::avx512, product.round_a, scratch, count * padded_depth);
                pair_consecutive_avx512(scratch, count * padded_depth, left + i * a_row);
                std::fill(left + (i + count) * a_row, left + (i + padded) * a_row, Pair{0});
            }
            const TileOutput<TC> output{Isa::avx512, product.c.block(i0, 0), sums_of_blocks, b.count() * b.width,
                                        p0 == 0,     p0 + depth == k};
            const float gamma = output.first ? product.gamma : 1.0f;
            for (std::ptrdiff_t q = 0; q < b.count(); ++q) {
                const std::ptrdiff_t j = q * b.width, cols = b.columns(q), width = b.padded_columns(q);
                const float* const bias = output.first && product.bias != nullptr ? product.bias + j : nullptr;
                for (std::ptrdiff_t i = 0; i < height; i += tile_rows) {
                    const std::ptrdiff_t count = std::min(tile_rows, height - i);
                    const PairTile tile{a_row, left + i * a_row, a_row, b.panel(q) + p0 / 2 * width, width, sums.data()};
#if UNITSCALE_AMX
                    if (kernel == PairKernel::matrix) pair_tile_matrix(tile, count > 16);
#endif
                    if (kernel == PairKernel::dot) {
                        if (count > 8) pair_tile_dot<3>(tile);
                        else if (count > 4) pair_tile_dot<2>(tile);
                        else pair_tile_dot<1>(tile);
                    }
                    if constexpr (std::is_same_v<TC, float>)
                        if (product.c.col_stride == 1) {
                            finish_rows_avx512(sums.data(), count, cols, bias, product.alpha, gamma, output.c.at(i, j),
                                               output.c.row_stride);
                            continue;
                        }
                    if (gamma != 0) output.load(i, j, count, cols, old.data(), pair_columns);
                    finish_rows_avx512(sums.data(), count, cols, bias, product.alpha, gamma, old.data(), pair_columns);
                    output.store(i, j, count, cols, old.data(), pair_columns);
                }
            }
            p0 += depth;
        } while (p0 < k);
    }
#if UNITSCALE_AMX
    if (kernel == PairKernel::matrix) release_tiles();
#endif
}

#endif

}  // namespace unitscale::kernels
