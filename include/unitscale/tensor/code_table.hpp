// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/code.hpp>
#include <unitscale/formats/format.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace unitscale {

/// The numbers that the codes of a format of at most 8 bits stand for. Bits of a byte above the format's bits are
/// ignored. Test: tests/tensor/code_table_test.cpp
template <class P>
struct CodeTable {
    FloatFormat format;
    std::array<P, 256> values;

    // For vectors: the upper halves of the floats of codes 0 to 127. `has_words` says that these halves are sufficient.
    // It requires that the lower halves are 0 and that the codes above 127 differ by the sign bit only. For one code
    // the resulting word may be wrong: a negative NaN, or NaN in place of -0. That word is `wrong_word`; it is replaced
    // by `nan_word`.
    static constexpr std::uint16_t nan_word = quiet_nan_word >> 16;
    bool has_words = false;
    std::uint16_t sign_word = 0;          ///< 0x8000, or 0 if there is no code above 127
    std::uint16_t wrong_word = nan_word;  ///< nan_word: no word is wrong
    alignas(64) std::array<std::uint16_t, 128> words{};

    explicit CodeTable(const FloatFormat& of) : format(of) {
        std::array<std::uint8_t, 256> codes;
        std::array<float, 256> floats;
        for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
        decode(format, std::span<const std::uint8_t>(codes), std::span<float>(floats));
        std::copy(floats.begin(), floats.end(), values.begin());
        if (format.code_bits() == 8) {
            sign_word = 0x8000;
            wrong_word = format.has_negative_zero() ? nan_word | 0x8000 : 0x8000;
        }
        has_words = true;
        for (std::size_t i = 0; i < 256; ++i) {
            const auto bits = std::bit_cast<std::uint32_t>(floats[i]);
            if (i < 128) words[i] = static_cast<std::uint16_t>(bits >> 16);
            const std::uint32_t word = words[i % 128] | (i < 128 ? 0u : sign_word);
            const std::uint32_t seen = word == wrong_word ? nan_word : word;
            has_words = has_words && seen << 16 == bits && (i > 0 || bits == 0);
        }
    }
};

}  // namespace unitscale
