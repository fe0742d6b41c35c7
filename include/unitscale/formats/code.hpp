// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/formats/quantise_kernels.hpp>
#include <unitscale/formats/rounding.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace unitscale {

/// The code of a rounded number: the sign bit above the magnitude code. There is one NaN code, `nan_code()`.
[[nodiscard]] constexpr std::uint32_t code_of(const FloatFormat& format, const Rounded& rounded) noexcept {
    const std::uint32_t sign = rounded.negative ? format.sign_mask() : 0;
    if (rounded.kind == Rounded::Kind::nan) return format.nan_code();
    return (rounded.kind == Rounded::Kind::infinity ? format.infinity_code() : rounded.code) | sign;
}

/// The code that x, float or double, rounds to; `index` as for `quantise`. NaN to a format without NaN is an Error.
/// Test: tests/formats/code_test.cpp
template <std::floating_point Float>
[[nodiscard]] constexpr std::uint32_t encode(const FloatFormat& format, Float x, const QuantiseOptions& options = {},
                                             std::uint64_t index = 0) {
    const bool stochastic = options.rounding == Rounding::stochastic;
    const std::uint32_t random = stochastic ? random_piece(options, index) : 0;
    const Rounded rounded = round_to(format, x, options.rounding, options.overflow, options.bits, random);
    if (rounded.kind == Rounded::Kind::nan && !format.has_nan()) {
        check_options("encode", format, options);
        fail("encode: ", name(format), " has no NaN: element ", index, " of the input is NaN");
    }
    return code_of(format, rounded);
}

/// The number that a code stands for. Every NaN code gives the positive quiet NaN. Error: the code has too many bits.
/// Test: tests/formats/code_test.cpp
[[nodiscard]] constexpr float decode(const FloatFormat& format, std::uint32_t code) {
    if (code >= format.code_count())
        fail("decode: code ", code, " does not fit the ", format.code_bits(), " bits of ", name(format));
    const std::uint32_t magnitude = code & format.top_code();
    const bool negative = (code & format.sign_mask()) != 0;
    if (format.is_signed() && !format.has_negative_zero() && negative && magnitude == 0)
        return std::numeric_limits<float>::quiet_NaN();
    if (magnitude > format.max_code()) {
        const bool infinite = format.has_infinity() && magnitude == format.infinity_code();
        return value_of<float>(format, {infinite ? Rounded::Kind::infinity : Rounded::Kind::nan, negative, 0});
    }
    return format.magnitude<float>(magnitude, negative);
}

/// Whether a type can hold the codes of spans.
template <class Code>
concept CodeWord = std::same_as<Code, std::uint8_t> || std::same_as<Code, std::uint16_t>;

template <CodeWord Code>
void check_code_word(std::string_view operation, const FloatFormat& format) {
    constexpr int width = std::numeric_limits<Code>::digits;
    check(format.code_bits() <= width, operation, ": codes of ", name(format), " take ", format.code_bits(), " bits, not ",
          width);
}

/// The constants of the loops between codes and values. A normal magnitude is a shift and a sum away from its code; a
/// subnormal one is the code times the smallest number, exactly.
struct CodeConstants {
    int shift = 0;                     ///< 23 - M
    std::uint32_t offset = 0;          ///< of the exponent field, in place in a float
    std::int32_t subnormal_limit = 0;  ///< magnitudes below (as float words) are subnormal; 0 in float's own range
    std::int32_t subnormal_codes = 0;  ///< magnitude codes below are subnormal
    float smallest = 0;
    float inverse_smallest = 0;
    int sign_shift = 0;  ///< from a float's sign bit to the code's
    std::uint32_t sign_mask = 0;
    std::uint32_t magnitude_mask = 0;
    std::int32_t max_code = 0;
    std::int32_t infinity_code = -1;  ///< -1: none
    std::uint32_t nan_code = 0;
    std::uint32_t nan_at_negative_zero = ~0u;  ///< that code, or one that is none
};

[[nodiscard]] constexpr CodeConstants code_constants(const FloatFormat& format) noexcept {
    CodeConstants c;
    const bool float_range = format.min_exponent() == -126;
    c.shift = 23 - format.mantissa_bits;
    c.offset = static_cast<std::uint32_t>(127 - format.bias) << 23;
    c.smallest = format.min_subnormal();
    if (!float_range) {
        c.subnormal_limit = std::bit_cast<std::int32_t>(format.min_normal());
        c.subnormal_codes = 1 << format.mantissa_bits;
        c.inverse_smallest = compose<float>(false, 1, -format.quantum_exponent());
    }
    c.sign_shift = 31 - format.magnitude_bits();
    c.sign_mask = format.sign_mask();
    c.magnitude_mask = format.top_code();
    c.max_code = static_cast<std::int32_t>(format.max_code());
    if (format.has_infinity()) c.infinity_code = static_cast<std::int32_t>(format.infinity_code());
    if (format.has_nan()) c.nan_code = format.nan_code();
    if (format.is_signed() && !format.has_negative_zero()) c.nan_at_negative_zero = format.sign_mask();
    return c;
}

