// SPDX-License-Identifier: MIT
#include "experiments/sweep_table.hpp"
#include "support/catch.hpp"
#include "support/sweep_points.hpp"

#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
using Row = std::vector<std::string>;

SweepResults results_of(const std::vector<std::string>& axes, const std::vector<std::pair<SweepPoint, double>>& losses,
                        SweepStrategy strategy = SweepStrategy::grid) {
    return test::sweep_results(axes, losses, strategy, "the loss is nan at step 3");
}

/// Width 64's optimum is half an octave above width 32's.
SweepResults two_widths() {
    return results_of({"width=32,64", "lr=1,2,4,8"}, {{{"32", "1"}, 3.0},
                                                      {{"32", "2"}, 2.0},
                                                      {{"32", "4"}, 3.0},
                                                      {{"32", "8"}, infinity},
                                                      {{"64", "1"}, 4.0},
                                                      {{"64", "2"}, 1.5},
                                                      {{"64", "4"}, 1.5},
                                                      {{"64", "8"}, 4.0}});
}

}  // namespace

TEST_CASE("sweep table: the best point of each size, its spread, the failed runs") {
    const SweepTable table = best_table(two_widths());
    REQUIRE(table.rows.size() == 3);
    CHECK(table.rows[0] == Row{"", "lr", "bits/char", "spread", "at defaults", "failed runs", "runs"});
    CHECK(table.rows[1] == Row{"width 32", "2", "2.0000", "0.2000", "-", "2", "8"});
    CHECK(table.rows[2] == Row{"width 64", "2", "1.5000", "0.2000", "-", "0", "8"});
    // With defaults among the points.
    const SweepTable line =
        best_table(results_of({"alpha_res=0.5,1"}, {{{"0.5"}, 2.0}, {{"1"}, 2.5}}, SweepStrategy::line));
    CHECK(line.rows[1] == Row{"unit-fp8", "0.5", "2.0000", "0.2000", "2.5000", "0", "4"});
    const SweepTable none = best_table(results_of({"lr=1"}, {{{"1"}, infinity}}));
    CHECK(none.rows[1] == Row{"unit-fp8", "-", "-", "-", "-", "2", "2"});
}

TEST_CASE("sweep table: the test loss stands beside the best loss, which alone chooses") {
    SweepResults results = results_of({"lr=1,2,4"}, {{{"1"}, 3.0}, {{"2"}, 2.0}, {{"4"}, infinity}});
    results.space.run.test = true;
    for (const auto& [point, loss] : {std::pair(0, 1.0), {1, 2.5}})
        for (SweepRun& run : results.points[static_cast<std::size_t>(point)].runs) run.test_loss = loss + 0.1;
    results.points[1].runs[1].test_loss = 2.4;
    const SweepTable table = best_table(results);
    CHECK(table.rows[0] == Row{"", "lr", "bits/char", "spread", "test", "at defaults", "failed runs", "runs"});
    CHECK(table.rows[1] == Row{"unit-fp8", "2", "2.0000", "0.2000", "2.5000", "-", "2", "6"});
}

TEST_CASE("sweep table: the shares of zeros and skipped steps by loss scale") {
    SweepResults results = results_of({"recipe=fp16,fp32", "loss_scale=16,2"},
                                      {{{"fp16", "16"}, 3.0}, {{"fp16", "2"}, infinity}, {{"fp32", "2"}, 2.0}});
    for (SweepRun& run : results.points[0].runs) run.skipped = 0.5;
    results.points[0].runs[0].zeros = 0.25;
    results.points[0].runs[1].zeros = 0.75;
    results.points[1].runs[0].zeros = results.points[1].runs[0].skipped = 0.0;
    const SweepTable table = gradient_table(results);
    CHECK(table.rows == std::vector<Row>{{"", "loss_scale", "bits/char", "zeros", "skipped"},
                                         {"fp16", "2", "failed", "0", "0"},
                                         {"fp16", "16", "3.0000", "50.0 %", "50.0 %"},
                                         {"fp32", "2", "2.0000", "-", "-"}});
    CHECK(gradient_table(two_widths()).rows.empty());
    CHECK(sweep_tables(results)[2].title == table.title);
}

