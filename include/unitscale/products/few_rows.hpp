// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/products/block_sizes.hpp>
#include <unitscale/products/micro_kernel.hpp>
#include <unitscale/products/quantise_lines.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>

// A few rows of A times a column-major B, read in place: a token times a weight [out,in], a query times keys. Squares
// of B are transposed, and quantised, in registers and multiplied at once. Sums run over p in rising order in one
// accumulator, as in `tile_product`. So the bits equal the bits of the product that packs B.
namespace unitscale::products {

/// Largest number of rows of A for which transposing B in registers costs less than packing it.
inline constexpr std::ptrdiff_t column_major_rows = 4;

/// Elements of a column that are quantised at once: strips of all columns of a tile stay in the level 1 cache.
inline constexpr std::ptrdiff_t strip_depth = 128;

/// Vectors of columns that are transposed together. Columns are `column` elements apart. With one row, a single vector
/// would wait for its sum. But two vectors of AVX2 have sixteen columns of float, too many where these are whole pages
/// apart.
template <class P>
[[nodiscard]] constexpr std::ptrdiff_t column_major_vectors(Isa isa, std::ptrdiff_t m, std::ptrdiff_t column) noexcept {
    const bool crowds = isa == Isa::avx2 && sizeof(P) == 4 && whole_pages_apart<P>(column);
    return m == 1 && isa != Isa::avx512 && !crowds ? 2 : 1;
}

/// A tile of a product with a column-major B: at most column_major_rows rows and column_major_vectors vectors of
/// columns. Missing rows and columns repeat the last one. B[p,j] is at b[j b_column + p], quantised by `quantiser`
/// (float only; not in the baseline). The product's b_step is not used.
template <class T>
struct ColumnMajorTile {
    TileProduct<T> product;
    std::ptrdiff_t rows = 0, cols = 0, b_column = 0;
    RegisterQuantiser quantiser{};

    /// Columns of C that are written: whole vectors of `lanes`.
    [[nodiscard]] std::ptrdiff_t written(std::size_t lanes) const noexcept {
        return round_up(cols, static_cast<std::ptrdiff_t>(lanes));
    }
    [[nodiscard]] const T* row(std::size_t i) const noexcept {
        return product.a + std::min(static_cast<std::ptrdiff_t>(i), rows - 1) * product.a_row;
    }
    [[nodiscard]] const T* column(std::size_t j) const noexcept {
        return product.b + std::min(static_cast<std::ptrdiff_t>(j), cols - 1) * b_column;
    }
};

/// rows[j][i] = rows[i][j]
[[gnu::always_inline]] inline void transpose_vectors(Vector128<float>::type (&rows)[4]) {
    const auto low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    const auto high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    const auto low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    const auto high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}
[[gnu::always_inline]] inline void transpose_vectors(Vector128<double>::type (&rows)[2]) {
    const auto first = rows[0], second = rows[1];
    rows[0] = __builtin_shufflevector(first, second, 0, 2);
    rows[1] = __builtin_shufflevector(first, second, 1, 3);
}

template <std::size_t Rows, std::size_t Vectors, class T>
void column_major_product_baseline(const ColumnMajorTile<T>& tile) {
    using Vector = typename Vector128<T>::type;
    constexpr std::size_t lanes = 16 / sizeof(T);
    const T *a[Rows], *b[Vectors][lanes];
    Vector sums[Rows][Vectors] = {};
    for (std::size_t i = 0; i < Rows; ++i) a[i] = tile.row(i);
    for (std::size_t v = 0; v < Vectors; ++v)
        for (std::size_t j = 0; j < lanes; ++j) b[v][j] = tile.column(v * lanes + j);
    const std::ptrdiff_t k = tile.product.k, step = tile.product.a_step,
                         whole = k - k % static_cast<std::ptrdiff_t>(lanes);
    std::ptrdiff_t p = 0;
    for (; p < whole; p += static_cast<std::ptrdiff_t>(lanes)) {
#pragma GCC unroll 2
        for (std::size_t v = 0; v < Vectors; ++v) {
            Vector right[lanes];
#pragma GCC unroll 4
            for (std::size_t j = 0; j < lanes; ++j) right[j] = load_128(b[v][j] + p);
            transpose_vectors(right);
#pragma GCC unroll 4
            for (std::size_t l = 0; l < lanes; ++l) {
#pragma GCC unroll 4
                for (std::size_t i = 0; i < Rows; ++i)
                    sums[i][v] =
                        multiply_add_128<T>(a[i][(p + static_cast<std::ptrdiff_t>(l)) * step], right[l], sums[i][v]);
            }
        }
    }
    for (; p < k; ++p)
        for (std::size_t v = 0; v < Vectors; ++v) {
            Vector right{};
            for (std::size_t j = 0; j < lanes; ++j) right[j] = b[v][j][p];
#pragma GCC unroll 4
            for (std::size_t i = 0; i < Rows; ++i) sums[i][v] = multiply_add_128<T>(a[i][p * step], right, sums[i][v]);
        }
    alignas(64) T row_major[Rows * Vectors * lanes];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
        for (std::size_t v = 0; v < Vectors; ++v) store_128(row_major + (i * Vectors + v) * lanes, sums[i][v]);
    }
    finish_tile_baseline(tile.product, row_major, Vectors * lanes, tile.rows, tile.written(lanes));
}

