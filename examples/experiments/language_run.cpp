// SPDX-License-Identifier: MIT
#include "experiments/language_run.hpp"

#include "experiments/run_in_parts.hpp"

#include <functional>
#include <type_traits>
#include <vector>

namespace unitscale::experiments {

namespace {

/// Calls use(LanguageRun<T>&) with the part of the run's next step.
template <class Use>
auto with_next_part(const LanguageRunOptions& options, const Use& use) {
    const RunPart part = next_part(options);
    const std::vector<Recipe> recipes = recipes_of(options);
    return train::with_element(part == RunPart::first ? recipes.front() : recipes.back(),
                               [&]<class T>(std::type_identity<T>) {
                                   LanguageRun<T> run(options, part);
                                   return use(run);
                               });
}

}  // namespace

LanguageRunResult run_language(const LanguageRunOptions& options, std::FILE* out, std::FILE* progress,
                               const StepWatcher& watch) {
    return run_in_parts(options, out, progress, watch, [](auto&, const std::function<void()>& take) { take(); });
}

std::string describe_language(const LanguageRunOptions& options) {
    return with_next_part(options, [](auto& run) { return run.description(); });
}

std::string parameters_of_language(const LanguageRunOptions& options) {
    return with_next_part(options, [](auto& run) { return run.parameters(); });
}

analysis::Audit audit_language(const LanguageRunOptions& options) {
    return train::with_element(recipe_of(options),
                               [&]<class T>(std::type_identity<T>) { return LanguageRun<T>(options).audit(); });
}

}  // namespace unitscale::experiments
