// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/report/markup.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

// Curves of a plot that would hide each other take turns, as dashes along the part that they share.
namespace unitscale::report {

/// A point in pixels. A y that is not finite is a gap.
struct PlotPoint {
    double x = 0.0, y = 0.0;
};
using PlotLine = std::vector<PlotPoint>;  ///< x ascending

inline constexpr double turn_width = 10.0;  ///< pixels of a turn along x

/// The heights of a line at every second pixel of a frame; NaN where the line is absent or outside.
[[nodiscard]] inline std::vector<double> sampled_heights(const PlotLine& line, double width, double height) {
    std::vector<double> heights(static_cast<std::size_t>(width / 2.0) + 1, std::numeric_limits<double>::quiet_NaN());
    std::size_t next = 1;
    for (std::size_t i = 0; i < heights.size(); ++i) {
        const double x = 2.0 * static_cast<double>(i);
        while (next < line.size() && line[next].x < x) ++next;
        if (next >= line.size() || line[next - 1].x > x) continue;
        const PlotPoint &a = line[next - 1], &b = line[next];
        const double y = b.x > a.x ? std::lerp(a.y, b.y, (x - a.x) / (b.x - a.x)) : b.y;
        if (y >= 0.0 && y <= height) heights[i] = y;  // false for NaN
    }
    return heights;
}

/// The turns of lines in a frame of this size: turns[i][k] is false where line i leaves the pixels from `turn_width` k
/// on to another line. Lines share a turn where they stay less than `near` pixels apart vertically, all along it.
/// Of n such lines each takes every n-th turn. Test: tests/report/plot_overlap_test.cpp
[[nodiscard]] inline std::vector<std::vector<bool>> turns_of(std::span<const PlotLine> lines, double width,
                                                             double height, double near = 2.0) {
    const auto samples = static_cast<std::size_t>(turn_width / 2.0);
    std::vector<std::vector<double>> heights;
    for (const PlotLine& line : lines) heights.push_back(sampled_heights(line, width, height));
    const std::size_t count = heights.empty() ? 0 : (heights[0].size() + samples - 1) / samples;
    std::vector<std::vector<bool>> turns(lines.size(), std::vector<bool>(count, true));
    for (std::size_t k = 0; k < count; ++k) {
        const auto share = [&](std::size_t i, std::size_t j) {
            bool both = false;
            for (std::size_t s = samples * k; s < std::min(samples * (k + 1), heights[i].size()); ++s) {
                const double apart = std::abs(heights[i][s] - heights[j][s]);
                if (apart >= near) return false;
                both = both || !std::isnan(apart);
            }
            return both;
        };
        for (std::size_t i = 0; i < lines.size(); ++i) {
            std::size_t place = 0, all = 0;
            for (std::size_t j = 0; j < lines.size(); ++j)
                if (i == j || share(i, j)) {
                    ++all;
                    place += j < i ? 1 : 0;
                }
            turns[i][k] = k % all == place;
        }
        // Lines near a common line need not be near each other: a line that no drawn line stands for is drawn.
        for (std::size_t i = 0; i < lines.size(); ++i) {
            bool stood_for = turns[i][k];
            for (std::size_t j = 0; j < lines.size() && !stood_for; ++j)
                stood_for = j != i && turns[j][k] && share(i, j);
            if (!stood_for) turns[i][k] = true;
        }
    }
    return turns;
}

/// The dashes that draw a line without gaps in its turns only, as the value of `stroke-dasharray`. Empty: no turn is
/// left to another line. `dash` and `space` are the line's own dashes; a `dash` of 0 means solid.
[[nodiscard]] inline std::string turn_dashes(std::span<const PlotPoint> line, const std::vector<bool>& turns,
                                             double dash = 0.0, double space = 0.0) {
    std::vector<double> runs;  // drawn, left out, drawn, ...
    const auto add = [&runs](bool drawn, double length) {
        if (runs.size() % 2 != (drawn ? 1u : 0u)) runs.push_back(0.0);
        runs.back() += length;
    };
    runs.push_back(0.0);
    for (std::size_t i = 1; i < line.size(); ++i) {
        const PlotPoint &a = line[i - 1], &b = line[i];
        const double whole = std::hypot(b.x - a.x, b.y - a.y);
        double from = a.x;
        do {
            const double turn = std::floor(from / turn_width);
            const double to = std::min(b.x, turn_width * (turn + 1.0));
            const bool inside = turn >= 0.0 && turn < static_cast<double>(turns.size());
            add(!inside || turns[static_cast<std::size_t>(turn)],
                b.x > a.x ? whole * (to - from) / (b.x - a.x) : whole);
            from = to;
        } while (from < b.x);
    }
    if (runs.size() == 1) return "";
    std::string text;
    const auto write = [&text](double length) { (text += text.empty() ? "" : " ") += fixed_decimals(length, 1); };
    for (std::size_t i = 0; i < runs.size(); ++i) {
        double left = runs[i];
        for (; i % 2 == 0 && dash > 0.0 && left > dash + space; left -= dash + space) write(dash), write(space);
        write(left);
    }
    if (runs.size() % 2 == 1) write(0.0);
    return text;
}

}  // namespace unitscale::report
