// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>

#include "experiments/language_run.hpp"
#include "experiments/sweep.hpp"
#include "support/catch.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
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

/// A run of fp32 with these options, outside any sweep.
LanguageRunResult result_alone(LanguageRunOptions run) {
    run.recipe = "fp32";
    run.quiet = true;
    run.sample = 0;
    const test::File ignored = test::temporary_file();
    return run_language(run, ignored.get(), ignored.get());
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
          "--strategy: is 'best'; expected one of grid, line, random, independent, upwards");
    CHECK(problem_of([](auto& o) { o.axes = {"placement=pre,after"}; }) ==
          "--placement: is after; expected pre, post or none");
    CHECK(problem_of([](auto& o) {
              o.axes = {"lr=1", "model=gpt,bert"};
          }) == "--model: is bert; expected gpt, llama or unit-scaling");
    CHECK(problem_of([](auto& o) { o.axes = {"model=gpt,"}; }) == "--model: is ; expected gpt, llama or unit-scaling");
    CHECK(problem_of([](auto& o) { o.strategy = "upwards", o.worse_by = -1.0; }) ==
          "--worse-by: is -1; expected 0 or more");
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
    CHECK(
        problem_of([](auto& o) { o.plot_settings = "a.svg"; }) ==
        "--plot-settings: shows recipes over settings; expected --recipes with two or more, and axes of names or sizes "
        "with three combinations or more");
    CHECK(problem_of([](auto& o) { o.tokens = 63; }) ==
          "--tokens: is 63; expected one batch of 4 x 16 characters at least, and 1000000000 at most");
    CHECK(problem_of([](auto& o) { o.tokens = 64, o.axes = {"batch=0,4"}; }) == "--batch: is 0; expected at least 1");
    CHECK(problem_of([](auto& o) {
              o.axes = {"rate:*readout/weight=1", "rate:*gate*=1"};
          }).starts_with("--rate: group pattern '*gate*' matches none of the "));
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

    const SweepResults results = results_so_far(options);
    REQUIRE(results.points.size() == 12);
    LanguageRunOptions alone = options.run;
    alone.width = 32;
    alone.lr = 2.0 * find_recipe("fp32").learning_rate;
    CHECK(results.loss({"fp32", "32", "2"}) == result_alone(alone).valid_bpc);

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

TEST_CASE("sweep: names are axes, whose runs equal runs with these options") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    options.axes = {"model=gpt,llama", "lr=0.02", "placement=pre,none"};
    const std::string text = said(options);
    INFO(text);
    CHECK(text.find("search over model, lr, placement; recipe fp32; model gpt or llama, placement pre or none, "
                    "width 16") != std::string::npos);
    CHECK(text.find("[4/4] model llama, lr 0.02, placement none, seed 1: ") != std::string::npos);
    CHECK(text.find("\nmodel llama, placement none  0.02") != std::string::npos);
    const SweepResults results = results_so_far(options);
    REQUIRE(results.points.size() == 4);
    LanguageRunOptions alone = options.run;
    alone.lr = 0.02;
    std::vector<double> losses;
    for (const char* model : {"gpt", "llama"})
        for (const char* placement : {"pre", "none"}) {
            alone.model = model, alone.placement = placement;
            losses.push_back(result_alone(alone).valid_bpc);
            CHECK(results.loss({model, "0.02", placement}) == losses.back());
        }
    std::sort(losses.begin(), losses.end());
    CHECK(std::unique(losses.begin(), losses.end()) == losses.end());
    options.axes = {"model=llama", "lr=0.02", "placement=none,post"};
    CHECK(said(options).find("2 runs, of which 1 are done") != std::string::npos);
}

TEST_CASE("sweep: without new axes and options the file holds the fields that it always held") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    static_cast<void>(said(options));
    std::istringstream text(TemporaryFolder::read(options.results_path()));
    const auto keys = [&](const char* of) {
        std::string line;
        std::getline(text, line);
        std::string names;
        const auto json = nlohmann::ordered_json::parse(line);
        for (const auto& [name, value] : json.at(of).items()) names += name + " ";
        return names;
    };
    CHECK(keys("sweep") ==
          "text characters axes set recipe recipe_fields to_infinity model width depth heads batch steps seq "
          "head_size kv_heads warmup micro_batches ");
    CHECK(keys("run") == "lr seed recipe_fields failed reason train_loss valid_loss tokens_per_s seconds ");
}

