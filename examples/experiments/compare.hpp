// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/comparison.hpp"

#include <cstdio>

namespace unitscale::experiments {

/// Trains every recipe on the same batches. Prints the comparison to `out` and writes it to one page.
/// After a kill, the next call with the same options resumes the unfinished runs.
/// Test: tests/experiments/compare_test.cpp
void compare_recipes(const ComparisonOptions& options, std::FILE* out, std::FILE* progress);

/// Makes one run of a comparison, `task` of RunSetOptions::tasks, and writes its lines (experiments/run_task.hpp).
void make_comparison_run(const ComparisonOptions& options, const std::string& task, std::FILE* out);

}  // namespace unitscale::experiments
