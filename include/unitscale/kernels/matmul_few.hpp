// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/kernels/matmul_pack.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

// A few rows times a matrix whose columns are contiguous, where it lies: a token times a weight [out,in], a query times keys.
namespace unitscale::kernels {

/// A few rows of A times a B whose columns are contiguous:
///   C[i,j] = alpha (sum_p A[i,p] B[p,j] + bias[j]) + gamma C[i,j]
/// A[i,p] at a[i a_row + p], B[p,j] at b[j b_col + p], C[i,j] at c[i c_row + j]. bias may be null. C is not read when gamma is 0.
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

/// Rows of A up to which turning B in registers costs less than packing it.
inline constexpr std::ptrdiff_t turned_rows = 4;

/// Whether `multiply_few_rows` has a kernel for these elements.
template <class P>
[[nodiscard]] constexpr bool has_few_rows_kernel(Isa isa) noexcept {
    return UNITSCALE_X86 && std::is_same_v<P, float> && isa == Isa::avx512;
}

#if UNITSCALE_X86

/// m of `Rows` rows: the last one takes the places of those that are missing, and is stored once.
template <std::size_t Rows>
UNITSCALE_TARGET_AVX512 void few_rows_avx512(const FewRowsProduct<float>& product) {
    const float* a[Rows];
    for (std::size_t i = 0; i < Rows; ++i)
        a[i] = product.a + std::min(static_cast<std::ptrdiff_t>(i), product.m - 1) * product.a_row;
    const __m512 alpha = _mm512_set1_ps(product.alpha), gamma = _mm512_set1_ps(product.gamma);
    const std::ptrdiff_t k = product.k;
    alignas(64) float ends[Rows][16];  // the last columns of A, then zeros
    if (k % 16 != 0) {
        const auto mask = static_cast<__mmask16>((1 << (k % 16)) - 1);
        for (std::size_t i = 0; i < Rows; ++i) _mm512_store_ps(ends[i], _mm512_maskz_loadu_ps(mask, a[i] + k / 16 * 16));
    }
    for (std::ptrdiff_t j = 0; j < product.n; j += 16) {
        const std::ptrdiff_t cols = std::min<std::ptrdiff_t>(16, product.n - j);
        const float* columns[16];
        for (std::ptrdiff_t l = 0; l < 16; ++l) columns[l] = product.b + (j + std::min(l, cols - 1)) * product.b_col;
        __m512 sums[Rows];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < Rows; ++i) sums[i] = _mm512_setzero_ps();
        for (std::ptrdiff_t p = 0; p < k; p += 16) {
            const bool whole = k - p >= 16;
            const auto mask = static_cast<__mmask16>(whole ? 0xFFFF : (1 << (k - p)) - 1);
            Words512 block[16];  // B[p + l, j ... j + 15] in block[l], once turned
#pragma GCC unroll 16
            for (std::size_t l = 0; l < 16; ++l)
                block[l] = reinterpret_cast<Words512>(_mm512_maskz_loadu_ps(mask, columns[l] + p));
            transpose_words(block);
            const float* left[Rows];
#pragma GCC unroll 4
            for (std::size_t i = 0; i < Rows; ++i) left[i] = whole ? a[i] + p : ends[i];
#pragma GCC unroll 16
            for (std::size_t l = 0; l < 16; ++l) {
#pragma GCC unroll 4
                for (std::size_t i = 0; i < Rows; ++i)
                    sums[i] = _mm512_fmadd_ps(_mm512_set1_ps(left[i][l]), reinterpret_cast<__m512>(block[l]), sums[i]);
            }
        }
        const auto stored = static_cast<__mmask16>((1 << cols) - 1);
        for (std::ptrdiff_t i = 0; i < product.m; ++i) {
            float* const c = product.c + i * product.c_row + j;
            __m512 value = sums[i];
            if (product.bias != nullptr) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(stored, product.bias + j));
            value = _mm512_mul_ps(value, alpha);
            if (product.gamma != 0) value = _mm512_fmadd_ps(gamma, _mm512_maskz_loadu_ps(stored, c), value);
            _mm512_mask_storeu_ps(c, stored, value);
        }
    }
}

#endif

/// Runs the product on an instruction set that has a kernel for it, m at most turned_rows. An element's sum runs over p in
/// rising order in one accumulator, as in `tile_product`, so its bits are those of `multiply_block` where k is at most block_depth.
/// B is read once and never copied.
/// Test: tests/kernels/matmul_few_test.cpp
template <class P>
void multiply_few_rows(const FewRowsProduct<P>& product) {
#if UNITSCALE_X86
    if constexpr (std::is_same_v<P, float>) {
        if (product.m == 1) few_rows_avx512<1>(product);
        if (product.m > 1) few_rows_avx512<4>(product);
    }
#endif
    static_cast<void>(product);
}

}  // namespace unitscale::kernels
