// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/report/svg_plot.hpp>

#include "experiments/sweep_results.hpp"
#include "experiments/sweep_table.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

// Recipes over many settings of a sweep, as in figure 4 of the Unit Scaling paper: each setting (a combination of the
// other conditions, such as layer and place of the norms) has its own search, and its least loss counts.
// Test: tests/experiments/sweep_settings_test.cpp
namespace unitscale::experiments {

struct RecipeSettings {
    std::vector<std::string> recipes{};         ///< as on the axis
    std::vector<std::string> settings{};        ///< texts: `context convolution, placement pre`
    std::vector<std::size_t> groups{};          ///< by setting: the place of its value on the first other axis
    std::vector<std::vector<double>> losses{};  ///< by recipe, then setting. Infinite: failed; NaN: not known yet.
};

/// Nothing unless the sweep has two recipes or more, and three settings or more.
[[nodiscard]] std::optional<RecipeSettings> recipe_settings(const SweepResults& results);

/// A recipe's name without the fields that are set behind it, where this leaves the names different.
[[nodiscard]] std::vector<std::string> short_names(const std::vector<std::string>& recipes);

/// How a recipe does beside another, over the settings in which both are known.
struct RecipeAgainst {
    std::size_t known = 0;    ///< settings
    std::size_t as_good = 0;  ///< settings with a loss at most 1 % above the other's
    double median = 0.0;      ///< of the loss relative to the other's, minus 1; infinite: most have failed
};
[[nodiscard]] RecipeAgainst against(const std::vector<double>& losses, const std::vector<double>& others);

/// The least loss of every recipe (columns) in every setting (rows).
[[nodiscard]] SweepTable settings_table(const SweepResults& results);

/// Every recipe (rows) against every other one (columns): `25 of 27, -0.31 %`.
[[nodiscard]] SweepTable against_table(const SweepResults& results);

/// The least losses: a place on the x axis for each recipe, a line for each setting, a colour for each group.
/// No curves if there is nothing to show.
[[nodiscard]] report::Plot settings_plot(const SweepResults& results);

/// The same as an SVG of its own; empty if there is nothing to show.
[[nodiscard]] std::string settings_svg(const SweepResults& results, const report::PageSource& source = {});

}  // namespace unitscale::experiments
