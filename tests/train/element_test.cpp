// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/element.hpp>

#include "support/catch.hpp"

#include <cstddef>

using namespace unitscale;

TEST_CASE(
    "with_element: calls f with the recipe's element type as template argument and returns its result or reference") {
    Recipe recipe;
    double values[] = {0.0, 1.0, 2.0};
    const auto place = [&]<class T>(std::type_identity<T>) -> double& {
        return values[std::is_same_v<T, float> ? 0 : std::is_same_v<T, Half> ? 1 : std::is_same_v<T, BFloat16> ? 2 : 3];
    };
    recipe.storage.element = ElementType::float16;
    train::with_element(recipe, place) = 5.0;
    CHECK(values[1] == 5.0);
    recipe.storage.element = ElementType::bfloat16;
    CHECK(&train::with_element(recipe, place) == &values[2]);
    recipe.storage.element = ElementType::float32;
    CHECK(&train::with_element(recipe, place) == &values[0]);
    for (const Recipe& known : known_recipes()) {
        const auto bytes = train::with_element(known, []<class T>(std::type_identity<T>) { return sizeof(T); });
        CHECK(bytes == (known.storage.element == ElementType::float32 ? std::size_t{4} : std::size_t{2}));
    }
}
