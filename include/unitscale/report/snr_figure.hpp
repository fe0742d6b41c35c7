// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/snr.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/report/svg_plot.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::report {

/// The curves as one SVG image: signal-to-noise ratio over the scale of a normal tensor, both logarithmic. The image
/// follows the reader's choice of light or dark.
/// `source` is its description. Error: no curve. Test: tests/report/snr_figure_test.cpp
[[nodiscard]] inline std::string snr_figure(std::span<const analysis::SnrCurve> curves, PageSource source = {}) {
    check(!curves.empty() && !curves.front().exponents.empty(), "snr_figure: no curve");
    Plot plot{.title = "Signal-to-noise ratio of a normal tensor",
              .label = "signal-to-noise ratio of number formats",
              .source = std::move(source)};
    plot.x = {.low = curves.front().exponents.front(),
              .high = curves.front().exponents.back(),
              .label = "standard deviation of the tensor"};
    for (int tick = static_cast<int>(std::ceil(plot.x.low)); tick <= static_cast<int>(plot.x.high); ++tick)
        if (tick % 4 == 0) plot.x.ticks.push_back({static_cast<double>(tick), svg_power(2, tick), tick == 0});
    double most = 10.0;
    for (std::size_t i = 0; i < curves.size(); ++i) {
        PlotCurve curve{.name = curves[i].format.label, .x = curves[i].exponents, .look = i};
        for (const double ratio : curves[i].ratios) {
            curve.y.push_back(std::log10(ratio));
            if (std::isfinite(ratio)) most = std::max(most, ratio);
        }
        plot.curves.push_back(std::move(curve));
    }
    plot.y.label = "signal power / error power";
    plot.y.high = std::ceil(std::log10(most) + 0.05);
    for (int decade = 0; decade <= static_cast<int>(plot.y.high); ++decade)
        plot.y.ticks.push_back({static_cast<double>(decade), svg_power(10, decade), decade == 0});
    return svg_plot(plot);
}

}  // namespace unitscale::report
