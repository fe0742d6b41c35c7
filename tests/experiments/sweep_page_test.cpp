// SPDX-License-Identifier: MIT
#include "experiments/sweep_page.hpp"
#include "experiments/sweep_table.hpp"
#include "support/catch.hpp"
#include "support/page.hpp"
#include "support/sweep_points.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::Page;
using test::PageElement;
using test::Texts;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

SweepResults results_of(const std::vector<std::string>& axes, const std::vector<std::pair<SweepPoint, double>>& losses,
                        SweepStrategy strategy = SweepStrategy::grid) {
    return test::sweep_results(axes, losses, strategy, "the loss is <nan>");
}

SweepResults recipes_and_widths() {
    std::vector<std::pair<SweepPoint, double>> losses;
    for (const char* recipe : {"fp32", "unit-fp8"})
        for (const char* width : {"32", "64"})
            for (const char* rate : {"0.5", "1", "2"})
                losses.push_back({{recipe, width, rate}, std::string(rate) == "1" ? 2.0 : 2.5});
    losses.back().second = infinity;
    return results_of({"recipe=fp32,unit-fp8", "width=32,64", "lr=0.5,1,2"}, losses);
}

}  // namespace

TEST_CASE("sweep page: a curve for each recipe and width, with its spread, broken where points have failed") {
    const report::Plot plot = axis_plot(recipes_and_widths(), 2);
    REQUIRE(plot.curves.size() == 4);
    CHECK(plot.curves[0].name == "fp32, width 32");
    CHECK(plot.curves[0].x == std::vector<double>{-1.0, 0.0, 1.0});
    CHECK(plot.curves[0].y == std::vector<double>{2.5, 2.0, 2.5});
    CHECK(plot.curves[0].low[1] == Approx(1.9));
    CHECK(plot.curves[0].high[1] == Approx(2.1));
    CHECK(std::isnan(plot.curves[3].y[2]));
    // Widths are colours, recipes dashes.
    CHECK(plot.curves[0].look == 0);
    CHECK(plot.curves[1].look == 1);
    CHECK(plot.curves[2].look == 8);
    CHECK(plot.curves[3].look == 9);
    REQUIRE(plot.x.ticks.size() == 3);
    CHECK(plot.x.ticks[0].at == -1.0);
    CHECK(plot.x.ticks[0].text == report::svg_power(2, -1));
    CHECK(plot.x.ticks[2].text == report::svg_power(2, 1));
    CHECK(axis_plot(results_of({"lr=1"}, {{{"1"}, 2.0}}), 0).curves.empty());
}

TEST_CASE("sweep page: constant biases are places on their axis, and its ticks are whole numbers") {
    std::vector<std::pair<SweepPoint, double>> losses;
    for (int bias = -8; bias <= 8; ++bias) losses.push_back({{std::to_string(bias)}, 2.0 + 0.1 * bias * bias});
    const report::Plot plot = axis_plot(results_of({"constant_bias=-8..8"}, losses), 0);
    REQUIRE(plot.curves.size() == 1);
    REQUIRE(plot.curves[0].x.size() == 17);
    CHECK(plot.curves[0].x.front() == -8.0);
    CHECK(plot.curves[0].x[8] == 0.0);
    CHECK(plot.curves[0].y[8] == 2.0);
    REQUIRE(plot.x.ticks.size() == 9);
    CHECK(plot.x.ticks[1].at == -6.0);
    CHECK(plot.x.ticks[1].text == report::plot_number(-6.0));
    const report::Plot few = axis_plot(results_of({"constant_bias=-3,0"}, {{{"-3"}, 2.0}, {{"0"}, 3.0}}), 0);
    CHECK(few.curves[0].x == std::vector<double>{-3.0, 0.0});
    REQUIRE(few.x.ticks.size() == 4);
    CHECK(few.x.ticks[3].text == "0");
}

TEST_CASE("sweep page: all combinations of names have looks of their own") {
    std::vector<std::pair<SweepPoint, double>> losses;
    for (const char* model : {"gpt", "llama"})
        for (const char* placement : {"pre", "post"})
            for (const char* rate : {"1", "2"}) losses.push_back({{model, placement, rate}, 2.0});
    const report::Plot plot = axis_plot(results_of({"model=gpt,llama", "placement=pre,post", "lr=1,2"}, losses), 2);
    REQUIRE(plot.curves.size() == 4);
    CHECK(plot.curves[2].name == "model llama, placement pre");
    for (std::size_t i = 0; i < 4; ++i) CHECK(plot.curves[i].look == i);
}

