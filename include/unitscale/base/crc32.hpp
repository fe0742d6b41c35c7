// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace unitscale {

/// table[0][b] is the remainder of byte b; table[s][b] that of byte b with s bytes of zeros behind it.
inline constexpr std::array<std::array<std::uint32_t, 256>, 8> crc32_tables = [] {
    std::array<std::array<std::uint32_t, 256>, 8> tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t rest = byte;
        for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1u) != 0 ? 0xEDB88320u : 0u);
        tables[0][byte] = rest;
    }
    for (std::size_t s = 1; s < tables.size(); ++s)
        for (std::size_t byte = 0; byte < 256; ++byte)
            tables[s][byte] = (tables[s - 1][byte] >> 8) ^ tables[0][tables[s - 1][byte] & 0xFFu];
    return tables;
}();

/// The CRC-32 of zlib, gzip and Python's `zlib.crc32`: polynomial 0xEDB88320, bits reflected. It finds every error of
/// at most 32 neighbouring bits. `before`: the result for the bytes in front, for data in pieces.
/// Eight bytes at a time, in eight tables (slicing by eight). Test: tests/base/crc32_test.cpp
[[nodiscard]] constexpr std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept {
    const auto& t = crc32_tables;
    std::uint32_t rest = ~before;
    std::size_t i = 0;
    const auto byte = [&](std::size_t at) { return std::to_integer<std::uint32_t>(bytes[at]); };
    for (; i + 8 <= bytes.size(); i += 8) {
        const std::uint32_t low = rest ^ (byte(i) | byte(i + 1) << 8 | byte(i + 2) << 16 | byte(i + 3) << 24);
        rest = t[7][low & 0xFFu] ^ t[6][low >> 8 & 0xFFu] ^ t[5][low >> 16 & 0xFFu] ^ t[4][low >> 24] ^
               t[3][byte(i + 4)] ^ t[2][byte(i + 5)] ^ t[1][byte(i + 6)] ^ t[0][byte(i + 7)];
    }
    for (; i < bytes.size(); ++i) rest = (rest >> 8) ^ t[0][(rest ^ byte(i)) & 0xFFu];
    return ~rest;
}

}  // namespace unitscale
