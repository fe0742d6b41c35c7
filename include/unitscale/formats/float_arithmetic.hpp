// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/rounding.hpp>

#include <bit>
#include <cstdint>
#include <limits>

// Single float operations with one rounding to nearest even. Operands pass through integers, so the results are equal
// under every compiler option: nothing is fused, reordered or flushed, with -ffast-math too. They are for numbers of
// which there is one to a block. Formulas of scales write fl(.) for such an operation.
// Test: tests/formats/float_arithmetic_test.cpp
namespace unitscale {

/// The word of |x|. Words of magnitudes are ordered as the magnitudes, and NaN is above infinity.
[[nodiscard]] constexpr std::uint32_t magnitude_word(float x) noexcept {
    return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
}

[[nodiscard]] constexpr bool is_infinite(float x) noexcept { return magnitude_word(x) == 0x7F800000u; }
[[nodiscard]] constexpr bool is_any_zero(float x) noexcept { return magnitude_word(x) == 0; }

/// A float as a double: exact for subnormal numbers, too.
[[nodiscard]] constexpr double widened(float x) noexcept {
    constexpr std::uint64_t rebias = std::uint64_t{1023 - 127} << 52;
    const std::uint32_t magnitude = magnitude_word(x);
    std::uint64_t word = (std::uint64_t{magnitude} << 29) + (magnitude < 0x7F800000u ? rebias : 2 * rebias);
    if (magnitude < 0x00800000u)
        word = std::bit_cast<std::uint64_t>(static_cast<double>(static_cast<std::int32_t>(magnitude)) * 0x1p-149);
    const auto sign = static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(x) >> 31);
    return std::bit_cast<double>(word | (sign << 63));
}

/// The float nearest to a double, ties to even: infinite beyond float's range, with subnormal numbers.
[[nodiscard]] constexpr float narrowed(double x) noexcept {
    constexpr std::uint64_t rebias = std::uint64_t{1023 - 127} << 52;
    const auto word = std::bit_cast<std::uint64_t>(x);
    const std::uint64_t magnitude = word & (std::numeric_limits<std::uint64_t>::max() >> 1);
    std::uint64_t rounded = 0;
    if (magnitude > std::uint64_t{0x7FF} << 52) return std::numeric_limits<float>::quiet_NaN();
    if (magnitude >= rebias + (std::uint64_t{1} << 52)) {
        const std::uint64_t rebased = magnitude - rebias;
        rounded = (rebased + 0x0FFFFFFFu + ((rebased >> 29) & 1)) >> 29;
        if (rounded > 0x7F800000u) rounded = 0x7F800000u;
    } else if (const auto shift = 1023 - 149 + 52 - static_cast<int>(magnitude >> 52); shift < 55) {
        // The number in steps of 2^-149: its significand, shifted right.
        const std::uint64_t mantissa = magnitude & ((std::uint64_t{1} << 52) - 1);
        const std::uint64_t significand = mantissa | (std::uint64_t{1} << 52);
        const std::uint64_t below_half = (std::uint64_t{1} << (shift - 1)) - 1;
        rounded = (significand + below_half + ((significand >> shift) & 1)) >> shift;
    }
    return std::bit_cast<float>(static_cast<std::uint32_t>(rounded) | (static_cast<std::uint32_t>(word >> 63) << 31));
}

/// A double rounded to the nearest float, as a double: `narrowed` without the way to float and back, where float's
/// number is normal.
[[nodiscard]] constexpr double rounded_to_float(double x) noexcept {
    const auto word = std::bit_cast<std::uint64_t>(x);
    const auto field = static_cast<std::uint32_t>(word >> 52) & 0x7FFu;
    if (field - 897u >= 1150u - 897u) return widened(narrowed(x));
    return std::bit_cast<double>((word + 0x0FFFFFFFu + ((word >> 29) & 1)) & ~std::uint64_t{0x1FFFFFFF});
}

/// Whether x is a normal number: neither zero, subnormal, infinite nor NaN.
[[nodiscard]] constexpr bool is_normal(float x) noexcept { return magnitude_word(x) - 0x00800000u < 0x7F000000u; }

