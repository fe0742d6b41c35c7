// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/comparison.hpp"
#include "experiments/language_run_options.hpp"
#include "experiments/unfinished_run.hpp"

#include <cstdio>
#include <functional>
#include <string>

namespace unitscale::experiments {

/// Trains one run of a comparison, from its beginning or from its checkpoint in `unfinished`.
/// `source` is the recipe's name or file. `watch` sees every step. If it throws, the run can be resumed later.
/// A run that diverges returns a result with `failed` set and the reason.
/// Errors: the errors of the options and of the files. Test: tests/experiments/compare_test.cpp
[[nodiscard]] RunResult train_compared(LanguageRunOptions options, const ComparedRun& run, const std::string& source,
                                       const UnfinishedRun& unfinished,
                                       const std::function<void(const LanguageStep&)>& watch);

/// Trains every recipe on the same batches. Prints the comparison to `out` and writes it to one page.
/// After a kill, the next call with the same options resumes the unfinished runs.
void compare_recipes(const ComparisonOptions& options, std::FILE* out, std::FILE* progress);

}  // namespace unitscale::experiments
