// SPDX-License-Identifier: MIT
#include <unitscale/io/tokeniser.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale::io;

TEST_CASE("bytes are tokens of their own values") {
    const ByteTokeniser bytes;
    const Tokeniser& tokens = bytes;
    REQUIRE(tokens.size() == 256);
    REQUIRE(tokens.encode("a\n\xff") == std::vector<std::int32_t>{97, 10, 255});
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
    REQUIRE(tokens.decode(tokens.encode(all)) == all);
    REQUIRE(tokens.id_of("\x80") == 128);
    REQUIRE_FALSE(tokens.id_of("ab").has_value());
    REQUIRE_FALSE(tokens.id_of("").has_value());
    REQUIRE_FALSE(tokens.begin_of_text().has_value());
    REQUIRE_FALSE(tokens.end_of_text().has_value());
    REQUIRE(tokens.to_text() == "bytes");
}

TEST_CASE("an id outside the bytes is an error with its position") {
    REQUIRE_THROWS_WITH(ByteTokeniser().decode(std::vector<std::int32_t>{1, 256}),
                        "bytes: id 256 at position 1; expected 0 to 255");
    REQUIRE_THROWS_WITH(ByteTokeniser().decode(std::vector<std::int32_t>{-1}),
                        "bytes: id -1 at position 0; expected 0 to 255");
}
