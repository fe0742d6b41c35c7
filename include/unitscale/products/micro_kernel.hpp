// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/vectors.hpp>

#include <cstddef>

namespace unitscale::products {

[[nodiscard]] constexpr std::ptrdiff_t round_up(std::ptrdiff_t n, std::ptrdiff_t step) noexcept {
    return (n + step - 1) / step * step;
}

/// One tile of a product, the unit of work of a micro-kernel:
///   C[i,j] = alpha (row_scale[i] col_scale[j] sum_p A[i,p] B[p,j] + bias[j]) + gamma C[i,j]
/// A[i,p] is at a[i a_row + p a_step], B[p,j] at b[p b_step + j], C[i,j] at c[i c_row + j]. Rows come in fours, columns
/// in whole vectors. The sum of an element runs over p in rising order in one accumulator. So its bits depend neither
/// on the tile's size nor on the element's place in it. C is not read when gamma is 0. T: float, double.
template <class T>
struct TileProduct {
    std::ptrdiff_t k = 0;
    const T* a = nullptr;
    std::ptrdiff_t a_row = 0, a_step = 1;
    const T* b = nullptr;
    std::ptrdiff_t b_step = 0;
    T* c = nullptr;
    std::ptrdiff_t c_row = 0;
    const T* bias = nullptr;  // null: no bias; a null scale likewise
    const T* row_scale = nullptr;
    const T* col_scale = nullptr;
    T alpha = 1, gamma = 0;

    /// Whether C is alpha times the sums, plus gamma C.
    [[nodiscard]] bool is_plain() const noexcept {
        return bias == nullptr && row_scale == nullptr && col_scale == nullptr;
    }
};

/// Shape of an instruction set's largest tile: as many accumulators as its registers hold beside the operands.
struct TileShape {
    int rows;     ///< a multiple of four
    int vectors;  ///< vectors in a row
    int vector_bytes;

    template <class T>
    [[nodiscard]] constexpr std::ptrdiff_t lanes() const noexcept {
        return vector_bytes / static_cast<std::ptrdiff_t>(sizeof(T));
    }
    template <class T>
    [[nodiscard]] constexpr std::ptrdiff_t columns() const noexcept {
        return vectors * lanes<T>();
    }
};

/// Vectors in a row of the baseline's largest tile. SSE has 16 registers, NEON 32.
#if defined(__aarch64__)
inline constexpr int baseline_tile_vectors = 4;
#else
inline constexpr int baseline_tile_vectors = 2;
#endif

[[nodiscard]] constexpr TileShape tile_shape(Isa isa) noexcept {
    return isa == Isa::avx512 ? TileShape{12, 2, 64}
           : isa == Isa::avx2 ? TileShape{4, 3, 32}
                              : TileShape{4, baseline_tile_vectors, 16};
}

inline constexpr std::ptrdiff_t max_tile_rows = 12;
template <class T>
inline constexpr std::ptrdiff_t max_tile_columns = tile_shape(Isa::avx512).columns<T>();

/// Computes C from the sums of a tile: `rows` x `cols` whole vectors, with sums_row elements between rows of sums. One
/// function serves all tiles of an instruction set. Unrolled in each tile, it would be most of their code. The last
/// scale and the bias are one `multiply_add`. A missing scale is not a factor 1: Clang would turn that call into an
/// addition and contract the addition with the other scale.
template <class T>
[[gnu::noinline]] void finish_tile_baseline(const TileProduct<T>& tile, const T* sums, std::ptrdiff_t sums_row,
                                            std::ptrdiff_t rows, std::ptrdiff_t cols) {
    for (std::ptrdiff_t i = 0; i < rows; ++i)
        for (std::ptrdiff_t j = 0; j < cols; j += 16 / static_cast<std::ptrdiff_t>(sizeof(T))) {
            T* const c = tile.c + i * tile.c_row + j;
            auto value = load_128(sums + i * sums_row + j);
            if (tile.row_scale != nullptr) {
                const T scale = tile.row_scale[i];
                if (tile.col_scale != nullptr) value *= load_128(tile.col_scale + j);
                value =
                    tile.bias != nullptr ? multiply_add_128<T>(scale, value, load_128(tile.bias + j)) : value * scale;
            } else if (tile.col_scale != nullptr) {
                const auto scale = load_128(tile.col_scale + j);
                value =
                    tile.bias != nullptr ? multiply_add_128<T>(scale, value, load_128(tile.bias + j)) : value * scale;
            } else if (tile.bias != nullptr) {
                value += load_128(tile.bias + j);
            }
            value *= tile.alpha;
            if (tile.gamma != 0) value = multiply_add_128<T>(tile.gamma, load_128(c), value);
            store_128(c, value);
        }
}

template <class T, std::size_t Vectors>
void tile_product_baseline(const TileProduct<T>& tile) {
    using Vector = typename Vector128<T>::type;
    constexpr std::size_t lanes = 16 / sizeof(T);
    Vector sums[4][Vectors] = {};
    const T* a = tile.a;
    const T* b = tile.b;
#pragma GCC unroll 8  // as in tile_product_avx2
    for (std::ptrdiff_t p = 0; p < tile.k; ++p, a += tile.a_step, b += tile.b_step) {
        Vector right[Vectors];
#pragma GCC unroll 4
        for (std::size_t v = 0; v < Vectors; ++v) right[v] = load_128(b + v * lanes);
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) {
            const T left = a[static_cast<std::ptrdiff_t>(i) * tile.a_row];
#pragma GCC unroll 4
            for (std::size_t v = 0; v < Vectors; ++v) sums[i][v] = multiply_add_128<T>(left, right[v], sums[i][v]);
        }
    }
    if (tile.is_plain()) {
        T* c = tile.c;
        if (tile.gamma == 0) {
#pragma GCC unroll 4
            for (std::size_t i = 0; i < 4; ++i, c += tile.c_row) {
#pragma GCC unroll 4
                for (std::size_t v = 0; v < Vectors; ++v) store_128(c + v * lanes, sums[i][v] * tile.alpha);
            }
        } else {
#pragma GCC unroll 4
            for (std::size_t i = 0; i < 4; ++i, c += tile.c_row) {
#pragma GCC unroll 4
                for (std::size_t v = 0; v < Vectors; ++v)
                    store_128(c + v * lanes,
                              multiply_add_128<T>(tile.gamma, load_128(c + v * lanes), sums[i][v] * tile.alpha));
            }
        }
        return;
    }
    alignas(64) T row_major[4 * Vectors * lanes];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
#pragma GCC unroll 4
        for (std::size_t v = 0; v < Vectors; ++v) store_128(row_major + (i * Vectors + v) * lanes, sums[i][v]);
    }
    finish_tile_baseline(tile, row_major, Vectors * lanes, 4, Vectors * lanes);
}

