// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/vector_math.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

// Sine, cosine and error function, vectorised in float. In double they call the standard library.
// Test: tests/kernels/trigonometry_test.cpp
namespace unitscale::kernels {

/// x = angle + quadrant pi/2, with angle in [-pi/4, pi/4] and the quadrant modulo 4.
struct ReducedAngle {
    float angle;
    std::uint32_t quadrant;
};

/// The reduction of every finite float. x is a 24-bit integer times a power of two. Its product with 96 bits of
/// 1 / (2 pi) is formed in integers, and whole turns are dropped. The part of a turn has an error below 2^-62.
/// Reference: Payne, Hanek, Radian reduction for trigonometric functions, SIGNUM Newsletter 18, 1983.
[[nodiscard, gnu::always_inline]] inline ReducedAngle reduced_angle(float x) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t negative = bits >> 31;
    // bits of 1 / (2 pi) after the point, 32 at a time; before them come zeros
    const std::uint32_t exponent = select(magnitude < 0x3F000000u, 126u, magnitude >> 23) - 126u;  // 0 below 1/2
    const std::uint32_t word = exponent >> 5, shift = exponent & 31u;
    const auto pick = [word](std::uint32_t w0, std::uint32_t w1, std::uint32_t w2, std::uint32_t w3, std::uint32_t w4) {
        return select(word < 2u, select(word == 0u, w0, w1), select(word == 2u, w2, select(word == 3u, w3, w4)));
    };
    constexpr std::uint32_t b0 = 0x28BE60DBu, b1 = 0x9391054Au, b2 = 0x7F09D5F4u, b3 = 0x7D4D3770u, b4 = 0x36D8A566u,
                            b5 = 0x4F10E410u, b6 = 0x7F9458EAu;
    const std::uint32_t first = pick(0u, b0, b1, b2, b3), second = pick(b0, b1, b2, b3, b4),
                        third = pick(b1, b2, b3, b4, b5), fourth = pick(b2, b3, b4, b5, b6);
    const auto joined = [shift](std::uint32_t high, std::uint32_t low) {  // (x >> 1) >> (31 - s): a shift by 32 gives 0
        return (high << shift) | ((low >> 1) >> (31u - shift));
    };
    const std::uint64_t mantissa = ((magnitude & 0x007FFFFFu) << 8) | 0x80000000u;
    const std::uint64_t low = mantissa * joined(third, fourth);
    const std::uint64_t middle = mantissa * joined(second, third) + (low >> 32);
    const std::uint64_t turn = ((mantissa * joined(first, second)) << 32) + middle;  // of 2^64, whole turns dropped
    // the nearest quarter, and the rest as a signed number
    const std::uint64_t nearest = turn + (std::uint64_t{1} << 61);
    const std::uint64_t rest = (nearest & 0x3FFFFFFFFFFFFFFFu) - (std::uint64_t{1} << 61);
    const double high_part = static_cast<double>(static_cast<std::int32_t>(static_cast<std::uint32_t>(rest >> 32)));
    // The lower half as an integer of 31 bits: compilers vectorise conversions of signed integers.
    const double low_part =
        static_cast<double>(static_cast<std::int32_t>(static_cast<std::uint32_t>(rest & 0xFFFFFFFFu) >> 1));
    constexpr double half_pi = std::numbers::pi / 2.0;
    const auto angle = static_cast<float>(multiply_add(low_part, half_pi * 0x1p-61, high_part * (half_pi * 0x1p-30)));
    const auto quarter = static_cast<std::uint32_t>(nearest >> 62);
    const bool small = magnitude <= 0x3F490FDAu;  // the largest float below pi/4
    return {select(small, x, std::bit_cast<float>(std::bit_cast<std::uint32_t>(angle) ^ (negative << 31))),
            select(small, 0u, (quarter ^ (0u - negative)) + negative)};
}

/// sin(x + quarters pi/2), within 2 ulp for every finite float; NaN for infinity and NaN.
/// Reference of the polynomials: the Cephes library's sinf.
[[nodiscard, gnu::always_inline]] inline float shifted_sine(float x, std::uint32_t quarters) noexcept {
    const auto [angle, quadrant] = reduced_angle(x);
    const std::uint32_t turned = quadrant + quarters;
    const float z = angle * angle;
    float s = -1.9515295891e-4f;
    s = multiply_add(s, z, 8.3321608736e-3f);
    s = multiply_add(s, z, -1.6666654611e-1f);
    const float sine = select(z == 0.0f, angle, multiply_add(s * z, angle, angle));  // the sum would lose -0's sign
    float c = 2.443315711809948e-5f;
    c = multiply_add(c, z, -1.388731625493765e-3f);
    c = multiply_add(c, z, 4.166664568298827e-2f);
    const float cosine = multiply_add(c * z, z, multiply_add(-0.5f, z, 1.0f));
    const float value = select((turned & 1u) == 0u, sine, cosine);
    const float signed_value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ ((turned & 2u) << 30));
    const bool finite = (std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu) < 0x7F800000u;
    return select(finite, signed_value, std::bit_cast<float>(0x7FC00000u));
}

[[nodiscard, gnu::always_inline]] inline float sine(float x) noexcept { return shifted_sine(x, 0u); }
[[nodiscard]] inline double sine(double x) noexcept { return std::sin(x); }
[[nodiscard, gnu::always_inline]] inline float cosine(float x) noexcept { return shifted_sine(x, 1u); }
[[nodiscard]] inline double cosine(double x) noexcept { return std::cos(x); }

/// erf(x) within 3 ulp. For |x| < 0.75 it is the power series to x^17, which keeps the relative accuracy near 0.
/// Otherwise it is 1 - 2 Phi(-|x| 2^1/2), so that nothing cancels.
[[nodiscard, gnu::always_inline]] inline float error_function(float x) noexcept {
    const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) & 0x80000000u,
                        bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
    const float t = std::bit_cast<float>(bits);
    const float u = std::bit_cast<float>(std::min(bits, std::bit_cast<std::uint32_t>(0.75f))), z = u * u;
    float p = 1.6462114e-6f;  // 2 pi^-1/2 (-1)^k / (k! (2 k + 1)), k = 8 to 1
    p = multiply_add(p, z, -1.4925651e-5f);
    p = multiply_add(p, z, 1.2055333e-4f);
    p = multiply_add(p, z, -8.5483270e-4f);
    p = multiply_add(p, z, 5.2239776e-3f);
    p = multiply_add(p, z, -2.6866170e-2f);
    p = multiply_add(p, z, 1.1283791e-1f);
    p = multiply_add(p, z, -3.7612638e-1f);
    // The first coefficient is 1 + 0.128...: the sum ends with a term that is exact.
    const float inner = multiply_add(multiply_add(p, z, 0.12837916710f), u, u);
    const float tail = normal_values(-std::numbers::sqrt2_v<float> * t).cdf;
    const float magnitude = select(t < 0.75f, inner, multiply_add(-2.0f, tail, 1.0f));
    const float value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
    return select(bits > 0x7F800000u, x, value);
}
[[nodiscard]] inline double error_function(double x) noexcept { return std::erf(x); }

}  // namespace unitscale::kernels