TEST_CASE("sweep: a searched loss scale counts zeros and skipped steps, and lines without the counts can be read") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    options.recipes = {"fp16"};
    options.axes = {"loss_scale=1,2^14,2^40"};
    const std::string text = said(options);
    INFO(text);
    CHECK(text.find("gradients by loss scale") != std::string::npos);
    const SweepResults results = results_so_far(options);
    REQUIRE(results.points.size() == 3);
    const auto run = [&](std::size_t i) { return results.points[i].runs.at(0); };
    CHECK(run(0).zeros > 1.5 * *run(1).zeros);  // gradients below fp16's range
    CHECK(run(0).skipped == 0.0);
    CHECK(run(1).skipped == 0.0);
    CHECK(run(2).skipped == 1.0);  // every gradient overflows, and no step is taken
    CHECK(run(2).failed);          // so nothing was trained
    CHECK_FALSE(run(1).failed);

    std::string lines;
    std::istringstream file(TemporaryFolder::read(options.results_path()));
    for (std::string line; std::getline(file, line);) {
        auto json = nlohmann::ordered_json::parse(line);
        if (json.contains("run"))
            for (const char* field : {"zeros", "skipped"}) CHECK(json["run"].erase(field) == 1);
        lines += json.dump() + '\n';
    }
    folder.write("page.jsonl", lines);
    const SweepResults again = results_so_far(options);
    CHECK(again.loss({"16384"}) == results.loss({"16384"}));
    CHECK_FALSE(again.points.at(1).runs.at(0).zeros.has_value());
    CHECK(said(options).find("3 runs, of which 3 are done") != std::string::npos);
}

TEST_CASE("sweep: runs of different lengths share a warm-up, which their file compares") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    options.axes = {"lr=0.02", "steps=40,20"};
    const std::string text = said(options);
    const SweepResults results = results_so_far(options);
    LanguageRunOptions alone = options.run;
    alone.lr = 0.02;
    alone.steps = 40;
    alone.warmup = 2;
    CHECK(results.loss({"0.02", "40"}) == result_alone(alone).valid_bpc);
    options.run.warmup = 2;
    CHECK(said(options).find("2 runs, of which 2 are done") != std::string::npos);
    options.run.warmup.reset();
    options.axes = {"lr=0.02", "steps=10,20"};
    CHECK_THROWS_WITH(said(options), "sweep: " + options.results_path().string() +
                                         " is of another sweep: its warmup is 2, not 1; choose another --out");
}

TEST_CASE("sweep: runs of equal tokens differ in their steps, and their file compares the tokens") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    options.axes = {"lr=0.02", "batch=2,8"};
    options.tokens = 800;
    const std::string text = said(options);
    INFO(text);
    CHECK(text.find("depth 1, heads 2, seq 16, 800 characters in each run; 1 seed from 1\n") != std::string::npos);
    const SweepResults results = results_so_far(options);
    LanguageRunOptions alone = options.run;
    alone.lr = 0.02;
    for (const auto& [batch, steps] : {std::pair<std::size_t, std::size_t>{2, 25}, {8, 6}}) {
        alone.batch = batch, alone.steps = steps;
        CHECK(results.loss({"0.02", std::to_string(batch)}) == result_alone(alone).valid_bpc);
    }
    options.tokens = 1000;
    CHECK_THROWS_WITH(said(options), Catch::EndsWith("its tokens is 800, not 1000; choose another --out"));
    options.tokens.reset();
    CHECK_THROWS_WITH(said(options), Catch::EndsWith("its steps is \"not set\", not 6; choose another --out"));
}

TEST_CASE("sweep: rates of parameters are axes of every strategy") {
    for (const char* strategy : {"grid", "line", "random", "independent"}) {
        CAPTURE(strategy);
        const TemporaryFolder folder;
        SweepOptions options = small(folder);
        options.strategy = strategy;
        options.points = 3;
        options.axes = {"lr=0.02", "rate:*readout/weight=0.5,2", "rate:*query*=1,4"};
        const std::string text = said(options);
        INFO(text);
        const SweepResults results = results_so_far(options);
        CHECK(results.points.size() >= 3);
        LanguageRunOptions alone = options.run;
        const PointResult& last = results.points.back();
        alone.lr = std::stod(last.point[0]);
        alone.rates = {"*readout/weight=" + last.point[1], "*query*=" + last.point[2]};
        CHECK(last.loss == result_alone(alone).valid_bpc);
    }
}

