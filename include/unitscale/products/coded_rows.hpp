// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/products/coded_elements.hpp>
#include <unitscale/products/coded_elements_avx2.hpp>
#include <unitscale/products/micro_kernel.hpp>
#include <unitscale/products/pack.hpp>
#include <unitscale/products/pack_pairs.hpp>
#include <unitscale/tensor/coded_weight.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// One row of A times a coded weight (tensor/coded_weight.hpp): codes are decoded in registers, between the load and the
// multiply-add. So memory is read once and holds no second form of the weight. Sums run in the order of the kernels for
// more rows, which read panels (coded_panels.hpp), so the bits are equal for any number of rows.
// Test: tests/products/coded_rows_test.cpp
namespace unitscale::products {

/// Groups of sixteen columns that one row of A is multiplied by together: four vectors wait for four sums.
inline constexpr std::size_t coded_groups = 4;
inline constexpr std::ptrdiff_t coded_columns = 16 * static_cast<std::ptrdiff_t>(coded_groups);

#if UNITSCALE_X86

// Without optimisation GCC's masked loads and conversions are macros, which convert masks in the caller's code.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

/// A row of A times up to coded_columns columns of a coded weight: the sums of the products of `depth` elements.
/// Missing groups of columns repeat the last one.
struct CodedTile {
    CodedRight b;
    std::ptrdiff_t depth = 0;
    std::size_t groups = coded_groups;
    float* sums = nullptr;

