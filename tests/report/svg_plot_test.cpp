// SPDX-License-Identifier: MIT
#include <unitscale/report/svg_plot.hpp>

#include "support/catch.hpp"
#include "support/page.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test = unitscale::test;
using namespace unitscale::report;
using test::Page;
using test::PageElement;
using test::Texts;

namespace {

Plot small() {
    return {.x = {.low = 0.0, .high = 10.0},
            .y = {.low = 0.0, .high = 4.0},
            .width = 100.0,
            .height = 40.0,
            .alone = false};
}

using Line = std::vector<std::pair<double, double>>;
using Lines = std::vector<Line>;

double number(const PageElement& element, const std::string& attribute) {
    INFO(element.name << ' ' << attribute << '=' << element.attribute(attribute));
    std::size_t end = 0;
    const std::string text = element.attribute(attribute);
    const double value = text.empty() ? 0.0 : std::stod(text, &end);
    REQUIRE(end == text.size());
    REQUIRE_FALSE(text.empty());
    return value;
}

/// The groups of curves in the frame. The key's curves stand outside the frame.
std::vector<const PageElement*> groups(const Page& page) { return page.all("g", "", page.all("svg").at(1)); }

/// The lines that a path of the n-th curve draws. The class is `curve` or `band`.
Lines lines(const Page& page, std::size_t n, std::string_view kind) {
    Lines result;
    const auto paths = page.all("path", kind, groups(page).at(n));
    REQUIRE(paths.size() == 1);
    for (const auto& line : test::lines_of(*paths[0])) {
        result.emplace_back();
        for (const test::PagePoint& point : line) result.back().emplace_back(point.x, point.y);
    }
    return result;
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
    const Page page(svg_plot(plot));
    CHECK(page.problems() == Texts{});
    CHECK(lines(page, 0, "curve") == Lines{{{0, 40}, {50, 0}}, {{100, 30}}});
    CHECK(page.count("path", "band") == 0);
}

TEST_CASE("svg plot: a band goes along its upper edge and back along its lower one") {
    Plot plot = small();
    plot.curves = {{.name = "a", .x = {0.0, 10.0}, .y = {2.0, 2.0}, .low = {1.0, 1.0}, .high = {3.0, 4.0}}};
    const Page page(svg_plot(plot));
    CHECK(page.problems() == Texts{});
    CHECK(lines(page, 0, "band") == Lines{{{0, 10}, {100, 0}, {100, 30}, {0, 30}, {0, 10}}});
    CHECK(lines(page, 0, "curve") == Lines{{{0, 20}, {100, 20}}});
}

TEST_CASE("svg plot: dots stand at the points that there are") {
    Plot plot = small();
    constexpr double missing = std::numeric_limits<double>::quiet_NaN();
    plot.curves = {{.name = "a", .x = {0.0, 5.0, 10.0}, .y = {0.0, missing, 1.0}}};
    CHECK(Page(svg_plot(plot)).count("circle") == 0);
    plot.curves[0].dots = true;
    const Page page(svg_plot(plot));
    CHECK(page.problems() == Texts{});
    Line dots;
    for (const PageElement* circle : page.all("circle")) dots.push_back({number(*circle, "cx"), number(*circle, "cy")});
    CHECK(dots == Line{{0, 40}, {100, 30}});
}

TEST_CASE("svg plot: a triangle stands for a first point beyond the frame, and for every such point with dots") {
    Plot plot = small();
    plot.curves = {{.name = "a", .x = {0.0, 4.0, 6.0, 10.0}, .y = {9.0, 1.0, 5.0, -1.0}}};
    const auto triangles = [&] {
        const Page page(svg_plot(plot));
        CHECK(page.problems() == Texts{});
        Line tips;
        for (const PageElement* path : page.all("path", "beyond")) {
            const auto drawn = test::lines_of(*path);
            REQUIRE(drawn.size() == 1);
            tips.emplace_back(drawn[0][0].x, drawn[0][0].y);
        }
        return tips;
    };
    CHECK(triangles() == Line{{0, -4}});
    CHECK(Page(svg_plot(plot)).count("circle") == 0);
    plot.curves[0].dots = true;
    CHECK(triangles() == Line{{0, -4}, {60, -4}, {100, 44}});
    CHECK(Page(svg_plot(plot)).count("circle") == 1);
    plot.curves[0].y = {4.0, 0.0, 0.0, 0.0};  // on the frame
    CHECK(triangles().empty());
}

TEST_CASE("svg plot: curves that hide each other take turns; the key shows their own looks") {
    Plot plot = small();
    plot.curves = {{.name = "a", .x = {0.0, 10.0}, .y = {1.0, 1.0}, .look = 0},
                   {.name = "b", .x = {0.0, 10.0}, .y = {1.0, 1.1}, .look = 1},
                   {.name = "c", .x = {0.0, 10.0}, .y = {3.0, 3.0}, .look = 2}};
    const Page page(svg_plot(plot));
    CHECK(page.problems() == Texts{});
    Texts styles;
    for (const PageElement* path : page.all("path", "curve")) styles.push_back(path->attribute("style"));
    const std::string tens = "10.0 10.0 10.0 10.0 10.0 10.0 10.0 10.0 10.0";
    CHECK(styles ==
          Texts{"stroke-dasharray:" + tens + " 10.0", "stroke-dasharray:0.0 " + tens + " 10.0 0.0", "", "", "", ""});
    plot.curves[1].y = {1.5, 2.5};
    for (const PageElement* path : Page(svg_plot(plot)).all("path", "curve")) CHECK(path->attribute("style").empty());
    // Dashes begin anew behind a gap: each part has its own.
    constexpr double missing = std::numeric_limits<double>::quiet_NaN();
    plot.curves[1] = {.name = "b", .x = {0.0, 3.0, 5.0, 6.0, 10.0}, .y = {1.0, 1.0, missing, 1.0, 1.0}};
    const Page parted(svg_plot(plot));
    const auto paths = parted.all("path", "curve", groups(parted).at(1));
    REQUIRE(paths.size() == 2);
    CHECK(paths[0]->attribute("style") == "stroke-dasharray:0.0 10.0 10.0 10.0");
    CHECK(paths[1]->attribute("style") == "stroke-dasharray:0.0 10.0 10.0 10.0 10.0 0.0");
    CHECK(test::lines_of(*paths[0]).size() == 1);
    CHECK(test::lines_of(*paths[1]).at(0).at(0).x == 60.0);
}

TEST_CASE("svg plot: text keeps its size: no rule lets a picture shrink, and a picture has its size in pixels") {
    CHECK(svg_plot_style.find("max-width") == std::string_view::npos);
    CHECK(svg_plot_style.find("font: 13px") != std::string_view::npos);
    CHECK(svg_plot_style.find("var(") == std::string_view::npos);  // not every program that shows SVG knows variables
}

TEST_CASE("svg plot: every colour of the style has a second one for dark systems") {
    const std::size_t dark = svg_plot_style.find("@media (prefers-color-scheme: dark)");
    REQUIRE(dark != std::string_view::npos);
    const std::string_view light_part = svg_plot_style.substr(0, dark), dark_part = svg_plot_style.substr(dark);
    for (const char* name : {".back {", "chart text {", ".title, svg.chart .name {", ".tick {", ".strong {", ".c0 {",
                             ".c1 {", ".c2 {", ".c3 {", ".c4 {", ".c5 {", ".c6 {", ".c7 {"}) {
        INFO(name);
        const std::size_t a = light_part.find(name), b = dark_part.find(name);
        REQUIRE(a != std::string_view::npos);
        REQUIRE(b != std::string_view::npos);
        CHECK(light_part.substr(a, light_part.find('}', a) - a) != dark_part.substr(b, dark_part.find('}', b) - b));
    }
}

TEST_CASE("svg plot: a stand-alone picture says where it comes from; a part of a page leaves that to the page") {
    Plot plot = small();
    plot.source = {.data = "a.txt", .date = "2026-11-23", .command = "sweep --axis 'lr=1,2' > b"};
    plot.curves = {{.name = "a", .x = {1.0}, .y = {1.0}}};
    CHECK(Page(svg_plot(plot)).count("desc") == 0);
    plot.alone = true;
    const Page page(svg_plot(plot));
    CHECK(page.problems() == Texts{});
    CHECK(page.texts("desc") == Texts{"data: a.txt; date: 2026-11-23; command: sweep --axis 'lr=1,2' > b"});
    plot.source = {};
    CHECK(Page(svg_plot(plot)).count("desc") == 0);
}

TEST_CASE("svg plot: ticks and labels stand at their places beside the frame") {
    Plot plot = small();
    plot.x.ticks = {{2.5, "two", false}, {5.0, svg_power(2, -3), true}};
    plot.y.ticks = {{1.0, "one"}};
    plot.x.label = "x & more";
    plot.y.label = "y";
    plot.curves = {{.name = "a", .x = {1.0}, .y = {1.0}}};
    const Page page(svg_plot(plot));
    CHECK(page.problems() == Texts{});
    const PageElement& frame = *page.all("svg").at(1);
    // The frame is cut off 5 pixels outside: a point on it is drawn whole.
    CHECK(frame.attribute("viewBox") == "-5 -5 110 50");
    const double left = number(frame, "x") + 5.0, top = number(frame, "y") + 5.0;
    CHECK(number(frame, "width") == 110.0);
    CHECK(number(frame, "height") == 50.0);
    CHECK(page.texts("text") == Texts{"two", "2\u22123", "one", "x & more", "y", "a"});
    const auto texts = page.all("text");
    CHECK(number(*texts.at(0), "x") == Approx(left + 25.0).margin(0.1));
    CHECK(number(*texts.at(1), "x") == Approx(left + 50.0).margin(0.1));
    CHECK(number(*texts.at(0), "y") > top + 40.0);
    CHECK(number(*texts.at(2), "x") < left);
    CHECK(number(*texts.at(2), "y") == Approx(top + 30.0).margin(6.0));  // a letter's height
    // Lines through the frame at the ticks, the strong one darker.
    Lines grid;
    Texts strokes;
    for (const PageElement* path : page.all("path")) {
        if (path->has_class("curve")) continue;
        const auto drawn = test::lines_of(*path);
        REQUIRE(drawn.size() == 1);
        grid.emplace_back();
        for (const test::PagePoint& point : drawn[0])
            grid.back().emplace_back(std::round(point.x - left), std::round(point.y - top));
        strokes.push_back(path->attribute("class"));
    }
    CHECK(grid == Lines{{{25, 0}, {25, 40}}, {{50, 0}, {50, 40}}, {{0, 30}, {100, 30}}});
    CHECK(strokes == Texts{"tick", "tick strong", "tick"});
}

TEST_CASE("svg plot: names are escaped, shown with their curve and in the key, which fits into the picture") {
    Plot plot = small();
    plot.title = "a & b";
    plot.label = "for \"readers\"";
    plot.curves = {{.name = "<x>", .x = {1.0}, .y = {1.0}}, {.name = "y", .x = {1.0}, .y = {1.0}, .look = 9}};
    for (const std::size_t letters : {1u, 40u}) {
        plot.curves[1].name = std::string(letters, 'y');
        const Page page(svg_plot(plot));
        CHECK(page.problems() == Texts{});
        CHECK(page.texts("title") == Texts{"<x>", plot.curves[1].name});
        CHECK(page.texts("text", "name") == Texts{"<x>", plot.curves[1].name});
        CHECK(page.texts("text", "title") == Texts{"a & b"});
        CHECK(page.all("svg").at(0)->attribute("aria-label") == "for \"readers\"");
        CHECK(page.count("g", "c0") == 2);  // the curve and its key
        CHECK(page.count("g", "c1") == 2);
        CHECK(page.count("g", "dash1") == 2);
        CHECK(groups(page).at(1)->attribute("data-look") == "9");
        CHECK(page.count("style") == 0);
        const PageElement& picture = *page.all("svg").at(0);
        const double width = number(picture, "width"), height = number(picture, "height");
        std::ostringstream box;
        box << "0 0 " << width << ' ' << height;
        CHECK(picture.attribute("viewBox") == box.str());
        for (const PageElement* name : page.all("text", "name"))
            CHECK(number(*name, "x") + 7.0 * static_cast<double>(name->text.size()) <= width);
        const PageElement& frame = *page.all("svg").at(1);
        CHECK(number(frame, "x") + number(frame, "width") < number(*page.all("text", "name").at(0), "x"));
        CHECK(number(frame, "y") + number(frame, "height") < height);
    }
    plot.key = false;
    plot.alone = true;
    const Page alone(svg_plot(plot));
    CHECK(alone.problems() == Texts{});
    CHECK(alone.requests() == Texts{});
    CHECK(alone.count("text", "name") == 0);
    CHECK(alone.texts("title").size() == 2);
    REQUIRE(alone.count("style") == 1);
    CHECK(alone.texts("style")[0].find("prefers-color-scheme: dark") != std::string::npos);
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
}

TEST_CASE("svg plot: powers have a raised exponent and a minus sign that is one") {
    for (const int exponent : {-8, 0, 12}) {
        const Page page("<svg xmlns=\"http://www.w3.org/2000/svg\"><text>" + svg_power(10, exponent) + "</text></svg>");
        CHECK(page.problems() == Texts{});
        const std::string digits = exponent < 0 ? "\u22128" : std::to_string(exponent);
        CHECK(page.texts("text") == Texts{"10" + digits});
        CHECK(page.texts("tspan") == Texts{digits});
        CHECK(number(*page.all("tspan").at(0), "dy") < 0.0);
    }
}

TEST_CASE("svg plot: errors") {
    Plot plot = small();
    REQUIRE_THROWS_WITH(svg_plot(plot), "svg_plot: no curve");
    plot.curves = {{.name = "a", .x = {1.0, 2.0}, .y = {1.0}}};
    REQUIRE_THROWS_WITH(svg_plot(plot), "svg_plot: the curve a has 2 places, but 1 values and a band of 0 and 0");
}

TEST_CASE("svg plot: a point far beyond the axis costs no more than one beside it, dashed or shared") {
    const auto size = [](double far) {
        Plot plot = small();
        for (const std::size_t look : {0u, 8u, 16u})  // solid and both kinds of dashes; lines that hide each other
            plot.curves.push_back(
                {.name = "a", .x = {1.0, 4.0, 9.0}, .y = {1.0, far, 2.0}, .look = look, .dots = true});
        const std::string svg = svg_plot(plot);
        CHECK(svg.find("class=\"beyond\"") != std::string::npos);
        return svg.size();
    };
    CHECK(size(1e17) < 100000);
    CHECK(size(1e17) == size(1e9));
    CHECK(size(-1e300) < 100000);
}
