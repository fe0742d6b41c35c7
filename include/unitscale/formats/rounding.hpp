// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/format.hpp>

#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace unitscale {

/// How a number between two neighbours of a format is rounded. Ties of `nearest_even` go to the even code. Ties of
/// `nearest_away` go to the larger magnitude. `stochastic`: let d in [0, 1) be the position between the neighbours and
/// R in [0, 2^N) random. Rounding goes away from zero when floor(d 2^N) + R >= 2^N, so with probability d, right to
/// 2^-N.
enum class Rounding { nearest_even, toward_zero, up, down, nearest_away, stochastic };

/// The result for a magnitude above the largest finite number: the largest number, or infinity (NaN where the format
/// has none).
enum class Overflow { saturate, to_infinity };

[[nodiscard]] constexpr std::string_view name(Rounding rounding) noexcept {
    switch (rounding) {
        case Rounding::nearest_even:
            return "nearest_even";
        case Rounding::toward_zero:
            return "toward_zero";
        case Rounding::up:
            return "up";
        case Rounding::down:
            return "down";
        case Rounding::nearest_away:
            return "nearest_away";
        case Rounding::stochastic:
            break;
    }
    return "stochastic";
}

/// How `quantise` and `encode` round. `bits`, `key` and `first_index` matter to stochastic rounding only. Element i of
/// a call takes as R the top `bits` bits of piece first_index + i of the stream `key`; see `random_piece`.
struct QuantiseOptions {
    Rounding rounding = Rounding::nearest_even;
    Overflow overflow = Overflow::saturate;
    int bits = 16;
    RandomKey key{};
    std::uint64_t first_index = 0;
};

/// Largest number of random bits that stochastic rounding takes.
inline constexpr int max_random_bits = 24;

/// Up to this many random bits, a word of the stream serves two elements.
inline constexpr int half_word_bits = 16;

/// Piece first_index + element of the stream, at the top of a word, where stochastic rounding looks for its bits.
/// Pieces are words. For up to 16 bits they are half words, the low half first, because making the words is most of the
/// work.
[[nodiscard]] constexpr std::uint32_t random_piece(const QuantiseOptions& options, std::uint64_t element) noexcept {
    const std::uint64_t index = options.first_index + element;
    if (options.bits > half_word_bits) return random_word(options.key, index);
    const std::uint32_t word = random_word(options.key, index / 2);
    return index % 2 == 0 ? word << 16 : word & 0xFFFF0000u;
}

/// Error unless the options fit the format: random bits 1 to 24; formats without infinity and NaN only saturate.
constexpr void check_options(std::string_view operation, const FloatFormat& format, const QuantiseOptions& options) {
    if (const auto message = problem(format); !message.empty()) fail(operation, ": format: ", message);
    if (options.bits < 1 || options.bits > max_random_bits)
        fail(operation, ": bits is ", options.bits, "; expected 1 to ", max_random_bits);
    if (options.overflow == Overflow::to_infinity && !format.has_nan())
        fail(operation, ": ", name(format), " has neither infinity nor NaN; expected Overflow::saturate");
}

/// The words of float and double.
template <class Float>
using FloatBits = std::conditional_t<sizeof(Float) == 8, std::uint64_t, std::uint32_t>;

/// NaN by its bits: right under fast-math.
template <class Float>
[[nodiscard]] constexpr bool is_nan(Float x) noexcept {
    using Bits = FloatBits<Float>;
    constexpr auto infinity = std::bit_cast<Bits>(std::numeric_limits<Float>::infinity());
    return (std::bit_cast<Bits>(x) & (std::numeric_limits<Bits>::max() >> 1)) > infinity;
}

/// A number as the format sees it: the exact result of rounding, before it is written as a code or a float.
struct Rounded {
    enum class Kind { finite, infinity, nan };
    Kind kind = Kind::finite;
    bool negative = false;
    std::uint32_t code = 0;  ///< magnitude code of a finite number
};

