// SPDX-License-Identifier: MIT
#include <unitscale/base/error.hpp>

#include "support/catch.hpp"

#include <limits>
#include <sstream>
#include <string>
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

namespace {

template <class Number>
std::string streamed(Number number) {
    std::ostringstream out;
    out << number;
    return out.str();
}

}  // namespace

TEST_CASE("numbers are written as streams write them") {
    for (const double x : {0.0, -0.0, 0.1, -1.5, 1e-7, 123456.0, 1234567.0, 99999.95, 1e300, 5e-324, 2.0 / 3.0,
                           std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
        CHECK(concatenate(x) == streamed(x));
        CHECK(concatenate(static_cast<float>(x)) == streamed(static_cast<float>(x)));
    }
    for (const long long i :
         {0LL, 7LL, -7LL, std::numeric_limits<long long>::max(), std::numeric_limits<long long>::min()})
        CHECK(concatenate(i) == streamed(i));
    CHECK(concatenate(std::numeric_limits<unsigned long long>::max()) == "18446744073709551615");
    CHECK(concatenate(short{-3}, ' ', 4u, ' ', 5L, ' ', 6uL, ' ', true) == "-3 4 5 6 1");
}

TEST_CASE("lazy text is made for a message, and not for a check that holds") {
    static int made = 0;
    const int value = 5;
    const LazyText lazy{&value, [](std::string& text, const void* number) {
                            ++made;
                            text += '<' + std::to_string(*static_cast<const int*>(number)) + '>';
                        }};
    check(true, "never ", lazy);
    REQUIRE(made == 0);
    REQUIRE(concatenate("a", lazy, "b") == "a<5>b");
    REQUIRE_THROWS_WITH(check(false, lazy), "<5>");
    REQUIRE(made == 2);
}