TEST_CASE("sweep page: the axis of losses shows all minima, but no diverging losses") {
    std::vector<report::PlotCurve> curves(2);
    curves[0].y = {2.0, 2.2, 9.0};
    curves[1].y = {2.4, std::numeric_limits<double>::quiet_NaN(), 2.6};
    const report::PlotAxis axis = sweep_loss_axis(curves);
    CHECK(axis.low == Approx(2.0 - 0.05));
    CHECK(axis.high == Approx(3.0 + 0.05));  // 2.4 + 0.3 times 2
    curves[0].y = {2.0, 2.2};
    CHECK(sweep_loss_axis(curves).high == Approx(2.6 + 0.05 * 0.6));
    curves[0].low = {1.9, 2.1};
    curves[0].high = {2.05, infinity};  // one seed of the second has failed
    CHECK(sweep_loss_axis(curves).low == Approx(1.9 - 0.05 * 0.7));
    CHECK(sweep_loss_axis(curves).high == Approx(2.6 + 0.05 * 0.7));
    curves[1].high.assign(curves[1].y.size(), 2.7);
    CHECK(sweep_loss_axis(curves).high == Approx(2.7 + 0.05 * 0.8));
    CHECK(sweep_loss_axis({}).high > sweep_loss_axis({}).low);
}

TEST_CASE("sweep page: the best loss so far, by runs") {
    const auto points =
        std::vector<std::pair<SweepPoint, double>>{{{"1"}, infinity}, {{"2"}, 3.0}, {{"4"}, 3.5}, {{"8"}, 2.0}};
    const report::Plot plot = search_plot(results_of({"lr=1,2,4,8"}, points, SweepStrategy::random));
    REQUIRE(plot.curves.size() == 1);
    CHECK(plot.curves[0].x == std::vector<double>{2.0, 4.0, 6.0, 8.0});
    CHECK(std::isnan(plot.curves[0].y[0]));
    CHECK(std::vector<double>(plot.curves[0].y.begin() + 1, plot.curves[0].y.end()) ==
          std::vector<double>{3.0, 3.0, 2.0});
    CHECK(search_plot(results_of({"lr=1,2,4,8"}, points)).curves.empty());
}

TEST_CASE("sweep page: every point is in the table of points") {
    const auto rows = point_rows(recipes_and_widths());
    REQUIRE(rows.size() == 13);
    CHECK(rows[0] == std::vector<std::string>{"recipe", "width", "lr", "bits/char", "by seed", "training", "tokens/s"});
    CHECK(rows[2] == std::vector<std::string>{"fp32", "32", "1", "2.0000", "1.9000, 2.1000", "2.0000", "1000"});
    CHECK(rows[12] == std::vector<std::string>{"unit-fp8", "64", "2", "failed", "failed, failed", "-", "1000"});
}

TEST_CASE("sweep page: whole, alone, with plots, tables, maps and failures") {
    const SweepResults results = recipes_and_widths();
    const Page page(sweep_page(results, "a & b", {.command = "sweep --seeds 2"}));
    CHECK(page.problems() == Texts{});
    CHECK(page.texts("p", "source") == Texts{"command: sweep --seeds 2"});
    CHECK(page.texts("h1") == Texts{"Hyperparameter sweep"});
    CHECK(page.says("a & b"));
    CHECK(page.texts("summary") == Texts{"failed runs: 2", "all points"});
    CHECK(page.texts("li") == Texts{"unit-fp8, width 64, lr 2, seed 1: failed: the loss is <nan>",
                                    "unit-fp8, width 64, lr 2, seed 2: failed: the loss is <nan>"});
    // Headings of the plot by learning rate, of every table and of the maps. A grid has no search plot.
    Texts headings = {"Loss by lr"};
    for (const SweepTable& table : sweep_tables(results)) headings.push_back(table.title);
    headings.push_back("Maps of pairs");
    CHECK(page.texts("h2") == headings);

    // sweep_table_test checks the numbers of the tables. The last table has every point.
    std::vector<std::vector<Texts>> expected, tables;
    for (const SweepTable& table : sweep_tables(results)) expected.push_back(table.rows);
    expected.push_back(point_rows(results));
    for (const PageElement* table : page.all("table"))
        if (!table->has_class("heat")) tables.push_back(page.rows(*table));
    CHECK(tables == expected);

    // Width by learning rate, for each recipe.
    const auto maps = page.all("table", "heat");
    REQUIRE(maps.size() == 2);
    CHECK(page.texts("caption") == Texts{"fp32", "unit-fp8"});
    // The maps have a block of their own below the note, so that all of them begin at the left.
    const PageElement& block = page.parent(*maps[0]);
    CHECK(block.name == "div");
    CHECK(&page.parent(*maps[1]) == &block);
    CHECK(block.text.starts_with("fp32 width"));
    CHECK(page.rows(*maps[0]) == std::vector<Texts>{{"width \\ lr", "0.5", "1", "2"},
                                                    {"32", "2.500", "2.000", "2.500"},
                                                    {"64", "2.500", "2.000", "2.500"}});
    CHECK(page.rows(*maps[1]).at(2) == Texts{"64", "2.500", "2.000", "failed"});

    const auto curves = curves_of(page, "Loss by lr");
    REQUIRE(curves.size() == 4);
    for (const auto& [name, lines] : curves) {
        INFO(name);
        REQUIRE(lines.size() == 1);
        const bool fails = name == "unit-fp8, width 64";
        REQUIRE(lines[0].size() == (fails ? 2u : 3u));  // no point where the runs have failed
        CHECK(lines[0][0].y < lines[0][1].y);           // 2.5, then 2: downwards
        if (!fails) CHECK(lines[0][2].y == lines[0][0].y);
    }
}

