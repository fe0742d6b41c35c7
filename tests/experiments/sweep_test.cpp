// SPDX-License-Identifier: MIT
#include "experiments/sweep.hpp"
#include "experiments/language_run.hpp"
#include "support/catch.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;

namespace {

SweepOptions small(const TemporaryFolder& folder) {
    SweepOptions options;
    options.run = test::small_run(folder, /*depth=*/1, /*steps=*/6);
    options.axes = {"lr=0.002,0.02"};
    options.out = folder.path() / "page.html";
    return options;
}

/// The output of a sweep.
std::string said(const SweepOptions& options) {
    return test::written_by([&](std::FILE* file) { sweep(options, file); });
}

/// The lines of a sweep's file, without times and speeds.
std::vector<std::string> result_lines(const SweepOptions& options) {
    std::vector<std::string> lines;
    std::istringstream text(TemporaryFolder::read(options.results_path()));
    for (std::string line; std::getline(text, line);) {
        auto json = nlohmann::ordered_json::parse(line);
        if (json.contains("run"))
            for (const char* field : {"tokens_per_s", "seconds"}) json["run"].erase(field);
        lines.push_back(json.dump());
    }
    std::sort(lines.begin(), lines.end());
    return lines;
}

std::string problem_of(const std::function<void(SweepOptions&)>& change) {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    change(options);
    try {
        options.validate();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("sweep: bad options are one line that names the option, before anything is run") {
    CHECK(problem_of([](auto&) {}) == "");
    CHECK(problem_of([](auto& o) { o.axes = {}; }) == "--axis: none given; without one a sweep has no points");
    CHECK(problem_of([](auto& o) { o.recipes = {}; }) == "--recipes: none given");
    CHECK(problem_of([](auto& o) { o.recipes = {"fp7"}; }).starts_with("recipe: unknown name 'fp7'; expected one of "));
    CHECK(problem_of([](auto& o) { o.recipes = {"fp32", "fp32"}; }) == "--axis recipe: fp32 is given twice");
    CHECK(problem_of([](auto& o) { o.strategy = "best"; }) ==
          "--strategy: is 'best'; expected one of grid, line, random, independent");
    CHECK(problem_of([](auto& o) { o.axes = {"width=16,17"}; }) == "--heads: width 17 is not divisible by 2 heads");
    CHECK(problem_of([](auto& o) {
              o.run.head_size = 8;
              o.axes = {"width=16,20"};
          }) == "--head-size: width 20 is not divisible by heads of size 8");
    CHECK(problem_of([](auto& o) { o.axes = {"lr=1:4"}; }) ==
          "--axis lr: is an interval, which random search draws from; expected values, such as 1:4:x2");
    CHECK(problem_of([](auto& o) { o.seeds = 0; }) == "--seeds: is 0; expected a number from 1 to 1000");
    CHECK(problem_of([](auto& o) { o.jobs = 0; }) == "--jobs: is 0; expected a number from 1 to 1000");
    CHECK(problem_of([](auto& o) { o.run.set = {"speed=1"}; }).starts_with("recipe: unknown key 'speed'"));
    CHECK(problem_of([](auto& o) { o.out = "a.jsonl"; }) ==
          "--out: is a.jsonl; expected the name of a page, such as sweep.html");
    CHECK(problem_of([](auto& o) { o.out = "none/a.html"; }) == "--out: none/a.html cannot be written");
    CHECK(problem_of([](auto& o) {
              o.plot = "a.svg";
              o.axes = {"alpha_res=1,2"};
          }) == "--plot: shows losses by learning rate; expected --axis lr=...");
    CHECK(problem_of([](auto& o) { o.plot = "none/a.svg"; }) == "--plot: none/a.svg cannot be written");
}

TEST_CASE("sweep: a point's loss equals the loss of a separate run, for any number of jobs") {
    const TemporaryFolder folder, other;
    SweepOptions options = small(folder);
    options.recipes = {"umup-fp32", "fp32"};
    options.axes = {"width=16,32", "lr_factor=0.5,1,2"};
    options.run.model = "llama";
    options.plot = folder.path() / "rates.svg";
    const std::string text = said(options);
    INFO(text);
    CHECK(text.find("12 runs, of which 0 are done") != std::string::npos);
    CHECK(text.find("[12/12] fp32, width 32, lr_factor 2, seed 1: ") != std::string::npos);
    CHECK(text.find("how far optima move") != std::string::npos);
    CHECK(TemporaryFolder::read(options.out).ends_with("</html>\n"));
    CHECK(TemporaryFolder::read(options.plot).starts_with("<svg "));
    CHECK_FALSE(std::filesystem::exists(options.unfinished()));

    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> ignored(std::tmpfile(), std::fclose);
    const SweepResults results = results_so_far(options);
    REQUIRE(results.points.size() == 12);
    LanguageRunOptions alone = options.run;
    alone.recipe = "fp32";
    alone.width = 32;
    alone.lr = 2.0 * find_recipe("fp32").learning_rate;
    alone.quiet = true;
    alone.sample = 0;
    CHECK(results.loss({"fp32", "32", "2"}) == run_language(alone, ignored.get(), ignored.get()).valid_bpc);

    SweepOptions beside = options;
    beside.out = other.path() / "page.html";
    beside.plot.clear();
    beside.jobs = 3;
    static_cast<void>(said(beside));
    CHECK(result_lines(beside) == result_lines(options));

    // Ended runs are not repeated. Another order, further values and further seeds only add runs.
    const std::string before = TemporaryFolder::read(options.results_path());
    CHECK(said(options).find("12 runs, of which 12 are done") != std::string::npos);
    CHECK(TemporaryFolder::read(options.results_path()) == before);
    options.axes = {"width=32", "lr_factor=2,4"};
    options.seeds = 2;
    CHECK(said(options).find("8 runs, of which 2 are done") != std::string::npos);
    CHECK(TemporaryFolder::read(options.results_path()).starts_with(before));
}

TEST_CASE("sweep: a failed run is a point with its reason, and is not made again") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    options.axes = {"lr=0.002,1e30"};
    for (const char* done : {"2 runs, of which 0 are done", "2 runs, of which 2 are done"}) {
        const std::string text = said(options);
        INFO(text);
        CHECK(text.find(done) != std::string::npos);
        CHECK(text.find("lr 1e+30, seed 1: failed: the ") != std::string::npos);
    }
    CHECK_FALSE(std::filesystem::exists(options.unfinished()));
}

TEST_CASE("sweep: an independent search runs all its stages, and a repeated call continues from the file") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    options.recipes = {"umup-fp32"};
    options.strategy = "independent";
    options.axes = {"lr=0.25,1", "alpha_attn=0.5,2", "alpha_loss_softmax=0.5,2"};
    options.seeds = 2;
    const std::string text = said(options);
    INFO(text);
    CHECK(text.find("4 runs, of which 0 are done") != std::string::npos);
    CHECK(text.find("12 runs, of which 4 are done") != std::string::npos);
    CHECK(text.find("independent search: the best multipliers together") != std::string::npos);
    const auto last = [](const std::string& said) { return said.substr(said.find("\nbest point")); };
    CHECK(last(said(options)) == last(text));
}

TEST_CASE("sweep: a file of another sweep, or of other recipes, is refused in one line") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    static_cast<void>(said(options));
    const std::string before = TemporaryFolder::read(options.results_path());
    const auto refused = [&](const std::function<void(SweepOptions&)>& change) {
        SweepOptions other = options;
        change(other);
        std::string error;
        try {
            static_cast<void>(said(other));
        } catch (const Error& caught) {
            error = caught.what();
        }
        CHECK(TemporaryFolder::read(options.results_path()) == before);
        const std::string begin = "sweep: " + options.results_path().string(), end = "; choose another --out";
        if (!error.starts_with(begin) || !error.ends_with(end)) return "not refused: " + error;
        return error.substr(begin.size(), error.size() - begin.size() - end.size());
    };
    CHECK(refused([](auto& o) { o.run.steps = 7; }) == " is of another sweep: its steps is 6, not 7");
    CHECK(refused([](auto& o) { o.run.model = "llama"; }) ==
          " is of another sweep: its model is \"gpt\", not \"llama\"");
    CHECK(refused([](auto& o) { o.run.warmup = 2; }) == " is of another sweep: its warmup is \"a tenth\", not 2");
    CHECK(refused([](auto& o) { o.run.weight_decay = 0.5; }) ==
          " is of another sweep: its weight_decay is \"not set\", not 0.5");
    CHECK(refused([](auto& o) { o.recipes = {"unit-fp8"}; }) ==
          " is of another sweep: its recipe is \"fp32\", not \"unit-fp8\"");
    CHECK(refused([](auto& o) { o.run.set = {"clip_norm=1"}; }) ==
          " is of another sweep: its set is [], not [\"clip_norm=1\"]");
    CHECK(refused([](auto& o) { o.axes = {"lr_factor=1,2"}; }) ==
          " is of another sweep: its axes is [\"lr\"], not [\"lr_factor\"]");
    folder.write("text.txt", std::string(2000, 'a') + std::string(2000, 'b'));
    CHECK(refused([](auto&) {}).starts_with(" is of another sweep: its text is "));
}
