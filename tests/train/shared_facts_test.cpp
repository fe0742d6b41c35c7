// SPDX-License-Identifier: MIT
#include <unitscale/train/shared_facts.hpp>

#include "support/catch.hpp"

#include <unitscale/scaling/known_recipes.hpp>

#include <string>
#include <vector>

using namespace unitscale;

TEST_CASE("facts of a build and of parameters") {
    CHECK(train::build_fact().first == "build");
    CHECK(train::build_fact().second.starts_with("unitscale " + std::string(version) + ", "));
    Parameter<float> parameter("p", {2}, {});
    parameter.write()(0) = 1.0f;
    const std::vector<Parameter<float>*> parameters = {&parameter};
    const auto facts = train::parameter_facts<float>(parameters);
    CHECK(facts[0] == train::SharedFact{"model", "p [2] "});
    parameter.write()(0) = 2.0f;
    CHECK(train::parameter_facts<float>(parameters)[0] == facts[0]);
    CHECK(train::parameter_facts<float>(parameters)[1] != facts[1]);
}

TEST_CASE("facts of recipes differ where a field does") {
    const Recipe recipe = find_recipe("unit-fp8");
    CHECK(train::recipe_fact(recipe).first == "recipe");
    CHECK(train::recipe_fact(recipe) == train::recipe_fact(find_recipe("unit-fp8")));
    Recipe other = recipe;
    other.products.front().formats.gradient->format = e4m3;
    CHECK(train::recipe_fact(other) != train::recipe_fact(recipe));
}
