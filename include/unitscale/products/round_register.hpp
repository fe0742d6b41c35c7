// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/formats/quantiser.hpp>

#include <bit>
#include <cstdint>

#if UNITSCALE_X86
#include <immintrin.h>
#endif

// Rounding in a vector register, between the load and the store of a packing: 7 to 11 instructions a vector, where the loops
// of quantise, which know every format and option, take 20 and a pass of their own.
namespace unitscale::products {

/// How a vector is rounded to a format.
enum class RegisterRounding {
    none,
    by_exponent,  ///< the step depends on the exponent, down to the smallest normal number: FP8, FP6, FP4, fp16
    by_word       ///< float's exponents and so its subnormals, fewer bits: bf16, tf32
};

/// The constants. By exponent, with M mantissa bits and 2^E the power of two of x, or of the smallest normal number if that is
/// larger, x is rounded to multiples of 2^(E - M):
///   AVX-512   (x + magic) - magic with magic = 1.5 2^(E + 23 - M), whose last place is that step
///   AVX2      round(x 2^(M - E)) 2^(E - M)
/// The instructions name their rounding mode, and no operand or result is subnormal but an x that becomes 0 anyway: neither the
/// processor's mode nor its flushing of subnormals matters. By word, integer operations do all. NaN stays NaN; a zero may have
/// the other sign, which no sum of products shows.
/// The minimum and maximum before are written in assembly, because only the second operand's NaN gets through and fast-math may
/// swap the operands. (With vrangeps and vfixupimmps, which say what they do to NaN, a vector took 6.4 ns instead of 1.4 on a
/// Sapphire Rapids.) Fast-math knows nothing of the other instructions.
struct RegisterRounder {
    RegisterRounding kind = RegisterRounding::none;
    float largest = 0;               ///< of the format
    std::int32_t lowest_field = 0;   ///< exponent of the smallest normal number, in place in a float
    std::uint32_t to_magic = 0;      ///< added to 2^E: magic
    std::uint32_t to_scale = 0;      ///< minus 2^E: 2^(M - E)
    std::uint32_t to_step = 0;       ///< subtracted from 2^E: 2^(E - M)
    std::uint32_t dropped_bits = 0;  ///< by word
};

/// The way that gives the numbers of `quantise`, none if there is no such way. By exponent: x + magic must stay in magic's
/// binade (M <= 21) and in float's range, and half the smallest number must be a normal float: what is below becomes 0.
[[nodiscard]] constexpr RegisterRounding register_rounding(const Quantiser& round) noexcept {
    const FloatFormat& format = round.format;
    if (round.rounding != Rounding::nearest_even || round.overflow != Overflow::saturate || !format.is_signed() ||
        format.mantissa_bits < 1 || format.mantissa_bits > 21)
        return RegisterRounding::none;
    if (format.min_exponent() == -126) return RegisterRounding::by_word;
    return format.quantum_exponent() >= -125 && format.max_exponent() + 23 - format.mantissa_bits <= 126
               ? RegisterRounding::by_exponent
               : RegisterRounding::none;
}
[[nodiscard]] constexpr bool rounds_in_register(const Quantiser& round) noexcept {
    return register_rounding(round) != RegisterRounding::none;
}

/// For a quantiser that `rounds_in_register`, or null: not to be rounded.
[[nodiscard]] constexpr RegisterRounder register_rounder(const Quantiser* round) noexcept {
    if (round == nullptr) return {};
    const FloatFormat& format = round->format;
    const auto bits = static_cast<std::uint32_t>(format.mantissa_bits);
    return {register_rounding(*round),
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

// Without optimisation GCC's intrinsics with an immediate are macros, which convert a mask of sixteen ones in the user's name.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Woverflow"
/// Sixteen floats rounded.
template <RegisterRounding kind>
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 round_in_register(const RegisterRounder& round, __m512 x) {
    if constexpr (kind == RegisterRounding::by_exponent) {
        __m512 bounded;
        asm("vminps {%2, %1, %0|%0, %1, %2}" : "=v"(bounded) : "v"(_mm512_set1_ps(round.largest)), "v"(x));
        asm("vmaxps {%2, %1, %0|%0, %1, %2}" : "=v"(bounded) : "v"(_mm512_set1_ps(-round.largest)), "v"(bounded));
        const auto exponents = reinterpret_cast<Words512>(bounded) & 0x7F800000;
        const Words512 lowest = Words512{} + round.lowest_field, field = exponents > lowest ? exponents : lowest;
        const auto magic = reinterpret_cast<__m512>(reinterpret_cast<Unsigned512>(field) + round.to_magic);
        constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        return _mm512_maskz_sub_round_ps(0xFFFF, _mm512_maskz_add_round_ps(0xFFFF, bounded, magic, nearest), magic,
                                         nearest);
    } else if constexpr (kind == RegisterRounding::by_word) {
        const auto word = reinterpret_cast<Unsigned512>(x), magnitude = word & 0x7FFFFFFFu;
        const std::uint32_t step = 1u << round.dropped_bits;
        const Unsigned512 odd = (magnitude >> (Unsigned512{} + round.dropped_bits)) & 1u;
        const auto steps = reinterpret_cast<Words512>((magnitude + (step / 2 - 1) + odd) & (0u - step));
        const Words512 largest = Words512{} + std::bit_cast<std::int32_t>(round.largest);
        const auto rounded = reinterpret_cast<Unsigned512>(steps < largest ? steps : largest) | (word ^ magnitude);
        const auto is_nan = reinterpret_cast<Unsigned512>(reinterpret_cast<Words512>(magnitude) > 0x7F800000);
        return reinterpret_cast<__m512>(rounded | is_nan);
    } else {
        return x;
    }
}
#pragma GCC diagnostic pop

/// Eight floats rounded.
template <RegisterRounding kind>
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 round_in_register(const RegisterRounder& round, __m256 x) {
    if constexpr (kind == RegisterRounding::by_exponent) {
        __m256 bounded;
        asm("vminps {%2, %1, %0|%0, %1, %2}" : "=x"(bounded) : "x"(_mm256_set1_ps(round.largest)), "x"(x));
        asm("vmaxps {%2, %1, %0|%0, %1, %2}" : "=x"(bounded) : "x"(_mm256_set1_ps(-round.largest)), "x"(bounded));
        const auto exponents = reinterpret_cast<Words256>(bounded) & 0x7F800000;
        const Words256 lowest = Words256{} + round.lowest_field;
        const auto field = reinterpret_cast<Unsigned256>(exponents > lowest ? exponents : lowest);
        const auto scale = reinterpret_cast<__m256>(round.to_scale - field),
                   step = reinterpret_cast<__m256>(field - round.to_step);
        constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        return _mm256_mul_ps(_mm256_round_ps(_mm256_mul_ps(bounded, scale), nearest), step);
    } else if constexpr (kind == RegisterRounding::by_word) {
        const auto word = reinterpret_cast<Unsigned256>(x), magnitude = word & 0x7FFFFFFFu;
        const std::uint32_t step = 1u << round.dropped_bits;
        const Unsigned256 odd = (magnitude >> (Unsigned256{} + round.dropped_bits)) & 1u;
        const auto steps = reinterpret_cast<Words256>((magnitude + (step / 2 - 1) + odd) & (0u - step));
        const Words256 largest = Words256{} + std::bit_cast<std::int32_t>(round.largest);
        const auto rounded = reinterpret_cast<Unsigned256>(steps < largest ? steps : largest) | (word ^ magnitude);
        const auto is_nan = reinterpret_cast<Unsigned256>(reinterpret_cast<Words256>(magnitude) > 0x7F800000);
        return reinterpret_cast<__m256>(rounded | is_nan);
    } else {
        return x;
    }
}

/// The kind of rounding as a run-time choice: for loops in which a predicted branch per vector is nothing.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 round_vector(const RegisterRounder& round, __m512 x) {
    if (round.kind == RegisterRounding::by_exponent) return round_in_register<RegisterRounding::by_exponent>(round, x);
    if (round.kind == RegisterRounding::by_word) return round_in_register<RegisterRounding::by_word>(round, x);
    return x;
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 round_vector(const RegisterRounder& round, __m256 x) {
    if (round.kind == RegisterRounding::by_exponent) return round_in_register<RegisterRounding::by_exponent>(round, x);
    if (round.kind == RegisterRounding::by_word) return round_in_register<RegisterRounding::by_word>(round, x);
    return x;
}

#endif

}  // namespace unitscale::products
