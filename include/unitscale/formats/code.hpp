// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/formats/quantise_kernels.hpp>
#include <unitscale/formats/quantise_loops.hpp>
#include <unitscale/formats/random_words.hpp>
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

/// The code of x (float or double) rounded to the format. `index` is the element number, as for `quantise`. Error: NaN
/// to a format without NaN.
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
    if (format.code_bits() > width)
        fail(operation, ": codes of ", name(format), " take ", format.code_bits(), " bits, not ", width);
}

/// `encode` and `decode` out of line, for spans of formats without a loop, which few programs have.
[[nodiscard, gnu::noinline]] inline std::uint32_t encode_rarely(const FloatFormat& format, float x,
                                                                const QuantiseOptions& options, std::uint64_t index) {
    return encode(format, x, options, index);
}
[[nodiscard, gnu::noinline]] inline float decode_rarely(const FloatFormat& format, std::uint32_t code) {
    return decode(format, code);
}

/// The constants of the loops between codes and values. A magnitude code is "in place" when it is shifted left to the
/// position of a float's significand. The float word of a normal number is a sum away from its code in place, and a
/// subnormal number an exact product.
struct CodeConstants {
    int shift = 0;                     ///< 23 - M: moves a code to its place
    std::uint32_t magnitude_mask = 0;  ///< mask of a magnitude code in place
    std::uint32_t offset = 0;          ///< added to a code in place: the difference of the exponent fields
    std::int32_t subnormal_place = 0;  ///< codes in place below it are subnormal; 0 in float's own range
    std::int32_t subnormal_limit = 0;  ///< magnitudes (float words) below it are subnormal; 0 in float's own range
    float place_scale = 0;             ///< subnormal code in place times this = its value
    float inverse_smallest = 0;        ///< subnormal value times this = its code
    std::int32_t infinity_place = -1;  ///< the code of infinity in place; -1: none
    std::int32_t last_place = 0;       ///< codes in place above it are NaN
    std::int32_t largest_word = 0;     ///< infinity as if it were finite: the limit of words before the shift
    int sign_shift = 0;                ///< moves a float's sign bit to the code's
    std::uint32_t sign_mask = 0;       ///< sign bit of a code
    std::uint32_t float_sign = 0;      ///< sign bit of a float; 0 when unsigned
    std::uint32_t nan_code = 0;
    std::uint32_t nan_at_word = ~0u;  ///< the word of -0 where its code means NaN, else a word of no code
};

[[nodiscard]] constexpr CodeConstants code_constants(const FloatFormat& format) noexcept {
    CodeConstants c;
    const bool float_range = format.min_exponent() == -126;
    c.shift = 23 - format.mantissa_bits;
    c.magnitude_mask = format.top_code() << c.shift;
    c.offset = static_cast<std::uint32_t>(127 - format.bias) << 23;
    if (!float_range) {
        c.subnormal_place = 1 << 23;
        c.subnormal_limit = std::bit_cast<std::int32_t>(format.min_normal());
        c.place_scale = compose<float>(false, 1, format.quantum_exponent() - c.shift);
        c.inverse_smallest = compose<float>(false, 1, -format.quantum_exponent());
    }
    c.last_place = static_cast<std::int32_t>(format.max_code() << c.shift);
    c.largest_word = infinity_magnitude;
    if (format.has_infinity()) {
        const std::uint32_t place = format.infinity_code() << c.shift;
        c.infinity_place = c.last_place = static_cast<std::int32_t>(place);
        c.largest_word = static_cast<std::int32_t>(place + c.offset);
    }
    c.sign_shift = 31 - format.magnitude_bits();
    c.sign_mask = format.sign_mask();
    c.float_sign = format.is_signed() ? sign_word : 0;
    if (format.has_nan()) c.nan_code = format.nan_code();
    if (format.is_signed() && !format.has_negative_zero()) c.nan_at_word = sign_word;
    return c;
}