/// fl(a b). The product of two floats is exact in double.
[[nodiscard]] constexpr float rounded_product(float a, float b) noexcept {
    if (is_normal(a) && is_normal(b)) return narrowed(widened(a) * widened(b));
    if (is_nan(a) || is_nan(b) || (is_infinite(a) && is_any_zero(b)) || (is_any_zero(a) && is_infinite(b)))
        return std::numeric_limits<float>::quiet_NaN();
    return narrowed(widened(a) * widened(b));
}

/// fl(a + b). A sum in double, rounded to float, is the sum rounded once, because 53 >= 2 * 24 + 2.
[[nodiscard]] constexpr float rounded_sum(float a, float b) noexcept {
    const bool opposite = ((std::bit_cast<std::uint32_t>(a) ^ std::bit_cast<std::uint32_t>(b)) >> 31) != 0;
    if (is_nan(a) || is_nan(b) || (is_infinite(a) && is_infinite(b) && opposite))
        return std::numeric_limits<float>::quiet_NaN();
    return narrowed(widened(a) + widened(b));
}

/// fl(a / b); a/0 is infinite, 0/0 is NaN. A quotient of floats is at least 2^-49 of its size away from the middle of
/// two normal floats. So a quotient in double may even be made as a product with 1/b: its error is below 2^-51.
/// Subnormal quotients may lie in the middle. Integers round them.
[[nodiscard]] constexpr float rounded_quotient(float a, float b) noexcept {
    const std::uint32_t sign = (std::bit_cast<std::uint32_t>(a) ^ std::bit_cast<std::uint32_t>(b)) & 0x80000000u;
    if (is_nan(a) || is_nan(b) || (is_any_zero(a) && is_any_zero(b)) || (is_infinite(a) && is_infinite(b)))
        return std::numeric_limits<float>::quiet_NaN();
    if (is_any_zero(b) || is_infinite(a)) return std::bit_cast<float>(sign | 0x7F800000u);
    if (is_any_zero(a) || is_infinite(b)) return std::bit_cast<float>(sign);
    const double quotient = widened(a) / widened(b);
    const auto magnitude = std::bit_cast<std::uint64_t>(quotient) & (std::numeric_limits<std::uint64_t>::max() >> 1);
    if (magnitude > std::bit_cast<std::uint64_t>(0x1p-126)) return narrowed(quotient);

    const auto significand = [](std::uint32_t word) {
        return std::uint64_t{word & 0x7FFFFFu} | (word < 0x00800000u ? 0u : 0x00800000u);
    };
    const auto exponent = [](std::uint32_t word) { return word < 0x00800000u ? 1 : static_cast<int>(word >> 23); };
    // In steps of 2^-149: a/b 2^149 = numerator / denominator.
    const int shift = exponent(magnitude_word(a)) - exponent(magnitude_word(b)) + 149;
    if (shift < -26) return std::bit_cast<float>(sign);  // below a quarter of a step
    const std::uint64_t numerator = significand(magnitude_word(a)) << (shift > 0 ? shift : 0);
    const std::uint64_t denominator = significand(magnitude_word(b)) << (shift < 0 ? -shift : 0);
    std::uint64_t steps = numerator / denominator;
    const std::uint64_t rest = 2 * (numerator - steps * denominator);
    if (rest > denominator || (rest == denominator && steps % 2 == 1)) ++steps;
    return std::bit_cast<float>(static_cast<std::uint32_t>(steps) | sign);
}

/// The smaller of two numbers that are no NaN and not negative.
[[nodiscard]] constexpr float smaller_of(float a, float b) noexcept {
    return magnitude_word(a) < magnitude_word(b) ? a : b;
}

/// 2^floor(log2 x) and 2^ceil(log2 x) for x positive and finite, by bits: exact for every x. The latter has at most
/// the exponent 127.
[[nodiscard]] constexpr float power_of_two_below(float x) noexcept {
    const std::uint32_t word = magnitude_word(x);
    return std::bit_cast<float>(word < 0x00800000u ? std::bit_floor(word) : word & 0x7F800000u);
}
[[nodiscard]] constexpr float power_of_two_above(float x) noexcept {
    const std::uint32_t word = magnitude_word(x);
    if (word < 0x00800000u) return std::bit_cast<float>(std::bit_ceil(word));
    const std::uint32_t above = (word + 0x7FFFFFu) & 0x7F800000u;
    return std::bit_cast<float>(above < 0x7F800000u ? above : 0x7F000000u);
}

}  // namespace unitscale
