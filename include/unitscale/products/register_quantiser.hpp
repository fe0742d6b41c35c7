// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/formats/quantiser.hpp>

#include <bit>
#include <cstdint>

#if UNITSCALE_X86
#include <immintrin.h>
#endif

// Quantisation in a vector register, between the load and the store of a packing: 7 to 11 instructions for a vector.
// The loops of `quantise` support every format and option, so they take 20 instructions and a separate pass.
namespace unitscale::products {

/// How a vector is quantised to a format.
enum class RegisterQuantisation {
    none,
    by_exponent,  ///< the step depends on the exponent, down to the smallest normal number: FP8, FP6, FP4, fp16
    by_word       ///< float's exponents and so its subnormals, fewer bits: bf16, tf32
};

/// Constants for quantising in a register. By exponent: let M be the mantissa bits. 2^E is the power of two of x, or of
/// the smallest normal number if that is larger. x is rounded to multiples of 2^(E - M):
///   AVX-512   (x + magic) - magic with magic = 1.5 2^(E + 23 - M), with that step as its last place
///   AVX2      round(x 2^(M - E)) 2^(E - M)
/// The instructions name their rounding mode, so the processor's mode does not matter. No operand or result is
/// subnormal, except an x that becomes 0 anyway. So flushing of subnormals does not matter either.
/// By word: integer operations compute the result.
/// NaN stays NaN. A zero may have the other sign, which no sum of products shows.
/// The minimum and maximum are written in assembly. They pass on the NaN of their second operand only, and fast-math
/// may swap the operands. Fast-math does not affect the other instructions.
/// vrangeps and vfixupimmps, which define their results for NaN, took 6.4 ns instead of 1.4 for a vector on a Sapphire
/// Rapids.
struct RegisterQuantiser {
    RegisterQuantisation kind = RegisterQuantisation::none;
    float largest = 0;               ///< largest number of the format
    std::int32_t lowest_field = 0;   ///< exponent of the smallest normal number, in place in a float
    std::uint32_t to_magic = 0;      ///< added to 2^E: magic
    std::uint32_t to_scale = 0;      ///< minus 2^E: 2^(M - E)
    std::uint32_t to_step = 0;       ///< subtracted from 2^E: 2^(E - M)
    std::uint32_t dropped_bits = 0;  ///< mantissa bits of float that are dropped by word
};

/// The kind with which a register gives the numbers of `quantise`; none if no kind does. By exponent requires that x +
/// magic stays in magic's binade (M <= 21) and in float's range. Half the smallest number must be a normal float:
/// smaller x become 0.
[[nodiscard]] constexpr RegisterQuantisation register_quantisation(const Quantiser& quantiser) noexcept {
    const FloatFormat& format = quantiser.format;
    if (quantiser.rounding != Rounding::nearest_even || quantiser.overflow != Overflow::saturate ||
        !format.is_signed() || format.mantissa_bits < 1 || format.mantissa_bits > 21)
        return RegisterQuantisation::none;
    if (format.min_exponent() == -126) return RegisterQuantisation::by_word;
    return format.quantum_exponent() >= -125 && format.max_exponent() + 23 - format.mantissa_bits <= 126
               ? RegisterQuantisation::by_exponent
               : RegisterQuantisation::none;
}
[[nodiscard]] constexpr bool quantises_in_register(const Quantiser& quantiser) noexcept {
    return register_quantisation(quantiser) != RegisterQuantisation::none;
}

/// Whether a register can quantise an operand. An operand without a quantiser is not rounded, so the result is true.
[[nodiscard]] constexpr bool quantises_in_register(const Quantiser* quantiser) noexcept {
    return quantiser == nullptr || quantises_in_register(*quantiser);
}

/// The constants for a quantiser with `quantises_in_register`. Null: not to be quantised.
[[nodiscard]] constexpr RegisterQuantiser register_quantiser(const Quantiser* quantiser) noexcept {
    if (quantiser == nullptr) return {};
    const FloatFormat& format = quantiser->format;
    const auto bits = static_cast<std::uint32_t>(format.mantissa_bits);
    return {register_quantisation(*quantiser),
            format.max(),
            (format.min_exponent() + 127) << 23,
            ((23 - bits) << 23) + (1u << 22),
            (2 * 127 + bits) << 23,
            bits << 23,
            23 - bits};
}

#if UNITSCALE_X86

using Words512 [[gnu::vector_size(64)]] = std::int32_t;
using Unsigned512 [[gnu::vector_size(64)]] = std::uint32_t;
using HalfWords512 [[gnu::vector_size(64)]] = std::uint16_t;
using Words256 [[gnu::vector_size(32)]] = std::int32_t;
using Unsigned256 [[gnu::vector_size(32)]] = std::uint32_t;

// Without optimisation GCC's intrinsics with an immediate are macros. They convert a mask of sixteen ones in the
// caller's code.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Woverflow"
#pragma GCC diagnostic ignored "-Wconversion"
/// Sixteen floats quantised.
template <RegisterQuantisation kind>
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 quantise_in_register(const RegisterQuantiser& quantiser,
                                                                                  __m512 x) {
    if constexpr (kind == RegisterQuantisation::by_exponent) {
        __m512 bounded;
        asm("vminps {%2, %1, %0|%0, %1, %2}" : "=v"(bounded) : "v"(_mm512_set1_ps(quantiser.largest)), "v"(x));
        asm("vmaxps {%2, %1, %0|%0, %1, %2}" : "=v"(bounded) : "v"(_mm512_set1_ps(-quantiser.largest)), "v"(bounded));
        const auto exponents = reinterpret_cast<Words512>(bounded) & 0x7F800000;
        const Words512 lowest = Words512{} + quantiser.lowest_field, field = exponents > lowest ? exponents : lowest;
        const auto magic = reinterpret_cast<__m512>(reinterpret_cast<Unsigned512>(field) + quantiser.to_magic);
        constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        const __mmask16 all = 0xFFFF;  // not an int constant: unoptimised, the calls are macros of a signed mask
        return _mm512_maskz_sub_round_ps(all, _mm512_maskz_add_round_ps(all, bounded, magic, nearest), magic, nearest);
    } else if constexpr (kind == RegisterQuantisation::by_word) {
        const auto word = reinterpret_cast<Unsigned512>(x), magnitude = word & 0x7FFFFFFFu;
        const std::uint32_t step = 1u << quantiser.dropped_bits;
        const Unsigned512 odd = (magnitude >> (Unsigned512{} + quantiser.dropped_bits)) & 1u;
        const auto steps = reinterpret_cast<Words512>((magnitude + (step / 2 - 1) + odd) & (0u - step));
        const Words512 largest = Words512{} + std::bit_cast<std::int32_t>(quantiser.largest);
        const auto rounded = reinterpret_cast<Unsigned512>(steps < largest ? steps : largest) | (word ^ magnitude);
        const auto is_nan = reinterpret_cast<Unsigned512>(reinterpret_cast<Words512>(magnitude) > 0x7F800000);
        return reinterpret_cast<__m512>(rounded | is_nan);
    } else {
        return x;
    }
}
#pragma GCC diagnostic pop

/// The constants in vectors, to be formed before a loop. Where a loop chooses the kind of rounding, GCC would form them
/// again for each vector: nine instructions beside thirteen. Rounding by word takes `below_half` and `kept`.
struct QuantiserVectors256 {
    RegisterQuantisation kind;
    __m256 largest, least;  ///< numbers of the format
    Words256 lowest, exponents = Words256{} + 0x7F800000;
    Unsigned256 to_scale, to_step, below_half, kept, magnitudes = Unsigned256{} + 0x7FFFFFFFu;
    std::uint32_t dropped_bits;

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX2 QuantiserVectors256(const RegisterQuantiser& constants)
        : kind(constants.kind),
          largest(_mm256_set1_ps(constants.largest)),
          least(_mm256_set1_ps(-constants.largest)),
          lowest(Words256{} + constants.lowest_field),
          to_scale(Unsigned256{} + constants.to_scale),
          to_step(Unsigned256{} + constants.to_step),
          below_half(Unsigned256{} + ((1u << constants.dropped_bits) / 2 - 1)),
          kept(Unsigned256{} - (1u << constants.dropped_bits)),
          dropped_bits(constants.dropped_bits) {}
};

/// Eight floats quantised.
template <RegisterQuantisation kind>
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 quantise_in_register(const QuantiserVectors256& quantiser,
                                                                                __m256 x) {
    if constexpr (kind == RegisterQuantisation::by_exponent) {
        __m256 bounded;
        asm("vminps {%2, %1, %0|%0, %1, %2}" : "=x"(bounded) : "x"(quantiser.largest), "x"(x));
        asm("vmaxps {%2, %1, %0|%0, %1, %2}" : "=x"(bounded) : "x"(quantiser.least), "x"(bounded));
        const auto exponents = reinterpret_cast<Words256>(bounded) & quantiser.exponents;
        const auto field = reinterpret_cast<Unsigned256>(exponents > quantiser.lowest ? exponents : quantiser.lowest);
        const auto scale = reinterpret_cast<__m256>(quantiser.to_scale - field),
                   step = reinterpret_cast<__m256>(field - quantiser.to_step);
        constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        return _mm256_mul_ps(_mm256_round_ps(_mm256_mul_ps(bounded, scale), nearest), step);
    } else if constexpr (kind == RegisterQuantisation::by_word) {
        const auto word = reinterpret_cast<Unsigned256>(x), magnitude = word & quantiser.magnitudes;
        const Unsigned256 odd = (magnitude >> (Unsigned256{} + quantiser.dropped_bits)) & 1u;
        const auto steps = reinterpret_cast<Words256>((magnitude + quantiser.below_half + odd) & quantiser.kept);
        const auto largest = reinterpret_cast<Words256>(quantiser.largest);
        const auto rounded = reinterpret_cast<Unsigned256>(steps < largest ? steps : largest) | (word ^ magnitude);
        const auto is_nan = reinterpret_cast<Unsigned256>(reinterpret_cast<Words256>(magnitude) > quantiser.exponents);
        return reinterpret_cast<__m256>(rounded | is_nan);
    } else {
        return x;
    }
}

/// The kind of rounding as a run-time choice, for loops in which a predicted branch for each vector costs nothing.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 quantise_vector(const RegisterQuantiser& quantiser,
                                                                             __m512 x) {
    if (quantiser.kind == RegisterQuantisation::by_exponent)
        return quantise_in_register<RegisterQuantisation::by_exponent>(quantiser, x);
    if (quantiser.kind == RegisterQuantisation::by_word)
        return quantise_in_register<RegisterQuantisation::by_word>(quantiser, x);
    return x;
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 quantise_vector(const QuantiserVectors256& quantiser,
                                                                           __m256 x) {
    if (quantiser.kind == RegisterQuantisation::by_exponent)
        return quantise_in_register<RegisterQuantisation::by_exponent>(quantiser, x);
    if (quantiser.kind == RegisterQuantisation::by_word)
        return quantise_in_register<RegisterQuantisation::by_word>(quantiser, x);
    return x;
}

#endif

}  // namespace unitscale::products
