// SPDX-License-Identifier: MIT
#include <unitscale/scaling/recipe.hpp>

#include "support/catch.hpp"

#include <unitscale/scaling/known_recipes.hpp>

#include <string>

using namespace unitscale;

TEST_CASE("of several product rules that match, the last one holds, whole") {
    Recipe recipe;
    recipe.products = {
        {.kind = ProductKind::linear,
         .formats = {.activation = Quantiser{.format = e4m3}, .weight = Quantiser{.format = e4m3}}},
        {.kind = ProductKind::linear, .pattern = "*/ffn/*", .formats = {.weight = Quantiser{.format = bf16}}},
        {.kind = ProductKind::readout, .formats = {.weight = Quantiser{.format = fp16}}},
        {.kind = ProductKind::linear, .pattern = "*/ffn/down", .formats = {}}};
    REQUIRE(recipe.formats(ProductKind::linear, "block0/attention").weight.value().format == e4m3);
    REQUIRE(recipe.formats(ProductKind::linear, "block0/ffn/up").weight.value().format == bf16);
    REQUIRE_FALSE(recipe.formats(ProductKind::linear, "block0/ffn/up").activation.has_value());
    REQUIRE_FALSE(recipe.formats(ProductKind::linear, "block0/ffn/down").weight.has_value());
    REQUIRE(recipe.formats(ProductKind::readout, "block0/ffn/up").weight.value().format == fp16);
}

TEST_CASE("formats and scales of a product are found by role") {
    const ProductFormats formats{.activation = Quantiser{.format = e4m3},
                                 .weight = Quantiser{.format = e3m4},
                                 .gradient = Quantiser{.format = e5m2},
                                 .activation_scale = {.source = ScaleSource::constant, .bias = 1},
                                 .weight_scale = {.source = ScaleSource::constant, .bias = 2},
                                 .gradient_scale = {.source = ScaleSource::constant, .bias = 3}};
    CHECK(formats.of(OperandRole::activation).value().format == e4m3);
    CHECK(formats.of(OperandRole::weight).value().format == e3m4);
    CHECK(formats.of(OperandRole::gradient).value().format == e5m2);
    CHECK(formats.scale(OperandRole::activation).bias == 1);
    CHECK(formats.scale(OperandRole::weight).bias == 2);
    CHECK(formats.scale(OperandRole::gradient).bias == 3);
}

TEST_CASE("inconsistent rules of a recipe are one line that names the field, before any tape has it") {
    for (const Recipe& recipe : known_recipes()) CHECK_NOTHROW(check_recipe(recipe));
    Recipe rows = find_recipe("fp8-cscale");
    rows.products.front().formats.weight_scale.granularity = ScaleGranularity::row;
    CHECK_THROWS_WITH(check_recipe(rows),
                      "recipe: products.0.weight_scale: scale by row needs the source amax; it is constant");
    Recipe delayed = find_recipe("fp8-delayed");
    delayed.products.front().formats.gradient_scale.granularity = ScaleGranularity::column;
    CHECK_THROWS_WITH(check_recipe(delayed),
                      "recipe: products.0.gradient_scale: scale by column needs the source amax; it is delayed");
}

TEST_CASE("fields of Unit Scaling as published are errors where nothing reads them") {
    const auto message = [](auto&& change) {
        Recipe recipe = find_recipe("us-fp32");
        change(recipe);
        return recipe;
    };
    const char* of_unit = "recipe: gelu_constants and bias_inside_alpha are for the scaling unit; it is none";
    CHECK_THROWS_WITH(check_recipe(message([](Recipe& r) { r.scaling = Scaling::none; })), of_unit);
    CHECK_THROWS_WITH(check_recipe(message([](Recipe& r) { r.parametrisation = Parametrisation::umup; })),
                      "recipe: vector_learning_rate is for the parametrisation unit; it is umup");
    Recipe embedding = find_recipe("mup-fp32");
    embedding.hyperparameters.embedding_rate = 4.0;
    CHECK_NOTHROW(check_recipe(embedding));
    embedding.embedding_rate = EmbeddingRate::constant;
    CHECK_THROWS_WITH(check_recipe(embedding), "recipe: embedding_rate is for the parametrisation umup; it is mup");
    embedding = find_recipe("umup-fp8");
    embedding.embedding_rate = EmbeddingRate::constant;
    CHECK_NOTHROW(check_recipe(embedding));
    embedding.hyperparameters.embedding_rate = 4.0;
    CHECK_THROWS_WITH(check_recipe(embedding),
                      "recipe: hyperparameters.embedding_rate is for the parametrisation mup; it is umup");
    CHECK_THROWS_WITH(
        check_recipe(message([](Recipe& r) { r.hyperparameters.alpha_ffn_act = 2.0; })),
        "recipe: gelu_constants: the constants of the Unit Scaling paper hold for alpha_ffn_act 1 only; it is 2");
    CHECK_THROWS_WITH(check_recipe(message([](Recipe& r) { r.residual.share = 0.5; })),
                      "residual: share is for the scheme fixed; the scheme is running_mean");
}

