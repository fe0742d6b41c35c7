// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>

#include "experiments/results_file.hpp"
#include "experiments/run_set.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;
using unitscale::test::error_of;

TEST_CASE("run set: the results file and the folder of unfinished runs are named after the page") {
    RunSetOptions options;
    options.out = std::filesystem::path("pages") / "a.b.html";
    CHECK(options.results_path() == std::filesystem::path("pages") / "a.b.jsonl");
    CHECK(options.unfinished() == std::filesystem::path("pages") / "a.b.runs");
    options.out = "page";
    CHECK(options.results_path() == "page.jsonl");
    CHECK(options.unfinished() == "page.runs");
}

TEST_CASE("run set: counts are from 1 to 1000") {
    RunSetOptions options;
    options.check_counts();
    options.seeds = options.jobs = 1000;
    options.check_counts();
    options.seeds = 1001;
    CHECK(error_of([&] { options.check_counts(); }) == "--seeds: is 1001; expected a number from 1 to 1000");
    options.seeds = 1;
    options.jobs = 0;
    CHECK(error_of([&] { options.check_counts(); }) == "--jobs: is 0; expected a number from 1 to 1000");
}

TEST_CASE("run set: the page has its own name, in a writable folder") {
    const TemporaryFolder folder;
    RunSetOptions options;
    for (const char* name : {"a.jsonl", "a.runs", ""}) {
        CAPTURE(name);
        options.out = name;
        CHECK(error_of([&] { options.check_out("sweep.html"); }) ==
              "--out: is " + std::string(name) + "; expected the name of a page, such as sweep.html");
    }
    options.out = folder.path() / "none" / "a.html";
    CHECK(error_of([&] { options.check_out("sweep.html"); }) ==
          "--out: " + options.out.string() + " cannot be written");
    options.out = folder.path() / "a.html";
    options.check_out("sweep.html");
    CHECK_FALSE(std::filesystem::exists(options.out));
}

namespace {

/// A search over two learning rates of a small run.
struct SmallSearch {
    explicit SmallSearch(const TemporaryFolder& folder) {
        options.run = test::small_run(folder, /*depth=*/1, /*steps=*/4);
        options.run.recipe = "fp32";
        options.run.seed = 3;
        options.seeds = 2;
        options.out = folder.path() / "page.html";
        space = {.run = options.run, .axes = {parse_axis("lr=0.01,0.02")}};
        runs = runs_of(space, {{"0.01"}, {"0.02"}}, options.seeds);
    }
    [[nodiscard]] RunSet set(Measured measured = Measured::losses) const { return {options, space, measured, "a"}; }

    RunSetOptions options{};
    SweepSpace space{};
    std::vector<SearchRun> runs{};
};

/// The validation losses of all runs, by point and seed.
std::map<std::string, double> losses_of(const SmallSearch& search, RunSet set) {
    std::map<std::string, double> losses;
    set.train(search.runs,
              {.ended = [&](const SearchRun& run, const TrainedRun& trained, const std::filesystem::path& checkpoint) {
                  CHECK(std::filesystem::exists(checkpoint));
                  losses[run.point.front() + " " + std::to_string(run.seed)] = trained.result.valid_bpc;
              }});
    return losses;
}

}  // namespace

TEST_CASE("run set: the runs are all points with every seed, the first seed first") {
    const TemporaryFolder folder;
    const std::vector<SearchRun> runs = SmallSearch(folder).runs;
    REQUIRE(runs.size() == 4);
    CHECK(runs[0].point == SweepPoint{"0.01"});
    CHECK(runs[1].point == SweepPoint{"0.02"});
    CHECK(runs[1].options.lr == 0.02);
    CHECK(runs[0].seed == 3);
    CHECK(runs[0].options.seed == 3);
    CHECK(runs[3].options.seed == 4);
    CHECK(runs[0].recipe_fingerprint == fingerprint(find_recipe("fp32")));
}

TEST_CASE("run set: parallel runs have the losses of single runs, and leave no files") {
    const TemporaryFolder folder;
    SmallSearch search(folder);
    const std::map<std::string, double> one = losses_of(search, search.set());
    REQUIRE(one.size() == 4);
    CHECK(one.at("0.01 3") != one.at("0.01 4"));
    search.options.jobs = 3;
    CHECK(losses_of(search, search.set()) == one);
    CHECK(losses_of(search, search.set(Measured::steps)) == one);
    CHECK(std::filesystem::is_empty(search.options.unfinished()));
    search.set().clean(search.runs);
    CHECK_FALSE(std::filesystem::exists(search.options.unfinished()));
}

TEST_CASE("run set: an error stops the search, and its runs go on where they were") {
    const TemporaryFolder folder;
    SmallSearch search(folder);
    search.options.save_every = 1;
    const auto fail_at = [&](std::size_t last) {
        return [last](const SearchRun&, const LanguageStep& step) { check(step.step < last, "enough"); };
    };
    const auto ended = [](const SearchRun&, const TrainedRun&, const std::filesystem::path&) {
        FAIL("a run has ended");
    };
    RunSet set = search.set(Measured::steps);
    CHECK(error_of([&] { set.train(search.runs, {.stepped = fail_at(3), .ended = ended}); }) == "enough");
    std::size_t known = 0;
    search.set(Measured::steps)
        .train({search.runs.front()},
               {.began = [&](const SearchRun&, std::size_t steps) { known = steps; },
                .ended = [](const SearchRun&, const TrainedRun& trained,
                            const std::filesystem::path&) { CHECK(trained.lines.size() == 4); }});
    CHECK(known == 2);
}