/// The code of a float word whose value is one of the format's.
UNITSCALE_INLINE constexpr std::uint32_t pack_word(const CodeConstants& c, std::uint32_t word) noexcept {
    const auto a = static_cast<std::int32_t>(word & ~sign_word);
    const std::uint32_t is_small = mask_less(a, c.subnormal_limit);
    const float small_value = std::bit_cast<float>(static_cast<std::uint32_t>(a) & is_small);
    const auto small_code = static_cast<std::uint32_t>(static_cast<std::int32_t>(small_value * c.inverse_smallest));
    std::uint32_t code = select_word(is_small, small_code, (static_cast<std::uint32_t>(a) - c.offset) >> c.shift);
    code = select_word(mask_less(infinity_magnitude - 1, a), static_cast<std::uint32_t>(c.infinity_code), code);
    code |= ((word & sign_word) >> c.sign_shift) & c.sign_mask;
    return select_word(mask_less(infinity_magnitude, a), c.nan_code, code);
}

/// The float word of a code.
UNITSCALE_INLINE constexpr std::uint32_t unpack_word(const CodeConstants& c, std::uint32_t code) noexcept {
    const auto magnitude = static_cast<std::int32_t>(code & c.magnitude_mask);
    const std::uint32_t is_small = mask_less(magnitude, c.subnormal_codes);
    const auto small_code = static_cast<std::int32_t>(static_cast<std::uint32_t>(magnitude) & is_small);
    const auto small_word = std::bit_cast<std::uint32_t>(static_cast<float>(small_code) * c.smallest);
    std::uint32_t word = select_word(is_small, small_word, (static_cast<std::uint32_t>(magnitude) << c.shift) + c.offset);
    word = select_word(0u - static_cast<std::uint32_t>(magnitude == c.infinity_code), infinity_word, word);
    word |= (code & c.sign_mask) << c.sign_shift;
    const bool above = magnitude > c.max_code && magnitude != c.infinity_code;
    return select_word(0u - static_cast<std::uint32_t>(above | (code == c.nan_at_negative_zero)), quiet_nan_word, word);
}

/// codes[i] = the code of in[i] rounded to the format: `quantise`, then packed. Random words as there.
/// Errors: as `quantise`; the format's codes do not fit the code type.
template <CodeWord Code>
void encode(const FloatFormat& format, std::span<const float> in, std::span<Code> codes, const QuantiseOptions& options = {}) {
    check_options("encode", format, options);
    check_spans("encode", in, codes.size());
    check_code_word<Code>("encode", format);
    check_no_nan("encode", format, in);
    if (!has_quantise_kernel(format)) {
        for (std::size_t i = 0; i < in.size(); ++i) codes[i] = static_cast<Code>(encode(format, in[i], options, i));
        return;
    }
    const CodeConstants constants = code_constants(format);
    QuantiseOptions chunk_options = options;
    std::array<float, 1024> values{};
    for (std::size_t begin = 0; begin < in.size(); begin += values.size()) {
        const std::size_t count = std::min(values.size(), in.size() - begin);
        chunk_options.first_index = options.first_index + begin;
        quantise(format, in.subspan(begin, count), std::span(values).first(count), chunk_options);
        std::array<Code, values.size()> packed;
        for (std::size_t i = 0; i < values.size(); ++i)
            packed[i] = static_cast<Code>(pack_word(constants, std::bit_cast<std::uint32_t>(values[i])));
        std::copy_n(packed.begin(), count, codes.begin() + static_cast<std::ptrdiff_t>(begin));
    }
}

/// out[i] = the number that codes[i] stands for. Bits of a code word above the format's are ignored.
/// Errors: sizes differ; the format's codes do not fit the code type.
template <CodeWord Code>
void decode(const FloatFormat& format, std::span<const Code> codes, std::span<float> out) {
    if (const auto message = problem(format); !message.empty()) fail("decode: format: ", message);
    check_spans("decode", codes, out.size());
    check_code_word<Code>("decode", format);
    const auto mask = static_cast<std::uint32_t>(format.code_count() - 1);
    if (!has_quantise_kernel(format)) {
        for (std::size_t i = 0; i < codes.size(); ++i) out[i] = decode(format, codes[i] & mask);
        return;
    }
    const CodeConstants constants = code_constants(format);
    std::array<Code, 256> block{};
    std::array<float, block.size()> values;
    for (std::size_t begin = 0; begin < codes.size(); begin += block.size()) {
        const std::size_t count = std::min(block.size(), codes.size() - begin);
        std::copy_n(codes.begin() + static_cast<std::ptrdiff_t>(begin), count, block.begin());
        for (std::size_t i = 0; i < block.size(); ++i) values[i] = std::bit_cast<float>(unpack_word(constants, block[i] & mask));
        std::copy_n(values.begin(), count, out.begin() + static_cast<std::ptrdiff_t>(begin));
    }
}

}  // namespace unitscale
