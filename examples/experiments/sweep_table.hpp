// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/sweep_results.hpp"
#include "experiments/sweep_space.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

// The tables of a sweep's results. The console and the page show equal tables.
namespace unitscale::experiments {

/// The first row names the columns.
struct SweepTable {
    std::string title{};
    std::vector<std::vector<std::string>> rows{};
};

/// A loss as text: infinite losses have failed, NaN is not known.
[[nodiscard]] std::string loss_text(double loss);

/// A point's names and sizes as text, without the axes in `without`. If nothing is left: the sweep's recipe.
[[nodiscard]] std::string condition_text(const SweepSpace& space, const SweepPoint& point,
                                         const std::vector<std::size_t>& without = {});

/// The values of an axis in slices along it, in order.
[[nodiscard]] std::map<double, std::string> values_of(const std::vector<SweepSlice>& slices, std::size_t place);

/// The best point of each condition, with its loss, its test loss in a sweep with a test part, and the loss at the
/// defaults where that was measured.
[[nodiscard]] SweepTable best_table(const SweepResults& results);

/// The losses along a hyperparameter's axis, with the best marked, and the optimum. No rows for an axis of one value.
[[nodiscard]] SweepTable axis_table(const SweepResults& results, std::size_t place);

/// For a searched constant bias, a row for each condition. A row has the least loss, the biases that were tried,
/// and ranges of good biases. The loss of a good bias is at most 1.01 times the least loss. Other hyperparameters have
/// the values that they have in the axis' table.
[[nodiscard]] SweepTable bias_table(const SweepResults& results);

/// For a searched loss scale, by its values: the loss, the share of zeros among the elements of all gradients (after
/// products have rounded them, in the steps that analysis::GradientZeros counts), and the share of steps that were
/// skipped because a gradient was not finite. Medians over seeds.
[[nodiscard]] SweepTable gradient_table(const SweepResults& results);

/// The movement of an axis' optimum over a size, with the other sizes and the recipe fixed.
struct OptimumMovement {
    SweepPoint any{};                                           ///< one of the points
    std::vector<std::pair<std::string, AxisOptimum>> optima{};  ///< by the size's values
    double octaves = 0.0;                                       ///< the highest optimum's place minus the lowest's
    bool at_least = false;                                      ///< an optimum lies at an edge or beside a failed point

    [[nodiscard]] std::string text() const;
};

[[nodiscard]] std::vector<OptimumMovement> optimum_movements(const SweepResults& results, std::size_t place,
                                                             std::size_t size);

/// A row for each hyperparameter, size, and combination of the other axes.
[[nodiscard]] SweepTable movement_table(const SweepResults& results);

/// For an independent search: the loss at default multipliers and the best learning rate, and with the best
/// multipliers.
[[nodiscard]] SweepTable independent_table(const SweepResults& results);

/// For a random search: the least loss that a search of fewer of its points finds on average, for each condition.
[[nodiscard]] SweepTable shorter_table(const SweepResults& results);

/// A map of losses, with the fixed values as text.
struct FixedMap {
    std::string fixed{};
    std::size_t row_axis = 0, column_axis = 0;
    LossMap map{};
};

/// The maps of all pairs of numeric axes that the points fill.
[[nodiscard]] std::vector<FixedMap> sweep_maps(const SweepResults& results);

/// The transfer errors: the loss, in bits per character, from tuning one hyperparameter at another value of a second
/// hyperparameter or of a size.
[[nodiscard]] SweepTable transfer_table(const SweepResults& results);

/// All tables that have rows.
[[nodiscard]] std::vector<SweepTable> sweep_tables(const SweepResults& results);

/// One line for each failed run.
[[nodiscard]] std::vector<std::string> failure_lines(const SweepResults& results);

}  // namespace unitscale::experiments