#if UNITSCALE_X86

/// `finish_tile_baseline` for AVX2.
template <class T>
[[gnu::noinline]] UNITSCALE_TARGET_AVX2 void finish_tile_avx2(const TileProduct<T>& tile, const T* sums,
                                                              std::ptrdiff_t sums_row, std::ptrdiff_t rows,
                                                              std::ptrdiff_t cols) {
    for (std::ptrdiff_t i = 0; i < rows; ++i)
        for (std::ptrdiff_t j = 0; j < cols; j += 32 / static_cast<std::ptrdiff_t>(sizeof(T))) {
            T* const c = tile.c + i * tile.c_row + j;
            auto value = load_avx2(sums + i * sums_row + j);
            if (tile.row_scale != nullptr) {
                const auto scale = broadcast_avx2(tile.row_scale[i]);
                if (tile.col_scale != nullptr) value *= load_avx2(tile.col_scale + j);
                value = tile.bias != nullptr ? fused_avx2(scale, value, load_avx2(tile.bias + j)) : value * scale;
            } else if (tile.col_scale != nullptr) {
                const auto scale = load_avx2(tile.col_scale + j);
                value = tile.bias != nullptr ? fused_avx2(scale, value, load_avx2(tile.bias + j)) : value * scale;
            } else if (tile.bias != nullptr) {
                value += load_avx2(tile.bias + j);
            }
            value *= broadcast_avx2(tile.alpha);
            if (tile.gamma != 0) value = fused_avx2(broadcast_avx2(tile.gamma), load_avx2(c), value);
            store_avx2(c, value);
        }
}

template <class T, std::size_t Vectors>
UNITSCALE_TARGET_AVX2 void tile_product_avx2(const TileProduct<T>& tile) {
    using Vector = decltype(load_avx2(tile.a));
    constexpr std::size_t lanes = 32 / sizeof(T);
    const std::ptrdiff_t row = tile.a_row, a_step = tile.a_step, b_step = tile.b_step;
    const Vector zero = broadcast_avx2(T{0});
    Vector sums[4][Vectors];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
#pragma GCC unroll 3
        for (std::size_t v = 0; v < Vectors; ++v) sums[i][v] = zero;
    }
    // Rows of C may be pages apart, which no processor foresees. Asked for now, they are there when the sums are.
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
        const T* const c = tile.c + static_cast<std::ptrdiff_t>(i) * tile.c_row;
        prefetch_to_write(c);
        prefetch_to_write(c + Vectors * lanes - 1);
    }
    const T* a = tile.a;
    const T* b = tile.b;
    // Eight steps to a turn. A loop of one step is 108 bytes, which touch two or three cache lines of code. With three,
    // and another thread on the core, a Zen 3 takes up to 1.1 times as long.
