// SPDX-License-Identifier: MIT
#include <unitscale/scaling/recipe.hpp>

#include "support/catch.hpp"

#include <set>
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

TEST_CASE("recipes are found by name and an unknown name lists them") {
    REQUIRE(find_recipe("unit-fp8").name == "unit-fp8");
    REQUIRE_THROWS_WITH(find_recipe("fp9"),
                        "recipe: unknown name 'fp9'; expected one of fp32, unit-fp32, unit-fp16, unit-fp8, "
                        "fp8-amax, fp8-cscale, fp8-delayed");
    std::set<std::string> names;
    for (const Recipe& recipe : known_recipes()) {
        REQUIRE(names.insert(recipe.name).second);
        REQUIRE_FALSE(recipe.description.empty());
        REQUIRE(recipe.learning_rate > 0.0);
    }
}

TEST_CASE("fp32 scales and rounds nothing and clips; the unit recipes scale, keep every gradient and weight residuals") {
    const Recipe fp32_recipe = find_recipe("fp32");
    REQUIRE(fp32_recipe.scaling == Scaling::none);
    REQUIRE(fp32_recipe.parametrisation == Parametrisation::standard);
    REQUIRE(fp32_recipe.residual.scheme == ResidualScheme::plain);
    REQUIRE(fp32_recipe.clip_norm == 1.0);
    REQUIRE(fp32_recipe.products.empty());
    for (const char* unit : {"unit-fp32", "unit-fp16", "unit-fp8"}) {
        const Recipe recipe = find_recipe(unit);
        REQUIRE(recipe.scaling == Scaling::unit);
        REQUIRE(recipe.parametrisation == Parametrisation::unit);
        REQUIRE(recipe.residual.scheme != ResidualScheme::plain);
        REQUIRE(recipe.constraint == Constraint::automatic);
        REQUIRE(recipe.automatic_rule == Constraint::to_output_scale);
        REQUIRE(recipe.clip_norm == 0.0);
    }
    REQUIRE(find_recipe("unit-fp32").products.empty());
}

TEST_CASE("unit-fp8 rounds linear layers to E4M3 forward and E5M2 backward and leaves readout and matmul alone") {
    const Recipe recipe = find_recipe("unit-fp8");
    const ProductFormats linear = recipe.formats(ProductKind::linear, "decoder/block0/ffn/up");
    REQUIRE(linear.activation.value().format == e4m3);
    REQUIRE(linear.weight.value().format == e4m3);
    REQUIRE(linear.gradient.value().format == e5m2);
    for (const auto& role : {linear.activation, linear.weight, linear.gradient}) {
        REQUIRE(role->rounding == Rounding::nearest_even);
        REQUIRE(role->overflow == Overflow::saturate);
    }
    REQUIRE(recipe.formats(ProductKind::readout, "decoder/readout") == ProductFormats{});
    REQUIRE(recipe.formats(ProductKind::matmul, "decoder") == ProductFormats{});
}

TEST_CASE("unit-fp16 rounds every linear layer, the readout included, to FP16 in all roles") {
    const Recipe recipe = find_recipe("unit-fp16");
    for (const ProductKind kind : {ProductKind::linear, ProductKind::readout}) {
        const ProductFormats formats = recipe.formats(kind, "anywhere");
        REQUIRE(formats.activation.value().format == fp16);
        REQUIRE(formats.weight.value().format == fp16);
        REQUIRE(formats.gradient.value().format == fp16);
    }
    REQUIRE(recipe.formats(ProductKind::matmul, "anywhere") == ProductFormats{});
}

TEST_CASE("of several product rules that match, the last one holds, whole") {
    Recipe recipe;
    recipe.products = {
        {.kind = ProductKind::linear, .formats = {.activation = Quantiser{.format = e4m3}, .weight = Quantiser{.format = e4m3}}},
        {.kind = ProductKind::linear, .pattern = "*/ffn/*", .formats = {.weight = Quantiser{.format = bf16}}},
        {.kind = ProductKind::readout, .formats = {.weight = Quantiser{.format = fp16}}},
        {.kind = ProductKind::linear, .pattern = "*/ffn/down", .formats = {}}};
    REQUIRE(recipe.formats(ProductKind::linear, "block0/attention").weight.value().format == e4m3);
    REQUIRE(recipe.formats(ProductKind::linear, "block0/ffn/up").weight.value().format == bf16);
    REQUIRE_FALSE(recipe.formats(ProductKind::linear, "block0/ffn/up").activation.has_value());
    REQUIRE_FALSE(recipe.formats(ProductKind::linear, "block0/ffn/down").weight.has_value());
    REQUIRE(recipe.formats(ProductKind::readout, "block0/ffn/up").weight.value().format == fp16);
}

TEST_CASE("kinds, scalings and parametrisations have names") {
    REQUIRE(name(ProductKind::linear) == "linear");
    REQUIRE(name(ProductKind::readout) == "readout");
    REQUIRE(name(ProductKind::matmul) == "matmul");
    REQUIRE(name(Scaling::none) == "none");
    REQUIRE(name(Scaling::unit) == "unit");
    REQUIRE(name(Parametrisation::standard) == "standard");
    REQUIRE(name(Parametrisation::unit) == "unit");
}
