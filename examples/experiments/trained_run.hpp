// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/overflows.hpp>

#include "experiments/language_run_options.hpp"
#include "experiments/layer_rms.hpp"
#include "experiments/unfinished_run.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace unitscale::experiments {

/// The outcome of one run of a search.
struct TrainedRun {
    bool failed = false;      ///< it ended early, as Diverged
    bool lost = false;        ///< failed because its processes died: no result to keep
    std::string reason{};     ///< of the failure
    std::string first_bad{};  ///< of the failure, if steps are measured: explains the first value that was not finite
    LanguageRunResult result{};                   ///< of a run that has not failed
    double seconds = 0.0;                         ///< in this process
    std::vector<nlohmann::ordered_json> lines{};  ///< the log's lines, if steps are measured
    std::vector<LayerRms> rms{};                  ///< of the last step, medians over blocks, if they were wanted
};

/// Trains one run, from its beginning or from its checkpoint. `watch` sees every step. If it throws, the run can be
/// resumed later. A diverged run is an outcome, not an error. `rms`: the root mean squares of the last step are wanted,
/// which change no loss. A checkpoint of the last step cannot give them: then the run begins again.
/// Lines of the log: step, train, skipped, tokens_per_s; at some steps valid, biases (measured_biases), zeros
/// (analysis::GradientZeros, by kind of gradient: elements, zeros as stored, zeros as rounded) and overflows
/// (analysis::Overflows).
/// Errors: the errors of the options and of the files; RunFailed when a file cannot be written during the run.
/// Test: tests/experiments/trained_run_test.cpp
[[nodiscard]] TrainedRun train_run(LanguageRunOptions options, Measured measured, const UnfinishedRun& files,
                                   const std::function<void(const LanguageStep&)>& watch, bool rms = false);

/// By kind of gradient: elements, zeros as stored, zeros as rounded.
using LoggedZeros = std::map<std::string, std::array<std::uint64_t, 3>>;
/// The counts of zeros in a log, summed over all counted steps.
[[nodiscard]] LoggedZeros zeros_of(const std::vector<nlohmann::ordered_json>& lines);
/// The counts of overflows in a log, likewise.
[[nodiscard]] analysis::OverflowCounts overflows_of(const std::vector<nlohmann::ordered_json>& lines);

/// The reason in an error of a run, without its advice and its known prefix.
[[nodiscard]] std::string failure_text(const RunFailed& failure);

}  // namespace unitscale::experiments
