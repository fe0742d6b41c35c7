// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/format.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

// Scaling of the operands of products. Per tensor: x is multiplied by 2^bias and rounded, and the result of the product
// is multiplied by 2^-bias. This equals rounding x to the format with `bias` added to its own exponent bias. The
// library does the latter: exactly, and at no cost.
// Reference: Perez et al. 2023, arXiv:2309.17224 (FP8-AMAX, FP8-CSCALE).
// Per block: `blocks` says how blocks of elements are scaled (formats/block_format.hpp).
namespace unitscale {

/// The source of an operand's bias.
///   none: 0; the operand is rounded as it is
///   constant: `bias`, for every tensor (FP8-CSCALE)
///   amax: the largest magnitude of the tensor itself (FP8-AMAX, "just in time")
///   delayed: the largest magnitudes of past steps; the first step uses its own
enum class ScaleSource : std::uint8_t { none, constant, amax, delayed };

/// The part of a tensor that has a bias of its own: the tensor, each row (all but the last axis) or each column.
enum class ScaleGranularity : std::uint8_t { tensor, row, column };

inline constexpr std::array<std::string_view, 4> scale_source_names = {"none", "constant", "amax", "delayed"};
inline constexpr std::array<std::string_view, 3> scale_granularity_names = {"tensor", "row", "column"};
[[nodiscard]] constexpr std::string_view name(ScaleSource source) noexcept {
    return scale_source_names[static_cast<std::size_t>(source)];
}
[[nodiscard]] constexpr std::string_view name(ScaleGranularity granularity) noexcept {
    return scale_granularity_names[static_cast<std::size_t>(granularity)];
}

/// How an operand's bias is found. Test: tests/scaling/tensor_scale_test.cpp
struct ScaleRule {
    ScaleSource source = ScaleSource::none;
    int bias = 0;              ///< constant: the bias
    int margin = 0;            ///< amax, delayed: powers of two left free above the largest magnitude
    std::size_t history = 16;  ///< delayed: number of past steps considered
    bool latest = false;       ///< delayed: true: the latest of these steps only; false: the largest of them
    ScaleGranularity granularity = ScaleGranularity::tensor;  ///< rows and columns: amax only
    /// Blocks that share a scale, of the operand's own elements: amax only, in place of `granularity`. `along` counts
    /// along the contracted dimension of the product at hand, `across` the lines beside each other.
    std::optional<BlockFormat> blocks{};

    /// The operand has one bias.
    [[nodiscard]] constexpr bool by_tensor() const noexcept {
        return granularity == ScaleGranularity::tensor && !blocks;
    }
    /// The operand has one bias, and it follows from magnitudes, less the margin.
    [[nodiscard]] constexpr bool has_measured_bias() const noexcept {
        return by_tensor() && (source == ScaleSource::amax || source == ScaleSource::delayed);
    }
    friend constexpr bool operator==(const ScaleRule&, const ScaleRule&) = default;
};

/// Error, in the name of `what`: a rule that makes no sense.
inline void check_rule(std::string_view what, const ScaleRule& rule) {
    check(rule.granularity == ScaleGranularity::tensor || rule.source == ScaleSource::amax, what, ": scale by ",
          name(rule.granularity), " needs the source amax; it is ", name(rule.source));
    if (rule.blocks) {
        check(rule.source == ScaleSource::amax, what, ": blocks need the source amax; it is ", name(rule.source));
        check(rule.granularity == ScaleGranularity::tensor && rule.margin == 0, what,
              ": blocks exclude a granularity and a margin");
        if (const auto fault = problem(*rule.blocks); !fault.empty()) fail(what, ": blocks: ", fault);
    }
    check(rule.source != ScaleSource::delayed || rule.history >= 1, what, ": history is 0; expected at least 1");
    check(rule.bias >= -300 && rule.bias <= 300, what, ": bias is ", rule.bias, "; expected a number in [-300,300]");
    check(rule.margin >= -300 && rule.margin <= 300, what, ": margin is ", rule.margin,
          "; expected a number in [-300,300]");
}

/// floor(log2(max / amax)) - margin for the format's largest number, by exponents and significands, not by a logarithm.
/// With margin 0 this is the largest bias that leaves amax within the format. amax 0, infinite or NaN: 0.
[[nodiscard]] constexpr int amax_bias(const FloatFormat& format, float amax, int margin) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(amax) & 0x7FFFFFFFu;
    if (bits == 0 || bits >= 0x7F800000u) return 0;
    // Each number as 2^exponent (1 + fraction 2^-23); subnormals of float are shifted up first.
    const auto parts = [](std::uint32_t b) {
        int exponent = static_cast<int>(b >> 23) - 127;
        std::uint32_t fraction = b & 0x7FFFFFu;
        if (exponent == -127) {
            const int shift = std::countl_zero(fraction) - 8;
            fraction = (fraction << shift) & 0x7FFFFFu;
            exponent = -126 - shift;
        }
        return std::array<std::int64_t, 2>{exponent, fraction};
    };
    const auto top = parts(std::bit_cast<std::uint32_t>(format.max())), now = parts(bits);
    return static_cast<int>(top[0] - now[0]) - (now[1] > top[1] ? 1 : 0) - margin;
}

/// The format with numbers 2^-bias times the numbers of `format`: rounding x to it is rounding x 2^bias to `format`.
/// The bias is limited so that every number is a normal bf16 (with up to 8 bits of significand) or a number of float.
[[nodiscard]] constexpr FloatFormat shifted(FloatFormat format, int bias) noexcept {
    const int lowest = format.mantissa_bits <= 7 && format.quantum_exponent() >= -126 ? -126 : -149;
    format.bias += std::clamp(bias, format.max_exponent() - 127, format.quantum_exponent() - lowest);
    return format;
}

}  // namespace unitscale
