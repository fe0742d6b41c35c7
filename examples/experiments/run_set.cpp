// SPDX-License-Identifier: MIT
#include "experiments/run_set.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>

#include "experiments/results_file.hpp"
#include "experiments/run_task.hpp"

#include <exception>
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

SearchRun run_at(const SweepSpace& space, const SweepPoint& point, std::uint64_t seed) {
    SearchRun run{.point = point, .seed = seed, .options = space.options_at(point)};
    run.options.seed = seed;
    run.recipe_fingerprint = fingerprint(recipe_of(run.options));
    return run;
}

std::vector<SearchRun> runs_of(const SweepSpace& space, const std::vector<SweepPoint>& points, std::size_t seeds) {
    std::vector<SearchRun> runs;
    for (std::size_t seed = 0; seed < seeds; ++seed)
        for (const SweepPoint& point : points) runs.push_back(run_at(space, point, space.run.seed + seed));
    return runs;
}

RunSet::RunSet(const RunSetOptions& options, SweepSpace space, Measured measured, std::string settings)
    : options_(options), space_(std::move(space)), measured_(measured), settings_(std::move(settings)) {}

void RunSet::train(const std::vector<SearchRun>& runs, const SearchEvents& events) {
    if (options_.tasks) return train_as_tasks(runs, events);
    queue_.run(options_.jobs, runs.size(), [&](std::size_t i) {
        train_one(runs[i], events);
        UnfinishedRun::remove(path_of(runs[i]));
    });
}

void RunSet::train_as_tasks(const std::vector<SearchRun>& runs, const SearchEvents& events) {
    std::vector<std::string> texts;
    std::vector<RunLines> lines(runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const SearchRun& run = runs[i];
        texts.push_back(RunTask{run.point, run.seed, run.recipe_fingerprint, fingerprint(settings_)}.text());
        if (events.began) lines[i].began = [&](std::size_t known) { events.began(run, known); };
        if (events.stepped) lines[i].stepped = [&](const LanguageStep& step) { events.stepped(run, step); };
    }
    const auto end = [&](std::size_t i, TrainedRun trained) {
        events.ended(runs[i], std::move(trained), UnfinishedRun::checkpoint_at(path_of(runs[i])));
    };
    options_.tasks(texts, {.line = [&](std::size_t i, std::string_view line) { lines[i].read(line); },
                           .done =
                               [&](std::size_t i) {
                                   check(lines[i].trained().has_value(), "run: ", space_.text(runs[i].point), ", seed ",
                                         runs[i].seed, ": its process has ended without a result");
                                   end(i, *lines[i].trained());
                                   UnfinishedRun::remove(path_of(runs[i]));
                               },
                           .lost =
                               [&](std::size_t i, const std::string& reason, bool again) {
                                   if (events.lost) events.lost(runs[i], reason, again);
                                   if (again) return;
                                   lost_.insert(path_of(runs[i]));
                                   end(i, {.failed = true, .lost = true, .reason = "its process died: " + reason});
                               }});
}

void RunSet::make(const std::string& text, std::FILE* out) {
    const RunTask task = RunTask::parse(text);
    check(task.point.size() == space_.axes.size() && task.settings == fingerprint(settings_),
          "run: its process has other options or another text than process 0");
    const SearchRun run = run_at(space_, task.point, task.seed);
    check(task.recipe == run.recipe_fingerprint, "run: its process has another recipe than process 0");
    const auto write = [out](const std::string& line) {
        std::fprintf(out, "%s\n", line.c_str());
        std::fflush(out);
    };
    train_one(run, {.began = [&](const SearchRun&, std::size_t known) { write(began_line(known)); },
                    .stepped = [&](const SearchRun&, const LanguageStep& step) { write(step_line(step)); },
                    .ended = [&](const SearchRun&, const TrainedRun& trained,
                                 const std::filesystem::path&) { write(trained_line(trained)); }});
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
    for (const SearchRun& run : ended)
        if (!lost_.contains(path_of(run))) UnfinishedRun::remove(path_of(run));
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
    events.ended(run, std::move(trained), files.checkpoint());
}

void make_run(std::FILE* out, const std::function<void()>& make) {
    const auto fail_with = [out](const std::exception& error, bool arguments) {
        std::fprintf(out, "%s\n", error_line(error.what(), arguments).c_str());
        std::fflush(out);
    };
    try {
        make();
    } catch (const Error& error) {
        fail_with(error, true);
    } catch (const RunFailed& error) {
        fail_with(error, false);
    }
}

}  // namespace unitscale::experiments
