// SPDX-License-Identifier: MIT
#include <unitscale/report/plot_overlap.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale::report;

namespace {

constexpr double gap = std::numeric_limits<double>::quiet_NaN();

std::vector<SharedLine> shared(const std::vector<PlotLine>& lines) { return shared_lines(lines, 100.0, 50.0); }

}  // namespace

TEST_CASE("plot overlap: heights stand at every second pixel, without those outside the frame") {
    const std::vector<double> heights = sampled_heights({{0.0, 0.0}, {4.0, 8.0}, {8.0, gap}, {10.0, 60.0}}, 12.0, 50.0);
    REQUIRE(heights.size() == 7);
    CHECK(heights[0] == 0.0);
    CHECK(heights[1] == 4.0);
    CHECK(heights[2] == 8.0);
    for (const std::size_t i : {3u, 4u, 5u, 6u}) CHECK(std::isnan(heights[i]));
    CHECK(std::isnan(sampled_heights({}, 4.0, 4.0).at(0)));
    CHECK(std::isnan(sampled_heights({{0.0, 1.0}}, 4.0, 4.0).at(0)));  // a point is no line
}

TEST_CASE("plot overlap: lines apart stand alone, lines on each other share their place in order") {
    const PlotLine low = {{0.0, 40.0}, {100.0, 40.0}}, high = {{0.0, 10.0}, {100.0, 10.0}},
                   near = {{0.0, 41.9}, {50.0, 38.1}, {100.0, 41.0}}, beside = {{0.0, 42.0}, {100.0, 42.0}};
    CHECK(shared({low, high}) == std::vector<SharedLine>{{0, 1}, {0, 1}});
    CHECK(shared({low, beside}) == std::vector<SharedLine>{{0, 1}, {0, 1}});
    CHECK(shared({low, high, near}) == std::vector<SharedLine>{{0, 2}, {0, 1}, {1, 2}});
    CHECK(shared({high, low, low, high, low}) == std::vector<SharedLine>{{0, 2}, {0, 3}, {1, 3}, {1, 2}, {2, 3}});
    CHECK(shared({}).empty());
}

TEST_CASE("plot overlap: a fifth of the frame or half of a short line is enough, a crossing is not") {
    const PlotLine flat = {{0.0, 20.0}, {100.0, 20.0}};
    CHECK(shared({flat, {{0.0, 0.0}, {100.0, 40.0}}})[1].count == 1);                               // crosses it
    CHECK(shared({flat, {{0.0, 20.0}, {15.0, 20.0}, {20.0, 50.0}, {100.0, 50.0}}})[1].count == 1);  // 15 pixels
    CHECK(shared({flat, {{0.0, 20.0}, {30.0, 20.0}, {35.0, 50.0}, {100.0, 50.0}}})[1].count == 2);  // 30 pixels
    CHECK(shared({flat, {{40.0, 20.0}, {48.0, 20.0}}})[1].count == 2);                              // all of 8 pixels
    CHECK(shared({flat, {{40.0, 20.0}, {48.0, gap}}})[1].count == 1);
    const PlotLine above = {{0.0, -5.0}, {100.0, -5.0}};  // nobody sees these
    CHECK(shared({above, above})[1].count == 1);
}

TEST_CASE("plot overlap: lines that hide a common line belong together") {
    const PlotLine a = {{0.0, 10.0}, {100.0, 10.0}}, c = {{0.0, 13.0}, {100.0, 13.0}},
                   between = {{0.0, 11.5}, {100.0, 11.5}};
    CHECK(shared({a, c})[1].count == 1);
    CHECK(shared({a, c, between}) == std::vector<SharedLine>{{0, 3}, {1, 3}, {2, 3}});
}
