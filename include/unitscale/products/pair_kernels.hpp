// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/products/block.hpp>
#include <unitscale/products/coded_rows.hpp>
#include <unitscale/products/pack_pairs.hpp>

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

// Products of operands that are exact in bf16, as every value quantised to 8 bits or fewer is. The processor's bf16
// instructions multiply pairs of bf16, consecutive in k, exactly and add the products in float. They flush subnormals.
// So formats that have numbers below 2^-126 stay with the float kernels.
namespace unitscale::products {

/// The instructions that multiply pairs. dot: vdpbf16ps (AVX512_BF16). matrix: tdpbf16ps (AMX).
enum class PairKernel { none, dot, matrix };

/// Whether the processor has AMX and the operating system lets this process use it. A process has to ask Linux for it.
[[nodiscard]] inline bool has_amx_bf16() {
#if UNITSCALE_AMX
    static const bool has = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        constexpr unsigned bf16_bit = 1u << 22, tile_bit = 1u << 24;
        constexpr long request_permission = 0x1023, tile_data = 18;
        return has_avx512_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & bf16_bit) != 0 &&
               (d & tile_bit) != 0 && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return has;
#else
    return false;
#endif
}

/// The fastest kernel of this processor. Relative to the flops of the float multiply-adds, Intel's vdpbf16ps runs at
/// half the rate, AMD's at twice the rate.
[[nodiscard]] inline PairKernel active_pair_kernel() {
    if (has_amx_bf16()) return PairKernel::matrix;
#if UNITSCALE_X86
    if (has_avx512_bf16() && !__builtin_cpu_is("intel")) return PairKernel::dot;
#endif
    return PairKernel::none;
}

inline constexpr std::ptrdiff_t pair_rows = 128;          ///< most rows of A packed together
inline constexpr std::ptrdiff_t pair_block_depth = 1024;  ///< length of k after which a sum is stored in C
[[nodiscard]] constexpr std::ptrdiff_t pair_tile_rows(PairKernel kernel) noexcept {
    return kernel == PairKernel::matrix ? 32 : 12;
}

/// Carried sums of a row of C: whole tiles.
[[nodiscard]] constexpr std::ptrdiff_t carried_row(std::ptrdiff_t n) noexcept { return round_up(n, pair_columns); }

/// `pair_rows` in whole tiles.
[[nodiscard]] constexpr std::ptrdiff_t most_pair_rows(PairKernel kernel) noexcept {
    return pair_rows / pair_tile_rows(kernel) * pair_tile_rows(kernel);
}

/// Rows of A packed together, for A [m,k] and B [k,n]: as many as a tile has, or up to pair_rows. A tile of AMX with a
/// short k is computed faster than its part of C arrives from behind level 2. With the rows of one tile C is written
/// along its rows, whose next lines the processor fetches by itself. B, which is read for every tile of rows, must then
/// stay in half of level 2. On a Xeon this is 1.3 to 1.6 times as fast for m = 2048, n = 768 and 1024, k = 256.
[[nodiscard]] constexpr std::ptrdiff_t pair_rows_together(PairKernel kernel, std::ptrdiff_t m, std::ptrdiff_t n,
                                                          std::ptrdiff_t k, const BlockSizes& sizes) noexcept {
    const std::ptrdiff_t tile_rows = pair_tile_rows(kernel);
    const std::ptrdiff_t bound = sizes.right_pairs / 2;  // so many floats fill level 2, so many bf16 half of it
    const bool by_tiles = kernel == PairKernel::matrix && m * n > bound && k * n <= bound;
    return by_tiles ? tile_rows : most_pair_rows(kernel);
}

/// Scratch of multiply_block_pairs, in floats: a buffer for packing, pairs of A, and sums where C cannot hold them.
template <class T>
[[nodiscard]] std::ptrdiff_t pair_scratch_size(std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k) noexcept {
    const std::ptrdiff_t rows = std::min(m, pair_rows) + 16, depth = std::min(k, pair_block_depth);
    return pair_buffer + rows * pairs_of(depth) +
           (!std::is_same_v<T, float> && k > pair_block_depth ? rows * round_up(n, pair_columns) : 0);
}