#pragma GCC unroll 8
    for (std::ptrdiff_t p = tile.k; p > 0; --p, a += a_step, b += b_step) {
        Vector right[Vectors];
#pragma GCC unroll 3
        for (std::size_t v = 0; v < Vectors; ++v) right[v] = load_once_avx2(b + v * lanes);
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) {
            const Vector left = broadcast_avx2(a[static_cast<std::ptrdiff_t>(i) * row]);
#pragma GCC unroll 3
            for (std::size_t v = 0; v < Vectors; ++v) sums[i][v] = fused_avx2(left, right[v], sums[i][v]);
        }
    }
    if (tile.is_plain()) {
        const Vector alpha = broadcast_avx2(tile.alpha);
        T* c = tile.c;
        if (tile.gamma == 0) {
#pragma GCC unroll 4
            for (std::size_t i = 0; i < 4; ++i, c += tile.c_row) {
#pragma GCC unroll 3
                for (std::size_t v = 0; v < Vectors; ++v) store_avx2(c + v * lanes, sums[i][v] * alpha);
            }
        } else {
            const Vector gamma = broadcast_avx2(tile.gamma);
#pragma GCC unroll 4
            for (std::size_t i = 0; i < 4; ++i, c += tile.c_row) {
#pragma GCC unroll 3
                for (std::size_t v = 0; v < Vectors; ++v)
                    store_avx2(c + v * lanes, fused_avx2(gamma, load_avx2(c + v * lanes), sums[i][v] * alpha));
            }
        }
        return;
    }
    alignas(64) T row_major[4 * Vectors * lanes];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
#pragma GCC unroll 3
        for (std::size_t v = 0; v < Vectors; ++v) store_avx2(row_major + (i * Vectors + v) * lanes, sums[i][v]);
    }
    finish_tile_avx2(tile, row_major, Vectors * lanes, 4, Vectors * lanes);
}

/// `finish_tile_baseline` for AVX-512, with any number of columns.
template <class T>
[[gnu::noinline]] UNITSCALE_TARGET_AVX512 void finish_tile_avx512(const TileProduct<T>& tile, const T* sums,
                                                                  std::ptrdiff_t sums_row, std::ptrdiff_t rows,
                                                                  std::ptrdiff_t cols) {
    constexpr std::ptrdiff_t lanes = 64 / static_cast<std::ptrdiff_t>(sizeof(T));
    const auto alpha = broadcast_avx512(tile.alpha), gamma = broadcast_avx512(tile.gamma);
    const T* const row_scale = tile.row_scale;
    const bool scales_rows = row_scale != nullptr, scales_cols = tile.col_scale != nullptr,
               shifts = tile.bias != nullptr, adds = tile.gamma != 0;
    for (std::ptrdiff_t j = 0; j < cols; j += lanes) {
        const unsigned mask = cols - j >= lanes ? ~0u : (1u << (cols - j)) - 1;
        const auto col_scale = scales_cols ? load_avx512(mask, tile.col_scale + j) : broadcast_avx512(T{0});
        const auto bias = shifts ? load_avx512(mask, tile.bias + j) : broadcast_avx512(T{0});
        T* c = tile.c + j;
        for (std::ptrdiff_t i = 0; i < rows; ++i, c += tile.c_row) {
            auto value = load_avx512(sums + i * sums_row + j);
            if (scales_rows) {
                const auto scale = broadcast_avx512(row_scale[i]);
                if (scales_cols) value *= col_scale;
                value = shifts ? fused_avx512(scale, value, bias) : value * scale;
            } else if (scales_cols) {
                value = shifts ? fused_avx512(col_scale, value, bias) : value * col_scale;
            } else if (shifts) {
                value += bias;
            }
            value *= alpha;
            if (adds) value = fused_avx512(gamma, load_avx512(mask, c), value);
            store_avx512(mask, c, value);
        }
    }
}