TEST_CASE("sweep table: constant biases are shown as they are, with the window of good ones for each condition") {
    SweepResults results = results_of({"width=32,64", "constant_bias=-4,-2..0,2"}, {{{"32", "-4"}, infinity},
                                                                                    {{"32", "-2"}, 2.02},
                                                                                    {{"32", "-1"}, 2.0},
                                                                                    {{"32", "0"}, 2.01},
                                                                                    {{"32", "2"}, 2.03},
                                                                                    {{"64", "-2"}, 3.0},
                                                                                    {{"64", "-1"}, 2.0},
                                                                                    {{"64", "0"}, 1.0},
                                                                                    {{"64", "2"}, infinity}});
    results.space.run.recipe = "fp8-cscale";
    CHECK(
        axis_table(results, 1).rows ==
        std::vector<Row>{{"constant_bias", "-4", "-2", "-1", "0", "2", "optimum", ""},
                         {"width 32", "failed", "2.0200", "2.0000*", "2.0100", "2.0300", "-0.83", ""},
                         {"width 64", "-", "3.0000", "2.0000", "1.0000*", "failed", "+0.00", "beside a failed point"}});
    CHECK(bias_table(results).rows == std::vector<Row>{{"", "biases", "least loss", "of the biases"},
                                                       {"width 32", "-2..0", "2.0000", "-4,-2..0,2"},
                                                       {"width 64", "0", "1.0000", "-2..0,2"}});
    const SweepTable moves = movement_table(results);
    CHECK(moves.rows[0][3] == "log2 of the optimum, or the bias itself");
    CHECK(moves.rows[1] == Row{"fp8-cscale", "constant_bias", "width",
                               "-0.83 at 32, +0.00 (beside a failed point) at 64", "at least 0.83"});
    CHECK(sweep_tables(results)[2].title == "constant biases that train within 1 % of the best");
    const SweepTable none = bias_table(results_of({"constant_bias=-1,0"}, {{{"-1"}, infinity}, {{"0"}, infinity}}));
    CHECK(none.rows[1] == Row{"unit-fp8", "none", "failed", "-1..0"});
    CHECK(bias_table(two_widths()).rows.empty());
    CHECK(movement_table(two_widths()).rows[0][3] == "log2 of the optimum");
}

TEST_CASE("sweep table: axes of names are conditions, which no map has and over which no optimum moves") {
    const SweepResults results = results_of({"placement=pre,post", "lr=1,2,4"}, {{{"pre", "1"}, 3.0},
                                                                                 {{"pre", "2"}, 2.0},
                                                                                 {{"pre", "4"}, 3.0},
                                                                                 {{"post", "1"}, 2.0},
                                                                                 {{"post", "2"}, 3.0},
                                                                                 {{"post", "4"}, 4.0}});
    CHECK(best_table(results).rows[2] == Row{"placement post", "1", "2.0000", "0.2000", "-", "0", "6"});
    CHECK(axis_table(results, 1).rows[1] == Row{"placement pre", "3.0000", "2.0000*", "3.0000", "2", "+1.00", ""});
    CHECK(movement_table(results).rows.size() == 1);
    CHECK(sweep_maps(results).empty());
}

