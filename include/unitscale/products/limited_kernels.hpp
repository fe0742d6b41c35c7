// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/formats/accumulate.hpp>
#include <unitscale/products/aligned_sums.hpp>
#include <unitscale/products/limited_rounding.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

// The kernels of limited sums for each instruction set.
namespace unitscale::products {

/// acc after `length` sequential steps from +0.
template <class L, bool fused, std::size_t V>
[[gnu::always_inline]] inline void sequential_run(const LimitedConstants& c, const float* a, const float* b,
                                                  std::ptrdiff_t length,
                                                  typename L::Float (&acc)[limited_rows * V]) noexcept {
    using Float = typename L::Float;
    constexpr std::size_t lanes = sizeof(Float) / sizeof(float);
    const SumRounding sums = c.sums, products = c.products;
    for (std::size_t i = 0; i < limited_rows * V; ++i) acc[i] = Float{};
    for (std::ptrdiff_t p = 0; p < length; ++p, a += limited_rows, b += V * lanes) {
        Float right[V];
#pragma GCC unroll 4
        for (std::size_t v = 0; v < V; ++v) std::memcpy(&right[v], b + v * lanes, sizeof(Float));
        if (c.fused) {
            const bool emulated = !fused && !c.exact_products;
#pragma GCC unroll 4
            for (std::size_t i = 0; i < limited_rows; ++i) {
                const Float left = a[i] - Float{};
#pragma GCC unroll 4
                for (std::size_t v = 0; v < V; ++v)
                    if (fused || emulated) fuse<L, fused>(left, right[v], acc[i * V + v]);
                    else acc[i * V + v] += left * right[v];  // an exact product: fused or not, the bits are equal
            }
        } else {
            // Rounding the products leaves no product for the compiler to contract with a sum: it works on words, also
            // where it changes none.
            Float terms[limited_rows * V];
#pragma GCC unroll 4
            for (std::size_t i = 0; i < limited_rows; ++i) {
                const Float left = a[i] - Float{};
#pragma GCC unroll 4
                for (std::size_t v = 0; v < V; ++v) terms[i * V + v] = left * right[v];
            }
            if (products.plain && products.kind != SumRounding::Kind::identity) {
                round_vectors<L>(products, terms);
            } else {
#pragma GCC unroll 16
                for (std::size_t i = 0; i < limited_rows * V; ++i) round_vector<L>(products, terms[i]);
            }
#pragma GCC unroll 16
            for (std::size_t i = 0; i < limited_rows * V; ++i) acc[i] += terms[i];
        }
        round_vectors<L>(sums, acc);
    }
}

/// Computes a tile: its runs, promoted to totals.
template <class L, bool fused>
[[gnu::always_inline]] inline void limited_tile(const LimitedConstants& c, const LimitedTile& tile) noexcept {
    using Float = typename L::Float;
    using Word = typename L::Word;
    constexpr std::size_t V = limited_vectors, count = limited_rows * V, lanes = sizeof(Float) / sizeof(float);
    constexpr std::ptrdiff_t columns = V * lanes;
    Float total[count] = {};
    for (std::ptrdiff_t begin = 0; begin < tile.k; begin += c.run_length) {
        const std::ptrdiff_t length = std::min(c.run_length, tile.k - begin);
        Float acc[count];
        if (!c.aligned) {
            sequential_run<L, fused, V>(c, tile.a + begin * static_cast<std::ptrdiff_t>(limited_rows),
                                        tile.b + begin * columns, length, acc);
        } else if (c.in_float) {
            aligned_run<L, V>(c, tile, begin, length, acc);
        } else {
            alignas(64) float sums[count * lanes];
            for (std::ptrdiff_t j = 0; j < columns; j += static_cast<std::ptrdiff_t>(lanes / 2)) {
                LimitedTile part = tile;
                part.b += j, part.b_powers += j;
                aligned_run_double<L>(c, part, columns, begin, length, sums + j);
            }
            std::memcpy(acc, sums, sizeof sums);
        }
        if (c.run_length < tile.k) {
            for (std::size_t i = 0; i < count; ++i) acc[i] += total[i];
            round_vectors<L>(c.totals, acc);
        }
        for (std::size_t i = 0; i < count; ++i) total[i] = acc[i];
    }
    for (std::size_t i = 0; i < count; ++i) {
        const Float plus_zero = total[i] + 0.0f;  // +0 for -0
        Word word;
        copy_bits(word, plus_zero);
        word = (word & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 - Word{} : word;
        std::memcpy(tile.c + i * lanes, &word, sizeof word);
    }
}

/// Prepares packed values: every NaN becomes the quiet NaN, so that rounding its word cannot carry into the sign.
/// `powers` (null: none) get 2^e, with e the value's exponent and at least the exponent of `least`, and 0 for 0. Values
/// come in whole vectors. Returns whether a value is NaN or infinite.
template <class L>
[[gnu::always_inline]] inline bool prepare_values(float* values, float* powers, std::ptrdiff_t count,
                                                  float least) noexcept {
    using Float = typename L::Float;
    using Word = typename L::Word;
    constexpr auto lanes = static_cast<std::ptrdiff_t>(sizeof(Float) / sizeof(float));
    Word special{};
    for (std::ptrdiff_t i = 0; i < count; i += lanes) {
        Word word;
        std::memcpy(&word, values + i, sizeof word);
        const Word magnitude = word & 0x7FFFFFFF;
        special |= 0x7F7FFFFF - magnitude;  // negative for NaN and infinity
        word = magnitude > 0x7F800000 ? 0x7FC00000 - Word{} : word;
        std::memcpy(values + i, &word, sizeof word);
        if (powers == nullptr) continue;
        const Word field = magnitude & 0x7F800000, lowest = std::bit_cast<std::int32_t>(least) - Word{};
        const Word power = (field > lowest ? field : lowest) & ((0 - magnitude) >> 31);
        std::memcpy(powers + i, &power, sizeof power);
    }
    std::int32_t any = 0;
    for (std::size_t l = 0; l < static_cast<std::size_t>(lanes); ++l) any |= special[l];
    return any < 0;
}

/// Whether the build has the instruction of `fuse`. FMA4 has another one.
#if UNITSCALE_X86 && !defined(__FMA__)
inline constexpr bool limited_baseline_fused = false;
#else
inline constexpr bool limited_baseline_fused = has_multiply_add;
#endif

inline void limited_tile_baseline(const LimitedConstants& c, const LimitedTile& tile) noexcept {
    limited_tile<Lanes<16>, limited_baseline_fused>(c, tile);
}
inline bool prepare_values_baseline(float* values, float* powers, std::ptrdiff_t count, float least) noexcept {
    return prepare_values<Lanes<16>>(values, powers, count, least);
}
#if UNITSCALE_X86
UNITSCALE_TARGET_AVX2 inline void limited_tile_avx2(const LimitedConstants& c, const LimitedTile& tile) noexcept {
    limited_tile<Lanes<32>, true>(c, tile);
}
UNITSCALE_TARGET_AVX2 inline bool prepare_values_avx2(float* values, float* powers, std::ptrdiff_t count,
                                                      float least) noexcept {
    return prepare_values<Lanes<32>>(values, powers, count, least);
}
UNITSCALE_TARGET_AVX512 inline void limited_tile_avx512(const LimitedConstants& c, const LimitedTile& tile) noexcept {
    limited_tile<Lanes<64>, true>(c, tile);
}
UNITSCALE_TARGET_AVX512 inline bool prepare_values_avx512(float* values, float* powers, std::ptrdiff_t count,
                                                          float least) noexcept {
    return prepare_values<Lanes<64>>(values, powers, count, least);
}
#endif

/// The kernels of an instruction set that the processor has. Test: tests/products/limited_kernels_test.cpp
struct LimitedKernels {
    void (*tile)(const LimitedConstants&, const LimitedTile&) noexcept = limited_tile_baseline;
    bool (*prepare)(float* values, float* powers, std::ptrdiff_t count, float least) noexcept = prepare_values_baseline;
};
[[nodiscard]] inline LimitedKernels limited_kernels(Isa isa) noexcept {
#if UNITSCALE_X86
    if (isa == Isa::avx512) return {limited_tile_avx512, prepare_values_avx512};
    if (isa == Isa::avx2) return {limited_tile_avx2, prepare_values_avx2};
#endif
    static_cast<void>(isa);
    return {};
}

}  // namespace unitscale::products