    [[nodiscard]] std::size_t group(std::size_t g) const noexcept {
        return static_cast<std::size_t>(b.j / 16) + std::min(g, groups - 1);
    }
};

/// The float kernel: fused multiply-adds over p in rising order. A[0,p] is at a[p a_step].
template <WeightBits Bits, ScaleUse Scaled>
UNITSCALE_TARGET_AVX512 void coded_row_floats_avx512(const CodedTile& tile, const float* a, std::ptrdiff_t a_step) {
    constexpr std::ptrdiff_t bytes = ElementPairs512<Bits>::bytes;
    const CodedWeight& weight = *tile.b.weight;
    const ElementPairs512<Bits> elements(weight);
    const typename ScalesOf<Scaled>::Type scales(weight, tile.b.apart);
    __m512 sums[coded_groups], scale[coded_groups];
    const std::uint8_t* codes[coded_groups];
#pragma GCC unroll 4
    for (std::size_t g = 0; g < coded_groups; ++g) {
        sums[g] = _mm512_setzero_ps();
        codes[g] = weight.group_elements(tile.group(g)) + tile.b.p / 2 * bytes;
    }
    const std::ptrdiff_t end = tile.b.p + tile.depth;
    for (std::ptrdiff_t p = tile.b.p; p < end;) {
        const std::ptrdiff_t stop = scales.end_of_run(p, end);
#pragma GCC unroll 4
        for (std::size_t g = 0; g < coded_groups; ++g) scale[g] = scales.template of<Scaled>(tile.group(g), p);
        for (; p < stop; p += 2, a += 2 * a_step) {
            const bool alone = p + 1 == stop;  // the last element of an odd number
            const __m512 first = _mm512_set1_ps(a[0]), second = _mm512_set1_ps(alone ? 0.0f : a[a_step]);
#pragma GCC unroll 4
            for (std::size_t g = 0; g < coded_groups; ++g) {
                __m512 even, odd;
                elements.floats(codes[g], even, odd);
                codes[g] += bytes;
                if constexpr (Scaled != ScaleUse::none) {
                    even = _mm512_mul_ps(even, scale[g]);
                    odd = _mm512_mul_ps(odd, scale[g]);
                }
                sums[g] = _mm512_fmadd_ps(first, even, sums[g]);
                if (!alone) sums[g] = _mm512_fmadd_ps(second, odd, sums[g]);
            }
        }
        p = stop;
    }
#pragma GCC unroll 4
    for (std::size_t g = 0; g < coded_groups; ++g) _mm512_storeu_ps(tile.sums + 16 * g, sums[g]);
}

/// The float kernel for AVX2. A vector holds half a group. Vectors of scales may stay in memory, where a multiplication
/// reads them.
template <WeightBits Bits, ScaleUse Scaled>
UNITSCALE_TARGET_AVX2 void coded_row_floats_avx2(const CodedTile& tile, const float* a, std::ptrdiff_t a_step) {
    constexpr std::ptrdiff_t bytes = ElementPairs256<Bits>::bytes;
    const CodedWeight& weight = *tile.b.weight;
    const ElementPairs256<Bits> elements(weight);
    const GroupScales256 scales(weight, tile.b.apart);
    __m256 sums[coded_groups][2], scale[coded_groups][2], even[2], odd[2];
    const std::uint8_t* codes[coded_groups];
#pragma GCC unroll 4
    for (std::size_t g = 0; g < coded_groups; ++g) {
        sums[g][0] = sums[g][1] = _mm256_setzero_ps();
        codes[g] = weight.group_elements(tile.group(g)) + tile.b.p / 2 * bytes;
    }
    const std::ptrdiff_t end = tile.b.p + tile.depth;
    for (std::ptrdiff_t p = tile.b.p; p < end;) {
        const std::ptrdiff_t stop = Scaled == ScaleUse::none ? end : end_of_run(weight, p, end);
        if constexpr (Scaled != ScaleUse::none)
            for (std::size_t g = 0; g < coded_groups; ++g) scales.read(tile.group(g), p, scale[g]);
        for (; p < stop; p += 2, a += 2 * a_step) {
            const bool alone = p + 1 == stop;  // the last element of an odd number
            const __m256 first = _mm256_set1_ps(a[0]), second = _mm256_set1_ps(alone ? 0.0f : a[a_step]);
#pragma GCC unroll 4
            for (std::size_t g = 0; g < coded_groups; ++g) {
                elements.floats(codes[g], even, odd);
                codes[g] += bytes;
#pragma GCC unroll 2
                for (int h = 0; h < 2; ++h) {
                    if constexpr (Scaled != ScaleUse::none) {
                        even[h] = _mm256_mul_ps(even[h], scale[g][h]);
                        odd[h] = _mm256_mul_ps(odd[h], scale[g][h]);
                    }
                    sums[g][h] = _mm256_fmadd_ps(first, even[h], sums[g][h]);
                    if (!alone) sums[g][h] = _mm256_fmadd_ps(second, odd[h], sums[g][h]);
                }
            }
        }
        p = stop;
    }
#pragma GCC unroll 4
    for (std::size_t g = 0; g < coded_groups; ++g) {
        _mm256_storeu_ps(tile.sums + 16 * g, sums[g][0]);
        _mm256_storeu_ps(tile.sums + 16 * g + 8, sums[g][1]);
    }
}

/// The kernel of bf16 pairs: vdpbf16ps over pairs in rising order, as `pair_tile_dot`. `a`: the first row of a group of
/// twelve (pack_left_pairs).
template <WeightBits Bits, ScaleUse Scaled>
UNITSCALE_TARGET_AVX512_BF16 void coded_row_pairs_avx512(const CodedTile& tile, const Pair* a) {
    constexpr std::ptrdiff_t bytes = ElementPairs512<Bits>::bytes;
    const CodedWeight& weight = *tile.b.weight;
    const ElementPairs512<Bits> elements(weight);
    const typename ScalesOf<Scaled>::Type scales(weight, tile.b.apart);
    __m512 sums[coded_groups], scale[coded_groups];
    const std::uint8_t* codes[coded_groups];
#pragma GCC unroll 4
    for (std::size_t g = 0; g < coded_groups; ++g) {
        sums[g] = _mm512_setzero_ps();
        codes[g] = weight.group_elements(tile.group(g)) + tile.b.p / 2 * bytes;
    }
    const std::ptrdiff_t end = tile.b.p + round_up(tile.depth, 2);
    for (std::ptrdiff_t p = tile.b.p, at = 0; p < end;) {
        const std::ptrdiff_t stop = scales.end_of_run(p, end);
#pragma GCC unroll 4
        for (std::size_t g = 0; g < coded_groups; ++g) scale[g] = scales.template of<Scaled>(tile.group(g), p);
        for (; p < stop; p += 2, ++at) {
            __m512i row = _mm512_set1_epi32(static_cast<int>(a[at / 16 * 12 * 16 + at % 16]));
            asm("" : "+v"(row));  // Clang 16 crashes on a broadcast that it sees as bf16
#pragma GCC unroll 4
            for (std::size_t g = 0; g < coded_groups; ++g) {
                const Unsigned512 words = scaled_words<Scaled>(elements.words(codes[g]), scale[g]);
                codes[g] += bytes;
                sums[g] = _mm512_dpbf16_ps(sums[g], reinterpret_cast<__m512bh>(row), reinterpret_cast<__m512bh>(words));
            }
        }
    }
#pragma GCC unroll 4
    for (std::size_t g = 0; g < coded_groups; ++g) _mm512_storeu_ps(tile.sums + 16 * g, sums[g]);
}

#pragma GCC diagnostic pop

struct CodedFloats {
    static constexpr bool takes_floats = true;
    Isa isa;
    template <WeightBits Bits, ScaleUse Scaled>
    void run(const CodedTile& tile, const float* a, std::ptrdiff_t a_step) const {
        if (isa == Isa::avx2) coded_row_floats_avx2<Bits, Scaled>(tile, a, a_step);
        else coded_row_floats_avx512<Bits, Scaled>(tile, a, a_step);
    }
};
struct CodedPairs {
    static constexpr bool takes_floats = false;
    template <WeightBits Bits, ScaleUse Scaled>
    void run(const CodedTile& tile, const Pair* a) const {
        coded_row_pairs_avx512<Bits, Scaled>(tile, a);
    }
};

/// One row of a product with a coded B, `cols` columns from a group's first on. The tile has no elements of B.
inline void coded_product(Isa isa, const CodedRight& b, const TileProduct<float>& tile, std::ptrdiff_t cols) {
    alignas(64) std::array<float, static_cast<std::size_t>(coded_columns)> sums;
    with_form(*b.weight, CodedFloats{isa}, CodedTile{b, tile.k, static_cast<std::size_t>(cols + 15) / 16, sums.data()},
              tile.a, tile.a_step);
    if (isa == Isa::avx2) finish_tile_avx2(tile, sums.data(), coded_columns, 1, round_up(cols, 8));
    else finish_tile_avx512(tile, sums.data(), coded_columns, 1, cols);
}

#endif

/// Never called: other types and processors decode B into panels (`decodes_in_registers`).
template <class P>
void coded_product(Isa, const CodedRight&, const TileProduct<P>&, std::ptrdiff_t) {}

}  // namespace unitscale::products
