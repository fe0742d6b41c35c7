// SPDX-License-Identifier: MIT
#include <unitscale/scaling/product_rule.hpp>

#include "support/catch.hpp"

#include <string>

using namespace unitscale;

TEST_CASE("a pattern without a star matches itself only") {
    REQUIRE(matches("block0/ffn", "block0/ffn"));
    REQUIRE_FALSE(matches("block0/ffn", "block0/ffn2"));
    REQUIRE_FALSE(matches("block0/ffn", "block0/ff"));
    REQUIRE_FALSE(matches("ffn", "block0/ffn"));
    REQUIRE(matches("", ""));
    REQUIRE_FALSE(matches("", "x"));
}

TEST_CASE("a star stands for any text, none included") {
    REQUIRE(matches("*", ""));
    REQUIRE(matches("*", "decoder/block0"));
    REQUIRE(matches("decoder/*", "decoder/"));
    REQUIRE(matches("*ffn", "decoder/block0/ffn"));
    REQUIRE(matches("*/ffn/*", "decoder/block0/ffn/up"));
    REQUIRE_FALSE(matches("*/ffn/*", "decoder/block0/ffn"));
    REQUIRE(matches("**", "a"));
    REQUIRE(matches("a*b*c", "abc"));
    REQUIRE_FALSE(matches("a*b*c", "acb"));
    REQUIRE_FALSE(matches("a*", ""));
}

TEST_CASE("a star goes back to a later match when the first one fails") {
    REQUIRE(matches("*aab", "aaaab"));
    REQUIRE(matches("*ab*cd", "abxabycd"));
    REQUIRE_FALSE(matches("*ab*cd", "abxabycde"));
    REQUIRE(matches("*bias", "bias/bias"));
}

TEST_CASE("a product rule applies to its kind, in modules of its pattern, by either path") {
    const ProductRule rule{.kind = ProductKind::attention, .pattern = "*block-1/*"};
    CHECK(rule.applies(ProductKind::attention, "decoder/block3/attention", "decoder/block-1/attention"));
    CHECK_FALSE(rule.applies(ProductKind::attention, "decoder/block3/attention"));
    CHECK_FALSE(rule.applies(ProductKind::linear, "decoder/block3/ffn", "decoder/block-1/ffn"));
    CHECK(ProductRule{}.applies(ProductKind::linear, ""));
}

TEST_CASE("a product rule that contradicts itself is one line, with its place in front") {
    CHECK_NOTHROW(check_product_rule("x.", {}));
    ProductRule rule{.kind = ProductKind::matmul};
    rule.formats.set(OperandSlot::forward_x, OperandRule::in_blocks(mxfp4));
    CHECK_THROWS_WITH(check_product_rule("x.", rule),
                      "x.forward.x: blocks are for linear layers, readouts and attention");
    ProductRule sums{.kind = ProductKind::attention};
    sums.formats.accumulate[0] = hopper_sums_promoted;
    CHECK_THROWS_WITH(check_product_rule("x.", sums), "x.forward.accumulate: is for linear layers and readouts");
    ProductRule attention{.kind = ProductKind::attention, .formats = {.weight = Quantiser{.format = e4m3}}};
    CHECK_THROWS_WITH(check_product_rule("x.", attention),
                      "x.weight: attention has no weights; expected activation and gradient");
}
