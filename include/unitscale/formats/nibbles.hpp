// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace unitscale {

/// 4-bit codes, two to a byte: the first of a pair in the low half. The last byte of an odd count has a zero half.
/// Errors: the sizes do not fit; a code of more than 4 bits. Test: tests/formats/nibbles_test.cpp
inline void pack_nibbles(std::span<const std::uint8_t> codes, std::span<std::uint8_t> packed) {
    check(packed.size() == (codes.size() + 1) / 2, "pack_nibbles: ", codes.size(), " codes take ",
          (codes.size() + 1) / 2, " bytes, not ", packed.size());
    for (std::size_t i = 0; i < codes.size(); ++i)
        check(codes[i] < 16, "pack_nibbles: code ", i, " is ", static_cast<int>(codes[i]), "; expected 0 to 15");
    for (std::size_t i = 0; i < packed.size(); ++i) {
        const std::uint8_t high = 2 * i + 1 < codes.size() ? codes[2 * i + 1] : std::uint8_t{0};
        packed[i] = static_cast<std::uint8_t>(codes[2 * i] | (high << 4));
    }
}

/// The codes of `pack_nibbles`. Error: the sizes do not fit.
inline void unpack_nibbles(std::span<const std::uint8_t> packed, std::span<std::uint8_t> codes) {
    check(packed.size() == (codes.size() + 1) / 2, "unpack_nibbles: ", codes.size(), " codes take ",
          (codes.size() + 1) / 2, " bytes, not ", packed.size());
    for (std::size_t i = 0; i < codes.size(); ++i)
        codes[i] = static_cast<std::uint8_t>(i % 2 == 0 ? packed[i / 2] & 15u : packed[i / 2] >> 4);
}

}  // namespace unitscale
