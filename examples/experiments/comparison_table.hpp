// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/scaling/recipe.hpp>

#include "experiments/comparison.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::experiments {

/// The runs of one recipe at one learning rate.
struct RateSummary {
    double rate = 0.0;
    std::vector<RunResult> runs{};  ///< ended runs, by seed
    std::size_t failed = 0;         ///< failed runs among them
    double mean = 0.0;              ///< validation loss of the runs that have not failed; NaN: all failed
    double low = 0.0, high = 0.0;   ///< least and largest validation loss over seeds
};

/// A recipe in a comparison: its rates, and the best of them.
/// The best rate has the fewest failed runs. Among equals it has the least mean loss.
struct RecipeSummary {
    Recipe recipe{};
    std::vector<RateSummary> rates{};
    std::size_t best = 0;

    [[nodiscard]] const RateSummary& best_rate() const { return rates[best]; }
};

/// Summarises the results of `runs`. Omits recipes and rates without a result.
/// Test: tests/experiments/comparison_table_test.cpp
[[nodiscard]] std::vector<RecipeSummary> summarise(const std::vector<Recipe>& recipes,
                                                   const std::vector<ComparedRun>& runs,
                                                   const std::vector<RunResult>& results);

/// The mean loss of fp32 at its best rate; nothing if no recipe is fp32 or all its runs failed.
[[nodiscard]] std::optional<double> baseline_loss(const std::vector<RecipeSummary>& summaries);

/// The comparison's table. Its first row names the columns. Losses are in bits per character, over seeds, at the
/// recipe's best rate. The spread is the largest loss minus the least.
[[nodiscard]] std::vector<std::vector<std::string>> comparison_rows(const std::vector<RecipeSummary>& summaries);

/// The shares of gradient elements that were zero, by recipe and kind of gradient, over the runs at the best rate.
/// The share is counted after the products' rounding. A different share as stored follows in brackets.
[[nodiscard]] std::vector<std::vector<std::string>> zero_rows(const std::vector<RecipeSummary>& summaries);

/// The elements that overflowed in the steps that were counted, by recipe and kind, over the runs at the best rate.
/// Only recipes and kinds with overflows have a row or a column.
[[nodiscard]] std::vector<std::vector<std::string>> overflow_rows(const std::vector<RecipeSummary>& summaries);

/// One line per failed run, of all rates.
[[nodiscard]] std::vector<std::string> failure_lines(const std::vector<RecipeSummary>& summaries);

/// The losses with constant biases, and their differences to the loss without rounding. `works`: at most 2 % larger.
[[nodiscard]] std::vector<std::vector<std::string>> window_rows(const BiasWindow& window);

}  // namespace unitscale::experiments
