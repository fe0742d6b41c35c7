// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>

#include "experiments/comparison.hpp"
#include "experiments/sweep_search.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;
using Json = nlohmann::ordered_json;
using unitscale::test::error_of;

namespace {

ComparisonOptions options_in(const TemporaryFolder& folder) {
    ComparisonOptions options;
    options.run.data = {folder.path()};
    options.out = folder.path() / "page.html";
    return options;
}

std::string problem_of(const std::function<void(ComparisonOptions&)>& change) {
    const TemporaryFolder folder;
    ComparisonOptions options = options_in(folder);
    change(options);
    return error_of([&] { options.validate(); });
}

const Json settings = {{"width", 16}, {"steps", 6}};

RunResult some_result() {
    return {.run = {"fp32", 0.003, 2},
            .recipe_fingerprint = "abc",
            .steps = 6,
            .train_loss = 2.5,
            .valid_loss = 2.625,
            .tokens_per_s = 1e4,
            .skipped = 3,
            .weight_bytes = 100,
            .state_bytes = 200,
            .step_bytes = 300,
            .train_steps = {3, 6},
            .valid_steps = {6},
            .bias_steps = {1, 6},
            .train = {3.5, 2.5},
            .valid = {2.625},
            .biases = {{"a|weight", {4, -5}}},
            .zeros = {{"linear", {10, 1, 2}}},
            .overflows = {{"linear value", 7}}};
}

/// Every field, as text.
std::string text_of(const RunResult& result) {
    Json json;
    describe_result(result, [&](const char* name, const auto& value) { json[name] = value; });
    return json.dump();
}

}  // namespace

TEST_CASE("comparison: the runs are all recipes at all rates with all seeds, the first seed first") {
    ComparisonOptions options;
    options.recipes = {"fp32", "unit-fp8"};
    const std::vector<double> rates = {find_recipe("fp32").learning_rate, find_recipe("unit-fp8").learning_rate};
    options.seeds = 2;
    options.run.seed = 5;
    options.rate_factors = {1.0, 2.0};
    const auto runs_of_options = [&] {
        std::vector<ComparedRun> all;
        const auto unknown = [](const SweepPoint&) { return std::nan(""); };
        for (const SearchRun& run : runs_of(options.space(), sweep_points(options.space(), {}, unknown), options.seeds))
            all.push_back(compared(run));
        return all;
    };
    std::vector<ComparedRun> runs = runs_of_options();
    REQUIRE(runs.size() == 8);
    CHECK(runs[0] == ComparedRun{"fp32", rates[0], 5});
    CHECK(runs[1] == ComparedRun{"fp32", 2.0 * rates[0], 5});
    CHECK(runs[2] == ComparedRun{"unit-fp8", rates[1], 5});
    CHECK(runs[4].seed == 6);
    options.rates = {0.5};
    runs = runs_of_options();
    REQUIRE(runs.size() == 4);
    CHECK(runs[1] == ComparedRun{"unit-fp8", 0.5, 5});
    CHECK(runs[1].text() == "unit-fp8, rate 0.5, seed 5");
}

