// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

// Curves of a plot that would hide each other.
namespace unitscale::report {

/// A point in pixels. A y that is not finite is a gap.
struct PlotPoint {
    double x = 0.0, y = 0.0;
};
using PlotLine = std::vector<PlotPoint>;  ///< x ascending

/// The place of a line among `count` lines that lie on each other. A line alone has count 1.
struct SharedLine {
    std::size_t place = 0, count = 1;

    friend bool operator==(const SharedLine&, const SharedLine&) = default;
};

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

/// Finds lines that hide each other in a frame of this size. Two lines do so if they stay less than `near` pixels apart
/// vertically over a fifth of the frame's width, or over half of the shorter line. Lines that hide a common third line
/// belong together. Test: tests/report/plot_overlap_test.cpp
[[nodiscard]] inline std::vector<SharedLine> shared_lines(std::span<const PlotLine> lines, double width, double height,
                                                          double near = 2.0) {
    std::vector<std::vector<double>> heights;
    std::vector<std::size_t> seen, first(lines.size());  // samples in the frame; the first line of each one's group
    for (const PlotLine& line : lines) {
        heights.push_back(sampled_heights(line, width, height));
        seen.push_back(static_cast<std::size_t>(
            std::count_if(heights.back().begin(), heights.back().end(), [](double y) { return !std::isnan(y); })));
    }
    std::iota(first.begin(), first.end(), std::size_t{0});
    for (std::size_t j = 1; j < lines.size(); ++j)
        for (std::size_t i = 0; i < j; ++i) {
            if (first[i] == first[j]) continue;
            std::size_t run = 0, longest = 0;
            for (std::size_t k = 0; k < heights[i].size(); ++k) {
                run = std::abs(heights[i][k] - heights[j][k]) < near ? run + 1 : 0;  // false for NaN
                longest = std::max(longest, run);
            }
            const std::size_t needed = std::min(heights[i].size() / 5, std::min(seen[i], seen[j]) / 2);
            if (longest <= needed) continue;
            const std::size_t kept = std::min(first[i], first[j]), gone = std::max(first[i], first[j]);
            std::replace(first.begin(), first.end(), gone, kept);
        }
    std::vector<SharedLine> shared(lines.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
        shared[i].place = static_cast<std::size_t>(
            std::count(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(i), first[i]));
        shared[i].count = static_cast<std::size_t>(std::count(first.begin(), first.end(), first[i]));
    }
    return shared;
}

}  // namespace unitscale::report
