// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/run_set.hpp"
#include "experiments/sweep_results.hpp"
#include "experiments/sweep_search.hpp"
#include "experiments/sweep_space.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::experiments {

/// The options of `sweep`.
struct SweepOptions : RunSetOptions {
    std::vector<std::string> recipes = {"fp32"};  ///< names or JSON files; several are an axis
    std::vector<std::string> axes{};              ///< in the notation of `parse_axis`
    std::string strategy = "grid";
    std::size_t points = 20;                ///< of a random search
    std::uint64_t search_seed = 1;          ///< of a random search
    double worse_by = 0.1;                  ///< of an upward search, bits per character
    bool sizes_alone = false;               ///< each size is varied alone
    std::optional<std::size_t> tokens{};    ///< characters of every run, in place of `run.steps`
    std::filesystem::path plot{};           ///< an SVG of the losses by learning rate; empty: none
    std::filesystem::path plot_settings{};  ///< an SVG of the recipes' least losses over settings; empty: none

    /// The page is `sweep.html`. Every point has `seeds` runs.
    SweepOptions() { out = "sweep.html"; }

    /// The searched space. Errors: the errors of the axes and recipes.
    [[nodiscard]] SweepSpace space() const;

    /// Errors: an unknown strategy.
    [[nodiscard]] SweepSearch search() const;

    /// Checks all options but the data, which `sweep` checks. Error: it names the option.
    void validate() const;
};

/// Makes every run of a sweep. Prints the results to `out` and writes them to one page.
/// After a kill, the next call with the same options resumes the unfinished runs. Test:
/// tests/experiments/sweep_test.cpp
void sweep(const SweepOptions& options, std::FILE* out);

/// Makes one run of a sweep, `task` of RunSetOptions::tasks, and writes its lines (experiments/run_task.hpp).
void make_sweep_run(const SweepOptions& options, const std::string& task, std::FILE* out);

/// The results in the sweep's results file. Trains nothing. Errors: the errors of the options, the data and the file.
[[nodiscard]] SweepResults results_so_far(const SweepOptions& options);

}  // namespace unitscale::experiments