TEST_CASE("comparison: bad options are one line that names the option") {
    CHECK(problem_of([](auto&) {}) == "");
    CHECK(problem_of([](auto& o) { o.recipes.clear(); }) == "--recipes: none given");
    CHECK(problem_of([](auto& o) { o.recipes = {"fp7"}; }).starts_with("recipe: unknown name 'fp7'; expected one of "));
    CHECK(problem_of([](auto& o) { o.recipes = {"fp32", "fp32"}; }) == "--recipes: fp32 is given twice");
    CHECK(problem_of([](auto& o) { o.rates = {1e-3, 0.0}; }) == "--lr: is 0; expected a positive number");
    CHECK(problem_of([](auto& o) { o.rates = {1e-3, 0.5, 1e-3}; }) == "--lr: 0.001 is given twice");
    CHECK(problem_of([](auto& o) { o.rate_factors = {-1.0}; }) == "--lr-factor: is -1; expected a positive number");
    CHECK(problem_of([](auto& o) { o.rate_factors = {}; }) == "--lr-factor: none given");
    CHECK(problem_of([](auto& o) { o.seeds = 0; }) == "--seeds: is 0; expected a number from 1 to 1000");
    CHECK(problem_of([](auto& o) { o.jobs = 0; }) == "--jobs: is 0; expected a number from 1 to 1000");
    CHECK(problem_of([](auto& o) { o.run.heads = 3; }) == "--heads: width 128 is not divisible by 3 heads");
    CHECK(problem_of([](auto& o) { o.out = "a.jsonl"; }) ==
          "--out: is a.jsonl; expected the name of a page, such as recipes.html");
    CHECK(problem_of([](auto& o) { o.out = "none/a.html"; }) == "--out: none/a.html cannot be written");
    CHECK(problem_of([](auto& o) {
              o.window = "-1..1";
              o.recipes = {"unit-fp8"};
          }) == "--window: the weights are those of fp32, which --recipes does not name");
    for (const char* window : {"3", "..", "2..1", "-1..x", "0..65", " 1..2"}) {
        CAPTURE(window);
        CHECK(problem_of([&](auto& o) { o.window = window; }) ==
              "--window: is '" + std::string(window) + "'; expected LOWEST..HIGHEST within -64..64, such as -8..8");
    }
    ComparisonOptions options;
    options.window = "-2..1";
    CHECK(options.biases() == std::vector<int>{-2, -1, 0, 1});
    CHECK(options.results_path() == "recipes.jsonl");
    CHECK(options.unfinished() == "recipes.runs");
}

TEST_CASE("comparison: a fingerprint tells recipes of one name apart") {
    Recipe recipe = find_recipe("fp8-amax");
    const std::string before = fingerprint(recipe);
    CHECK(before.size() == 16);
    CHECK(fingerprint(recipe) == before);
    recipe.products.back().formats.weight_scale.margin = 1;
    CHECK(fingerprint(recipe) != before);
}

TEST_CASE("comparison: results read from the file equal the written results") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "page.jsonl";
    const BiasWindow window{.run = {"fp32", 0.1, 1},
                            .biases = {-1, 0},
                            .losses = {std::numeric_limits<double>::infinity(), 2.0},
                            .unrounded = 1.5};
    {
        ComparisonFile file(path, settings);
        file.add(some_result());
        file.set_window(window);
        CHECK(file.results().size() == 1);
    }
    const ComparisonFile file(path, settings);
    REQUIRE(file.results().size() == 1);
    CHECK(text_of(file.results()[0]) == text_of(some_result()));
    REQUIRE(file.window().has_value());
    CHECK(file.window()->run == window.run);
    CHECK(file.window()->biases == window.biases);
    CHECK(std::isnan(file.window()->losses[0]));  // JSON has no infinity
    CHECK(file.window()->losses[1] == 2.0);
    CHECK(file.find({"fp32", 0.003, 1}, "abc") == nullptr);
    CHECK(file.find({"fp32", 0.003, 2}, "abc") == &file.results()[0]);
    CHECK(error_of([&] {
              static_cast<void>(file.find({"fp32", 0.003, 2}, "abd"));
          }) == "comparison: " + path.string() +
                    ": fp32 has changed since its runs there; give it another name, or choose another --out");
}

TEST_CASE("comparison: a file without counts of overflows, as older versions wrote it, is continued") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "page.jsonl";
    { ComparisonFile(path, settings).add(some_result()); }
    std::string older = TemporaryFolder::read(path);
    const std::string counts = R"(,"overflows":{"linear value":7})";
    REQUIRE(older.find(counts) != std::string::npos);
    folder.write("page.jsonl", older.erase(older.find(counts), counts.size()));
    const ComparisonFile file(path, settings);
    RunResult expected = some_result();
    expected.overflows.clear();
    REQUIRE(file.results().size() == 1);
    CHECK(text_of(file.results()[0]) == text_of(expected));
}

TEST_CASE("comparison: a last line that a kill has cut is dropped, wherever it was cut") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "page.jsonl";
    { ComparisonFile(path, settings).add(some_result()); }
    const std::string whole = TemporaryFolder::read(path);
    const std::size_t head = whole.find('\n') + 1;
    for (std::size_t size = 0; size < whole.size(); ++size) {
        folder.write("page.jsonl", whole.substr(0, size));
        {
            ComparisonFile file(path, settings);
            CHECK(file.results().empty());
        }
        CHECK(TemporaryFolder::read(path) == whole.substr(0, head));
        { ComparisonFile(path, settings).add(some_result()); }
        CHECK(TemporaryFolder::read(path) == whole);
    }
}

