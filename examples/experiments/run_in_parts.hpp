// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/element.hpp>

#include "experiments/language_run.hpp"
#include "experiments/run_parts.hpp"

#include <cstdio>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace unitscale::experiments {

/// Makes a run in its parts, one after the other, each for the T of its recipe, and returns the last one's result.
/// The first part's model is freed before the second's is made.
/// Calls around(LanguageRun<T>& part, const std::function<void()>& take) for each part; `take` runs the part.
/// Errors: the errors of LanguageRun. Test: tests/experiments/run_in_parts_test.cpp
template <class Around>
LanguageRunResult run_in_parts(const LanguageRunOptions& options, std::FILE* out, std::FILE* progress,
                               const StepWatcher& watch, const Around& around) {
    LanguageRunResult result;
    std::optional<SwitchedRun> before;
    const RunPart first = next_part(options);
    const std::vector<Recipe> recipes = recipes_of(options);
    const auto run_one = [&]<class T>(LanguageRun<T>& part) {
        around(part, [&] { result = part.run_part(out, progress, watch); });
    };
    if (first == RunPart::first)
        train::with_element(recipes.front(), [&]<class T>(std::type_identity<T>) {
            LanguageRun<T> part(options);
            run_one(part);
            if (options.switch_at) before = part.leave();
        });
    if (options.switch_at)
        train::with_element(recipes.back(), [&]<class T>(std::type_identity<T>) {
            LanguageRun<T> part(options, RunPart::second, std::move(before));
            run_one(part);
        });
    return result;
}

}  // namespace unitscale::experiments
