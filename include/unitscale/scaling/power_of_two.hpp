// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace unitscale {

/// Exponents of tensor scales. Scales are powers of two, so that products with them are exact, and normal numbers of
/// float.
inline constexpr int min_scale_exponent = -126;
inline constexpr int max_scale_exponent = 127;

/// Types that can be rounded to a power of two.
template <class Float>
concept ScaleNumber = std::same_as<Float, float> || std::same_as<Float, double>;

/// A positive number as 2^exponent (1 + fraction 2^-52), by its bits: right in every floating-point mode. Subnormal
/// numbers count as the largest power of two below the normal ones: all of them are below every scale.
struct BinaryParts {
    int exponent = 0;
    std::uint64_t fraction = 0;
};

/// Error, in the name of `operation`: x is not positive and finite.
template <ScaleNumber Float>
[[nodiscard]] constexpr BinaryParts binary_parts(std::string_view operation, Float x) {
    using Bits = std::conditional_t<sizeof(Float) == 8, std::uint64_t, std::uint32_t>;
    constexpr int stored = std::numeric_limits<Float>::digits - 1;
    constexpr int bias = std::numeric_limits<Float>::max_exponent - 1;
    constexpr auto infinity = std::bit_cast<Bits>(std::numeric_limits<Float>::infinity());
    const auto bits = std::bit_cast<Bits>(x);
    if (bits == 0 || bits >= infinity) fail(operation, ": x is ", x, "; expected a positive finite number");
    const Bits field = bits >> stored;
    const std::uint64_t fraction = bits - (field << stored);
    return {static_cast<int>(field) - bias, field == 0 ? 0 : fraction << (52 - stored)};
}

/// 2^exponent, kept within the range of scales.
template <ScaleNumber Float>
[[nodiscard]] constexpr Float scale_of_exponent(int exponent) noexcept {
    using Bits = std::conditional_t<sizeof(Float) == 8, std::uint64_t, std::uint32_t>;
    constexpr int bias = std::numeric_limits<Float>::max_exponent - 1;
    const int kept = exponent < min_scale_exponent   ? min_scale_exponent
                     : exponent > max_scale_exponent ? max_scale_exponent
                                                     : exponent;
    return std::bit_cast<Float>(static_cast<Bits>(kept + bias) << (std::numeric_limits<Float>::digits - 1));
}

/// The largest power of two that is at most x, as a scale. Results outside [2^-126, 2^127] become the nearer bound.
///   pow2_down(1) = 1      pow2_down(1.99) = 1      pow2_down(2) = 2
/// The default rule for propagated scales: data stays at or above unit scale.
/// Error: x is zero, negative, infinite or NaN.
/// Reference: Balanca et al. 2024 (Scalify). Test: tests/scaling/power_of_two_test.cpp
template <ScaleNumber Float>
[[nodiscard]] constexpr Float pow2_down(Float x) {
    return scale_of_exponent<Float>(binary_parts("pow2_down", x).exponent);
}

/// The smallest power of two that is at least x, as a scale; a power of two stays. Bounds and errors as `pow2_down`.
///   pow2_up(1) = 1      pow2_up(1.01) = 2      pow2_up(2) = 2
/// Test: tests/scaling/power_of_two_test.cpp
template <ScaleNumber Float>
[[nodiscard]] constexpr Float pow2_up(Float x) {
    const BinaryParts parts = binary_parts("pow2_up", x);
    return scale_of_exponent<Float>(parts.exponent + (parts.fraction != 0 ? 1 : 0));
}

/// The power of two nearest to x in the logarithm, as a scale: x is rounded up from sqrt 2 times the power below. There
/// are no ties, because sqrt 2 is no number of Float. Bounds and errors as `pow2_down`.
///   pow2_nearest(1.41) = 1      pow2_nearest(1.42) = 2
/// Test: tests/scaling/power_of_two_test.cpp
template <ScaleNumber Float>
[[nodiscard]] constexpr Float pow2_nearest(Float x) {
    constexpr std::uint64_t sqrt2_fraction = 0x6A09E667F3BCD;  // of the first double above sqrt 2
    const BinaryParts parts = binary_parts("pow2_nearest", x);
    return scale_of_exponent<Float>(parts.exponent + (parts.fraction >= sqrt2_fraction ? 1 : 0));
}

/// One of the two powers of two around x = 2^e (1 + f), as a scale: 2^(e+1) when floor(f 2^32) + `random` reaches 2^32,
/// else 2^e. For a uniform random word the result's mean is x: exactly for float, right to 2^(e-32) for double. A power
/// of two stays. Bounds and errors as `pow2_down`.
/// Test: tests/scaling/power_of_two_test.cpp
template <ScaleNumber Float>
[[nodiscard]] constexpr Float pow2_stochastic(Float x, std::uint32_t random) {
    const BinaryParts parts = binary_parts("pow2_stochastic", x);
    const bool up = (parts.fraction >> 20) + random >= std::uint64_t{1} << 32;
    return scale_of_exponent<Float>(parts.exponent + (up ? 1 : 0));
}

}  // namespace unitscale
