// SPDX-License-Identifier: MIT
#include "experiments/compare.hpp"
#include "experiments/comparison.hpp"
#include "support/catch.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;

namespace {

ComparisonOptions small(const TemporaryFolder& folder) {
    ComparisonOptions options;
    options.run = test::small_run(folder, /*depth=*/2, /*steps=*/12);
    options.recipes = {"fp32", "fp8-amax"};
    options.out = folder.path() / "page.html";
    return options;
}

/// The output of compare_recipes.
std::string said(const ComparisonOptions& options) {
    return test::written_by([&](std::FILE* file) { compare_recipes(options, file, file); });
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
