// SPDX-License-Identifier: MIT
#include <unitscale/train/storage.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <string>

using namespace unitscale;

TEST_CASE(
    "with_storage: calls f with the recipe's element type as template argument and returns its result or reference") {
    Recipe recipe;
    double values[] = {0.0, 1.0, 2.0};
    const auto place = [&]<class T>(std::type_identity<T>) -> double& {
        return values[std::is_same_v<T, float> ? 0 : std::is_same_v<T, Half> ? 1 : std::is_same_v<T, BFloat16> ? 2 : 3];
    };
    recipe.storage.element = ElementType::float16;
    train::with_storage(recipe, place) = 5.0;
    CHECK(values[1] == 5.0);
    recipe.storage.element = ElementType::bfloat16;
    CHECK(&train::with_storage(recipe, place) == &values[2]);
    recipe.storage.element = ElementType::float32;
    CHECK(&train::with_storage(recipe, place) == &values[0]);
    for (const Recipe& known : known_recipes()) {
        const auto bytes = train::with_storage(known, []<class T>(std::type_identity<T>) { return sizeof(T); });
        CHECK(bytes == (known.storage.element == ElementType::float32 ? std::size_t{4} : std::size_t{2}));
    }
}

TEST_CASE("check_storage: a template of another type than the recipe's is an error that names both") {
    CHECK_NOTHROW(train::check_storage<float>("SavedModel", find_recipe("fp32")));
    CHECK_NOTHROW(train::check_storage<Half>("SavedModel", find_recipe("fp16")));
    CHECK_NOTHROW(train::check_storage<BFloat16>("SavedModel", find_recipe("bf16")));
    const std::string rest = ", which is not this template's type; see train::with_storage";
    CHECK_THROWS_WITH(train::check_storage<float>("SavedModel", find_recipe("fp16")),
                      "SavedModel: recipe fp16 computes in fp16" + rest);
    CHECK_THROWS_WITH(train::check_storage<BFloat16>("LanguageRun", find_recipe("fp32")),
                      "LanguageRun: recipe fp32 computes in fp32" + rest);
    CHECK_THROWS_WITH(train::check_storage<Half>("LanguageRun", find_recipe("bf16")),
                      "LanguageRun: recipe bf16 computes in bf16" + rest);
}
