// SPDX-License-Identifier: MIT
#include <unitscale/train/sweep_page.hpp>

#include "support/catch.hpp"
#include "support/sweep_points.hpp"
#include "support/text_count.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::train;
using unitscale::test::count;

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
    const analysis::Plot plot = axis_plot(recipes_and_widths(), 2);
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
    CHECK(plot.x.ticks[0].text == analysis::svg_power(2, -1));
    CHECK(axis_plot(results_of({"lr=1"}, {{{"1"}, 2.0}}), 0).curves.empty());
}

TEST_CASE("sweep page: the axis of losses shows all minima, and not what diverges") {
    std::vector<analysis::PlotCurve> curves(2);
    curves[0].y = {2.0, 2.2, 9.0};
    curves[1].y = {2.4, std::numeric_limits<double>::quiet_NaN(), 2.6};
    const analysis::PlotAxis axis = sweep_loss_axis(curves);
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
    const auto points = std::vector<std::pair<SweepPoint, double>>{{{"1"}, infinity}, {{"2"}, 3.0}, {{"4"}, 3.5}, {{"8"}, 2.0}};
    const analysis::Plot plot = search_plot(results_of({"lr=1,2,4,8"}, points, SweepStrategy::random));
    REQUIRE(plot.curves.size() == 1);
    CHECK(plot.curves[0].x == std::vector<double>{2.0, 4.0, 6.0, 8.0});
    CHECK(std::isnan(plot.curves[0].y[0]));
    CHECK(std::vector<double>(plot.curves[0].y.begin() + 1, plot.curves[0].y.end()) == std::vector<double>{3.0, 3.0, 2.0});
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
    const std::string page = sweep_page(recipes_and_widths(), "a & b");
    CHECK(page.starts_with("<!DOCTYPE html>"));
    CHECK(page.ends_with("</html>\n"));
    CHECK(page.find("a &amp; b") != std::string::npos);
    CHECK(page.find("failed runs: 2") != std::string::npos);
    CHECK(page.find("the loss is &lt;nan>") != std::string::npos);
    CHECK(page.find("<h2>Loss by lr</h2>") != std::string::npos);
    CHECK(page.find("Best loss so far") == std::string::npos);  // a grid
    CHECK(count(page, "<table class=\"heat\">") == 2);          // width by lr, for each recipe
    CHECK(count(page, "<caption>fp32</caption>") == 1);
    CHECK(page.find("how far optima move") != std::string::npos);
    CHECK(page.find("http") == page.find("http://www.w3.org/2000/svg"));
    CHECK(sweep_page(results_of({"lr=1,2"}, {}), "").ends_with("</html>\n"));  // nothing is done yet
    const std::string random = sweep_page(results_of({"lr=1,2"}, {{{"1"}, 2.0}, {{"2"}, 3.0}}, SweepStrategy::random), "");
    CHECK(random.find("Best loss so far") != std::string::npos);
}

TEST_CASE("sweep page: the plot by learning rate stands alone too") {
    const std::string svg = sweep_plot(recipes_and_widths());
    CHECK(svg.starts_with("<svg "));
    CHECK(svg.find("<style>") != std::string::npos);
    CHECK(svg.find(">learning rate<") != std::string::npos);
    CHECK(svg.find(">unit-fp8, width 64<") != std::string::npos);
    CHECK(sweep_plot(results_of({"alpha_res=1,2"}, {{{"1"}, 2.0}, {{"2"}, 3.0}})).empty());
    CHECK(sweep_plot(results_of({"lr=1,2"}, {})).empty());
}