#if UNITSCALE_X86

/// Rows in a group of packed A (pack_left_pairs). A tile is one group, or with the matrix kernel one or two groups.
[[nodiscard]] constexpr std::ptrdiff_t pair_group(PairKernel kernel) noexcept {
    return kernel == PairKernel::matrix ? 16 : 12;
}

/// The sums of a tile: sums[i pair_columns + j] = sum_p A[i,p] B[p,j] over `pairs` pairs, a multiple of 16. A has
/// `groups` groups, a_group pairs apart. The steps of B are `width` pairs apart (16 or 32).
struct PairTile {
    std::ptrdiff_t pairs = 0;
    const Pair* a = nullptr;
    std::ptrdiff_t a_group = 0;
    const Pair* b = nullptr;
    std::ptrdiff_t width = 0;
    float* sums = nullptr;
    bool continues = false;                     ///< the sums begin with what they hold
    const TileProduct<float>* plain = nullptr;  ///< if set, and for vdpbf16ps only, C is computed in place of the sums
    const float* c = nullptr;     ///< if set, and for AMX only: the part of C that the caller adds sums to
    std::ptrdiff_t c_stride = 0;  ///< of c's rows
};

/// The first 4 Fours rows of a group of 12 with vdpbf16ps, times `Vectors` vectors of columns.
template <std::size_t Fours, std::size_t Vectors>
UNITSCALE_TARGET_AVX512_BF16 void pair_tile_dot(const PairTile& tile) {
    constexpr std::size_t rows = 4 * Fours;
    const std::ptrdiff_t width = tile.width;
    __m512 sums[rows][Vectors];
#pragma GCC unroll 12
    for (std::size_t i = 0; i < rows; ++i) {
#pragma GCC unroll 2
        for (std::size_t v = 0; v < Vectors; ++v) {
            const float* const sum = tile.sums + static_cast<std::ptrdiff_t>(i) * pair_columns + 16 * v;
            sums[i][v] = tile.continues ? _mm512_loadu_ps(sum) : _mm512_setzero_ps();
        }
    }
    const Pair* a = tile.a;
    const Pair* b = tile.b;
    for (std::ptrdiff_t block = tile.pairs; block > 0; block -= 16, a += 11 * 16)
        for (std::ptrdiff_t p = 0; p < 16; ++p, ++a, b += width) {
            __m512bh right[Vectors];
#pragma GCC unroll 2
            for (std::size_t v = 0; v < Vectors; ++v)
                right[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + 16 * v));
#pragma GCC unroll 12
            for (std::size_t i = 0; i < rows; ++i) {
                __m512i left = _mm512_set1_epi32(static_cast<int>(a[i * 16]));
                asm("" : "+v"(left));  // Clang 16 crashes on a broadcast that it sees as bf16
#pragma GCC unroll 2
                for (std::size_t v = 0; v < Vectors; ++v)
                    sums[i][v] = _mm512_dpbf16_ps(sums[i][v], reinterpret_cast<__m512bh>(left), right[v]);
            }
        }
    if (tile.plain != nullptr) {  // as finish_tile_avx512, but from registers
        const __m512 alpha = broadcast_avx512(tile.plain->alpha), gamma = broadcast_avx512(tile.plain->gamma);
        const bool adds = tile.plain->gamma != 0;
        float* c = tile.plain->c;
#pragma GCC unroll 12
        for (std::size_t i = 0; i < rows; ++i, c += tile.plain->c_row) {
#pragma GCC unroll 2
            for (std::size_t v = 0; v < Vectors; ++v) {
                __m512 value = sums[i][v] * alpha;
                if (adds) value = fused_avx512(gamma, load_avx512(c + 16 * v), value);
                store_avx512(c + 16 * v, value);
            }
        }
        return;
    }
