// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/report/markup.hpp>
#include <unitscale/report/svg_plot.hpp>

#include "experiments/comparison_table.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::experiments {

/// Shows and hides a recipe's curves. Without scripts all curves are visible.
inline constexpr std::string_view comparison_script =
    "'use strict';\n"
    "for (const box of document.querySelectorAll('input[data-recipe]'))\n"
    "  box.addEventListener('change', () => {\n"
    "    for (const curve of document.querySelectorAll(`.recipes [data-look=\"${box.dataset.recipe}\"]`)) "
    "curve.classList.toggle('hidden', !box.checked);\n"
    "  });\n";

/// The mean curve of several runs, with the least and largest value, at every step that all of them have.
[[nodiscard]] report::PlotCurve mean_curve(const RateSummary& rate, std::vector<std::size_t> RunResult::*steps,
                                           std::vector<double> RunResult::*values);

/// The loss axis. It ends at the largest loss after a tenth of the run, where differences are visible. It includes each
/// curve's first point if it is thereby at most four times as long.
[[nodiscard]] report::PlotAxis loss_axis(const std::vector<report::PlotCurve>& curves, double steps);

/// The role, product and layer of a bias. `decoder/block3/ffn/up/linear|weight`: the weight of ffn/up/linear in layer
/// 3.
struct BiasPlace {
    std::string role{}, product{};
    std::size_t layer = 0;
};
[[nodiscard]] BiasPlace bias_place(const std::string& name);

/// The validation losses over the steps as one SVG image: a recipe's curve at its best rate is the mean over seeds,
/// with a band from the least to the largest loss. Empty without a curve.
[[nodiscard]] std::string comparison_plot(const std::vector<RecipeSummary>& summaries,
                                          const report::PageSource& source = {});

/// One self-contained page about a comparison: failures, the table, the losses over training and by learning rate, the
/// gradients that became zero, biases by layer and role, the window of constant biases.
/// `heading` describes the training, as plain text; `source` says where the page comes from.
/// Test: tests/experiments/comparison_page_test.cpp
[[nodiscard]] std::string comparison_page(const std::vector<RecipeSummary>& summaries, std::string_view heading,
                                          const std::optional<BiasWindow>& window,
                                          const report::PageSource& source = {});

}  // namespace unitscale::experiments