/// Rounds float or double x (once) to the format, in integers only. `random` is the random word, used when stochastic.
/// The conventions:
///  - round with an unbounded exponent, then compare with the maximum: never clamp first;
///  - saturating: overflow and infinite input give the largest finite number; NaN stays NaN;
///  - to infinity: overflow and infinite input give infinity, or NaN where there is none; but a finite number that
///    overflows under toward_zero, down (positive) or up (negative) gives the largest finite one;
///  - without -0, negative zero and underflow give 0; with it they give -0;
///  - unsigned: a negative number that rounds to zero gives 0; else 0 when saturating, NaN when not. A scale format has
///    no zero: below its smallest number everything gives the smallest, and negative input gives NaN.
/// Formats without NaN: the caller turns Kind::nan into an error.
/// Test: tests/formats/rounding_test.cpp
template <class Float>
[[nodiscard]] constexpr Rounded round_to(const FloatFormat& format, Float x, Rounding rounding, Overflow overflow,
                                         int bits, std::uint32_t random) noexcept {
    using Kind = Rounded::Kind;
    using Bits = FloatBits<Float>;
    constexpr int stored = std::numeric_limits<Float>::digits - 1;
    constexpr auto sign_bit = Bits{1} << (8 * sizeof(Bits) - 1);
    constexpr auto infinity = std::bit_cast<Bits>(std::numeric_limits<Float>::infinity());

    const auto word = std::bit_cast<Bits>(x);
    const Bits magnitude = word & ~sign_bit;
    const bool input_negative = (word & sign_bit) != 0;
    if (magnitude > infinity) return {Kind::nan, false, 0};
    const bool scale = !format.has_zero();
    if (input_negative && scale && magnitude != 0) return {Kind::nan, false, 0};
    const bool negative = input_negative && format.is_signed();

    const auto unbounded = format.has_infinity() ? Kind::infinity : Kind::nan;
    if (magnitude == infinity) {
        if (overflow == Overflow::saturate)
            return {Kind::finite, negative, negative == input_negative ? format.max_code() : 0};
        return {negative == input_negative ? unbounded : Kind::nan, negative && unbounded == Kind::infinity, 0};
    }

    std::uint64_t code = 0;
    if (magnitude != 0) {
        // |x| = significand 2^exponent; the value of its leading bit is 2^leading
        const int field = static_cast<int>(magnitude >> stored);
        const std::uint64_t significand = (magnitude & ((Bits{1} << stored) - 1)) | (field > 0 ? Bits{1} << stored : 0);
        const int exponent = (field > 0 ? field : 1) + std::numeric_limits<Float>::min_exponent - 2 - stored;
        const int leading = exponent + static_cast<int>(std::bit_width(significand)) - 1;
        const int binade = leading > format.min_exponent() ? leading : format.min_exponent();
        const int dropped = binade - format.mantissa_bits - exponent;  // bits below the last kept one

        if (!(scale && leading < format.min_exponent())) {
            const bool exact = dropped <= 0;
            const std::uint64_t kept = exact ? significand << -dropped : dropped < 64 ? significand >> dropped : 0;
            // The code in a format without upper bound; the leading bit of a normal number counts one exponent step.
            code = kept + (static_cast<std::uint64_t>(binade - format.min_exponent()) << format.mantissa_bits) -
                   (scale ? std::uint64_t{1} << format.mantissa_bits : 0);
            const std::uint64_t rest = exact ? 0 : dropped < 64 ? significand - (kept << dropped) : significand;
            if (rest != 0) {
                const std::uint64_t half = dropped <= 64 ? std::uint64_t{1} << (dropped - 1) : 0;  // 0: out of reach
                bool away = false;
                switch (rounding) {
                    case Rounding::nearest_even:
                        away = half != 0 && (rest > half || (rest == half && code % 2 == 1));
                        break;
                    case Rounding::nearest_away:
                        away = half != 0 && rest >= half;
                        break;
                    case Rounding::up:
                        away = !input_negative;
                        break;
                    case Rounding::down:
                        away = input_negative;
                        break;
                    case Rounding::toward_zero:
                        break;
                    case Rounding::stochastic: {
                        const int excess = dropped - bits;
                        const std::uint64_t fraction = excess <= 0 ? rest << -excess : excess < 64 ? rest >> excess : 0;
                        away = fraction + (random >> (32 - bits)) >= std::uint64_t{1} << bits;
                        break;
                    }
                }
                code += away ? 1 : 0;
            }
        }
    }

    if (input_negative && !format.is_signed() && code != 0 && !scale) {
        if (overflow == Overflow::saturate) return {};
        return {Kind::nan, false, 0};
    }
    if (code > format.max_code()) {
        const bool bounded = overflow == Overflow::saturate || rounding == Rounding::toward_zero ||
                             (rounding == Rounding::down && !negative) || (rounding == Rounding::up && negative);
        if (bounded) return {Kind::finite, negative, format.max_code()};
        return {unbounded, negative && unbounded == Kind::infinity, 0};
    }
    return {Kind::finite, negative && (code != 0 || format.has_negative_zero()), static_cast<std::uint32_t>(code)};
}

}  // namespace unitscale