#pragma GCC unroll 12
    for (std::size_t i = 0; i < rows; ++i) {
#pragma GCC unroll 2
        for (std::size_t v = 0; v < Vectors; ++v)
            _mm512_storeu_ps(tile.sums + static_cast<std::ptrdiff_t>(i) * pair_columns + 16 * v, sums[i][v]);
    }
}
/// The tile of 1 to 12 rows.
inline void pair_tile_dot(const PairTile& tile, std::ptrdiff_t rows) {
    if (tile.width > 16) {
        if (rows > 8) pair_tile_dot<3, 2>(tile);
        else if (rows > 4) pair_tile_dot<2, 2>(tile);
        else pair_tile_dot<1, 2>(tile);
    } else {
        if (rows > 8) pair_tile_dot<3, 1>(tile);
        else if (rows > 4) pair_tile_dot<2, 1>(tile);
        else pair_tile_dot<1, 1>(tile);
    }
}

#if UNITSCALE_AMX
/// Up to 32 rows with tdpbf16ps: tiles 0 to 3 hold sums, tiles 4 and 5 rows of A, tiles 6 and 7 columns of B.
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

/// Asks level 2 for the rows of A that are packed next, some cache lines at each step of a tile. They arrive while AMX
/// multiplies, when memory would be idle. It asks for rows that lie along k only. A transposed A has short pieces of
/// many lines in a block, and asking for those made products up to 7 % slower.
struct RowsAhead {
    const char* row = nullptr;
    std::ptrdiff_t row_bytes = 0;          ///< between rows
    std::ptrdiff_t rows = 0, lines = 0;    ///< rows left, and cache lines of each
    std::ptrdiff_t line = 0, at_once = 0;  ///< the next one, and how many a step asks for

    RowsAhead() = default;
    /// The first `count` rows of `a` [count,k], in `steps` steps. An empty k has no step.
    RowsAhead(const PackSource<float>& a, std::ptrdiff_t count, std::ptrdiff_t k, std::ptrdiff_t steps) noexcept {
        if (count <= 0 || steps == 0 || a.col_stride != 1) return;
        const std::ptrdiff_t bytes = a.functions->element_bytes;
        row = static_cast<const char*>(a.data);
        row_bytes = a.row_stride * bytes;
        rows = count;
        lines = (k * bytes + 63) / 64;
        at_once = (rows * lines + steps - 1) / steps;
    }
    [[gnu::always_inline]] void ask() noexcept {
        for (std::ptrdiff_t i = at_once; i > 0; --i) {
            __builtin_prefetch(row + 64 * line, 0, 2);
            if (++line < lines) continue;
            line = 0;
            row += row_bytes;
            if (--rows == 0) at_once = 0, i = 0;
        }
    }
};

