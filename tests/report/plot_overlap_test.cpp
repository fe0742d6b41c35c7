// SPDX-License-Identifier: MIT
#include <unitscale/report/plot_overlap.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale::report;

namespace {

constexpr double gap = std::numeric_limits<double>::quiet_NaN();

/// Each line's turns in a frame of 50 pixels: # drawn, . left to another line.
std::vector<std::string> turns(const std::vector<PlotLine>& lines) {
    std::vector<std::string> texts;
    for (const std::vector<bool>& line : turns_of(lines, 58.0, 50.0)) {
        texts.emplace_back();
        for (const bool drawn : line) texts.back() += drawn ? '#' : '.';
    }
    return texts;
}
using Turns = std::vector<std::string>;

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

TEST_CASE("plot overlap: lines apart are whole; lines on each other take turns in order") {
    const PlotLine low = {{0.0, 40.0}, {58.0, 40.0}}, high = {{0.0, 10.0}, {58.0, 10.0}},
                   near = {{0.0, 41.9}, {30.0, 38.1}, {58.0, 41.0}}, beside = {{0.0, 42.0}, {58.0, 42.0}};
    CHECK(turns({low, high}) == Turns{"######", "######"});
    CHECK(turns({low, beside}) == Turns{"######", "######"});
    CHECK(turns({low, high, near}) == Turns{"#.#.#.", "######", ".#.#.#"});
    CHECK(turns({high, low, low, high, low}) == Turns{"#.#.#.", "#..#..", ".#..#.", ".#.#.#", "..#..#"});
    CHECK(turns({}).empty());
}

TEST_CASE("plot overlap: only the shared part is dashed; a crossing is not shared; the unseen takes no turn") {
    const PlotLine flat = {{0.0, 20.0}, {58.0, 20.0}};
    CHECK(turns({flat, {{0.0, 0.0}, {58.0, 40.0}}}) == Turns{"######", "######"});
    CHECK(turns({flat, {{0.0, 20.0}, {29.0, 20.0}, {31.0, 50.0}, {58.0, 50.0}}}) == Turns{"#.####", ".#.###"});
    CHECK(turns({flat, {{0.0, 20.0}, {39.0, gap}, {40.0, 20.0}, {58.0, 20.0}}}) == Turns{"#####.", "####.#"});
    const PlotLine above = {{0.0, -5.0}, {58.0, -5.0}};
    CHECK(turns({above, above}) == Turns{"######", "######"});
}

TEST_CASE("plot overlap: of lines that are near a common line, none is missing without another near it") {
    const PlotLine a = {{0.0, 10.0}, {58.0, 10.0}}, c = {{0.0, 13.0}, {58.0, 13.0}},
                   between = {{0.0, 11.5}, {58.0, 11.5}};
    const Turns found = turns({a, c, between});
    for (std::size_t k = 0; k < 6; ++k) {
        INFO(found[0] << ' ' << found[1] << ' ' << found[2]);
        CHECK((found[0][k] == '#' || found[2][k] == '#'));
        CHECK((found[1][k] == '#' || found[2][k] == '#'));
        CHECK((found[0][k] == '#' || found[1][k] == '#' || found[2][k] == '#'));
    }
}

TEST_CASE("plot overlap: dashes are as long as the line is in its turns") {
    const PlotLine flat = {{0.0, 5.0}, {40.0, 5.0}}, steep = {{0.0, 0.0}, {30.0, 40.0}, {40.0, 40.0}};
    CHECK(turn_dashes(flat, {true, true, true, true}).empty());
    CHECK(turn_dashes(flat, {true, false, false, true}) == "10.0 20.0 10.0 0.0");
    CHECK(turn_dashes(flat, {false, true, true, false}) == "0.0 10.0 20.0 10.0");
    CHECK(turn_dashes(steep, {true, false, true, false}) == "16.7 16.7 16.7 10.0");
    CHECK(turn_dashes(flat, {false, true}) == "0.0 10.0 30.0 0.0");  // behind the frame it is whole
    // The line's own dashes go on in its turns.
    CHECK(turn_dashes(flat, {true, false, true, true}, 6.0, 4.0) == "10.0 10.0 6.0 4.0 10.0 0.0");
    CHECK(turn_dashes(PlotLine{{3.0, 1.0}, {3.0, 9.0}}, {false}) == "0.0 8.0");
}
