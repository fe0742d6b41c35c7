// SPDX-License-Identifier: MIT
#include <unitscale/scaling/element.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"

#include <string>

using namespace unitscale;

TEST_CASE("check_element: a type other than the recipe's is an error that names both; double passes") {
    CHECK_NOTHROW(check_element<float>("Tape", find_recipe("fp32")));
    CHECK_NOTHROW(check_element<Half>("Tape", find_recipe("fp16")));
    CHECK_NOTHROW(check_element<BFloat16>("Tape", find_recipe("bf16")));
    for (const Recipe& known : known_recipes()) CHECK_NOTHROW(check_element<double>("Tape", known));
    const std::string rest = "; train::with_element picks T, recipe_in<T> changes the recipe";
    CHECK_THROWS_WITH(check_element<float>("Tape", find_recipe("fp16")),
                      "Tape: recipe fp16 computes in fp16, and T is fp32" + rest);
    CHECK_THROWS_WITH(check_element<BFloat16>("Trainer", find_recipe("fp32")),
                      "Trainer: recipe fp32 computes in fp32, and T is bf16" + rest);
    CHECK_THROWS_WITH(check_element<Half>("Trainer", find_recipe("bf16")),
                      "Trainer: recipe bf16 computes in bf16, and T is fp16" + rest);
}

TEST_CASE("recipe_in: changes the element type and nothing else") {
    const Recipe half = find_recipe("fp16"), changed = recipe_in<float>(half);
    Storage expected = half.storage;
    expected.element = ElementType::float32;
    CHECK(changed.storage == expected);
    CHECK(changed.name == half.name);
    CHECK(changed.clip_norm == half.clip_norm);
    CHECK(recipe_in<Half>(half).storage == half.storage);
    CHECK_NOTHROW(check_element<BFloat16>("Tape", recipe_in<BFloat16>(half)));
}
