// SPDX-License-Identifier: MIT
#include "experiments/run_set.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>

#include "experiments/results_file.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

namespace unitscale::experiments {

std::filesystem::path RunSetOptions::results_path() const {
    return std::filesystem::path(out).replace_extension(".jsonl");
}

std::filesystem::path RunSetOptions::unfinished() const {
    return std::filesystem::path(out).replace_extension(".runs");
}

void RunSetOptions::check_counts() const {
    check(seeds >= 1 && seeds <= 1000, "--seeds: is ", seeds, "; expected a number from 1 to 1000");
    check(jobs >= 1 && jobs <= 1000, "--jobs: is ", jobs, "; expected a number from 1 to 1000");
}

void RunSetOptions::check_out(std::string_view example) const {
    check(out.extension() != ".jsonl" && out.extension() != ".runs" && out.has_filename(), "--out: is ", out.string(),
          "; expected the name of a page, such as ", example);
    io::check_writable("--out", out);
}

std::vector<SearchRun> runs_of(const SweepSpace& space, const std::vector<SweepPoint>& points, std::size_t seeds) {
    std::vector<SearchRun> runs;
    for (std::size_t seed = 0; seed < seeds; ++seed)
        for (const SweepPoint& point : points) {
            SearchRun& run = runs.emplace_back();
            run.point = point;
            run.options = space.options_at(point);
            run.seed = run.options.seed = space.run.seed + seed;
            run.recipe_fingerprint = fingerprint(recipe_of(run.options));
        }
    return runs;
}

RunSet::RunSet(const RunSetOptions& options, SweepSpace space, Measured measured, std::string settings)
    : options_(options), space_(std::move(space)), measured_(measured), settings_(std::move(settings)) {}

void RunSet::train(const std::vector<SearchRun>& runs, const SearchEvents& events) {
    queue_.run(options_.jobs, runs.size(), [&](std::size_t i) { train_one(runs[i], events); });
}

std::filesystem::path RunSet::path_of(const SearchRun& run) const {
    const std::string text = space_.text(run.point);
    return UnfinishedRun::path_in(options_.unfinished(), concatenate(text, "-seed", run.seed),
                                  concatenate(settings_, run.recipe_fingerprint, text, run.seed));
}

UnfinishedRun RunSet::files_of(const SearchRun& run) const {
    const std::filesystem::path folder = options_.unfinished();
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    check(std::filesystem::is_directory(folder, error), "unfinished runs: ", folder.string(), " cannot be made");
    return {path_of(run), measured_, run.options.steps};
}

void RunSet::clean(const std::vector<SearchRun>& ended) const {
    std::error_code error;
    if (!std::filesystem::exists(options_.unfinished(), error)) return;
    for (const SearchRun& run : ended) UnfinishedRun::remove(path_of(run));
    std::filesystem::remove(options_.unfinished(), error);  // a folder that is not empty stays
}

void RunSet::train_one(const SearchRun& run, const SearchEvents& events) {
    const UnfinishedRun files = files_of(run);
    if (events.began) {
        const std::lock_guard lock(mutex_);
        events.began(run, files.lines().size());
    }
    LanguageRunOptions options = run.options;
    options.save_every = options_.save_every.value_or(tenth_of(options.steps));
    const auto watch = [&](const LanguageStep& step) {
        queue_.leave_if_stopped();
        if (!events.stepped) return;
        const std::lock_guard lock(mutex_);
        events.stepped(run, step);
    };
    TrainedRun trained = train_run(options, measured_, files, watch, options_.rms);
    const std::lock_guard lock(mutex_);
    events.ended(run, std::move(trained), files);
    UnfinishedRun::remove(path_of(run));
}

}  // namespace unitscale::experiments