template <class T, std::size_t Fours, std::size_t Vectors>
UNITSCALE_TARGET_AVX512 void tile_product_avx512(const TileProduct<T>& tile) {
    using Vector = decltype(load_avx512(tile.a));
    constexpr std::size_t lanes = 64 / sizeof(T);
    const std::ptrdiff_t row = tile.a_row, a_step = tile.a_step, b_step = tile.b_step;
    const Vector zero = broadcast_avx512(T{0});
    Vector sums[4 * Fours][Vectors];
#pragma GCC unroll 12
    for (std::size_t i = 0; i < 4 * Fours; ++i) {
#pragma GCC unroll 2
        for (std::size_t v = 0; v < Vectors; ++v) sums[i][v] = zero;
    }
    // As in tile_product_avx2. With a short k the lines would come late, and asking takes 2 % of the time of a tile.
    if (tile.k >= 128) {
#pragma GCC unroll 12
        for (std::size_t i = 0; i < 4 * Fours; ++i) {
            const T* const c = tile.c + static_cast<std::ptrdiff_t>(i) * tile.c_row;
            prefetch_to_write(c);
            prefetch_to_write(c + Vectors * lanes - 1);
        }
    }
    // One base for every four rows: addresses are base + {0, 1, 2} row and base + 3 row, so two registers serve all
    // rows.
    const T* a[Fours];
#pragma GCC unroll 3
    for (std::size_t four = 0; four < Fours; ++four) a[four] = tile.a + static_cast<std::ptrdiff_t>(4 * four) * row;
    // A panel of B with a long k does not fit level 1, so B is asked for eight steps ahead.
    const T* b = tile.b;
    for (std::ptrdiff_t p = tile.k; p > 0; --p, b += b_step) {
        Vector right[Vectors];
#pragma GCC unroll 2
        for (std::size_t v = 0; v < Vectors; ++v) {
            right[v] = load_once_avx512(b + v * lanes);
            __builtin_prefetch(b + 8 * b_step + v * lanes);
        }
#pragma GCC unroll 3
        for (std::size_t four = 0; four < Fours; ++four) {
#pragma GCC unroll 4
            for (std::size_t i = 0; i < 4; ++i) {
                const Vector left = broadcast_avx512(a[four][static_cast<std::ptrdiff_t>(i) * row]);
#pragma GCC unroll 2
                for (std::size_t v = 0; v < Vectors; ++v)
                    sums[4 * four + i][v] = fused_avx512(left, right[v], sums[4 * four + i][v]);
            }
            a[four] += a_step;
        }
    }
    if (tile.is_plain()) {
        const Vector alpha = broadcast_avx512(tile.alpha);
        T* c = tile.c;
        if (tile.gamma == 0) {
#pragma GCC unroll 12
            for (std::size_t i = 0; i < 4 * Fours; ++i, c += tile.c_row) {
#pragma GCC unroll 2
                for (std::size_t v = 0; v < Vectors; ++v) store_avx512(c + v * lanes, sums[i][v] * alpha);
            }
        } else {
            const Vector gamma = broadcast_avx512(tile.gamma);
#pragma GCC unroll 12
            for (std::size_t i = 0; i < 4 * Fours; ++i, c += tile.c_row) {
#pragma GCC unroll 2
                for (std::size_t v = 0; v < Vectors; ++v)
                    store_avx512(c + v * lanes, fused_avx512(gamma, load_avx512(c + v * lanes), sums[i][v] * alpha));
            }
        }
        return;
    }
    alignas(64) T row_major[4 * Fours * Vectors * lanes];
#pragma GCC unroll 12
    for (std::size_t i = 0; i < 4 * Fours; ++i) {
#pragma GCC unroll 2
        for (std::size_t v = 0; v < Vectors; ++v) store_avx512(row_major + (i * Vectors + v) * lanes, sums[i][v]);
    }
    finish_tile_avx512(tile, row_major, Vectors * lanes, 4 * Fours, Vectors * lanes);
}

#endif

/// Runs the micro-kernel of an instruction set on a tile of 4 `fours` rows and `vectors` vectors of columns. Both
/// numbers stay within the shape of the instruction set.
template <class T>
void tile_product(Isa isa, int fours, int vectors, const TileProduct<T>& tile) {
#if UNITSCALE_X86
    if (isa == Isa::avx512) {
        if (vectors == 2) {
            if (fours == 3) return tile_product_avx512<T, 3, 2>(tile);
            if (fours == 2) return tile_product_avx512<T, 2, 2>(tile);
            return tile_product_avx512<T, 1, 2>(tile);
        }
        if (fours == 3) return tile_product_avx512<T, 3, 1>(tile);
        if (fours == 2) return tile_product_avx512<T, 2, 1>(tile);
        return tile_product_avx512<T, 1, 1>(tile);
    }
    if (isa == Isa::avx2) {
        if (vectors == 3) return tile_product_avx2<T, 3>(tile);
        if (vectors == 2) return tile_product_avx2<T, 2>(tile);
        return tile_product_avx2<T, 1>(tile);
    }
#endif
    (void)isa, (void)fours;
    if constexpr (baseline_tile_vectors == 4) {
        if (vectors == 4) return tile_product_baseline<T, 4>(tile);
        if (vectors == 3) return tile_product_baseline<T, 3>(tile);
    }
    if (vectors == 2) return tile_product_baseline<T, 2>(tile);
    return tile_product_baseline<T, 1>(tile);
}

}  // namespace unitscale::products
