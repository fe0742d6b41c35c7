// SPDX-License-Identifier: MIT
#include <unitscale/report/snr_figure.hpp>

#include "support/catch.hpp"
#include "support/page.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::report;
using unitscale::test::lines_of;
using unitscale::test::Page;
using unitscale::test::PageElement;
using unitscale::test::Texts;

TEST_CASE("snr figure: one curve and one name per format, axes in powers of two and ten, light and dark") {
    std::vector<analysis::SnrCurve> curves;
    for (const char* name : {"e4m3", "e5m2", "int8:180"})
        curves.push_back(analysis::snr_curve(analysis::find_scaled_format(name), -8, 8, 1));
    const Page page(snr_figure(curves, {.date = "2026-11-23"}));
    CHECK(page.problems() == Texts{});
    CHECK(page.requests() == Texts{});
    CHECK(page.texts("desc") == Texts{"date: 2026-11-23"});
    CHECK(page.texts("title") == Texts{"e4m3", "e5m2", "int8:180"});
    CHECK(page.texts("text", "name") == Texts{"e4m3", "e5m2", "int8:180"});
    REQUIRE(page.count("style") == 1);
    CHECK(page.texts("style")[0].find("prefers-color-scheme: dark") != std::string::npos);
    // Powers of two from 2^-8 to 2^8, then powers of ten: the best ratio of e4m3 is above 1000.
    Texts ticks = page.texts("text");
    ticks.erase(ticks.end() - 3, ticks.end());  // the key
    CHECK(ticks == Texts{"Signal-to-noise ratio of a normal tensor", "2\u22128", "2\u22124", "20", "24", "28", "100",
                         "101", "102", "103", "104", "standard deviation of the tensor", "signal power / error power"});

    // Every ratio stands at its place: from left to right by the exponent, upwards by its logarithm on a scale to 4.
    const PageElement& frame = *page.all("svg").at(1);
    const double width = std::stod(frame.attribute("width")) - 10.0;  // 5 pixels around the axes
    const double height = std::stod(frame.attribute("height")) - 10.0;
    const auto paths = page.all("path", "curve", &frame);
    REQUIRE(paths.size() == curves.size());
    for (std::size_t i = 0; i < curves.size(); ++i) {
        const auto lines = lines_of(*paths[i]);
        REQUIRE(lines.size() == 1);
        REQUIRE(lines[0].size() == 17);
        INFO(curves[i].format.label);
        for (std::size_t j = 0; j < lines[0].size(); ++j) {
            CHECK(lines[0][j].x == Approx(width * static_cast<double>(j) / 16.0).margin(0.06));
            CHECK(lines[0][j].y == Approx(height - height * std::log10(curves[i].ratios.at(j)) / 4.0).margin(0.06));
        }
    }
}

TEST_CASE(
    "snr figure: nine curves differ by colour and dashes, and take turns where they are one line; none is an error") {
    std::vector<analysis::SnrCurve> curves(9, analysis::snr_curve(analysis::find_scaled_format("e2m1"), -1, 1, 1));
    const Page page(snr_figure(curves));
    CHECK(page.problems() == Texts{});
    Texts looks;
    for (const PageElement* group : page.all("g", "", page.all("svg").at(1)))
        looks.push_back(group->attribute("class"));
    REQUIRE(looks.size() == 9);
    for (const std::string& look : looks) CHECK(std::count(looks.begin(), looks.end(), look) == 1);
    CHECK(page.texts("text", "name").size() == 9);
    Texts styles;
    for (const PageElement* path : page.all("path", "curve", page.all("svg").at(1)))
        styles.push_back(path->attribute("style"));
    for (const std::string& style : styles) CHECK(std::count(styles.begin(), styles.end(), style) == 1);
    REQUIRE_THROWS_WITH(snr_figure(std::vector<analysis::SnrCurve>{}), "snr_figure: no curve");
}
