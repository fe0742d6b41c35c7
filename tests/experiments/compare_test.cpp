// SPDX-License-Identifier: MIT
#include "experiments/compare.hpp"
#include "experiments/language_run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;

namespace {

ComparisonOptions small(const TemporaryFolder& folder) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "the early bird catches the worm\n";
    ComparisonOptions options;
    options.run = {.data = {folder.write("text.txt", text)},
                   .width = 16,
                   .depth = 2,
                   .heads = 2,
                   .seq = 16,
                   .batch = 4,
                   .steps = 12};
    options.recipes = {"fp32", "fp8-amax"};
    options.out = folder.path() / "page.html";
    return options;
}

/// The output of compare_recipes.
std::string said(const ComparisonOptions& options) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
    compare_recipes(options, file.get(), file.get());
    std::rewind(file.get());
    std::string text;
    for (int c = std::fgetc(file.get()); c != EOF; c = std::fgetc(file.get())) text += static_cast<char>(c);
    return text;
}

/// The lines of a comparison's file, without times and speeds.
std::vector<std::string> result_lines(const ComparisonOptions& options) {
    std::vector<std::string> lines;
    std::istringstream text(TemporaryFolder::read(options.results_path()));
    for (std::string line; std::getline(text, line);) {
        auto json = nlohmann::ordered_json::parse(line);
        if (json.contains("run")) json["run"].erase("tokens_per_s");
        lines.push_back(json.dump());
    }
    std::sort(lines.begin(), lines.end());
    return lines;
}

/// The shared settings in a comparison's file.
nlohmann::ordered_json settings_of(const ComparisonOptions& options) {
    std::istringstream text(TemporaryFolder::read(options.results_path()));
    std::string line;
    std::getline(text, line);
    return nlohmann::ordered_json::parse(line).at("comparison");
}

/// A comparison's only run, trained with `watch`, which may throw.
RunResult train_one(const ComparisonOptions& options, const std::string& recipe,
                    const std::function<void(const LanguageStep&)>& watch) {
    LanguageRunOptions run = options.run;
    run.save_every = 5;
    const UnfinishedRun files(options.unfinished(), {recipe, 0.01, 1}, "a", run.steps);
    return train_compared(run, {recipe, 0.01, 1}, recipe, files, watch);
}

}  // namespace

TEST_CASE("compare: every recipe on the same batches, with every seed, in any number of jobs") {
    const TemporaryFolder folder, other;
    ComparisonOptions options = small(folder);
    options.seeds = 2;
    options.window = "-8..8";
    const std::string text = said(options);
    INFO(text);
    CHECK(text.find("4 runs, of which 0 are done") != std::string::npos);
    CHECK(text.find("fp8-amax, rate 0.006, seed 2: ") != std::string::npos);
    CHECK(text.find("\nrecipe  ") != std::string::npos);
    CHECK(text.find("+0.00 %") != std::string::npos);
    CHECK(text.find("gradients that became zero") != std::string::npos);
    CHECK(text.find("one constant bias") != std::string::npos);
    CHECK(TemporaryFolder::read(options.out).ends_with("</html>\n"));
    CHECK_FALSE(std::filesystem::exists(options.unfinished()));

    ComparisonOptions beside = small(other);
    beside.seeds = 2;
    beside.window = "-8..8";
    beside.jobs = 3;
    static_cast<void>(said(beside));
    CHECK(result_lines(beside) == result_lines(options));

    // Ended runs are not repeated, whatever options are added.
    const std::string before = TemporaryFolder::read(options.results_path());
    CHECK(said(options).find("4 runs, of which 4 are done") != std::string::npos);
    CHECK(TemporaryFolder::read(options.results_path()) == before);
    options.seeds = 1;
    options.recipes = {"fp32", "unit-fp8"};
    CHECK(said(options).find("2 runs, of which 1 are done") != std::string::npos);
    CHECK(TemporaryFolder::read(options.results_path()).starts_with(before));
}