TEST_CASE("sweep table: losses along an axis, the best marked, with the optimum") {
    const SweepTable table = axis_table(two_widths(), 1);
    CHECK(table.title == "loss by lr");
    REQUIRE(table.rows.size() == 3);
    CHECK(table.rows[0] == Row{"lr", "1", "2", "4", "8", "optimum", "log2", ""});
    CHECK(table.rows[1] == Row{"width 32", "3.0000", "2.0000*", "3.0000", "failed", "2", "+1.00", ""});
    CHECK(table.rows[2] == Row{"width 64", "4.0000", "1.5000*", "1.5000*", "4.0000", "2.828", "+1.50", ""});
    const SweepTable edge = axis_table(results_of({"lr=1,2"}, {{{"1"}, 1.0}, {{"2"}, 2.0}}), 0);
    CHECK(edge.rows[1] == Row{"unit-fp8", "1.0000*", "2.0000", "1", "+0.00", "at the lower edge"});
    CHECK(axis_table(results_of({"lr=1"}, {{{"1"}, 1.0}}), 0).rows.empty());
    const SweepTable same = axis_table(results_of({"alpha_attn=1,2"}, {{{"1"}, 2.0}, {{"2"}, 2.0}}), 0);
    CHECK(same.rows[1] == Row{"unit-fp8", "2.0000", "2.0000", "-", "-", "no effect"});
}

TEST_CASE("sweep table: how far the optimum moves over a size") {
    const SweepTable table = movement_table(two_widths());
    REQUIRE(table.rows.size() == 2);
    CHECK(table.rows[1] == Row{"unit-fp8", "lr", "width", "+1.00 at 32, +1.50 at 64", "0.50"});
    // Rows are recipes. The movement is a lower bound if an optimum is at an edge.
    const SweepTable recipes = movement_table(
        results_of({"recipe=fp32,unit-fp8", "width=32,64", "lr=1,2,4"}, {{{"fp32", "32", "1"}, 3.0},
                                                                         {{"fp32", "32", "2"}, 2.0},
                                                                         {{"fp32", "32", "4"}, 1.0},
                                                                         {{"fp32", "64", "1"}, 3.0},
                                                                         {{"fp32", "64", "2"}, 2.0},
                                                                         {{"fp32", "64", "4"}, 3.0},
                                                                         {{"unit-fp8", "32", "1"}, 3.0},
                                                                         {{"unit-fp8", "32", "2"}, 2.0},
                                                                         {{"unit-fp8", "32", "4"}, 3.0}}));
    REQUIRE(recipes.rows.size() == 2);  // unit-fp8 has one width only
    CHECK(recipes.rows[1] ==
          Row{"fp32", "lr", "width", "+2.00 (at the upper edge) at 32, +1.00 at 64", "at least 1.00"});
}

TEST_CASE(
    "sweep table: optima at one edge say nothing about how far they move, and none moves where there is no effect") {
    const auto moves = [](double low, double high) {
        return movement_table(
            results_of({"width=32,64", "lr=1,2"},
                       {{{"32", "1"}, low}, {{"32", "2"}, high}, {{"64", "1"}, low}, {{"64", "2"}, high}}));
    };
    REQUIRE(moves(1.0, 2.0).rows.size() == 2);
    CHECK(moves(1.0, 2.0).rows[1].back() == "unknown");
    CHECK(moves(2.0, 2.0).rows.size() == 1);
}

TEST_CASE("sweep table: an independent search is beside the defaults at the best rate") {
    const SweepTable table = independent_table(results_of({"lr=1,2", "alpha_res=0.5,2", "alpha_res_attn_ratio=0.5"},
                                                          {{{"1", "1", "1"}, 3.0},
                                                           {{"2", "1", "1"}, 2.0},
                                                           {{"2", "0.5", "1"}, 1.9},
                                                           {{"2", "2", "1"}, 2.1},
                                                           {{"2", "1", "0.5"}, 1.95},
                                                           {{"2", "0.5", "0.5"}, 1.8}},
                                                          SweepStrategy::independent));
    REQUIRE(table.rows.size() == 2);
    CHECK(table.rows[1] ==
          Row{"unit-fp8", "2.0000", "1.8000", "-10.00 %", "lr 2, alpha_res 0.5, alpha_res_attn_ratio 0.5"});
    CHECK(independent_table(two_widths()).rows.empty());
}

