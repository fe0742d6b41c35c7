// SPDX-License-Identifier: MIT
#include <unitscale/io/json_text.hpp>

#include "support/catch.hpp"

using namespace unitscale;
using Json = nlohmann::ordered_json;

TEST_CASE("json text: a value, without what the callback leaves out") {
    CHECK(io::parse_json<Json>("text", "[1, [2]]") == Json({1, Json::array({2})}));
    const auto shallow = [](int depth, auto, const auto&) { return depth < 1; };
    CHECK(io::parse_json<Json>("text", "{\"a\": [2]}", shallow).dump() == "{}");
}

TEST_CASE("json text: a fault is one line with the text's name and the place") {
    CHECK_THROWS_WITH(io::parse_json<Json>("text", "{"), "text is not JSON: error at byte 2, line 1");
    CHECK_THROWS_WITH(io::parse_json<Json>("text", ""), "text is not JSON: error at byte 1, line 1");
    CHECK_THROWS_WITH(io::parse_json<Json>("text", "{\n\"a\": 1,\n\"b\" 2}"),
                      "text is not JSON: error at byte 15, line 3");
    CHECK_THROWS_WITH(io::parse_json<Json>("text", "[1e999]"), "text has a number that is too large");
}
