// SPDX-License-Identifier: MIT
#include <unitscale/analysis/svg_plot.hpp>

#include "support/catch.hpp"
#include "support/text_count.hpp"

#include <limits>
#include <string>
#include <vector>

using namespace unitscale::analysis;
using unitscale::test::count;

namespace {

Plot small() {
    return {.x = {.low = 0.0, .high = 10.0}, .y = {.low = 0.0, .high = 4.0}, .width = 100.0, .height = 40.0, .alone = false};
}

std::vector<double> places(const PlotAxis& axis) {
    std::vector<double> at;
    for (const PlotTick& tick : axis.ticks) at.push_back(tick.at);
    return at;
}

}  // namespace

TEST_CASE("svg plot: a value stands where its axes say, and a curve is broken where there is none") {
    Plot plot = small();
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    plot.curves = {{.name = "a", .x = {0.0, 5.0, 7.5, 10.0}, .y = {0.0, 4.0, nan, 1.0}}};
    const std::string svg = svg_plot(plot);
    CHECK(svg.find("<path class=\"curve\" d=\"M0.0 40.0L50.0 0.0M100.0 30.0\"/>") != std::string::npos);
    CHECK(svg.find("nan") == std::string::npos);
}

TEST_CASE("svg plot: a band goes along its upper edge and back along its lower one") {
    Plot plot = small();
    plot.curves = {{.name = "a", .x = {0.0, 10.0}, .y = {2.0, 2.0}, .low = {1.0, 1.0}, .high = {3.0, 4.0}}};
    CHECK(svg_plot(plot).find("<path class=\"band\" d=\"M0.0 10.0L100.0 0.0L100.0 30.0L0.0 30.0Z\"/>") != std::string::npos);
}

TEST_CASE("svg plot: dots stand at the points that there are") {
    Plot plot = small();
    constexpr double missing = std::numeric_limits<double>::quiet_NaN();
    plot.curves = {{.name = "a", .x = {0.0, 5.0, 10.0}, .y = {0.0, missing, 1.0}}};
    CHECK(count(svg_plot(plot), "<circle") == 0);
    plot.curves[0].dots = true;
    const std::string svg = svg_plot(plot);
    CHECK(count(svg, "<circle cx=\"0.0\" cy=\"40.0\"") == 1);
    CHECK(count(svg, "<circle cx=\"100.0\" cy=\"30.0\"") == 1);
    CHECK(count(svg, "<circle") == 2);
}

TEST_CASE("svg plot: names are escaped, shown with their curve and in the key") {
    Plot plot = small();
    plot.title = "a & b";
    plot.curves = {{.name = "<x>", .x = {1.0}, .y = {1.0}}, {.name = "y", .x = {1.0}, .y = {1.0}, .look = 9}};
    std::string svg = svg_plot(plot);
    CHECK(count(svg, "<title>&lt;x></title>") == 1);
    CHECK(count(svg, ">&lt;x></text>") == 1);
    CHECK(count(svg, "class=\"name\"") == 2);
    CHECK(count(svg, "<g class=\"c1 dash1\"") == 2);  // the curve and its key
    CHECK(count(svg, ">a &amp; b</text>") == 1);
    CHECK(count(svg, "<style>") == 0);
    CHECK(count(svg, "<g") == count(svg, "</g>"));
    CHECK(count(svg, "<svg") == count(svg, "</svg>"));
    CHECK(count(svg, " width=\"340\"") == 1);  // 66 and 100, and 174 for the key
    plot.curves[1].name = std::string(40, 'y');
    CHECK(count(svg_plot(plot), " width=\"528\"") == 1);  // 362 for a longer one
    plot.key = false;
    plot.alone = true;
    svg = svg_plot(plot);
    CHECK(count(svg, "class=\"name\"") == 0);
    CHECK(count(svg, "<style>") == 1);
    CHECK(count(svg, "prefers-color-scheme: dark") == 1);
}

TEST_CASE("svg plot: 24 curves have looks of their own") {
    std::vector<std::string> looks;
    for (std::size_t i = 0; i < 24; ++i) {
        looks.push_back(look_classes(i));
        for (std::size_t j = 0; j < i; ++j) CHECK(looks[i] != looks[j]);
    }
    CHECK(look_classes(24) == looks[0]);
}

TEST_CASE("svg plot: ticks stand at round numbers within the axis") {
    CHECK(places(linear_axis(0.0, 10.0, "")) == std::vector<double>{0, 2, 4, 6, 8, 10});
    CHECK(places(linear_axis(0.0, 300.0, "")) == std::vector<double>{0, 50, 100, 150, 200, 250, 300});
    CHECK(places(linear_axis(-3.0, 2.0, "", 10, true)) == std::vector<double>{-3, -2, -1, 0, 1, 2});
    const PlotAxis narrow = linear_axis(2.31, 2.87, "loss", 4);
    CHECK(narrow.label == "loss");
    REQUIRE(narrow.ticks.size() == 3);
    CHECK(narrow.ticks[0].at == Approx(2.4));
    CHECK(narrow.ticks[1].text == "2.6");
    CHECK(linear_axis(5.0, 5.0, "").high == 6.0);
    CHECK(linear_axis(-2.0, 2.0, "").ticks.front().text == "\u22122");
    CHECK(svg_power(2, -8) == "2<tspan dy=\"-5\" font-size=\"75%\">\u22128</tspan>");
}

TEST_CASE("svg plot: errors") {
    Plot plot = small();
    REQUIRE_THROWS_WITH(svg_plot(plot), "svg_plot: no curve");
    plot.curves = {{.name = "a", .x = {1.0, 2.0}, .y = {1.0}}};
    REQUIRE_THROWS_WITH(svg_plot(plot), "svg_plot: the curve a has 2 places, but 1 values and a band of 0 and 0");
}
