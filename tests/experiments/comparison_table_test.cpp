// SPDX-License-Identifier: MIT
#include "experiments/comparison_table.hpp"
#include "support/catch.hpp"

#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;

namespace {

using Row = std::vector<std::string>;

RunResult ended(const std::string& recipe, double rate, std::uint64_t seed, double loss) {
    return {.run = {recipe, rate, seed},
            .steps = 6,
            .valid_loss = loss,
            .tokens_per_s = 1000.0 * static_cast<double>(seed),
            .skipped = seed,
            .weight_bytes = 2'000'000,
            .state_bytes = 4'000'000,
            .step_bytes = 1'234'567};
}
RunResult failed(const std::string& recipe, double rate, std::uint64_t seed) {
    return {.run = {recipe, rate, seed},
            .failed = true,
            .reason = "the loss is nan at step 4",
            .first_bad = "step 3: the value of x",
            .steps = 3};
}

struct Setup {
    std::vector<Recipe> recipes{};
    std::vector<ComparedRun> runs{};
    explicit Setup(const std::vector<std::string>& names, const std::vector<double>& rates = {0.1, 0.2}) {
        for (const std::string& name : names) {
            recipes.push_back(Recipe{.name = name});
            for (const std::uint64_t seed : {1U, 2U})
                for (const double rate : rates) runs.push_back({name, rate, seed});
        }
    }
};

}  // namespace

TEST_CASE("comparison table: each recipe at its best rate, by the mean over seeds, against fp32") {
    const Setup setup({"fp32", "a", "b"});
    const auto all = summarise(setup.recipes, setup.runs,
                               {ended("fp32", 0.1, 1, 2.0), ended("fp32", 0.1, 2, 2.5), ended("fp32", 0.2, 1, 1.9),
                                ended("fp32", 0.2, 2, 2.1), ended("a", 0.1, 1, 2.04), ended("stranger", 0.1, 1, 1.0)});
    REQUIRE(all.size() == 2);  // nothing of b is done
    CHECK(all[0].best_rate().rate == 0.2);
    CHECK(all[0].best_rate().mean == Approx(2.0));
    CHECK(all[0].rates[0].mean == Approx(2.25));
    const auto rows = comparison_rows(all);
    REQUIRE(rows.size() == 3);
    CHECK(rows[0].size() == rows[1].size());
    CHECK(rows[1] == Row{"fp32", "0.2", "2.0000", "0.2000", "+0.00 %", "0 of 2", "3", "2.00", "4.00", "1.23", "1500"});
    CHECK(rows[2] == Row{"a", "0.1", "2.0400", "-", "+2.00 %", "0 of 1", "1", "2.00", "4.00", "1.23", "1000"});
}

TEST_CASE("comparison table: a rate with fewer failures is better, and failures are shown") {
    const Setup setup({"a"});
    const std::vector<RunResult> results = {ended("a", 0.1, 1, 3.0), ended("a", 0.1, 2, 3.0), ended("a", 0.2, 1, 2.0),
                                            failed("a", 0.2, 2)};
    const auto all = summarise(setup.recipes, setup.runs, results);
    CHECK(all[0].best_rate().rate == 0.1);
    CHECK_FALSE(baseline_loss(all).has_value());
    CHECK(comparison_rows(all)[1][4] == "-");  // no fp32
    CHECK(failure_lines(all) ==
          Row{"a, rate 0.2, seed 2: failed: the loss is nan at step 4; the first value that is not finite: "
              "step 3: the value of x"});

    const auto none = summarise(setup.recipes, setup.runs, {failed("a", 0.1, 1), failed("a", 0.1, 2)});
    CHECK(comparison_rows(none)[1] == Row{"a", "0.1", "-", "-", "-", "2 of 2", "0", "-", "-", "-", "-"});
}

TEST_CASE("comparison table: shares of zeros by kind of gradient, over the runs of the best rate") {
    const Setup setup({"a", "b"}, {0.1});
    RunResult first = ended("a", 0.1, 1, 2.0), second = ended("a", 0.1, 2, 2.0), other = ended("b", 0.1, 1, 2.0);
    first.zeros = {{"linear", {100, 1, 10}}};
    second.zeros = {{"linear", {300, 3, 30}}};
    other.zeros = {{"gelu", {1'000'000, 1, 1}}, {"linear", {4, 0, 0}}};
    const auto rows = zero_rows(summarise(setup.recipes, setup.runs, {first, second, other}));
    REQUIRE(rows.size() == 3);
    CHECK(rows[0] == Row{"gradient of", "gelu", "linear"});
    CHECK(rows[1] == Row{"a", "-", "10.0 % (1.00 %)"});
    CHECK(rows[2] == Row{"b", "<0.01 %", "0"});
}

TEST_CASE("comparison table: overflows of the runs of the best rate, for recipes and kinds that have some") {
    const Setup setup({"a", "b", "c"}, {0.1});
    RunResult first = ended("a", 0.1, 1, 2.0), second = ended("a", 0.1, 2, 2.0), other = ended("c", 0.1, 1, 2.0);
    first.overflows = {{"linear gradient", 3}};
    second.overflows = {{"linear gradient", 4}, {"parameter gradient", 5}};
    other.overflows = {{"linear value", 6}};
    const auto summaries = summarise(setup.recipes, setup.runs, {first, second, ended("b", 0.1, 1, 2.0), other});
    CHECK(overflow_rows(summaries) ==
          std::vector<Row>{{"overflows", "linear gradient", "linear value", "parameter gradient"},
                           {"a", "7", "0", "5"},
                           {"c", "0", "6", "0"}});
    CHECK(overflow_rows(summarise(setup.recipes, setup.runs, {ended("b", 0.1, 1, 2.0)})).size() == 1);
}

TEST_CASE("comparison table: the window works where the loss is at most 2 % above that without rounding") {
    const auto rows = window_rows(
        {.biases = {-1, 0, 1}, .losses = {3.0, 2.02, std::numeric_limits<double>::quiet_NaN()}, .unrounded = 2.0});
    REQUIRE(rows.size() == 4);
    CHECK(rows[1] == Row{"-1", "3.0000", "+50.00 %", "no"});
    CHECK(rows[2] == Row{"0", "2.0200", "+1.00 %", "yes"});
    CHECK(rows[3] == Row{"1", "-", "-", "no"});
}
