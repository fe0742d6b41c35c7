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
                        "recipe: unknown name 'fp9'; expected one of fp32, fp16, fp16-loss-scaled, "
                        "fp16-auto-loss-scaled, bf16, unit-fp32, unit-fp16, unit-fp8, umup-fp32, umup-bf16, umup-fp8, mup-fp32, "
                        "scalify-fp16-1, scalify-fp16-2, scalify-fp8-3, scalify-fp8-4, fp8-amax, fp8-cscale, fp8-delayed");
    std::set<std::string> names;
    for (const Recipe& recipe : known_recipes()) {
        REQUIRE(names.insert(recipe.name).second);
        REQUIRE_FALSE(recipe.description.empty());
        REQUIRE(recipe.description.size() <= 100);
        REQUIRE(recipe.learning_rate > 0.0);
        REQUIRE_NOTHROW(recipe.storage.validate());
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

TEST_CASE("unit-fp16 computes in FP16, keeps FP32 master weights and rounds no operand further") {
    const Recipe recipe = find_recipe("unit-fp16");
    REQUIRE(recipe.storage == Storage{.element = ElementType::float16, .master = StateFormat{}});
    REQUIRE(recipe.products.empty());
    REQUIRE(recipe.loss_scaling.kind == LossScaleKind::none);
}

TEST_CASE("the FP16 recipes differ in the loss' factor alone, bf16 in the element type alone") {
    const Recipe plain = find_recipe("fp16");
    REQUIRE(plain.storage == Storage{.element = ElementType::float16, .master = StateFormat{}});
    REQUIRE(plain.loss_scaling.kind == LossScaleKind::none);
    REQUIRE(find_recipe("fp16-loss-scaled").loss_scaling.kind == LossScaleKind::constant);
    REQUIRE(find_recipe("fp16-auto-loss-scaled").loss_scaling.kind == LossScaleKind::automatic);
    REQUIRE(find_recipe("bf16").storage == Storage{.element = ElementType::bfloat16, .master = StateFormat{}});
    REQUIRE(find_recipe("bf16").loss_scaling.kind == LossScaleKind::none);
    for (const char* name : {"fp16", "fp16-loss-scaled", "fp16-auto-loss-scaled", "bf16"}) {
        const Recipe recipe = find_recipe(name);
        if (recipe.name != "bf16") REQUIRE(recipe.storage == plain.storage);
        REQUIRE(recipe.scaling == Scaling::none);
        REQUIRE(recipe.parametrisation == Parametrisation::standard);
        REQUIRE(recipe.products.empty());
        REQUIRE(recipe.learning_rate == find_recipe("fp32").learning_rate);
        REQUIRE(recipe.clip_norm == find_recipe("fp32").clip_norm);
    }
}

TEST_CASE("each of the Scalify recipes takes one more part of the state to fewer bits") {
    const Recipe first = find_recipe("scalify-fp16-1"), second = find_recipe("scalify-fp16-2"),
                 third = find_recipe("scalify-fp8-3"), fourth = find_recipe("scalify-fp8-4");
    for (const Recipe& recipe : {first, second, third, fourth}) {
        REQUIRE(recipe.scaling == Scaling::propagate);
        REQUIRE(recipe.parametrisation == Parametrisation::standard);
        REQUIRE(recipe.storage.element == ElementType::float16);
        REQUIRE(recipe.loss_scaling.kind == LossScaleKind::none);
    }
    REQUIRE(first.storage.master == StateFormat{});
    REQUIRE(first.propagate.rescale_gradients);
    REQUIRE(second.storage == Storage{.element = ElementType::float16});
    REQUIRE(second.propagate.rescale_gradients);
    REQUIRE(second.products.empty());
    REQUIRE(third.storage == Storage{.element = ElementType::float16, .weight_gradient = Quantiser{.format = e5m2}});
    const ProductFormats linear = third.formats(ProductKind::linear, "decoder/block0/ffn/up");
    REQUIRE(linear.activation.value().format == e4m3);
    REQUIRE(linear.weight.value().format == e4m3);
    REQUIRE(linear.gradient.value().format == e5m2);
    REQUIRE(third.formats(ProductKind::readout, "decoder/readout") == ProductFormats{});
    REQUIRE(fourth.formats(ProductKind::linear, "decoder/block0/ffn/up") == linear);
    REQUIRE(fourth.storage.first_moment == StateFormat{.format = fp16});
    REQUIRE(fourth.storage.second_moment == StateFormat{.format = fp16});
    REQUIRE(fourth.storage.weight_gradient_scale == ScaleRule{.source = ScaleSource::amax});
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
