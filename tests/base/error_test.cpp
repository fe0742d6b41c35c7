// SPDX-License-Identifier: MIT
#include <unitscale/base/error.hpp>

#include "support/catch.hpp"

#include <string_view>

using namespace unitscale;

TEST_CASE("an error's message is its parts in order") {
    REQUIRE_THROWS_WITH(fail("matmul: x [", 2, ',', 3, "] has ", 0.5, std::string_view(" halves")),
                        "matmul: x [2,3] has 0.5 halves");
    REQUIRE(concatenate("a", 1, 'b', std::string("c")) == "a1bc");
}

TEST_CASE("check throws only when its condition fails") {
    REQUIRE_NOTHROW(check(true, "never said"));
    REQUIRE_THROWS_WITH(check(1 > 2, "op: ", 1, " > ", 2, " is false"), "op: 1 > 2 is false");
}

TEST_CASE("an error is a std::invalid_argument") {
    REQUIRE_THROWS_AS(fail("x"), Error);
    REQUIRE_THROWS_AS(fail("x"), std::invalid_argument);
}
