// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace unitscale::experiments {

/// The measurements that a search takes of its runs.
enum class Measured {
    losses,  ///< at the end
    steps    ///< at every step, in a log; and the first bad value of a diverged run
};

/// The files of a run in progress: a checkpoint and, if steps are measured, a log with a line for each step.
/// After a kill the lines up to the checkpoint's step count. If one of them or the checkpoint is missing, the run
/// restarts.
/// Test: tests/experiments/unfinished_run_test.cpp
class UnfinishedRun {
public:
    using Json = nlohmann::ordered_json;

    /// The files of a run of `steps` steps, at `path` with their extensions. Error: the log cannot be written.
    UnfinishedRun(std::filesystem::path path, Measured measured, std::size_t steps);

    /// The path of a run in a folder, without extension. `label` is for human readers; `what` distinguishes the run
    /// from all others.
    [[nodiscard]] static std::filesystem::path path_in(const std::filesystem::path& folder, const std::string& label,
                                                       const std::string& what);
    /// The checkpoint of a path.
    [[nodiscard]] static std::filesystem::path checkpoint_at(std::filesystem::path path) {
        return path += ".safetensors";
    }
    /// Removes all files of a path, after the run has ended.
    static void remove(const std::filesystem::path& path);

    [[nodiscard]] const std::filesystem::path& log() const noexcept { return log_; }
    [[nodiscard]] const std::filesystem::path& checkpoint() const noexcept { return checkpoint_; }
    /// True if the run continues from its checkpoint.
    [[nodiscard]] bool can_resume() const noexcept { return can_resume_; }
    /// The lines of the steps before the checkpoint.
    [[nodiscard]] const std::vector<Json>& lines() const noexcept { return lines_; }

private:
    void read_lines(std::size_t steps);

    std::filesystem::path log_, checkpoint_;
    std::vector<Json> lines_{};
    bool can_resume_ = false;
};

/// The step of a checkpoint; 0 if the file cannot be read.
[[nodiscard]] std::size_t step_of_checkpoint(const std::filesystem::path& path);

}  // namespace unitscale::experiments