TEST_CASE("comparison: a file of something else is left as it is, in one line") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "page.jsonl";
    const std::string where = "comparison: " + path.string();
    const auto refused = [&](const std::string& text, const Json& wanted) {
        folder.write("page.jsonl", text);
        const std::string error = error_of([&] { ComparisonFile(path, wanted); });
        CHECK(TemporaryFolder::read(path) == text);
        return error;
    };
    const std::string head = Json{{"comparison", settings}}.dump() + "\n";
    CHECK(refused("notes", settings) == where + " is not the file of a comparison; choose another --out");
    CHECK(refused("{\"step\":1}\n", settings) == where + " is not the file of a comparison; choose another --out");
    CHECK(refused(head, {{"width", 16}, {"steps", 7}}) ==
          where + " is of another comparison: its steps is 6, not 7; choose another --out");
    CHECK(refused(head, {{"depth", 1}}) ==
          where + " is of another comparison: its depth is \"not set\", not 1; choose another --out");
    CHECK(refused(head + "{\"run\":{}}\n", settings) == where + ": line 2 is not that of a run");
    CHECK(refused(head + "{\"run\":\n{}\n", settings) == where + ": line 2 is not that of a run");
    CHECK(refused(head + "7\n", settings) == where + ": line 2 is not that of a run");

    folder.write("page.jsonl", "");
    const ComparisonFile first(path, settings);
    CHECK(error_of([&] { ComparisonFile(path, settings); }) == where + " is in use by another process");
    CHECK(error_of([&] {
              ComparisonFile(folder.path() / "none" / "a.jsonl", settings);
          }).ends_with("a.jsonl cannot be opened for writing"));
}

TEST_CASE("comparison: steps become curves of at most 200 points, and counts add up") {
    std::vector<Json> steps;
    for (std::size_t step = 1; step <= 500; ++step)
        steps.push_back(
            {{"step", step}, {"train", static_cast<double>(step)}, {"skipped", step / 100}, {"tokens_per_s", 7.0}});
    steps[249]["valid"] = 2.5;
    steps[0]["biases"] = {{"a|weight", 3}};
    steps[499]["biases"] = {{"a|weight", -4}};
    steps[0]["zeros"] = {{"linear", {10, 1, 2}}};
    steps[9]["zeros"] = {{"linear", {10, 0, 5}}, {"gelu", {4, 4, 4}}};
    steps[0]["overflows"] = {{"linear gradient", 2}};
    steps[9]["overflows"] = {{"linear gradient", 3}, {"parameter gradient", 1}};
    const SearchRun run{.options = {.recipe = "fp32"}, .recipe_fingerprint = "abc"};
    const RunResult result = result_of(run, {.failed = true, .reason = "the loss is nan", .lines = steps});
    CHECK(result.run == ComparedRun{"fp32", find_recipe("fp32").learning_rate, 1});
    CHECK(result.recipe_fingerprint == "abc");
    CHECK(result.failed);
    CHECK(result.reason == "the loss is nan");
    REQUIRE(result.train.size() == 167);  // means of three
    CHECK(result.train_steps.front() == 3);
    CHECK(result.train.front() == 2.0);
    CHECK(result.train_steps.back() == 500);
    CHECK(result.train.back() == 499.5);  // of the last two
    CHECK(result.valid_steps == std::vector<std::size_t>{250});
    CHECK(result.valid == std::vector<double>{2.5});
    CHECK(result.bias_steps == std::vector<std::size_t>{1, 500});
    CHECK(result.biases.at("a|weight") == std::vector<int>{3, -4});
    CHECK(result.zeros.at("linear") == std::array<std::uint64_t, 3>{20, 1, 7});
    CHECK(result.zeros.at("gelu") == std::array<std::uint64_t, 3>{4, 4, 4});
    CHECK(result.overflows == analysis::OverflowCounts{{"linear gradient", 5}, {"parameter gradient", 1}});
    CHECK(result.steps == 500);
    CHECK(result.skipped == 5);
    CHECK(result.tokens_per_s == 7.0);
    const RunResult none = result_of(run, {.result = {.valid_bpc = 2.0}});
    CHECK(none.steps == 0);
    CHECK(none.valid_loss == 2.0);
}