/// Up to 32 rows with tdpbf16ps: tiles 0 to 3 hold sums, 4 and 5 rows of A, 6 and 7 columns of B. C is asked for during
/// the steps, some rows at each. Asked for all at once it would hold up the loads of tiles: that made products of short
/// k up to 8 % slower.
UNITSCALE_TARGET_AMX inline void pair_tile_matrix(const PairTile& tile, std::ptrdiff_t rows, RowsAhead& rows_ahead) {
    RowsAhead ahead = rows_ahead;  // in registers
    const float* c = tile.c;
    const std::ptrdiff_t steps = std::max<std::ptrdiff_t>(1, tile.pairs / 16), c_rows = (32 + steps - 1) / steps;
    std::ptrdiff_t c_left = c == nullptr ? 0 : rows;
    const bool two_columns = tile.width > 16, two_rows = rows > 16;
    constexpr long a_bytes = 64, sum_bytes = pair_columns * 4;
    const long b_bytes = static_cast<long>(tile.width) * 4;
    const Pair* a = tile.a;
    const Pair* b = tile.b;
    asm volatile("" : : : "memory");  // the tile loads do not tell the compiler which memory they read
    if (tile.continues) {
        _tile_loadd(0, tile.sums, sum_bytes);
        if (two_columns) _tile_loadd(1, tile.sums + 16, sum_bytes);
        if (two_rows) {
            _tile_loadd(2, tile.sums + 16 * pair_columns, sum_bytes);
            if (two_columns) _tile_loadd(3, tile.sums + 16 * pair_columns + 16, sum_bytes);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (std::ptrdiff_t p = 0; p < tile.pairs; p += 16, a += 256, b += 16 * tile.width) {
        for (std::ptrdiff_t i = std::min(c_rows, c_left); i > 0; --i, --c_left, c += tile.c_stride) {
            prefetch_to_write(c);
            prefetch_to_write(c + 16);
        }
        ahead.ask();
        _tile_loadd(4, a, a_bytes);
        _tile_loadd(6, b, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        if (two_columns) {
            _tile_loadd(7, b + 16, b_bytes);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, a + tile.a_group, a_bytes);
            _tile_dpbf16ps(2, 5, 6);
            if (two_columns) _tile_dpbf16ps(3, 5, 7);
        }
    }
    rows_ahead = ahead;
    _tile_stored(0, tile.sums, sum_bytes);
    if (two_columns) _tile_stored(1, tile.sums + 16, sum_bytes);
    if (two_rows) {
        _tile_stored(2, tile.sums + 16 * pair_columns, sum_bytes);
        if (two_columns) _tile_stored(3, tile.sums + 16 * pair_columns + 16, sum_bytes);
    }
    asm volatile("" : : : "memory");
}
#endif

/// `multiply_block` with pairs. A's elements must be exact in bf16 once quantised. TC: element type of C. Sums are
/// float. Test: tests/products/pair_kernels_test.cpp
template <class TC>
void multiply_block_pairs(PairKernel kernel, const BlockProduct<TC>& product, const RightPairs& b, float* scratch) {
    const std::ptrdiff_t k = b.k, tile_rows = pair_tile_rows(kernel), group = pair_group(kernel),
                         all_rows = product.above + product.m + product.below,
                         block = pair_rows_together(kernel, all_rows, b.n, k, block_sizes());
    const std::ptrdiff_t most_rows = std::min(product.m, pair_rows) + 16;
    Pair* const left = reinterpret_cast<Pair*>(scratch + pair_buffer);
    float* const sums_of_blocks = !std::is_same_v<TC, float> && k > pair_block_depth
                                      ? scratch + pair_buffer + most_rows * pairs_of(pair_block_depth)
                                      : nullptr;
    const std::ptrdiff_t sums_row = b.coded.weight != nullptr ? coded_columns : pair_columns,
                         whole_row = b.count() * b.width;
    alignas(64) std::array<float, 32 * pair_columns> sums, old;
#if UNITSCALE_AMX
    if (kernel == PairKernel::matrix) configure_tiles();
#endif
    for (std::ptrdiff_t i0 = 0; i0 < product.m; i0 += block) {
        const std::ptrdiff_t height = std::min(block, product.m - i0);
        std::ptrdiff_t p0 = std::max<std::ptrdiff_t>(product.first_k - product.carried.k_before, 0);
        do {
            const std::ptrdiff_t begin = product.carried.k_before + p0,
                                 depth = std::min(pair_block_depth - begin % pair_block_depth, k - p0),
                                 pairs = pairs_of(depth);
            const PackSource<float> rows = product.a.block(i0, p0);
            rows.functions->left_pairs(rows, height, depth, product.round_a, group, left, scratch);
#if UNITSCALE_AMX
            const std::ptrdiff_t tiles = b.count() * ((height + tile_rows - 1) / tile_rows);
            RowsAhead ahead;
            if (const std::ptrdiff_t rest = product.m + product.below - i0 - height;
                kernel == PairKernel::matrix && rest > 0)
                ahead = RowsAhead(product.a.block(i0 + height, p0), std::min(block, rest), depth, tiles * (pairs / 16));
#endif
            const TileOutput<TC> output{Isa::avx512, product.c.block(i0, 0)};
            const bool first = begin / pair_block_depth == product.first_k / pair_block_depth,
                       last = p0 + depth == k && product.carried.ends,
                       continues = begin > product.first_k && begin % pair_block_depth != 0,
                       pauses = !last && (begin + depth) % pair_block_depth != 0;
            const float gamma = first ? product.gamma : 1.0f;
            for (std::ptrdiff_t q = 0; q < b.count(); ++q) {
                const std::ptrdiff_t j = q * b.width, cols = b.columns(q), width = b.padded_columns(q);
                const float* const bias = first && product.bias != nullptr ? product.bias + j : nullptr;
                for (std::ptrdiff_t i = 0; i < height; i += tile_rows) {
                    const std::ptrdiff_t count = std::min(tile_rows, height - i);
                    if constexpr (std::is_same_v<TC, float>)  // C's cache lines arrive while the sums are computed
                        for (std::ptrdiff_t r = 0; r < count && kernel != PairKernel::matrix; ++r) {
                            prefetch_to_write(output.c.at(i + r, j));
                            prefetch_to_write(output.c.at(i + r, j + 16));
                        }
                    TileProduct<float> finish;  // scales, bias and gamma, applied to the sums
                    finish.bias = bias;
                    finish.row_scale = product.row_scale != nullptr ? product.row_scale + i0 + i : nullptr;
                    finish.col_scale = product.col_scale != nullptr ? product.col_scale + j : nullptr;
                    finish.alpha = product.alpha;
                    finish.gamma = gamma;
                    const bool straight = std::is_same_v<TC, float> && product.c.col_stride == 1;
                    finish.c = sums_of_blocks != nullptr ? sums_of_blocks + i * whole_row + j : old.data();
                    finish.c_row = sums_of_blocks != nullptr ? whole_row : sums_row;
                    if constexpr (std::is_same_v<TC, float>)
                        if (straight) {
                            finish.c = output.c.at(i, j);
                            finish.c_row = output.c.row_stride;
                        }
                    float* const tile_sums =
                        product.carried.sums != nullptr
                            ? product.carried.sums + (i0 + i) * carried_row(b.n) + q * tile_rows * pair_columns
                            : sums.data();
                    const bool plain = !pauses && straight && finish.is_plain() && kernel == PairKernel::dot &&
                                       count % 4 == 0 && cols == width && b.coded.weight == nullptr;
                    const Pair* const panel = b.coded.weight != nullptr ? nullptr : b.panel(q) + p0 / 2 * width;
                    PairTile tile{pairs, left + i * pairs, group * pairs, panel, width, tile_sums, continues};
                    if (plain) tile.plain = &finish;
                    if (straight && !pauses) tile.c = finish.c, tile.c_stride = finish.c_row;
#if UNITSCALE_AMX
                    if (kernel == PairKernel::matrix) pair_tile_matrix(tile, count, ahead);
#endif
                    if (b.coded.weight != nullptr) {
                        const CodedTile columns{b.coded.block(p0, j), depth, static_cast<std::size_t>(width / 16),
                                                sums.data()};
                        with_form(*b.coded.weight, CodedPairs{}, columns, tile.a);
                    } else if (kernel == PairKernel::dot) {
                        pair_tile_dot(tile, count);
                    }
                    if (plain || pauses) continue;
                    if (!straight && gamma != 0 && (sums_of_blocks == nullptr || first))
                        output.load(i, j, count, cols, finish.c, finish.c_row);
                    finish_tile_avx512(finish, tile_sums, sums_row, count, cols);
                    if (!straight && (sums_of_blocks == nullptr || last))
                        output.store(i, j, count, cols, finish.c, finish.c_row);
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

}  // namespace unitscale::products
