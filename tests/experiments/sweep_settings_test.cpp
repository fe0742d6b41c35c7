// SPDX-License-Identifier: MIT
#include "experiments/sweep_settings.hpp"
#include "support/catch.hpp"
#include "support/sweep_points.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
using Row = std::vector<std::string>;

SweepResults results_of(const std::vector<std::string>& axes,
                        const std::vector<std::pair<SweepPoint, double>>& losses) {
    return test::sweep_results(axes, losses, SweepStrategy::grid, "the loss is nan at step 3");
}

/// Two recipes in four settings: two widths, two depths. One setting is not tried under the second recipe, and one
/// fails at both rates.
SweepResults four_settings() {
    return results_of({"recipe=fp32:clip_norm=0,us-fp16", "width=32,64", "depth=1,2", "lr=1,2"},
                      {{{"fp32:clip_norm=0", "32", "1", "1"}, 2.0},
                       {{"fp32:clip_norm=0", "32", "1", "2"}, 3.0},
                       {{"fp32:clip_norm=0", "32", "2", "1"}, 4.0},
                       {{"fp32:clip_norm=0", "64", "1", "1"}, 2.0},
                       {{"fp32:clip_norm=0", "64", "2", "1"}, infinity},
                       {{"us-fp16", "32", "1", "1"}, 2.5},
                       {{"us-fp16", "32", "1", "2"}, 2.01},
                       {{"us-fp16", "64", "1", "1"}, 1.5},
                       {{"us-fp16", "64", "2", "1"}, 1.0},
                       {{"us-fp16", "64", "2", "2"}, infinity}});
}

}  // namespace

TEST_CASE("sweep settings: the least loss of each recipe in each combination of the other conditions") {
    const auto found = recipe_settings(four_settings());
    REQUIRE(found);
    CHECK(found->recipes == Row{"fp32:clip_norm=0", "us-fp16"});
    CHECK(found->settings == Row{"width 32, depth 1", "width 32, depth 2", "width 64, depth 1", "width 64, depth 2"});
    CHECK(found->groups == std::vector<std::size_t>{0, 0, 1, 1});
    CHECK(found->losses[0] == std::vector<double>{2.0, 4.0, 2.0, infinity});
    CHECK(found->losses[1][0] == 2.01);
    CHECK(std::isnan(found->losses[1][1]));
    CHECK(found->losses[1][3] == 1.0);

    const SweepTable table = settings_table(four_settings());
    REQUIRE(table.rows.size() == 5);
    CHECK(table.rows[0] == Row{"", "fp32", "us-fp16"});
    CHECK(table.rows[1] == Row{"width 32, depth 1", "2.0000", "2.0100"});
    CHECK(table.rows[2] == Row{"width 32, depth 2", "4.0000", "-"});
    CHECK(table.rows[4] == Row{"width 64, depth 2", "failed", "1.0000"});
}

TEST_CASE("sweep settings: a recipe against another over the settings that both have tried") {
    const RecipeAgainst better = against({2.0, 3.0, 1.0, infinity, infinity}, {2.0, 2.0, infinity, 1.0, infinity});
    CHECK(better.known == 4);
    CHECK(better.as_good == 2);
    CHECK(better.median == Approx(0.25));  // of -1 (the other failed), 0, 0.5 and infinity
    CHECK(against({2.02}, {2.0}).as_good == 1);
    CHECK(against({2.03}, {2.0}).as_good == 0);
    const double unknown = std::numeric_limits<double>::quiet_NaN();
    CHECK(against({unknown, 1.0}, {1.0, unknown}).known == 0);

    const SweepTable table = against_table(four_settings());
    REQUIRE(table.rows.size() == 3);
    CHECK(table.rows[1] == Row{"fp32", "-", "1 of 3, +33.33 %"});
    CHECK(table.rows[2] == Row{"us-fp16", "3 of 3, -25.00 %", "-"});
}

TEST_CASE("sweep settings: a line for each setting, a place for each recipe, a gap where all runs failed") {
    const report::Plot plot = settings_plot(four_settings());
    REQUIRE(plot.curves.size() == 4);
    REQUIRE(plot.x.ticks.size() == 2);
    CHECK(plot.x.ticks[1].text == "us-fp16");
    CHECK(plot.curves[0].y == std::vector<double>{2.0, 2.01});
    CHECK(std::isnan(plot.curves[3].y[0]));
    CHECK(plot.curves[0].look == 0);
    CHECK(plot.curves[1].look == 8);
    CHECK(plot.curves[2].look == 1);
    const std::string svg = settings_svg(four_settings(), {.command = "sweep --recipes fp32,us-fp16"});
    CHECK(svg.starts_with("<svg "));
    CHECK(svg.find("sweep --recipes fp32,us-fp16") != std::string::npos);
    CHECK(svg.find("width 64, depth 2") != std::string::npos);
}

TEST_CASE("sweep settings: names of recipes are cut where they stay different") {
    CHECK(short_names({"fp32:clip_norm=0", "us-fp32"}) == Row{"fp32", "us-fp32"});
    CHECK(short_names({"fp32:clip_norm=0", "fp32"}) == Row{"fp32:clip_norm=0", "fp32"});
}

TEST_CASE("sweep settings: one recipe, or fewer than three settings, have neither table nor plot") {
    for (const SweepResults& results :
         {results_of({"width=32,64,128", "lr=1"}, {{{"32", "1"}, 2.0}, {{"64", "1"}, 2.0}}),
          results_of({"recipe=fp32,bf16", "width=32,64", "lr=1"}, {{{"fp32", "32", "1"}, 2.0}})}) {
        CHECK_FALSE(recipe_settings(results));
        CHECK(settings_table(results).rows.empty());
        CHECK(against_table(results).rows.empty());
        CHECK(settings_plot(results).curves.empty());
        CHECK(settings_svg(results).empty());
    }
}
