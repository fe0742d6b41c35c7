// SPDX-License-Identifier: MIT
#include <unitscale/formats/nibbles.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <vector>

using namespace unitscale;
using unitscale::test::error_of;

TEST_CASE("4-bit codes are packed with the first of a pair in the low half, and unpacked") {
    const std::vector<std::uint8_t> codes{1, 15, 8, 0, 7, 9, 3};
    std::vector<std::uint8_t> packed(4, 0xAA), back(7);
    pack_nibbles(codes, packed);
    CHECK(packed == std::vector<std::uint8_t>{0xF1, 0x08, 0x97, 0x03});
    unpack_nibbles(packed, back);
    CHECK(back == codes);
    pack_nibbles(std::span(codes).first(6), std::span(packed).first(3));
    unpack_nibbles(std::span(packed).first(3), std::span(back).first(6));
    CHECK(back == codes);
    pack_nibbles({}, {});
}

TEST_CASE("packing checks sizes and codes") {
    std::vector<std::uint8_t> codes{1, 2, 16}, packed(2);
    CHECK(error_of([&] { pack_nibbles(codes, packed); }) == "pack_nibbles: code 2 is 16; expected 0 to 15");
    CHECK(error_of([&] { pack_nibbles(codes, std::span(packed).first(1)); }) ==
          "pack_nibbles: 3 codes take 2 bytes, not 1");
    CHECK(error_of([&] { unpack_nibbles(packed, std::span(codes).first(1)); }) ==
          "unpack_nibbles: 1 codes take 1 bytes, not 2");
}
