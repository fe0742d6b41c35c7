// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/report/markup.hpp>
#include <unitscale/report/svg_plot.hpp>

#include "experiments/sweep_results.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

// The page of a sweep: tables, losses along each axis and over the search, maps of pairs.
namespace unitscale::experiments {

/// A loss axis for curves and their bands. It starts at the least loss and ends a little above the worst of the curves'
/// least losses. A longer axis would make the differences invisible.
[[nodiscard]] report::PlotAxis sweep_loss_axis(const std::vector<report::PlotCurve>& curves);

/// Losses along a hyperparameter: a curve with its spread over seeds for each condition.
/// No curves if the hyperparameter has only one value.
[[nodiscard]] report::Plot axis_plot(const SweepResults& results, std::size_t place);

/// The best loss so far over the runs of the search, for each condition. No curves for a grid.
[[nodiscard]] report::Plot search_plot(const SweepResults& results);

/// The losses by learning rate as an SVG of its own; empty if the sweep has no learning rate.
[[nodiscard]] std::string sweep_plot(const SweepResults& results, const report::PageSource& source = {});

/// Every point with its losses, in the order of the search.
[[nodiscard]] std::vector<std::vector<std::string>> point_rows(const SweepResults& results);

/// One self-contained page about a sweep, complete or not. `heading` describes the training, as plain text; `source`
/// says where the page comes from.
/// Test: tests/experiments/sweep_page_test.cpp
[[nodiscard]] std::string sweep_page(const SweepResults& results, std::string_view heading,
                                     const report::PageSource& source = {});

}  // namespace unitscale::experiments
