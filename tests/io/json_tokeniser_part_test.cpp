// SPDX-License-Identifier: MIT
#include <unitscale/io/json_tokeniser_part.hpp>

#include "support/catch.hpp"

#include <array>
#include <string_view>

using unitscale::io::TokeniserPart;

namespace {
const TokeniserPart::Json json = TokeniserPart::Json::parse(
    R"({"type": "A", "flag": true, "none": null, "number": 3, "list": [{"a": 1}, 2], "inner": {"key": "b"}})");
}  // namespace

TEST_CASE("values of a part are read by their types") {
    const TokeniserPart part(json, "model");
    REQUIRE(part.type() == "A");
    REQUIRE(part.flag("flag", false));
    REQUIRE(part.flag("none", true));
    REQUIRE(part.flag("missing", true));
    REQUIRE(part.number("number") == 3);
    REQUIRE(part.has("flag"));
    REQUIRE_FALSE(part.has("none"));
    REQUIRE_FALSE(part.has("missing"));
    REQUIRE(part.part("inner").text("key") == "b");
    constexpr std::array<std::string_view, 2> names = {"a", "b"};
    REQUIRE(part.part("inner").choice("key", names) == 1);
    REQUIRE(part.place("inner") == "model.inner");
    REQUIRE(TokeniserPart(json, "").place("inner") == "inner");
    REQUIRE_NOTHROW(part.know({"type", "flag", "none", "number", "list", "inner"}));
}

TEST_CASE("another type, a missing key and an unknown key are named with their places") {
    const TokeniserPart part(json, "model");
    REQUIRE_THROWS_WITH(part.know({"type"}), "tokeniser: model: unknown key 'flag'");
    REQUIRE_THROWS_WITH(part.text("flag"), "tokeniser: model.flag is true; expected a text");
    REQUIRE_THROWS_WITH(part.flag("type", true), "tokeniser: model.type is \"A\"; expected true or false");
    REQUIRE_THROWS_WITH(part.number("type"),
                        "tokeniser: model.type is \"A\"; expected a whole number from 0 to below 2^31");
    REQUIRE_THROWS_WITH(part.at("missing"), "tokeniser: model has no key 'missing'");
    REQUIRE_THROWS_WITH(part.parts("list"), "tokeniser: model.list.1 is 2; expected an object");
    REQUIRE_THROWS_WITH(part.parts("type"), "tokeniser: model.type is \"A\"; expected a list");
    REQUIRE_THROWS_WITH(part.refuse_type("B or C"), "tokeniser: model: type 'A'; expected B or C");
    constexpr std::array<std::string_view, 2> names = {"a", "c"};
    REQUIRE_THROWS_WITH(part.part("inner").choice("key", names),
                        "tokeniser: model.inner.key is \"b\"; expected one of a, c");
}
