// SPDX-License-Identifier: MIT
#include "experiments/language_run.hpp"

#include <unitscale/compiled.hpp>

namespace unitscale::experiments {

LanguageRunResult run_language(const LanguageRunOptions& options, std::FILE* out, std::FILE* progress,
                               const StepWatcher& watch) {
    return train::with_storage(recipe_of(options), [&]<class T>(std::type_identity<T>) {
        return LanguageRun<T>(options).run(out, progress, watch);
    });
}

std::string describe_language(const LanguageRunOptions& options) {
    return train::with_storage(recipe_of(options),
                               [&]<class T>(std::type_identity<T>) { return LanguageRun<T>(options).description(); });
}

std::string parameters_of_language(const LanguageRunOptions& options) {
    return train::with_storage(recipe_of(options),
                               [&]<class T>(std::type_identity<T>) { return LanguageRun<T>(options).parameters(); });
}

analysis::Audit audit_language(const LanguageRunOptions& options) {
    return train::with_storage(recipe_of(options),
                               [&]<class T>(std::type_identity<T>) { return LanguageRun<T>(options).audit(); });
}

}  // namespace unitscale::experiments
