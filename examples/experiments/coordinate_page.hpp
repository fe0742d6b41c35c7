// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/report/markup.hpp>
#include <unitscale/report/svg_plot.hpp>

#include "experiments/coordinate_trend.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace unitscale::experiments {

/// An axis in powers of two around the curves' values, which are logarithms to base 2. The line of 1 is darker.
/// The axis has at most `count` + 1 ticks.
[[nodiscard]] report::PlotAxis power_axis(const std::vector<report::PlotCurve>& curves, std::string label, int count);

/// One page about a coordinate check: the verdict, the tables, and plots over the width.
/// The plots show each layer's output and change after the last step, and by layer the change with a curve for each
/// step.
/// `heading` describes the training, as plain text; `source` says where the page comes from.
/// Test: tests/experiments/coordinate_page_test.cpp
[[nodiscard]] std::string coordinate_page(const std::vector<WidthCoordinates>& measured, std::string_view heading,
                                          const report::PageSource& source = {});

}  // namespace unitscale::experiments
