// SPDX-License-Identifier: MIT
#include <unitscale/base/error.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "experiments/constant_bias.hpp"
#include "support/catch.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;

TEST_CASE("constant bias: ranges are read from text") {
    CHECK(bias_range("--biases", "-2..1") == std::vector<int>{-2, -1, 0, 1});
    CHECK(bias_range("--biases", "3..3") == std::vector<int>{3});
    for (const char* text : {"", "3", "..", "2..1", "-1..x", "0..65", "-65..0", " 1..2"}) {
        CAPTURE(text);
        CHECK_THROWS_WITH(
            bias_range("--biases", text),
            "--biases: is '" + std::string(text) + "'; expected LOWEST..HIGHEST within -64..64, such as -8..8");
    }
}

TEST_CASE("constant bias: biases are written as ranges") {
    CHECK(bias_range_text({-3, -2, -1, 2, 4, 5}) == "-3..-1,2,4..5");
    CHECK(bias_range_text({0}) == "0");
    CHECK(bias_range_text({}).empty());
    CHECK(bias_range_text(bias_range("--biases", "-8..8")) == "-8..8");
}

TEST_CASE("constant bias: a recipe has it for every role of every product") {
    const Recipe recipe = with_constant_bias(find_recipe("fp8-cscale"), -5);
    REQUIRE(!recipe.products.empty());
    for (const ProductRule& rule : recipe.products)
        for (const ScaleRule* scale :
             {&rule.formats.activation_scale, &rule.formats.weight_scale, &rule.formats.gradient_scale}) {
            CHECK(scale->bias == -5);
            CHECK(scale->source == ScaleSource::constant);
        }
    CHECK(find_recipe("fp8-cscale").products.front().formats.weight_scale.bias == 0);
    CHECK(constant_biases(recipe) == std::vector<int>{-5});
}

TEST_CASE("constant bias: operands of attention and operands with a rule of their own have it, others keep theirs") {
    Recipe recipe = find_recipe("fp8-cscale");
    const ScaleRule constant{.source = ScaleSource::constant, .bias = 2};
    ProductFormats& linear = recipe.products.front().formats;
    linear.weight_scale = {.source = ScaleSource::amax, .margin = 3};
    linear.set(OperandSlot::weight_gradient_dy, {linear.gradient, constant});
    linear.set(OperandSlot::forward_x, {linear.activation, {.source = ScaleSource::amax}});
    recipe.products.push_back(
        {.kind = ProductKind::attention, .formats = {.activation = linear.activation, .activation_scale = constant}});
    recipe.products.push_back({.formats = {.activation_scale = constant}});  // rounds nothing
    CHECK(constant_biases(recipe) == std::vector<int>{0, 2});
    const Recipe changed = with_constant_bias(recipe, -1);
    check_recipe(changed);
    CHECK(constant_biases(changed) == std::vector<int>{-1});
    const ProductFormats& formats = changed.products.front().formats;
    CHECK(formats.activation_scale.bias == -1);
    CHECK(formats.gradient_scale.bias == -1);
    CHECK(formats.own(OperandSlot::weight_gradient_dy)->scale.bias == -1);
    CHECK(formats.weight_scale == linear.weight_scale);
    CHECK(formats.own(OperandSlot::forward_x) == linear.own(OperandSlot::forward_x));
    CHECK(changed.products[changed.products.size() - 2].formats.activation_scale.bias == -1);
    CHECK(changed.products.back().formats.activation_scale.bias == 2);
}

TEST_CASE("constant bias: a recipe without a constant scale is an error") {
    for (const char* name : {"fp32", "fp8-amax", "unit-fp8", "mxfp8"}) {
        CHECK(constant_biases(find_recipe(name)).empty());
        CHECK_THROWS_WITH(with_constant_bias(find_recipe(name), 0),
                          concatenate("constant bias: no operand of the recipe ", name,
                                      " has a constant scale; expected one, as fp8-cscale has"));
    }
}