TEST_CASE("rules of attention that attention cannot follow are one line that names the field and what was expected") {
    const auto with = [](const ProductFormats& formats, ProductKind kind = ProductKind::attention) {
        Recipe recipe = find_recipe("unit-fp8");
        recipe.products.push_back({.kind = kind, .formats = formats});
        return recipe;
    };
    const Quantiser eight{.format = e4m3};
    const ScaleRule row{.source = ScaleSource::amax, .granularity = ScaleGranularity::row};
    CHECK_NOTHROW(check_recipe(with({.activation = eight, .gradient = eight})));
    CHECK_THROWS_WITH(check_recipe(with({.weight = eight})),
                      "recipe: products.1.weight: attention has no weights; expected activation and gradient");
    CHECK_THROWS_WITH(
        check_recipe(with({.weight_scale = {.source = ScaleSource::amax}})),
        "recipe: products.1.weight_scale: attention has no weights; expected activation_scale and gradient_scale");
    CHECK_THROWS_WITH(check_recipe(with({.result = eight})),
                      "recipe: products.1.result: attention's results are not rounded; expected null");
    CHECK_THROWS_WITH(check_recipe(with({.activation = eight, .activation_scale = row})),
                      "recipe: products.1.activation_scale: scale by row; expected a scale by tensor or by block");
    CHECK_THROWS_WITH(check_recipe(with({.gradient = eight, .gradient_scale = row})),
                      "recipe: products.1.gradient_scale: scale by row; expected a scale by tensor or by block");
    ProductFormats by_row;
    by_row.set(OperandSlot::value_gradient_p, {eight, row});
    CHECK_THROWS_WITH(check_recipe(with(by_row)),
                      "recipe: products.1.value_gradient.p: scale by row; expected a scale by tensor or by block");
    ProductFormats linear;
    linear.set(OperandSlot::input_gradient_w, {eight});
    CHECK_THROWS_WITH(check_recipe(with(linear)),
                      "recipe: products.1.input_gradient.w: is an operand of linear layers; the kind is attention");
    ProductFormats rotated;
    rotated.rotations.back() = transformer_engine_rotation;
    CHECK_THROWS_WITH(check_recipe(with(rotated)),
                      "recipe: products.1.weight_gradient.dy: is rotated; attention's operands are not");
    ProductFormats own;
    own.set(OperandSlot::output_p, {eight});
    CHECK_NOTHROW(check_recipe(with(own)));
    for (const ProductKind kind : {ProductKind::linear, ProductKind::readout, ProductKind::matmul})
        CHECK_THROWS_WITH(
            check_recipe(with(own, kind)),
            "recipe: products.1.output.p: is an operand of attention; the kind is " + std::string(name(kind)));
    OperandRule fours = OperandRule::in_blocks(mxfp4);
    ProductFormats blocks;
    blocks.set(OperandSlot::output_p, fours);
    CHECK_NOTHROW(check_recipe(with(blocks)));
    fours.element = eight;
    blocks.set(OperandSlot::output_p, fours);
    CHECK_THROWS_WITH(check_recipe(with(blocks)),
                      "recipe: products.1.output.p: blocks of e2m1 hold an operand that is rounded to e4m3");
}

TEST_CASE("kinds, roles, scalings and parametrisations have names") {
    REQUIRE(name(ProductKind::linear) == "linear");
    REQUIRE(name(ProductKind::readout) == "readout");
    REQUIRE(name(ProductKind::matmul) == "matmul");
    REQUIRE(name(ProductKind::attention) == "attention");
    REQUIRE(name(OperandRole::activation) == "activation");
    REQUIRE(name(OperandRole::weight) == "weight");
    REQUIRE(name(OperandRole::gradient) == "gradient");
    REQUIRE(name(Scaling::none) == "none");
    REQUIRE(name(Scaling::unit) == "unit");
    REQUIRE(name(Scaling::propagate) == "propagate");
    REQUIRE(name(Parametrisation::standard) == "standard");
    REQUIRE(name(Parametrisation::unit) == "unit");
    REQUIRE(name(Parametrisation::mup) == "mup");
    REQUIRE(name(Parametrisation::umup) == "umup");
}

TEST_CASE("weights are rescaled, and moments take propagated scales, under scaling propagate only") {
    for (const char* name : {"fp32", "unit-fp16"}) {
        Recipe recipe = find_recipe(name);
        const std::string message = concatenate(
            "recipe: storage.rescale_every and moments with propagated scales are for the scaling propagate; it is ",
            unitscale::name(recipe.scaling));
        recipe.storage.rescale_every = 20;
        CHECK_THROWS_WITH(check_recipe(recipe), message);
        recipe.storage.rescale_every = 0;
        recipe.storage.first_moment = {.format = fp16, .propagated = true};
        CHECK_THROWS_WITH(check_recipe(recipe), message);
    }
    Recipe recipe = find_recipe("scalify-fp8-4");
    recipe.storage.rescale_every = 20;
    recipe.storage.first_moment.propagated = true;
    CHECK_NOTHROW(check_recipe(recipe));
}

TEST_CASE("a rule of communication that makes no sense is an error of the recipe") {
    Recipe recipe = find_recipe("fp32");
    CHECK_FALSE(recipe.communication.has_value());
    recipe.communication = Communication{.block = 128};
    CHECK_NOTHROW(check_recipe(recipe));
    recipe.communication->margin = 1000;
    CHECK_THROWS_WITH(check_recipe(recipe), "communication.margin: is 1000; expected a number in [-300,300]");
}
