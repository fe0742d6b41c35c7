// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/tracker.hpp>
#include <unitscale/report/markup.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/critical_tensors.hpp>

#include "experiments/language_run_options.hpp"

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace unitscale::experiments {

/// The tracking of a run for a report.
struct TrackingOptions {
    std::size_t every = 0;                      ///< steps between tracked steps; 0: a fiftieth of the run
    std::vector<std::string> patterns = {"*"};  ///< of the tracked tensors' paths
    /// Formats that all values and all gradients are tested against. Empty: each tensor is judged by the products that
    /// round it.
    std::string value_format{}, gradient_format{};
};

/// The tracker's options for one run. Errors: an unknown format; an unsigned format.
[[nodiscard]] analysis::TrackerOptions tracker_options(const TrackingOptions& tracking, const LanguageRunOptions& run,
                                                       const Recipe& recipe);

/// The options of `scale_report`: one run, tracked under several recipes.
struct ScaleReportOptions {
    LanguageRunOptions run{};  ///< shared by all recipes; its recipe, log and sample are not used
    std::vector<std::string> recipes = {"unit-fp8", "fp32"};
    double rate_factor = 1.0;  ///< factor on each recipe's learning rate
    TrackingOptions tracking{};
    std::string out = "scales.html";
    std::string json{};           ///< JSON lines of all runs; empty: none
    report::PageSource source{};  ///< of the page

    /// Checks all options but the data and the model, which the runs check. Error: it names the option.
    void validate() const;
};

/// The observations of a tracked run, or of one of its parts, kept even if the run fails.
struct TrackedRun {
    analysis::Track track{};
    std::vector<train::CriticalProduct> critical{};
};

/// `run_language` with a tracker for each part. `seen` is filled even if the run fails: an entry for each part that has
/// taken a step.
LanguageRunResult run_tracked(const LanguageRunOptions& options, const TrackingOptions& tracking, std::FILE* text,
                              std::FILE* progress, std::vector<TrackedRun>& seen);

/// Trains under every recipe, writes one page about all runs, and prints the end of each run to `text`.
/// A run ends early when its loss is no longer finite; the page explains the failure.
/// Errors: the errors of the options, the data and the model, before any training; a pattern that matched no tensor.
/// Test: tests/experiments/scale_report_test.cpp
void scale_report(const ScaleReportOptions& options, std::FILE* text);

/// Trains one run and writes a page about the scale of every tensor to `page`, even if the run fails. Empty: no page.
/// `source` says where the page comes from.
/// After a switch of recipes the page shows both parts, side by side.
/// Error: the page cannot be written, found before any computation.
[[nodiscard]] LanguageRunResult run_and_report(const LanguageRunOptions& options, const std::string& page,
                                               const report::PageSource& source, std::FILE* text, std::FILE* progress);

}  // namespace unitscale::experiments