/// The code of a float word. The word's value must be one of the format's.
UNITSCALE_INLINE constexpr std::uint32_t pack_word(const CodeConstants& c, std::uint32_t word) noexcept {
    const auto a = static_cast<std::int32_t>(word & ~sign_word);
    const std::uint32_t is_small = mask_less(a, c.subnormal_limit);
    const float small_value = std::bit_cast<float>(static_cast<std::uint32_t>(a) & is_small);
    const auto small_code = static_cast<std::uint32_t>(static_cast<std::int32_t>(small_value * c.inverse_smallest));
    const auto bounded = static_cast<std::uint32_t>(a > c.largest_word ? c.largest_word : a);
    std::uint32_t code = select_word(is_small, small_code, (bounded - c.offset) >> c.shift);
    code |= (word >> c.sign_shift) & c.sign_mask;
    return select_word(mask_less(infinity_magnitude, a), c.nan_code, code);
}

/// The float word of a code. Bits above the format's are ignored.
UNITSCALE_INLINE constexpr std::uint32_t unpack_word(const CodeConstants& c, std::uint32_t code) noexcept {
    const auto place = static_cast<std::int32_t>((code << c.shift) & c.magnitude_mask);
    const std::uint32_t is_small = mask_less(place, c.subnormal_place);
    const auto small_place = static_cast<std::int32_t>(static_cast<std::uint32_t>(place) & is_small);
    const auto small_word = std::bit_cast<std::uint32_t>(static_cast<float>(small_place) * c.place_scale);
    std::uint32_t word = select_word(is_small, small_word, static_cast<std::uint32_t>(place) + c.offset);
    word = select_word(0u - static_cast<std::uint32_t>(place == c.infinity_place), infinity_word, word);
    word |= (code << c.sign_shift) & c.float_sign;
    const std::uint32_t is_nan =
        mask_less(c.last_place, place) | (0u - static_cast<std::uint32_t>(word == c.nan_at_word));
    return select_word(is_nan, quiet_nan_word, word);
}

/// The kernels between a format's own values and their codes.
template <CodeWord Code>
struct Pack : LoopKernel<CodeConstants, float, Code, NoPiece, true, false> {
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const CodeConstants& c, std::uint32_t word,
                                                          std::uint32_t) noexcept {
        return pack_word(c, word);
    }
};
template <CodeWord Code>
struct Unpack : LoopKernel<CodeConstants, Code, float, NoPiece, true, false> {
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const CodeConstants& c, std::uint32_t code,
                                                          std::uint32_t) noexcept {
        return unpack_word(c, code);
    }
};

/// Constants of NearestByte.
struct NearestByteConstants {
    std::int32_t largest = 0, subnormal_limit = 0;  ///< magnitudes as float words
    std::uint32_t offset = 0;  ///< subtracted from a float word: the difference of the exponent fields
    int shift = 0;             ///< M + 1: from a float word to a code with 24 bits after the point
    float scale = 0;           ///< 2^24 / smallest
    int sign_shift = 0;
    std::uint32_t sign_mask = 0;
    std::uint32_t to_sign = 0;  ///< a code plus this has the sign bit set where a negative number keeps its sign
    std::uint32_t nan_code = 0;
};