TEST_CASE("run set: cleaning removes the files of ended runs only") {
    const TemporaryFolder folder;
    const SmallSearch search(folder);
    const RunSet set = search.set(Measured::steps);
    set.clean(search.runs);  // a missing folder is no error
    const UnfinishedRun first = set.files_of(search.runs[0]), second = set.files_of(search.runs[1]);
    CHECK(first.log().filename().string().starts_with("lr_0.01-seed3-"));
    CHECK(first.log() != second.log());
    set.clean({search.runs[0]});
    CHECK_FALSE(std::filesystem::exists(first.log()));
    CHECK(std::filesystem::exists(second.log()));
    set.clean({search.runs[1]});
    CHECK_FALSE(std::filesystem::exists(search.options.unfinished()));
}

TEST_CASE("run set: a folder that cannot be made is an error") {
    const TemporaryFolder folder;
    SmallSearch search(folder);
    search.options.out = folder.path() / "file" / "page.html";
    folder.write("file", "");
    CHECK(error_of([&] { static_cast<void>(search.set().files_of(search.runs[0])); }) ==
          "unfinished runs: " + (folder.path() / "file" / "page.runs").string() + " cannot be made");
}

namespace {

/// Makes every task by RunSet::make in this process, and hands over its lines. Task `dying` dies before it has ended,
/// `deaths` times.
RunTasks tasks_of(const SmallSearch& search, std::size_t dying = 0, std::size_t deaths = 0,
                  const std::string& settings = "a") {
    return [=](const std::vector<std::string>& texts, const distributed::TaskEvents& events) {
        for (std::size_t task = 0; task < texts.size(); ++task)
            for (std::size_t attempt = 1;; ++attempt) {
                const bool dies = task == dying && attempt <= deaths;
                std::istringstream lines(test::written_by([&](std::FILE* out) {
                    make_run(out, [&] {
                        RunSet(search.options, search.space, Measured::steps, settings).make(texts[task], out);
                    });
                }));
                for (std::string line; std::getline(lines, line);) {
                    if (dies && line.starts_with("{\"trained\"")) break;
                    events.line(task, line);
                }
                if (!dies) {
                    events.done(task);
                    break;
                }
                events.lost(task, "signal 9", attempt < 3);
                if (attempt == 3) break;
            }
    };
}

}  // namespace

TEST_CASE("run set: runs that are made as tasks are reported as others are, and a task that dies is made again") {
    const TemporaryFolder folder;
    SmallSearch search(folder);
    const auto told_by = [&](RunSet set) {
        std::map<std::string, std::string> told;
        const auto of = [&](const SearchRun& run) -> std::string& {
            return told[run.point.front() + " " + std::to_string(run.seed)];
        };
        set.train(search.runs,
                  {.began = [&](const SearchRun& run, std::size_t known) { of(run) += concatenate("from ", known); },
                   .stepped = [&](const SearchRun& run,
                                  const LanguageStep& step) { of(run) += concatenate(' ', step.train_bpc); },
                   .ended =
                       [&](const SearchRun& run, const TrainedRun& trained, const std::filesystem::path& checkpoint) {
                           CHECK(std::filesystem::exists(checkpoint));
                           of(run) += concatenate(", ", trained.result.valid_bpc, ", ", trained.lines.size());
                       }});
        return told;
    };
    const auto here = told_by(search.set(Measured::steps));
    CHECK(here.size() == 4);
    for (const std::size_t deaths : {0u, 2u}) {
        SmallSearch elsewhere = search;
        elsewhere.options.tasks = tasks_of(search, 1, deaths);
        CHECK(told_by(elsewhere.set(Measured::steps)) == here);
        CHECK(std::filesystem::is_empty(search.options.unfinished()));
    }
}

TEST_CASE("run set: a run whose processes die too often has failed, and its files stay") {
    const TemporaryFolder folder;
    SmallSearch search(folder);
    search.options.tasks = tasks_of(search, 2, 3);
    std::vector<bool> again;
    std::vector<std::string> failed;
    RunSet set = search.set(Measured::steps);
    set.train(search.runs, {.lost =
                                [&](const SearchRun& run, const std::string& reason, bool once_more) {
                                    CHECK(run.seed == 4);
                                    CHECK(reason == "signal 9");
                                    again.push_back(once_more);
                                },
                            .ended =
                                [&](const SearchRun& run, const TrainedRun& trained, const std::filesystem::path&) {
                                    CHECK(trained.failed == trained.lost);
                                    if (trained.lost) failed.push_back(run.point.front() + ": " + trained.reason);
                                }});
    CHECK(again == std::vector<bool>{true, true, false});
    CHECK(failed == std::vector<std::string>{"0.01: its process died: signal 9"});
    set.clean(search.runs);
    CHECK(std::filesystem::exists(UnfinishedRun::checkpoint_at(set.path_of(search.runs[2]))));
}

TEST_CASE("run set: errors of runs that are made as tasks end the search") {
    const TemporaryFolder folder;
    SmallSearch search(folder);
    const auto error_with = [&](const RunTasks& tasks) {
        SmallSearch elsewhere = search;
        elsewhere.options.tasks = tasks;
        return error_of([&] {
            elsewhere.set(Measured::steps)
                .train(elsewhere.runs, {.ended = [](const SearchRun&, const TrainedRun&, const std::filesystem::path&) {
                           FAIL("a run has ended");
                       }});
        });
    };
    CHECK(error_with(tasks_of(search, 0, 0, "b")) ==
          "run: its process has other options or another text than process 0");
    SmallSearch other = search;
    other.space.run.set = {"clip_norm=2"};
    CHECK(error_with(tasks_of(other)) == "run: its process has another recipe than process 0");
    CHECK(error_with([](const std::vector<std::string>&, const distributed::TaskEvents& events) { events.done(0); }) ==
          "run: lr 0.01, seed 3: its process has ended without a result");
}
