// SPDX-License-Identifier: MIT
#include <unitscale/report/json_text.hpp>

#include "support/catch.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <string>

using unitscale::report::JsonText;

TEST_CASE("json text: objects, lists, numbers and truth, with commas where they belong") {
    JsonText json;
    json.open('{').member("step", 1).member("rms", 0.1).key("shape").open('[').value(2U).value(3U).close(']');
    json.key("empty").open('[').close(']').key("inner").open('{').close('}').key("flags").open('[').value(true).value(
        false);
    json.null().close(']').close('}').newline().open('[').value("x").value(std::int64_t{-5}).close(']');
    CHECK(json.text() ==
          "{\"step\":1,\"rms\":0.1,\"shape\":[2,3],\"empty\":[],\"inner\":{},\"flags\":[true,false,null]}\n[\"x\",-5]");
}

TEST_CASE("json text: numbers read back the same; those that JSON does not have are null") {
    for (const double x : {0.1, 1e300, -5e-324, 1.0 / 3.0, 65504.0, 0.0})
        CHECK(nlohmann::json::parse(JsonText().value(x).text()).get<double>() == x);
    CHECK(JsonText().value(std::numeric_limits<double>::infinity()).text() == "null");
    CHECK(JsonText().value(std::numeric_limits<double>::quiet_NaN()).text() == "null");
}

TEST_CASE("json text: any string reads back the same and cannot end a script") {
    const std::string nasty = "</script><b>\"quoted\" \\ & \n\t\x01 \xc3\xa9";
    const std::string text = JsonText().open('{').member(nasty, nasty).close('}').text();
    CHECK(nlohmann::json::parse(text).at(nasty).get<std::string>() == nasty);
    CHECK(text.find('<') == std::string::npos);
    CHECK(text.find('&') == std::string::npos);
}
