// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/formats/accumulate.hpp>
#include <unitscale/products/limited_rounding.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

// The aligned runs of limited sums, and the constants and the tile that all kernels of limited sums read.
// Test: tests/products/aligned_sums_test.cpp
namespace unitscale::products {

/// `Accumulate` as the kernels read it.
struct LimitedConstants {
    SumRounding sums, products, totals;
    bool aligned = false, fused = true;
    bool exact_products = false;  ///< products of the operands' formats are exact in float
    bool in_float = false;        ///< aligned: sums of cut terms are exact in float, too
    std::ptrdiff_t run_length = 0, group = 32;
    int fraction_bits = 0;
    std::uint32_t sum_bits = 0;  ///< aligned: mantissa bits of sums
    float least_power = 0;       ///< aligned: 2^E is at least this number. In float, a lower bound that changes no sum
};

/// Constants for operands that hold numbers of these formats.
[[nodiscard]] constexpr LimitedConstants limited_constants(const Accumulate& options, const FloatFormat& a,
                                                           const FloatFormat& b, std::ptrdiff_t k) noexcept {
    LimitedConstants c;
    c.sums = sum_rounding(options, options.sums, options.rounding);
    c.products = sum_rounding(options, options.products, options.rounding);
    c.totals = sum_rounding(options, options.totals, Rounding::nearest_even);
    c.aligned = options.summation == Summation::aligned;
    c.fused = options.fused;
    c.run_length = options.run_length == 0 ? k : std::min<std::ptrdiff_t>(options.run_length, k);
    c.group = options.group;
    c.fraction_bits = options.fraction_bits;
    c.sum_bits = static_cast<std::uint32_t>(options.sums.mantissa_bits);
    // A sum is a multiple of 2^(E - fraction_bits), so it is 0 or has at least that exponent.
    const int least = a.min_exponent() + b.min_exponent() - options.fraction_bits;
    c.exact_products = a.precision() + b.precision() <= 24 && a.quantum_exponent() + b.quantum_exponent() >= -100 &&
                       a.max_exponent() + b.max_exponent() <= 100;
    const std::int64_t most = (std::int64_t{4} * options.group + 2) << options.fraction_bits;
    c.in_float = c.exact_products && most <= 1 << 24 && least - options.fraction_bits >= -100;
    c.least_power = compose<float>(false, 1, c.in_float ? least : -126);
    return c;
}

/// Rows of a tile, and its vectors of floats in a row.
inline constexpr std::size_t limited_rows = 4, limited_vectors = 2;
[[nodiscard]] constexpr std::ptrdiff_t limited_columns(Isa isa) noexcept {
    return isa == Isa::avx512 ? 32 : isa == Isa::avx2 ? 16 : 8;
}

/// One tile of sums. Operands are packed: A[i,p] is at a[p limited_rows + i], B[p,j] at b[p columns + j]. Aligned sums
/// also read the powers of two of their exponents. C[i,j] is written to c[i columns + j].
struct LimitedTile {
    std::ptrdiff_t k = 0;
    const float *a = nullptr, *b = nullptr, *a_powers = nullptr, *b_powers = nullptr;
    float* c = nullptr;
};

/// acc after `length` products in aligned steps from +0, where float holds all terms.
template <class L, std::size_t V>
[[gnu::always_inline]] inline void aligned_run(const LimitedConstants& c, const LimitedTile& tile, std::ptrdiff_t begin,
                                               std::ptrdiff_t length,
                                               typename L::Float (&acc)[limited_rows * V]) noexcept {
    using Float = typename L::Float;
    using Word = typename L::Word;
    using Unsigned = typename L::Unsigned;
    constexpr std::size_t lanes = sizeof(Float) / sizeof(float), count = limited_rows * V;
    const Float least = c.least_power - Float{};
    const std::uint32_t fraction = static_cast<std::uint32_t>(c.fraction_bits) << 23,
                        to_scale = (254u << 23) + fraction, kept = ~0u << (23 - c.sum_bits);
    for (std::size_t i = 0; i < count; ++i) acc[i] = Float{};
    for (std::ptrdiff_t done = 0; done < length; done += c.group) {
        const std::ptrdiff_t first = begin + done, last = first + std::min(c.group, length - done);
        Float top[count];  // 2^E
#pragma GCC unroll 16
        for (std::size_t i = 0; i < count; ++i) {
            Word word;
            copy_bits(word, acc[i]);
            word &= 0x7F800000;
            copy_bits(top[i], word);
            top[i] = top[i] > least ? top[i] : least;
        }
        for (std::ptrdiff_t p = first; p < last; ++p) {
            Float right[V];
#pragma GCC unroll 4
            for (std::size_t v = 0; v < V; ++v)
                std::memcpy(&right[v], tile.b_powers + (static_cast<std::size_t>(p) * V + v) * lanes, sizeof(Float));
#pragma GCC unroll 4
            for (std::size_t i = 0; i < limited_rows; ++i) {
                const Float left = tile.a_powers[static_cast<std::size_t>(p) * limited_rows + i] - Float{};
#pragma GCC unroll 4
                for (std::size_t v = 0; v < V; ++v) {
                    const Float power = left * right[v];
                    top[i * V + v] = power > top[i * V + v] ? power : top[i * V + v];
                }
            }
        }
        Float scale[count];  // 2^(fraction_bits - E)
        Word sum[count];
#pragma GCC unroll 16
        for (std::size_t i = 0; i < count; ++i) {
            Unsigned word;
            copy_bits(word, top[i]);
            word = to_scale - word;
            copy_bits(scale[i], word);
            const Float term = acc[i] * scale[i];
            sum[i] = __builtin_convertvector(term, Word);
        }
        for (std::ptrdiff_t p = first; p < last; ++p) {
            Float right[V];
#pragma GCC unroll 4
            for (std::size_t v = 0; v < V; ++v)
                std::memcpy(&right[v], tile.b + (static_cast<std::size_t>(p) * V + v) * lanes, sizeof(Float));
#pragma GCC unroll 4
            for (std::size_t i = 0; i < limited_rows; ++i) {
                const Float left = tile.a[static_cast<std::size_t>(p) * limited_rows + i] - Float{};
#pragma GCC unroll 4
                for (std::size_t v = 0; v < V; ++v) {
                    const Float term = left * right[v] * scale[i * V + v];
                    sum[i * V + v] += __builtin_convertvector(term, Word);
                }
            }
        }
#pragma GCC unroll 16
        for (std::size_t i = 0; i < count; ++i) {
            const Float exact = __builtin_convertvector(sum[i], Float);
            Unsigned word, top_word;
            copy_bits(word, exact);
            copy_bits(top_word, top[i]);
            word &= kept;
            top_word -= fraction;
            Float cut, step;
            copy_bits(cut, word);
            copy_bits(step, top_word);
            acc[i] = cut * step;
        }
    }
}

/// As `aligned_run`, for any operands: terms in double, whose vectors hold half as many lanes. Computes `columns` of
/// them from column `column`; acc[i columns + j] is in memory.
template <class L>
[[gnu::always_inline]] inline void aligned_run_double(const LimitedConstants& c, const LimitedTile& tile,
                                                      std::ptrdiff_t row_step, std::ptrdiff_t begin,
                                                      std::ptrdiff_t length, float* acc) noexcept {
    using Double = typename L::Double;
    using Half = typename L::HalfFloat;
    using HalfWord = typename L::HalfWord;
    using LongWord = typename L::LongWord;
    using LongUnsigned = typename L::LongUnsigned;
    constexpr std::size_t rows = limited_rows;
    const std::uint64_t fraction = static_cast<std::uint64_t>(c.fraction_bits) << 52,
                        to_scale = (std::uint64_t{2046} << 52) + fraction,
                        kept = ~std::uint64_t{0} << (52 - c.sum_bits);
    const double quantum = compose<double>(false, 1, -126 - static_cast<int>(c.sum_bits)),
                 to_quantum = compose<double>(false, 1, 126 + static_cast<int>(c.sum_bits));
    const Double least = 0x1p-126 - Double{};
    Double sums[rows] = {};
    for (std::ptrdiff_t done = 0; done < length; done += c.group) {
        const std::ptrdiff_t first = begin + done, last = first + std::min(c.group, length - done);
        Double top[rows], scale[rows], sum[rows];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < rows; ++i) {
            LongWord word;
            copy_bits(word, sums[i]);
            word &= 0x7FF0000000000000;
            copy_bits(top[i], word);
            top[i] = top[i] > least ? top[i] : least;
        }
        for (std::ptrdiff_t p = first; p < last; ++p) {
            Half powers;
            std::memcpy(&powers, tile.b_powers + p * row_step, sizeof(Half));
            const Double right = __builtin_convertvector(powers, Double);
#pragma GCC unroll 4
            for (std::size_t i = 0; i < rows; ++i) {
                const Double power = double{tile.a_powers[static_cast<std::size_t>(p) * rows + i]} * right;
                top[i] = power > top[i] ? power : top[i];
            }
        }
#pragma GCC unroll 4
        for (std::size_t i = 0; i < rows; ++i) {
            LongUnsigned word;
            copy_bits(word, top[i]);
            word = to_scale - word;
            copy_bits(scale[i], word);
            const Double term = sums[i] * scale[i];
            sum[i] = __builtin_convertvector(__builtin_convertvector(term, HalfWord), Double);
        }
        for (std::ptrdiff_t p = first; p < last; ++p) {
            Half values;
            std::memcpy(&values, tile.b + p * row_step, sizeof(Half));
            const Double right = __builtin_convertvector(values, Double);
#pragma GCC unroll 4
            for (std::size_t i = 0; i < rows; ++i) {
                const Double term = double{tile.a[static_cast<std::size_t>(p) * rows + i]} * right * scale[i];
                sum[i] += __builtin_convertvector(__builtin_convertvector(term, HalfWord), Double);
            }
        }
#pragma GCC unroll 4
        for (std::size_t i = 0; i < rows; ++i) {
            LongUnsigned word, top_word, magnitude_word;
            copy_bits(word, sum[i]);
            copy_bits(top_word, top[i]);
            word &= kept;
            top_word -= fraction;
            Double cut, step, magnitude, old_magnitude;
            copy_bits(cut, word);
            copy_bits(step, top_word);
            cut *= step;
            copy_bits(magnitude_word, cut);
            magnitude_word &= 0x7FFFFFFFFFFFFFFF;
            copy_bits(magnitude, magnitude_word);
            copy_bits(magnitude_word, sums[i]);
            magnitude_word &= 0x7FFFFFFFFFFFFFFF;
            copy_bits(old_magnitude, magnitude_word);
            // Sums below float's least normal number keep fewer bits. The unused lanes of the conversion are large.
            const Double small = (magnitude < least ? cut : Double{}) * to_quantum;
            const Double subnormal =
                __builtin_convertvector(__builtin_convertvector(small, HalfWord), Double) * quantum;
            cut = magnitude < least ? subnormal : cut;
            // Sums beyond float's range become infinite, and stay so.
            const Half narrow = __builtin_convertvector(cut, Half);
            const Double next = __builtin_convertvector(narrow, Double);
            sums[i] = old_magnitude > 0x1p128 ? sums[i] : next;
        }
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < rows; ++i) {
        const Half narrow = __builtin_convertvector(sums[i], Half);
        std::memcpy(acc + static_cast<std::ptrdiff_t>(i) * row_step, &narrow, sizeof(Half));
    }
}

}  // namespace unitscale::products
