// SPDX-License-Identifier: MIT
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
}
