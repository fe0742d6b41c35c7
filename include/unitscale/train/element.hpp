// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <type_traits>
#include <utility>

namespace unitscale::train {

/// Turns a recipe into a template argument: calls f with the type that the recipe's tape computes in.
/// Returns the result of f.
///   with_element(recipe, [&]<class T>(std::type_identity<T>) { Tape<T> tape(recipe, state); ... });
/// T: float, Half or BFloat16. Test: tests/train/element_test.cpp
template <class F>
decltype(auto) with_element(const Recipe& recipe, F&& f) {
    switch (recipe.storage.element) {
        case ElementType::float16:
            return std::forward<F>(f)(std::type_identity<Half>{});
        case ElementType::bfloat16:
            return std::forward<F>(f)(std::type_identity<BFloat16>{});
        default:
            return std::forward<F>(f)(std::type_identity<float>{});
    }
}

}  // namespace unitscale::train