TEST_CASE("sweep page: no link leads anywhere, in any state of the sweep") {
    // A page must be readable from a disk without a network. The page checker tests that links within it have targets.
    const auto two = std::vector<std::pair<SweepPoint, double>>{{{"1"}, 2.0}, {{"2"}, 3.0}};
    for (const SweepResults& results :
         {recipes_and_widths(), results_of({"lr=1,2"}, {}), results_of({"lr=1,2"}, two),
          results_of({"lr=1,2"}, two, SweepStrategy::random), results_of({"lr=1,2"}, {{{"1"}, infinity}})}) {
        const Page page(sweep_page(results, ""));
        CHECK(page.problems() == Texts{});
        CHECK(page.links() == Texts{});
        CHECK(page.requests() == Texts{});
        for (const PageElement* picture : page.all("svg", "chart"))
            CHECK(picture->attribute("xmlns") == "http://www.w3.org/2000/svg");  // a name, which nobody fetches
    }
}

TEST_CASE("sweep page: the finished runs determine the parts of the page") {
    const Page begun(sweep_page(results_of({"lr=1,2"}, {}), "begun"));
    CHECK(begun.says("begun"));
    CHECK(begun.count("table") == 0);
    CHECK(begun.count("svg") == 0);
    CHECK(begun.count("details") == 0);
    const auto two = std::vector<std::pair<SweepPoint, double>>{{{"1"}, 3.0}, {{"2"}, 2.0}};
    const Page random(sweep_page(results_of({"lr=1,2"}, two, SweepStrategy::random), ""));
    CHECK(random.texts("h2").at(1) == "Best loss so far");
    const auto best = curves_of(random, "Best loss so far");
    REQUIRE(best.size() == 1);
    REQUIRE(best.begin()->second.at(0).size() == 2);
    CHECK(best.begin()->second[0][0].y < best.begin()->second[0][1].y);  // 3, then 2: downwards
}

TEST_CASE("sweep page: the plot by learning rate stands alone too") {
    const std::string svg = sweep_plot(recipes_and_widths(), {.date = "2026-11-23"});
    CHECK(svg.starts_with("<svg "));
    const Page picture(svg);
    CHECK(picture.problems() == Texts{});
    CHECK(picture.requests() == Texts{});
    CHECK(picture.count("style") == 1);
    CHECK(picture.texts("desc") == Texts{"date: 2026-11-23"});
    // Three of the four curves have equal losses, and so has the fourth where it has not failed: all of them show.
    Texts dashes;
    for (const PageElement* path : picture.all("path", "curve", picture.all("svg").at(1)))
        dashes.push_back(path->attribute("style"));
    REQUIRE(dashes.size() == 4);
    for (const std::string& dash : dashes) CHECK(std::count(dashes.begin(), dashes.end(), dash) == 1);
    const Texts names = {"fp32, width 32", "fp32, width 64", "unit-fp8, width 32", "unit-fp8, width 64"};
    CHECK(picture.texts("text", "name") == names);
    CHECK(picture.texts("title") == names);
    CHECK(picture.says("learning rate"));
    CHECK(picture.says("bits per character"));
    CHECK(sweep_plot(results_of({"alpha_res=1,2"}, {{{"1"}, 2.0}, {{"2"}, 3.0}})).empty());
    CHECK(sweep_plot(results_of({"lr=1,2"}, {})).empty());
}