TEST_CASE("sweep: root mean squares are recorded, change no loss, and stand in tables") {
    const TemporaryFolder folder, other;
    SweepOptions options = small(folder), measured = small(other);
    options.axes = measured.axes = {"width=16,32", "lr=0.002,0.02"};
    measured.rms = true;
    static_cast<void>(said(options));
    const std::string text = said(measured);
    INFO(text);
    CHECK(text.find("\nroot mean squares at the end, ") != std::string::npos);
    for (const char* row : {"\nwidth 16  query ", "\nwidth 32  lr     down ", "\nfp32      width  readout "})
        CHECK(text.find(row) != std::string::npos);
    const SweepResults plain = results_so_far(options), results = results_so_far(measured);
    REQUIRE(results.points.size() == 4);
    for (const PointResult& point : results.points) {
        CHECK(point.loss == plain.loss(point.point));
        CHECK(point.runs.at(0).rms.size() == 9);  // two tables, six layers and the readout
    }
    CHECK(plain.points[0].runs.at(0).rms.empty());
    CHECK(said(measured).find("4 runs, of which 4 are done") != std::string::npos);
    measured.rms = false;
    CHECK_THROWS_WITH(said(measured), Catch::EndsWith("its rms is true, not \"not set\"; choose another --out"));
}

TEST_CASE("sweep: a test part is measured at the end of every run and is not that of another sweep") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    folder.write("text.txt", test::proverb() + std::string(101, 'e'));
    options.axes = {"lr=0.02"};
    options.run.test = true;
    const std::string text = said(options);
    INFO(text);
    CHECK(text.find("seq 16; with a test part; 1 seed from 1\n") != std::string::npos);
    CHECK(text.find("lr    bits/char  spread  test ") != std::string::npos);
    const SweepResults results = results_so_far(options);
    LanguageRunOptions alone = options.run;
    alone.lr = 0.02;
    const LanguageRunResult run = result_alone(alone);
    CHECK(results.points.at(0).runs.at(0).valid_loss == run.valid_bpc);
    CHECK(results.points.at(0).runs.at(0).test_loss == run.test_bpc);
    options.run.test = false;
    CHECK_THROWS_WITH(said(options),
                      "sweep: " + options.results_path().string() +
                          " is of another sweep: its test is true, not \"not set\"; choose another --out");
}

TEST_CASE("sweep: an upward search takes the next rate where it is wanted, and a repeated call has nothing to do") {
    const TemporaryFolder folder;
    SweepOptions options = small(folder);
    options.strategy = "upwards";
    options.axes = {"placement=pre,none", "lr=1e32,0.002,1e30,0.02"};
    const std::string text = said(options);
    INFO(text);
    for (const char* round : {"2 runs, of which 0 are done", "4 runs, of which 2 are done",
                              "6 runs, of which 4 are done", "6 runs, of which 6 are done"})
        CHECK(text.find(round) != std::string::npos);
    CHECK(text.find("1e+32") == std::string::npos);
    CHECK(said(options).starts_with(text.substr(0, text.find('\n')) + "\n6 runs, of which 6 are done\n\nbest"));
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
    CHECK(refused([](auto& o) { o.run.rates = {"*query*=0.5"}; }) ==
          " is of another sweep: its rate is \"not set\", not [\"*query*=0.5\"]");
    CHECK(refused([](auto& o) { o.recipes = {"unit-fp8"}; }) ==
          " is of another sweep: its recipe is \"fp32\", not \"unit-fp8\"");
    CHECK(refused([](auto& o) { o.run.set = {"clip_norm=1"}; }) ==
          " is of another sweep: its set is [], not [\"clip_norm=1\"]");
    CHECK(refused([](auto& o) { o.axes = {"lr_factor=1,2"}; }) ==
          " is of another sweep: its axes is [\"lr\"], not [\"lr_factor\"]");
    folder.write("text.txt", std::string(2000, 'a') + std::string(2000, 'b'));
    CHECK(refused([](auto&) {}).starts_with(" is of another sweep: its text is "));
}
