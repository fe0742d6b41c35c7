// SPDX-License-Identifier: MIT
#include <unitscale/base/crc32.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

std::uint32_t crc_of(const std::string& text, std::uint32_t before = 0) {
    return crc32(std::as_bytes(std::span<const char>(text)), before);
}

/// Bit by bit, as the polynomial is defined.
std::uint32_t by_bits(std::span<const std::byte> bytes) {
    std::uint32_t rest = 0xFFFFFFFFu;
    for (const std::byte b : bytes) {
        rest ^= std::to_integer<std::uint32_t>(b);
        for (int bit = 0; bit < 8; ++bit) rest = (rest & 1u) != 0 ? rest >> 1 ^ 0xEDB88320u : rest >> 1;
    }
    return ~rest;
}

}  // namespace

TEST_CASE("crc32: published values") {
    CHECK(crc_of("") == 0u);
    CHECK(crc_of("123456789") == 0xCBF43926u);  // the check value of the catalogue of CRCs
    CHECK(crc_of("The quick brown fox jumps over the lazy dog") == 0x414FA339u);
}

TEST_CASE("crc32: every length, in one piece and in two, as bit by bit") {
    std::vector<std::byte> bytes;
    for (std::size_t n = 0; n < 70; ++n) {
        CHECK(crc32(bytes) == by_bits(bytes));
        for (std::size_t cut = 0; cut <= n; cut += 5) {
            const std::span<const std::byte> all(bytes);
            CHECK(crc32(all.subspan(cut), crc32(all.first(cut))) == crc32(all));
        }
        bytes.push_back(static_cast<std::byte>((n * 151 + 7) & 0xFFu));
    }
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        std::vector<std::byte> flipped = bytes;
        flipped[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        CHECK(crc32(flipped) != crc32(bytes));
    }
}
