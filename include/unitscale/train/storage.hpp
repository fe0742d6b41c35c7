// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <type_traits>
#include <utility>

namespace unitscale::train {

/// Turns a recipe into a template argument: calls f with the type that the recipe's tape computes in.
/// Returns the result of f.
///   with_storage(recipe, [&]<class T>(std::type_identity<T>) { Tape<T> tape(recipe, state); ... });
/// T: float, Half or BFloat16. Test: tests/train/storage_test.cpp
template <class F>
decltype(auto) with_storage(const Recipe& recipe, F&& f) {
    switch (recipe.storage.element) {
        case ElementType::float16:
            return std::forward<F>(f)(std::type_identity<Half>{});
        case ElementType::bfloat16:
            return std::forward<F>(f)(std::type_identity<BFloat16>{});
        default:
            return std::forward<F>(f)(std::type_identity<float>{});
    }
}

/// Error, with `what` in front: the recipe's tape computes in another type than T.
template <class T>
void check_storage(const char* what, const Recipe& recipe) {
    const bool same =
        with_storage(recipe, []<class Wanted>(std::type_identity<Wanted>) { return std::is_same_v<Wanted, T>; });
    check(same, what, ": recipe ", recipe.name, " computes in ", name(recipe.storage.element),
          ", which is not this template's type; see train::with_storage");
}

}  // namespace unitscale::train
