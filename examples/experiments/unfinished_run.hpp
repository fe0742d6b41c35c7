// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/scaling/state.hpp>

#include "experiments/comparison.hpp"
#include "experiments/language_run_options.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

// The files of a run in progress, in a comparison or a sweep, and the reduction of its steps to a result.
namespace unitscale::experiments {

/// The step of a checkpoint; 0 if the file cannot be read.
[[nodiscard]] std::size_t step_of_checkpoint(const std::filesystem::path& path);

/// The path of an unfinished run's files, without their extensions. Creates the folder.
/// `label` is for human readers; `what` distinguishes the run from all others. Error: the folder cannot be created.
[[nodiscard]] std::filesystem::path unfinished_path(const std::filesystem::path& folder, const std::string& label,
                                                    const std::string& what);

/// The reason in an error of a run, without its advice and its known prefix.
[[nodiscard]] std::string failure_text(const RunFailed& failure);

/// The files of a run in progress: a log line for each step, and a checkpoint.
/// After a kill the lines up to the checkpoint's step count. If one of them or the checkpoint is missing, the run
/// restarts.
/// Test: tests/experiments/unfinished_run_test.cpp
class UnfinishedRun {
public:
    using Json = nlohmann::ordered_json;

    /// `what` distinguishes the run from all others. Creates the folder. Error: the folder or a file cannot be written.
    UnfinishedRun(const std::filesystem::path& folder, const ComparedRun& run, const std::string& what,
                  std::size_t steps);

    [[nodiscard]] const std::filesystem::path& log() const noexcept { return log_; }
    [[nodiscard]] const std::filesystem::path& checkpoint() const noexcept { return checkpoint_; }
    /// The lines of the steps before the checkpoint. Empty: the run starts from its beginning.
    [[nodiscard]] const std::vector<Json>& lines() const noexcept { return lines_; }

    /// Removes all files, after the run has ended.
    void remove() const;

private:
    void read_lines(std::size_t steps);

    std::filesystem::path log_, checkpoint_;
    std::vector<Json> lines_{};
};

/// The biases that amax rules measured for this step's scaled operands, by `path|role`.
[[nodiscard]] nlohmann::ordered_json measured_biases(const ScalingState& state);

/// Reduces the steps' lines to a result: curves of at most 200 points, each the mean of the steps since the last point.
void add_steps(RunResult& result, const std::vector<nlohmann::ordered_json>& lines);

}  // namespace unitscale::experiments
