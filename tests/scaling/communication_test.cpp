// SPDX-License-Identifier: MIT
#include <unitscale/scaling/communication.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

using namespace unitscale;

TEST_CASE("a rule of communication scales the formats with fewer exponents than float") {
    CHECK(Communication{}.scales());
    CHECK(Communication{.element = {.format = fp16}}.scales());
    CHECK_FALSE(Communication{.element = {.format = fp32}}.scales());
    CHECK_FALSE(Communication{.element = {.format = bf16}}.scales());
    CHECK(Communication{} == Communication{.element = {.format = e4m3}});
    CHECK(Communication{} != Communication{.error_feedback = true});
}

TEST_CASE("rules of communication that make no sense are errors that name the field") {
    const auto error = [](const Communication& rule) { return test::error_of([&] { rule.validate(); }); };
    for (const FloatFormat& format : {fp32, bf16, fp16, e5m2, e4m3, e2m1})
        CHECK(error({.element = {.format = format}}).empty());
    CHECK(error({.block = 128, .margin = 1, .error_feedback = true}).empty());
    CHECK(error({.element = {.format = e8m0}}) ==
          "communication.format: e8m0 has no sign; expected a format with both");
    CHECK(error({.block = 8}) == "communication.block: is 8; expected 0, or a power of two from 16 to 65536");
    CHECK(error({.block = 48}) == "communication.block: is 48; expected 0, or a power of two from 16 to 65536");
    CHECK(error({.block = 131072}) == "communication.block: is 131072; expected 0, or a power of two from 16 to 65536");
    CHECK(error({.margin = 301}) == "communication.margin: is 301; expected a number in [-300,300]");
    CHECK(error({.element = {.format = {.exponent_bits = 12}}}).starts_with("communication.format: "));
}
