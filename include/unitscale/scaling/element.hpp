// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/storage.hpp>
#include <unitscale/tensor/backend.hpp>

#include <type_traits>
#include <utility>

namespace unitscale {

/// The element type of recipes that compute in T: float, Half or BFloat16.
template <class T>
inline constexpr ElementType element_type_of = std::is_same_v<T, Half>       ? ElementType::float16
                                               : std::is_same_v<T, BFloat16> ? ElementType::bfloat16
                                                                             : ElementType::float32;

/// Error, with `what` in front: the recipe's `storage.element` is another type than T.
/// double passes for every recipe: a reference in double computes what the recipe would without rounding of storage.
/// T: float, double, Half or BFloat16. Test: tests/scaling/element_test.cpp
template <class T>
void check_element(const char* what, const Recipe& recipe) {
    if constexpr (!std::is_same_v<T, double>)
        check(recipe.storage.element == element_type_of<T>, what, ": recipe ", recipe.name, " computes in ",
              name(recipe.storage.element), ", and T is ", name(element_type_of<T>),
              "; train::with_element picks T, recipe_in<T> changes the recipe");
}

/// The recipe with T as its element type, and all else as it was: a choice that is made in sight.
template <class T>
[[nodiscard]] Recipe recipe_in(Recipe recipe) {
    recipe.storage.element = element_type_of<T>;
    return recipe;
}

}  // namespace unitscale