/// The common case in the fewest instructions: nearest even, saturating, signed, with mantissa bits, a byte or less.
/// |x| becomes a code with 24 bits after the point, exact from half the smallest number up. This code is then rounded.
struct NearestByte : LoopKernel<NearestByteConstants, float, std::uint8_t> {
    [[nodiscard]] static constexpr bool serves(const FloatFormat& format, const QuantiseOptions& options) noexcept {
        return options.rounding == Rounding::nearest_even && options.overflow == Overflow::saturate &&
               format.is_signed() && format.mantissa_bits > 0 && format.code_bits() <= 8 &&
               has_quantise_kernel(format) && format.min_exponent() > -126;
    }
    [[nodiscard]] static constexpr Constants constants(const FloatFormat& format) noexcept {
        const CodeConstants c = code_constants(format);
        return {std::bit_cast<std::int32_t>(format.max()),
                c.subnormal_limit,
                c.offset,
                format.mantissa_bits + 1,
                compose<float>(false, 1, 24 - format.quantum_exponent()),
                c.sign_shift,
                c.sign_mask,
                format.has_negative_zero() ? c.sign_mask : c.sign_mask - 1,
                c.nan_code};
    }
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const Constants& c, std::uint32_t word,
                                                          std::uint32_t) noexcept {
        const auto a = static_cast<std::int32_t>(word & ~sign_word);
        const std::int32_t bounded = a > c.largest ? c.largest : a;
        const std::uint32_t is_small = mask_less(bounded, c.subnormal_limit);
        const float small_value = std::bit_cast<float>(static_cast<std::uint32_t>(bounded) & is_small);
        const auto small_code = static_cast<std::uint32_t>(static_cast<std::int32_t>(small_value * c.scale));
        const std::uint32_t exact =
            select_word(is_small, small_code, (static_cast<std::uint32_t>(bounded) - c.offset) << c.shift);
        const std::uint32_t code = (exact + 0x7FFFFFu + ((exact >> 24) & 1u)) >> 24;
        const std::uint32_t with_sign = code | ((word >> c.sign_shift) & (code + c.to_sign) & c.sign_mask);
        return select_word(mask_less(infinity_magnitude, a), c.nan_code, with_sign);
    }
};

/// Encodes with the loops of one instruction set, which the processor must have. For tests and benchmarks.
template <CodeWord Code>
void encode_span(Isa isa, const FloatFormat& format, std::span<const float> in, std::span<Code> codes,
                 const QuantiseOptions& options = {}) {
    check_options("encode", format, options);
    check_spans("encode", in, codes.size());
    check_code_word<Code>("encode", format);
    check_no_nan("encode", format, in);
    if (!has_quantise_kernel(format)) {
        for (std::size_t i = 0; i < in.size(); ++i)
            codes[i] = static_cast<Code>(encode_rarely(format, in[i], options, i));
        return;
    }
    if constexpr (sizeof(Code) == 1)
        if (NearestByte::serves(format, options))
            return run_kernel<NearestByte>(isa, NearestByte::constants(format), in.data(), codes.data(), in.size());
    ChunkQuantiser chunks(isa, format, options);
    const CodeConstants packing = code_constants(format);
    alignas(64) std::array<float, random_chunk> values;
    for (std::size_t begin = 0; begin < in.size(); begin += random_chunk) {
        const std::size_t count = std::min(random_chunk, in.size() - begin);
        chunks.run(in.data() + begin, values.data(), count, begin);
        run_kernel<Pack<Code>>(isa, packing, values.data(), codes.data() + begin, count);
    }
}

/// codes[i] = the code of in[i] rounded to the format: `quantise`, then packed. Random words as for `quantise`. Every
/// instruction set gives equal codes.
/// Errors: as `quantise`; the format's codes do not fit the code type.
template <CodeWord Code>
void encode(const FloatFormat& format, std::span<const float> in, std::span<Code> codes,
            const QuantiseOptions& options = {}) {
    encode_span(active_isa(), format, in, codes, options);
}

/// Decodes with the loops of one instruction set, which the processor must have. For tests and benchmarks.
template <CodeWord Code>
void decode_span(Isa isa, const FloatFormat& format, std::span<const Code> codes, std::span<float> out) {
    if (const auto message = problem(format); !message.empty()) fail("decode: format: ", message);
    check_spans("decode", codes, out.size());
    check_code_word<Code>("decode", format);
    if (!has_quantise_kernel(format)) {
        const auto mask = static_cast<std::uint32_t>(format.code_count() - 1);
        for (std::size_t i = 0; i < codes.size(); ++i) out[i] = decode_rarely(format, codes[i] & mask);
        return;
    }
    run_kernel<Unpack<Code>>(isa, code_constants(format), codes.data(), out.data(), codes.size());
}

/// out[i] = the number that codes[i] stands for. Bits of a code word above the format's are ignored.
/// Errors: sizes differ; the format's codes do not fit the code type.
template <CodeWord Code>
void decode(const FloatFormat& format, std::span<const Code> codes, std::span<float> out) {
    decode_span(active_isa(), format, codes, out);
}

}  // namespace unitscale
