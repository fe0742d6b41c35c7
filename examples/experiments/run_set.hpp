// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/distributed/task_queue.hpp>
#include <unitscale/report/markup.hpp>

#include "experiments/job_queue.hpp"
#include "experiments/language_run_options.hpp"
#include "experiments/sweep_space.hpp"
#include "experiments/trained_run.hpp"
#include "experiments/unfinished_run.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

// The engine of every search: a sweep and a comparison of recipes train the runs of points of a space.
namespace unitscale::experiments {

/// Makes runs in processes of their own, as distributed::TaskFarm::run does: each text is the argument of one.
using RunTasks = std::function<void(const std::vector<std::string>& texts, const distributed::TaskEvents& events)>;

/// The options of many runs: the shared run, the number of seeds and parallel runs, and the files.
/// Test: tests/experiments/run_set_test.cpp
struct RunSetOptions {
    /// Shared by all runs, as far as the sweep or comparison does not change it. Its seed is the first.
    LanguageRunOptions run{};
    std::size_t seeds = 1;                    ///< `run.seed` and the seeds after it
    std::size_t jobs = 1;                     ///< parallel runs
    std::optional<std::size_t> save_every{};  ///< steps between checkpoints of a run; empty: a tenth of the run
    bool rms = false;                         ///< every run records the root mean squares of its last step
    std::filesystem::path out{};              ///< the page
    report::PageSource source{};              ///< of the page
    RunTasks tasks{};                         ///< makes runs in other processes; empty: in threads of this one

    /// The results file: `out` with the extension jsonl.
    [[nodiscard]] std::filesystem::path results_path() const;
    /// The folder of unfinished runs: `out` with the extension runs.
    [[nodiscard]] std::filesystem::path unfinished() const;

    /// Error, naming the option: `seeds` or `jobs` is not in 1..1000.
    void check_counts() const;
    /// Error, naming the option: `out` names no page, or cannot be written. `example` is a valid name for the message.
    void check_out(std::string_view example) const;
};

/// A run that a search asks for: a point of its space, with a seed.
struct SearchRun {
    SweepPoint point{};
    std::uint64_t seed = 1;
    LanguageRunOptions options{};  ///< at that point, with that seed
    std::string recipe_fingerprint{};
};

/// The run of a point with a seed.
[[nodiscard]] SearchRun run_at(const SweepSpace& space, const SweepPoint& point, std::uint64_t seed);

/// The runs of all points with every seed. The first seed of every point comes first, so that pages soon show every
/// point.
[[nodiscard]] std::vector<SearchRun> runs_of(const SweepSpace& space, const std::vector<SweepPoint>& points,
                                             std::size_t seeds);

/// The reports of a search in progress. They are called one at a time.
struct SearchEvents {
    /// A run begins; an earlier process took `known` of its steps.
    std::function<void(const SearchRun&, std::size_t known)> began{};
    std::function<void(const SearchRun&, const LanguageStep&)> stepped{};
    /// A process that made a run has died, `reason`. `again`: the run will be made again.
    std::function<void(const SearchRun&, const std::string& reason, bool again)> lost{};
    /// A run has ended and has left this checkpoint. Its files are removed after this call.
    std::function<void(const SearchRun&, TrainedRun, const std::filesystem::path& checkpoint)> ended;
};

/// Trains the runs of a search, several in parallel: each in a thread with a model and a tape of its own, or each in a
/// process. A killed run continues from its checkpoint in the next process. Test: tests/experiments/run_set_test.cpp
class RunSet {
public:
    /// `settings` is a text of all settings that the runs share.
    RunSet(const RunSetOptions& options, SweepSpace space, Measured measured, std::string settings);

    [[nodiscard]] const SweepSpace& space() const noexcept { return space_; }

    /// Trains the runs. After an error no further run begins; the others leave checkpoints.
    /// A run is `lost` if its processes have died too often. It then counts as failed, and its files stay.
    /// Errors: the errors of train_run and of `events`.
    void train(const std::vector<SearchRun>& runs, const SearchEvents& events);

    /// Makes one run of `train` in this process, `text` of RunSetOptions::tasks, and keeps its files.
    /// Writes lines (experiments/run_task.hpp). Errors: other settings or another recipe; the errors of train_run.
    void make(const std::string& text, std::FILE* out);

    /// The path of a run's files, without extension.
    [[nodiscard]] std::filesystem::path path_of(const SearchRun& run) const;
    /// The files of a run. Creates the folder. Errors: the folder or the log cannot be written.
    [[nodiscard]] UnfinishedRun files_of(const SearchRun& run) const;
    /// Removes files that a kill between an ended run's result and their removal has left. Then removes the folder of
    /// unfinished runs, if it is empty.
    void clean(const std::vector<SearchRun>& ended) const;

private:
    void train_one(const SearchRun& run, const SearchEvents& events);
    void train_as_tasks(const std::vector<SearchRun>& runs, const SearchEvents& events);

    RunSetOptions options_;
    SweepSpace space_;
    Measured measured_;
    std::string settings_;
    JobQueue queue_{};
    std::set<std::filesystem::path> lost_{};  ///< checkpoints of lost runs, which stay
    std::mutex mutex_{};                      ///< guards the events
};

/// Calls `make`, which makes one run by RunSet::make. An error becomes a line of the run.
void make_run(std::FILE* out, const std::function<void()>& make);

}  // namespace unitscale::experiments
