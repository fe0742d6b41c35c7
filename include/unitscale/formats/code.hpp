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

/// A kernel of quantise, its results packed.
template <class Kernel>
struct RoundAndPack {
    static constexpr int random_bits = Kernel::random_bits;
    struct Constants {
        QuantiseConstants rounding;
        CodeConstants packing;
    };
    [[nodiscard]] static constexpr Constants constants(const FloatFormat& format, const QuantiseOptions& options) noexcept {
        return {quantise_constants(format, options), code_constants(format)};
    }
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const Constants& c, std::uint32_t word, std::uint32_t random) noexcept {
        return pack_word(c.packing, Kernel::apply(c.rounding, word, random));
    }
};

/// The common case in the fewest instructions: nearest even, saturating, signed, with mantissa bits, a byte or less. |x| is made
/// a code with 24 bits after the point, exactly from half the smallest number up, and that is rounded.
struct NearestByte {
    static constexpr int random_bits = 0;
    struct Constants {
        std::int32_t largest = 0, subnormal_limit = 0;  ///< magnitudes as float words
        std::uint32_t offset = 0;                       ///< of the exponent field, in place in a float
        int shift = 0;                                  ///< M + 1: from a float's point to 24 bits
        float scale = 0;                                ///< 2^24 / smallest
        int sign_shift = 0;
        std::uint32_t sign_mask = 0;
        std::uint32_t to_sign = 0;  ///< a code plus this has the sign's bit where a negative number keeps its sign
        std::uint32_t nan_code = 0;
    };
    [[nodiscard]] static constexpr bool serves(const FloatFormat& format, const QuantiseOptions& options) noexcept {
        return options.rounding == Rounding::nearest_even && options.overflow == Overflow::saturate && format.is_signed() &&
               format.mantissa_bits > 0 && format.code_bits() <= 8 && has_quantise_kernel(format) && format.min_exponent() > -126;
    }
    [[nodiscard]] static constexpr Constants constants(const FloatFormat& format, const QuantiseOptions&) noexcept {
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
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const Constants& c, std::uint32_t word, std::uint32_t) noexcept {
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

template <class Kernel, CodeWord Code>
void encode_chunks(Isa isa, const FloatFormat& format, const QuantiseOptions& options, std::span<const float> in, Code* codes) {
    const auto constants = Kernel::constants(format, options);
    if constexpr (Kernel::random_bits == 0) {
        quantise_dispatched<Kernel>(isa, constants, in.data(), codes, in.size());
    } else {
        constexpr std::size_t chunk = 1024;
        RandomPieces<RandomPiece<Kernel::random_bits>, chunk> pieces;
        for (std::size_t begin = 0; begin < in.size(); begin += chunk) {
            const std::size_t count = std::min(chunk, in.size() - begin);
            const auto* const random = pieces.fill(isa, options.key, options.first_index + begin, count);
            quantise_dispatched<Kernel>(isa, constants, in.data() + begin, codes + begin, count, random);
        }
    }
}

/// Encodes with the loops of one instruction set, which the processor must have: for tests and benchmarks.
template <CodeWord Code>
void encode_span(Isa isa, const FloatFormat& format, std::span<const float> in, std::span<Code> codes,
                 const QuantiseOptions& options = {}) {
    check_options("encode", format, options);
    check_spans("encode", in, codes.size());
    check_code_word<Code>("encode", format);
    check_no_nan("encode", format, in);
    if (!has_quantise_kernel(format)) {
        for (std::size_t i = 0; i < in.size(); ++i) codes[i] = static_cast<Code>(encode(format, in[i], options, i));
    } else if (sizeof(Code) == 1 && NearestByte::serves(format, options)) {
        encode_chunks<NearestByte>(isa, format, options, in, codes.data());
    } else {
        with_quantise_kernel(format, options, [&](auto kernel) {
            encode_chunks<RoundAndPack<decltype(kernel)>>(isa, format, options, in, codes.data());
        });
    }
}

/// codes[i] = the code of in[i] rounded to the format: `quantise`, then packed. Random words as there. The same codes for every
/// instruction set.
/// Errors: as `quantise`; the format's codes do not fit the code type.
template <CodeWord Code>
void encode(const FloatFormat& format, std::span<const float> in, std::span<Code> codes, const QuantiseOptions& options = {}) {
    encode_span(active_isa(), format, in, codes, options);
}

/// out = the floats of `count` codes, of whose bits `mask` counts.
template <CodeWord Code>
UNITSCALE_INLINE void decode_loop(const CodeConstants& constants, std::uint32_t mask, const Code* codes, float* out,
                                  std::size_t count) noexcept {
    const CodeConstants c = constants;
    Code tail[quantise_block] = {};
    float tail_values[quantise_block] = {};
    for (std::size_t begin = 0; begin < count; begin += quantise_block) {
        const std::size_t left = count - begin;
        const bool whole = left >= quantise_block;
        if (!whole)
            for (std::size_t i = 0; i < left; ++i) tail[i] = codes[begin + i];
        const Code* from = whole ? codes + begin : tail;
        float* to = whole ? out + begin : tail_values;
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
        for (std::size_t i = 0; i < quantise_block; ++i) to[i] = std::bit_cast<float>(unpack_word(c, from[i] & mask));
        if (!whole)
            for (std::size_t i = 0; i < left; ++i) out[begin + i] = tail_values[i];
    }
}
template <CodeWord Code>
UNITSCALE_TARGET_AVX512 void decode_avx512(const CodeConstants& constants, std::uint32_t mask, const Code* codes, float* out,
                                           std::size_t count) noexcept {
    decode_loop(constants, mask, codes, out, count);
}
template <CodeWord Code>
UNITSCALE_TARGET_AVX2 void decode_avx2(const CodeConstants& constants, std::uint32_t mask, const Code* codes, float* out,
                                       std::size_t count) noexcept {
    decode_loop(constants, mask, codes, out, count);
}

/// Decodes with the loops of one instruction set, which the processor must have: for tests and benchmarks.
template <CodeWord Code>
void decode_span(Isa isa, const FloatFormat& format, std::span<const Code> codes, std::span<float> out) {
    if (const auto message = problem(format); !message.empty()) fail("decode: format: ", message);
    check_spans("decode", codes, out.size());
    check_code_word<Code>("decode", format);
    const auto mask = static_cast<std::uint32_t>(format.code_count() - 1);
    if (!has_quantise_kernel(format)) {
        for (std::size_t i = 0; i < codes.size(); ++i) out[i] = decode(format, codes[i] & mask);
        return;
    }
    const CodeConstants constants = code_constants(format);
    if (isa == Isa::avx512) decode_avx512(constants, mask, codes.data(), out.data(), codes.size());
    else if (isa == Isa::avx2) decode_avx2(constants, mask, codes.data(), out.data(), codes.size());
    else decode_loop(constants, mask, codes.data(), out.data(), codes.size());
}

/// out[i] = the number that codes[i] stands for. Bits of a code word above the format's are ignored.
/// Errors: sizes differ; the format's codes do not fit the code type.
template <CodeWord Code>
void decode(const FloatFormat& format, std::span<const Code> codes, std::span<float> out) {
    decode_span(active_isa(), format, codes, out);
}

}  // namespace unitscale
