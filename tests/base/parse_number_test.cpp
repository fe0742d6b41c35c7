// SPDX-License-Identifier: MIT
#include <unitscale/base/parse_number.hpp>

#include "support/catch.hpp"

#include <string_view>

using unitscale::parse_number;

TEST_CASE("a text that is one decimal number is read to the nearest double") {
    CHECK(parse_number("180") == 180.0);
    CHECK(parse_number("-0.5") == -0.5);
    CHECK(parse_number("0.1") == 0.1);
    CHECK(parse_number("1e-3") == 1e-3);
    CHECK(parse_number("2.5E+10") == 2.5e10);
    CHECK(parse_number("9007199254740993") == 9007199254740992.0);  // a tie, to even
    CHECK(parse_number("1.7976931348623157e308") == 0x1.fffffffffffffp1023);
}

TEST_CASE("any other text is no number") {
    for (const std::string_view text :
         {"", " ", "1 ", " 1", "+1", "1,5", "1.5x", "0x10", "1e", "e5", "-", ".", "1.2.3", "--1", "1e999", "word"}) {
        CAPTURE(text);
        CHECK_FALSE(parse_number(text).has_value());
    }
    const std::string_view longer = "12345";
    CHECK(parse_number(longer.substr(1, 2)) == 23.0);  // no more than the text is read
}
