// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/language_run_options.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string_view>

// The parts that sweeps and comparisons share: both make many runs in parallel and resume after a kill.
namespace unitscale::experiments {

/// The options of many runs: the shared run, the number of seeds and parallel runs, and the files.
/// Test: tests/experiments/run_set_test.cpp
struct RunSetOptions {
    /// Shared by all runs, as far as the sweep or comparison does not change it. Its seed is the first.
    LanguageRunOptions run{};
    std::size_t seeds = 1;                    ///< `run.seed` and the seeds after it
    std::size_t jobs = 1;                     ///< parallel runs
    std::optional<std::size_t> save_every{};  ///< steps between checkpoints of a run; empty: a tenth of the run
    std::filesystem::path out{};              ///< the page

    /// The results file: `out` with the extension jsonl.
    [[nodiscard]] std::filesystem::path results_path() const;
    /// The folder of unfinished runs: `out` with the extension runs.
    [[nodiscard]] std::filesystem::path unfinished() const;

    /// Error, naming the option: `seeds` or `jobs` is not in 1..1000.
    void check_counts() const;
    /// Error, naming the option: `out` names no page, or cannot be written. `example` is a valid name for the message.
    void check_out(std::string_view example) const;
};

/// A tenth of a run of `steps` steps, at least 1: the default warm-up, and the default distance of checkpoints and
/// evaluations.
[[nodiscard]] std::size_t tenth_of(std::size_t steps);

/// Removes the folder of unfinished runs, if it is empty.
void remove_if_empty(const std::filesystem::path& folder);

}  // namespace unitscale::experiments