TEST_CASE("sweep table: a random search is beside shorter ones, with the share that finds no point") {
    const SweepTable table = shorter_table(results_of({"recipe=fp32,fp16", "lr=1,2,3,4,5"},
                                                      {{{"fp32", "1"}, 3.0},
                                                       {{"fp32", "2"}, 2.0},
                                                       {{"fp32", "3"}, 1.0},
                                                       {{"fp32", "4"}, 4.0},
                                                       {{"fp32", "5"}, 5.0},
                                                       {{"fp16", "1"}, 3.0},
                                                       {{"fp16", "2"}, infinity},
                                                       {{"fp16", "3"}, infinity},
                                                       {{"fp16", "4"}, 2.0}},
                                                      SweepStrategy::random));
    CHECK(table.rows == std::vector<Row>{{"points", "fp32", "fp16"},
                                         {"1", "3.0000", "2.5000 (no point 50.0 %)"},
                                         {"2", "2.0000", "2.4000 (no point 16.7 %)"},
                                         {"4", "1.2000", "2.0000"},
                                         {"5", "1.0000", "-"}});
    const SweepResults failed = results_of({"lr=1,2"}, {{{"1"}, infinity}, {{"2"}, infinity}}, SweepStrategy::random);
    CHECK(shorter_table(failed).rows[2] == Row{"2", "failed"});
    CHECK(sweep_tables(failed).back().title == shorter_table(failed).title);
    CHECK(shorter_table(two_widths()).rows.empty());
    CHECK(shorter_table(results_of({"lr=1,2"}, {{{"1"}, 2.0}}, SweepStrategy::random)).rows.empty());
}

TEST_CASE("sweep table: transfer errors of hyperparameters, with a size or another one fixed") {
    const SweepTable widths = transfer_table(two_widths());
    REQUIRE(widths.rows.size() == 2);  // width is never tuned
    CHECK(widths.rows[1] == Row{"unit-fp8", "width", "lr", "0.0000"});
    const SweepResults results = results_of(
        {"lr=1,2", "alpha_res=1,2"}, {{{"1", "1"}, 1.0}, {{"1", "2"}, 1.5}, {{"2", "1"}, 2.5}, {{"2", "2"}, 2.0}});
    const SweepTable both = transfer_table(results);
    REQUIRE(both.rows.size() == 3);
    // lr 2 would choose alpha_res 2, which loses 0.5 at lr 1; alpha_res 2 would choose lr 1, as alpha_res 1 does.
    CHECK(both.rows[1] == Row{"unit-fp8", "lr", "alpha_res", "0.5000"});
    CHECK(both.rows[2] == Row{"unit-fp8", "alpha_res", "lr", "0.0000"});
    // Sizes are rows, at any place of their axis.
    const std::vector<FixedMap> maps = sweep_maps(results_of(
        {"lr=1,2", "width=32,64"}, {{{"1", "32"}, 1.0}, {{"1", "64"}, 1.5}, {{"2", "32"}, 2.5}, {{"2", "64"}, 2.0}}));
    REQUIRE(maps.size() == 1);
    CHECK(maps[0].map.row_name == "width");
    CHECK(maps[0].map.losses[0] == std::vector<double>{1.0, 2.5});
}

TEST_CASE("sweep table: only tables with something in them, and a line for each failed run") {
    std::vector<std::string> titles;
    for (const SweepTable& table : sweep_tables(two_widths())) titles.push_back(table.title);
    REQUIRE(titles.size() == 4);
    CHECK(titles[1] == "loss by lr");
    const std::vector<std::string> lines = failure_lines(two_widths());
    REQUIRE(lines.size() == 2);
    CHECK(lines[1] == "width 32, lr 8, seed 2: failed: the loss is nan at step 3");
    CHECK(loss_text(infinity) == "failed");
    CHECK(loss_text(std::numeric_limits<double>::quiet_NaN()) == "-");
}
