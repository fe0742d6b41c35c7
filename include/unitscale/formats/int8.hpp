// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/formats/rounding.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace unitscale {

/// The integers -127 to 127 as a format: with one exponent bit, subnormal and normal numbers have equal steps, here 1.
/// Symmetric: the code -128 of two's complement is not used.
inline constexpr FloatFormat int8_grid =
    make_format({.exponent_bits = 1, .mantissa_bits = 6, .bias = -5, .specials = Specials::none});

/// The scale that maps magnitudes up to amax onto -127 .. 127: amax / 127; 1 for amax = 0.
/// Error: amax negative, infinite or NaN.
[[nodiscard]] constexpr float int8_scale(float amax) {
    const auto bits = std::bit_cast<std::uint32_t>(amax);
    if (bits >= 0x7F800000u) fail("int8_scale: amax is ", amax, "; expected a finite number of at least 0");
    return bits == 0 ? 1.0f : static_cast<float>(static_cast<double>(amax) / 127.0);
}

/// 1/scale, the factor by which integers are made. Error, in the name of `operation`: the scale or its reciprocal is no
/// positive normal number of float.
[[nodiscard]] constexpr float int8_inverse(std::string_view operation, float scale) {
    constexpr std::uint32_t smallest = 0x00800000u;  // 2^-126; the reciprocal of a number up to 2^126 is normal too
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    if (bits < smallest || bits > 0x7E800000u) fail(operation, ": scale is ", scale, "; expected 2^-126 to 2^126");
    return static_cast<float>(1.0 / static_cast<double>(scale));
}

/// Calls `use(begin, q)` for spans q of integers, which in[begin], in[begin + 1], ... round to.
template <class Use>
void int8_chunks(std::string_view operation, std::span<const float> in, float scale, const QuantiseOptions& options,
                 Use&& use) {
    const float inverse = int8_inverse(operation, scale);
    check_options(operation, int8_grid, options);
    check_no_nan(operation, int8_grid, in);
    QuantiseOptions chunk_options = options;
    std::array<float, 1024> values;
    for (std::size_t begin = 0; begin < in.size(); begin += values.size()) {
        const auto chunk = std::span(values).first(std::min(values.size(), in.size() - begin));
        for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = in[begin + i] * inverse;
        chunk_options.first_index = options.first_index + begin;
        quantise(int8_grid, chunk, chunk, chunk_options);
        use(begin, std::span<const float>(chunk));
    }
}

/// codes[i] = in[i] (1/scale), rounded to an integer and kept within -127 .. 127: int8 with a scale, as integer matrix
/// products take it. If the scale is a power of two, the quotient is exact. Random words as for `quantise`. Where the
/// processor flushes subnormal numbers, subnormal elements of `in` count as zero.
/// Errors: sizes differ; NaN; a scale outside [2^-126, 2^126]. Test: tests/formats/int8_test.cpp
inline void encode_int8(std::span<const float> in, std::span<std::int8_t> codes, float scale,
                        const QuantiseOptions& options = {}) {
    check_spans("encode_int8", in, codes.size());
    int8_chunks("encode_int8", in, scale, options, [codes](std::size_t begin, std::span<const float> q) {
        for (std::size_t i = 0; i < q.size(); ++i) codes[begin + i] = static_cast<std::int8_t>(q[i]);
    });
}

/// out[i] = codes[i] scale. Errors: sizes differ; a scale outside [2^-126, 2^126].
inline void decode_int8(std::span<const std::int8_t> codes, std::span<float> out, float scale) {
    check_spans("decode_int8", codes, out.size());
    static_cast<void>(int8_inverse("decode_int8", scale));
    for (std::size_t i = 0; i < codes.size(); ++i) out[i] = static_cast<float>(codes[i]) * scale;
}

/// out[i] = the value of in[i] in int8 with the given scale: `encode_int8`, then `decode_int8`. in and out may share
/// memory.
/// Errors: as `encode_int8`. Test: tests/formats/int8_test.cpp
inline void quantise_int8(std::span<const float> in, std::span<float> out, float scale,
                          const QuantiseOptions& options = {}) {
    check_spans("quantise_int8", in, out.size());
    int8_chunks("quantise_int8", in, scale, options, [out, scale](std::size_t begin, std::span<const float> q) {
        for (std::size_t i = 0; i < q.size(); ++i) out[begin + i] = q[i] * scale;
    });
}

}  // namespace unitscale
