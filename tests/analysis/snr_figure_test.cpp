// SPDX-License-Identifier: MIT
#include <unitscale/analysis/snr_figure.hpp>

#include "support/catch.hpp"
#include "support/text_count.hpp"

#include <string>
#include <vector>

using namespace unitscale::analysis;
using unitscale::test::count;

TEST_CASE("snr figure: one curve and one name per format, axes in powers of two and ten, light and dark") {
    std::vector<SnrCurve> curves;
    for (const char* name : {"e4m3", "e5m2", "int8:180"}) curves.push_back(snr_curve(find_scaled_format(name), -8, 8, 1));
    const std::string svg = snr_figure(curves);
    CHECK(svg.starts_with("<svg "));
    CHECK(svg.ends_with("</svg>\n"));
    CHECK(count(svg, "<title>") == 3);
    CHECK(count(svg, ">int8:180</text>") == 1);
    CHECK(count(svg, "class=\"name\"") == 3);
    CHECK(count(svg, "prefers-color-scheme: dark") == 1);
    CHECK(count(svg, "standard deviation of the tensor") == 1);
    CHECK(count(svg, "<text") == count(svg, "</text>"));
    CHECK(svg.find("nan") == std::string::npos);
    CHECK(svg_power(2, -8) == "2<tspan dy=\"-5\" font-size=\"75%\">\u22128</tspan>");
    for (const int tick : {-8, -4, 0, 4, 8}) CHECK(svg.find(svg_power(2, tick) + "</text>") != std::string::npos);
    CHECK(svg.find(svg_power(10, 4) + "</text>") != std::string::npos);  // the best ratio of e4m3 is above 1000
    CHECK(svg.find(svg_power(10, 5) + "</text>") == std::string::npos);
}

TEST_CASE("snr figure: nine curves differ by colour and dashes; none is an error") {
    std::vector<SnrCurve> curves(9, snr_curve(find_scaled_format("e2m1"), -1, 1, 1));
    CHECK(count(snr_figure(curves), "class=\"c0 dash1\"") == 2);  // the ninth curve and its key
    REQUIRE_THROWS_WITH(snr_figure(std::vector<SnrCurve>{}), "snr_figure: no curve");
}