#if UNITSCALE_X86

[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline void transpose_vectors(__m256 (&rows)[8]) { transpose_eight(rows); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline void transpose_vectors(__m256d (&rows)[4]) {
    const __m256d low01 = _mm256_unpacklo_pd(rows[0], rows[1]), high01 = _mm256_unpackhi_pd(rows[0], rows[1]);
    const __m256d low23 = _mm256_unpacklo_pd(rows[2], rows[3]), high23 = _mm256_unpackhi_pd(rows[2], rows[3]);
    rows[0] = _mm256_permute2f128_pd(low01, low23, 0x20);
    rows[1] = _mm256_permute2f128_pd(high01, high23, 0x20);
    rows[2] = _mm256_permute2f128_pd(low01, low23, 0x31);
    rows[3] = _mm256_permute2f128_pd(high01, high23, 0x31);
}

/// strip[j strip_depth + p] = columns[j][start + p] quantised, for p in [0, count). Not inlined, because the code that
/// quantises is long.
[[gnu::noinline]] UNITSCALE_TARGET_AVX2 inline void quantise_strip_avx2(const RegisterQuantiser& quantiser,
                                                                        const float* const* columns,
                                                                        std::size_t column_count, std::ptrdiff_t start,
                                                                        std::ptrdiff_t count, float* strip) {
    const QuantiserVectors256 own(quantiser);
    for (std::ptrdiff_t p = 0; p < count; p += 8)
        for (std::size_t j = 0; j < column_count; ++j) {
            float* const to = strip + static_cast<std::ptrdiff_t>(j) * strip_depth + p;
            store_avx2(to, quantise_vector(own, load_avx2(columns[j] + start + p)));
        }
}

template <std::size_t Rows, std::size_t Vectors, class T>
UNITSCALE_TARGET_AVX2 void column_major_product_avx2(const ColumnMajorTile<T>& tile) {
    using Vector = decltype(load_avx2(tile.product.a));
    constexpr std::size_t lanes = 32 / sizeof(T);
    const RegisterQuantiser quantiser = tile.quantiser;
    const bool rounds = quantiser.kind != RegisterQuantisation::none;
    const T *a[Rows], *b[Vectors][lanes];
    Vector sums[Rows][Vectors];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < Rows; ++i) a[i] = tile.row(i);
    for (std::size_t v = 0; v < Vectors; ++v) {
        for (std::size_t i = 0; i < Rows; ++i) sums[i][v] = broadcast_avx2(T{0});
        for (std::size_t j = 0; j < lanes; ++j) b[v][j] = tile.column(v * lanes + j);
    }
    const std::ptrdiff_t k = tile.product.k, step = tile.product.a_step,
                         whole = k - k % static_cast<std::ptrdiff_t>(lanes);
    constexpr std::ptrdiff_t lane_count = lanes, rounded_depth = std::is_same_v<T, float> ? strip_depth : 1;
    alignas(64) T strip[Vectors * lanes * static_cast<std::size_t>(rounded_depth)];
    const std::ptrdiff_t depth = rounds ? rounded_depth : whole;
    for (std::ptrdiff_t start = 0; start < whole; start += depth) {
        const std::ptrdiff_t count = std::min(depth, whole - start);
        const T* columns[Vectors][lanes];
        for (std::size_t v = 0; v < Vectors; ++v)
            for (std::size_t j = 0; j < lanes; ++j)
                columns[v][j] =
                    rounds ? strip + static_cast<std::ptrdiff_t>(v * lanes + j) * rounded_depth : b[v][j] + start;
        if constexpr (std::is_same_v<T, float>)
            if (rounds) quantise_strip_avx2(quantiser, b[0], Vectors * lanes, start, count, strip);
        const T* left[Rows];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < Rows; ++i) left[i] = a[i] + start * step;
        for (std::ptrdiff_t p = 0; p < count; p += lane_count) {
#pragma GCC unroll 2
            for (std::size_t v = 0; v < Vectors; ++v) {
                Vector right[lanes];
#pragma GCC unroll 8
                for (std::size_t j = 0; j < lanes; ++j) right[j] = load_avx2(columns[v][j] + p);
                transpose_vectors(right);
#pragma GCC unroll 8
                for (std::size_t l = 0; l < lanes; ++l) {
#pragma GCC unroll 4
                    for (std::size_t i = 0; i < Rows; ++i)
                        sums[i][v] = fused_avx2(broadcast_avx2(left[i][(p + static_cast<std::ptrdiff_t>(l)) * step]),
                                                right[l], sums[i][v]);
                }
            }
        }
    }
    for (std::ptrdiff_t p = whole; p < k; ++p)
        for (std::size_t v = 0; v < Vectors; ++v) {
            T column[lanes];
            for (std::size_t j = 0; j < lanes; ++j) column[j] = b[v][j][p];
            Vector right = load_avx2(column);
            if constexpr (std::is_same_v<T, float>) right = quantise_vector(quantiser, right);
#pragma GCC unroll 4
            for (std::size_t i = 0; i < Rows; ++i)
                sums[i][v] = fused_avx2(broadcast_avx2(a[i][p * step]), right, sums[i][v]);
        }
    alignas(64) T row_major[Rows * Vectors * lanes];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
        for (std::size_t v = 0; v < Vectors; ++v) store_avx2(row_major + (i * Vectors + v) * lanes, sums[i][v]);
    }
    finish_tile_avx2(tile.product, row_major, Vectors * lanes, tile.rows, tile.written(lanes));
}