TEST_CASE("compare: results have all data of the page, and the loss equals the loss of a separate run") {
    const TemporaryFolder folder;
    const ComparisonOptions options = small(folder);
    const RunResult result = train_one(options, "fp8-amax", [](const LanguageStep&) {});
    LanguageRunOptions alone = options.run;
    alone.recipe = "fp8-amax";
    alone.lr = 0.01;
    alone.quiet = true;
    alone.sample = 0;
    const LanguageRunResult trained = run_language(alone, stdout, stdout);
    CHECK(result.valid_loss == trained.valid_bpc);
    CHECK(result.train_loss == trained.train_bpc);
    CHECK(result.weight_bytes == trained.weight_bytes);
    CHECK(result.weight_bytes > 0);
    CHECK(result.state_bytes > result.weight_bytes);
    CHECK(result.step_bytes > 0);
    CHECK(result.tokens_per_s > 0.0);
    CHECK(result.steps == 12);
    CHECK(result.train.size() == 12);
    CHECK(result.valid.back() == result.valid_loss);
    // Two layers of query, key, value, out, up and down, three roles.
    CHECK(result.biases.size() == 2 * 6 * 3);
    CHECK(result.bias_steps.size() == 12);
    CHECK(result.biases.begin()->second.size() == 12);
    CHECK(result.zeros.at("linear")[0] > 0);
    CHECK(result.zeros.contains("parameter"));
}

TEST_CASE("compare: a run that is stopped goes on from its checkpoint, to the same result") {
    const TemporaryFolder folder, other;
    const ComparisonOptions options = small(folder);
    struct Killed {};
    std::vector<std::size_t> seen;
    const auto until = [&](std::size_t last) {
        return [&seen, last](const LanguageStep& step) {
            seen.push_back(step.step);
            if (step.step == last) throw Killed{};
        };
    };
    CHECK_THROWS_AS(train_one(options, "fp8-delayed", until(7)), Killed);
    CHECK_THROWS_AS(train_one(options, "fp8-delayed", until(11)), Killed);
    const RunResult resumed = train_one(options, "fp8-delayed", until(99));
    CHECK(seen == std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 10, 11, 11, 12});
    RunResult whole = train_one(small(other), "fp8-delayed", [](const LanguageStep&) {});
    whole.tokens_per_s = resumed.tokens_per_s;
    const auto text_of = [](const RunResult& result) {
        nlohmann::ordered_json json;
        describe_result(result, [&](const char* name, const auto& value) { json[name] = value; });
        return json.dump();
    };
    CHECK(text_of(resumed) == text_of(whole));
}

TEST_CASE("compare: a run that fails numerically is a result, with the reason and the first bad value") {
    const TemporaryFolder folder;
    ComparisonOptions options = small(folder);
    options.recipes = {"fp32"};
    options.rates = {3e38, 0.01};
    options.run.warmup = 1;
    const std::string text = said(options);
    INFO(text);
    CHECK(text.find("fp32, rate 3e+38, seed 1: failed: the ") != std::string::npos);
    CHECK(text.find("; the first value that is not finite: step ") != std::string::npos);
    CHECK(text.find("\nfp32    0.01  ") != std::string::npos);
    CHECK(TemporaryFolder::read(options.out).find("<div class=\"alert\">fp32, rate 3e+38") != std::string::npos);
    CHECK(said(options).find("2 runs, of which 2 are done") != std::string::npos);
}

TEST_CASE("compare: a window that is asked for later trains no more than the run that it needs") {
    const TemporaryFolder folder, other;
    ComparisonOptions options = small(folder), at_once = small(other);
    static_cast<void>(said(options));
    options.window = at_once.window = "-2..2";
    const std::string text = said(options);
    CHECK(text.find("2 runs, of which 2 are done") != std::string::npos);
    CHECK(text.find("one constant bias") != std::string::npos);
    static_cast<void>(said(at_once));
    CHECK(result_lines(options) == result_lines(at_once));
    const ComparisonFile file(options.results_path(), settings_of(options));
    REQUIRE(file.window().has_value());
    CHECK(file.window()->losses.size() == 5);
    CHECK(file.window()->unrounded == file.results().front().valid_loss);
    CHECK(file.window()->losses[0] != file.window()->losses[2]);
}

TEST_CASE("compare: bad data and another comparison's file are errors before anything is trained") {
    const TemporaryFolder folder;
    ComparisonOptions options = small(folder);
    options.run.steps = 2;
    options.recipes = {"fp32"};
    static_cast<void>(said(options));
    options.run.width = 32;
    REQUIRE_THROWS_WITH(said(options), "comparison: " + options.results_path().string() +
                                           " is of another comparison: its width is 16, not 32; choose another --out");
    options.run.data = {folder.path() / "none.txt"};
    REQUIRE_THROWS_WITH(said(options), "data: " + (folder.path() / "none.txt").string() + " does not exist");
    options.run.data = {folder.write("short.txt", "too short")};
    REQUIRE_THROWS_WITH(
        said(options),
        "data: 9 characters are too few; sequences of 16 need at least 161, so that the last tenth holds one");
}
