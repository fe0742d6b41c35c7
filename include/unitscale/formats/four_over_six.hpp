// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/block_scale.hpp>
#include <unitscale/formats/float_arithmetic.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

// Four Over Six: of two scales for a block of NVFP4, the one with the smaller error.
namespace unitscale {

/// The error of one choice of Four Over Six: the sum over a block's elements x of |e| or fl(e e), with
///   e = fl(fl(fl(fl(value s) A) / (6 M)) - x)
/// where value is e2m1's nearest number to fl(x q). Sums run along a line. Lines are added as a tree: line i and i + 8,
/// then i + 4, i + 2, i + 1.
[[nodiscard]] inline float four_over_six_error(const BlockFormat& format, const BlockScale& scale, float amax,
                                               const MatrixLines<const float>& block) noexcept {
    constexpr std::size_t size = 16;
    constexpr auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
    // Numbers of float in double: sums and products there, then one rounding.
    const float p = format.tensor_max();
    std::array<double, 8> decoded;
    for (std::uint32_t code = 0; code < decoded.size(); ++code) {
        const double value = widened(e2m1.magnitude<float>(code)) * widened(scale.value);  // a float
        const double product = rounded_to_float(value * widened(amax)), quotient = product / widened(p);
        const bool normal = std::bit_cast<std::uint64_t>(quotient) > std::bit_cast<std::uint64_t>(0x1p-126);
        decoded[code] = normal ? rounded_to_float(quotient) : widened(rounded_quotient(narrowed(product), p));
    }
    const bool squared = format.four_over_six == FourOverSix::squared_error;
    std::array<double, size> sums{};
    std::array<float, size> v;
    for (std::size_t line = 0; line < block.lines; ++line) {
        const float* const x = block.data + line * block.stride;
        BlockScaler::encode(e2m1, scale.encode, x, v.data(), block.length);
        for (std::size_t i = 0; i < block.length; ++i) {
            const std::uint32_t a = magnitude_word(v[i]);
            const int code = (a > bits(0.25f)) + (a >= bits(0.75f)) + (a > bits(1.25f)) + (a >= bits(1.75f)) +
                             (a > bits(2.5f)) + (a >= bits(3.5f)) + (a > bits(5.0f));
            // x and its element have one sign, so magnitudes give the magnitude of their difference.
            const double magnitude = widened(std::bit_cast<float>(magnitude_word(x[i])));
            const double e = rounded_to_float(decoded[static_cast<std::size_t>(code)] - magnitude);
            const double absolute = std::bit_cast<double>(std::bit_cast<std::uint64_t>(e) & ~(std::uint64_t{1} << 63));
            const double error = squared ? rounded_to_float(e * e) : absolute;
            sums[line] = rounded_to_float(sums[line] + error);
        }
    }
    for (std::size_t half = block.lines > 1 ? size / 2 : 0; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i) sums[i] = rounded_to_float(sums[i] + sums[i + half]);
    return narrowed(sums[0]);
}

/// The scale of a block [lines,length] of Four Over Six: amax maps to 4 if that gives a strictly smaller error, else to
/// 6. A NaN error is not smaller.
/// Test: tests/formats/four_over_six_test.cpp
[[nodiscard]] inline BlockScale four_over_six_scale(const BlockFormat& format, float amax, const TensorNumbers& tensor,
                                                    const MatrixLines<const float>& block) {
    const BlockScale six = block_scale(format, amax, tensor), four = block_scale(format, amax, tensor, true);
    if (six.nan() || six.code == four.code) return six;
    const float error_six = four_over_six_error(format, six, tensor.number, block);
    const float error_four = four_over_six_error(format, four, tensor.number, block);
    return !is_nan(error_six) && magnitude_word(error_four) < magnitude_word(error_six) ? four : six;
}

}  // namespace unitscale