[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline void transpose_vectors(__m512 (&rows)[16]) {
    Words512 words[16];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) words[i] = reinterpret_cast<Words512>(rows[i]);
    transpose_words(words);
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) rows[i] = reinterpret_cast<__m512>(words[i]);
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline void transpose_vectors(__m512d (&rows)[8]) {
    __m512d t[8];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 8; i += 2) {
        t[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        t[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
#pragma GCC unroll 2
    for (std::size_t odd = 0; odd < 2; ++odd) {  // columns odd, 2 + odd, 4 + odd, 6 + odd of pairs of rows
        const __m512d a = t[odd], b = t[2 + odd], c = t[4 + odd], d = t[6 + odd];
        const __m512d ab_even = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
        const __m512d ab_odd = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
        const __m512d cd_even = __builtin_shufflevector(c, d, 0, 1, 8, 9, 4, 5, 12, 13);
        const __m512d cd_odd = __builtin_shufflevector(c, d, 2, 3, 10, 11, 6, 7, 14, 15);
        rows[odd] = __builtin_shufflevector(ab_even, cd_even, 0, 1, 2, 3, 8, 9, 10, 11);
        rows[4 + odd] = __builtin_shufflevector(ab_even, cd_even, 4, 5, 6, 7, 12, 13, 14, 15);
        rows[2 + odd] = __builtin_shufflevector(ab_odd, cd_odd, 0, 1, 2, 3, 8, 9, 10, 11);
        rows[6 + odd] = __builtin_shufflevector(ab_odd, cd_odd, 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/// strip[j strip_depth + p] = columns[j][start + p] quantised, for p in [0, count). Not inlined, because the code that
/// quantises is long.
[[gnu::noinline]] UNITSCALE_TARGET_AVX512 inline void quantise_strip_avx512(const RegisterQuantiser& quantiser,
                                                                            const float* const* columns,
                                                                            std::size_t column_count,
                                                                            std::ptrdiff_t start, std::ptrdiff_t count,
                                                                            float* strip) {
    const RegisterQuantiser own = quantiser;  // a copy: stores to the strip might alias the original
    for (std::ptrdiff_t p = 0; p < count; p += 16)
        for (std::size_t j = 0; j < column_count; ++j) {
            float* const to = strip + static_cast<std::ptrdiff_t>(j) * strip_depth + p;
            store_avx512(to, quantise_vector(own, load_avx512(columns[j] + start + p)));
        }
}

template <std::size_t Rows, std::size_t Vectors, class T>
UNITSCALE_TARGET_AVX512 void column_major_product_avx512(const ColumnMajorTile<T>& tile) {
    using Vector = decltype(load_avx512(tile.product.a));
    constexpr std::size_t lanes = 64 / sizeof(T);
    const RegisterQuantiser quantiser = tile.quantiser;
    const bool rounds = quantiser.kind != RegisterQuantisation::none;
    const T *a[Rows], *b[Vectors][lanes];
    Vector sums[Rows][Vectors];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < Rows; ++i) a[i] = tile.row(i);
    for (std::size_t v = 0; v < Vectors; ++v) {
        for (std::size_t i = 0; i < Rows; ++i) sums[i][v] = broadcast_avx512(T{0});
        for (std::size_t j = 0; j < lanes; ++j) b[v][j] = tile.column(v * lanes + j);
    }
    const std::ptrdiff_t k = tile.product.k, step = tile.product.a_step,
                         whole = k - k % static_cast<std::ptrdiff_t>(lanes);
    constexpr std::ptrdiff_t lane_count = lanes, rounded_depth = std::is_same_v<T, float> ? strip_depth : 1;
    alignas(64) T strip[Vectors * lanes * static_cast<std::size_t>(rounded_depth)];
    const std::ptrdiff_t depth = rounds ? rounded_depth : whole;
    for (std::ptrdiff_t start = 0; start < whole; start += depth) {
        const std::ptrdiff_t count = std::min(depth, whole - start);
        const T* columns[Vectors][lanes];
        for (std::size_t v = 0; v < Vectors; ++v)
            for (std::size_t j = 0; j < lanes; ++j)
                columns[v][j] =
                    rounds ? strip + static_cast<std::ptrdiff_t>(v * lanes + j) * rounded_depth : b[v][j] + start;
        if constexpr (std::is_same_v<T, float>)
            if (rounds) quantise_strip_avx512(quantiser, b[0], Vectors * lanes, start, count, strip);
        const T* left[Rows];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < Rows; ++i) left[i] = a[i] + start * step;
        for (std::ptrdiff_t p = 0; p < count; p += lane_count) {
#pragma GCC unroll 2
            for (std::size_t v = 0; v < Vectors; ++v) {
                Vector right[lanes];
#pragma GCC unroll 16
                for (std::size_t j = 0; j < lanes; ++j) right[j] = load_avx512(columns[v][j] + p);
                transpose_vectors(right);
#pragma GCC unroll 16
                for (std::size_t l = 0; l < lanes; ++l) {
#pragma GCC unroll 4
                    for (std::size_t i = 0; i < Rows; ++i)
                        sums[i][v] =
                            fused_avx512(broadcast_avx512(left[i][(p + static_cast<std::ptrdiff_t>(l)) * step]),
                                         right[l], sums[i][v]);
                }
            }
        }
    }
    for (std::ptrdiff_t p = whole; p < k; ++p)
        for (std::size_t v = 0; v < Vectors; ++v) {
            T column[lanes];
            for (std::size_t j = 0; j < lanes; ++j) column[j] = b[v][j][p];
            Vector right = load_avx512(column);
            if constexpr (std::is_same_v<T, float>) right = quantise_vector(quantiser, right);
#pragma GCC unroll 4
            for (std::size_t i = 0; i < Rows; ++i)
                sums[i][v] = fused_avx512(broadcast_avx512(a[i][p * step]), right, sums[i][v]);
        }
    alignas(64) T row_major[Rows * Vectors * lanes];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
        for (std::size_t v = 0; v < Vectors; ++v) store_avx512(row_major + (i * Vectors + v) * lanes, sums[i][v]);
    }
    finish_tile_avx512(tile.product, row_major, Vectors * lanes, tile.rows, tile.written(lanes));
}

#endif

/// Runs the kernel of an instruction set. Vectors of C are written whole; vectors without a column are not written.
/// Test: tests/products/few_rows_test.cpp
template <class T>
void column_major_product([[maybe_unused]] Isa isa, const ColumnMajorTile<T>& tile) {
#if UNITSCALE_X86
    if (isa == Isa::avx512)
        return tile.rows == 1 ? column_major_product_avx512<1, 1>(tile) : column_major_product_avx512<4, 1>(tile);
    if (isa == Isa::avx2) {
        if (tile.rows > 1) return column_major_product_avx2<4, 1>(tile);
        const bool one_vector = tile.cols <= tile_shape(isa).template lanes<T>();
        return one_vector ? column_major_product_avx2<1, 1>(tile) : column_major_product_avx2<1, 2>(tile);
    }
#endif
    tile.rows > 1 ? column_major_product_baseline<4, 1>(tile) : column_major_product_baseline<1, 2>(tile);
}

/// A few rows of A times a column-major B:
///   C[i,j] = alpha (sum_p A[i,p] B[p,j] + bias[j]) + gamma C[i,j]
/// A[i,p] is at a[i a_row + p], B[p,j] at b[j b_col + p], C[i,j] at c[i c_row + j]. bias may be null. C is not read
/// when gamma is 0.
template <class P>
struct FewRowsProduct {
    std::ptrdiff_t m = 0, n = 0, k = 0;
    const P* a = nullptr;
    std::ptrdiff_t a_row = 0;
    const P* b = nullptr;
    std::ptrdiff_t b_col = 0;
    P* c = nullptr;
    std::ptrdiff_t c_row = 0;
    const P* bias = nullptr;
    P alpha = 1, gamma = 0;
};

/// Where `multiply_few_rows` was measured to be faster than packing for a short k, as attention keys have.
template <class P>
[[nodiscard]] constexpr bool has_few_rows_kernel(Isa isa) noexcept {
    return UNITSCALE_X86 && std::is_same_v<P, float> && isa == Isa::avx512;
}

/// Runs the product, with m at most column_major_rows. Where k is at most block_depth, the bits equal the bits of
/// `multiply_block`. B is read once and never copied. Test: tests/products/few_rows_test.cpp
template <class P>
void multiply_few_rows(const FewRowsProduct<P>& product, Isa isa = Isa::avx512) {
    const std::ptrdiff_t lanes = tile_shape(isa).template lanes<P>();
    alignas(64) std::array<P, static_cast<std::size_t>(column_major_rows * 16)> last_c{};
    std::array<P, 16> last_bias{};
    for (std::ptrdiff_t j = 0; j < product.n; j += lanes) {
        ColumnMajorTile<P> tile{{}, product.m, std::min(lanes, product.n - j), product.b_col, {}};
        const bool whole = tile.cols == lanes;
        P* const c = product.c + j;
        tile.product.k = product.k;
        tile.product.a = product.a;
        tile.product.a_row = product.a_row;
        tile.product.b = product.b + j * product.b_col;
        tile.product.c = whole ? c : last_c.data();
        tile.product.c_row = whole ? product.c_row : lanes;
        tile.product.bias = product.bias == nullptr ? nullptr : whole ? product.bias + j : last_bias.data();
        tile.product.alpha = product.alpha;
        tile.product.gamma = product.gamma;
        if (!whole) {
            if (product.bias != nullptr) std::copy_n(product.bias + j, tile.cols, last_bias.data());
            if (product.gamma != 0)
                for (std::ptrdiff_t i = 0; i < product.m; ++i)
                    std::copy_n(c + i * product.c_row, tile.cols, last_c.data() + i * lanes);
        }
        column_major_product(isa, tile);
        if (!whole)
            for (std::ptrdiff_t i = 0; i < product.m; ++i)
                std::copy_n(last_c.data() + i * lanes, tile.cols, c + i * product.c_row);
    }
}

}  // namespace unitscale::products
