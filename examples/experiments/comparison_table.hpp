// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/io/text_table.hpp>
#include <unitscale/scaling/recipe.hpp>

#include "experiments/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::experiments {

using io::cell;

/// A recipe's runs at one learning rate.
struct RateSummary {
    double rate = 0.0;
    std::vector<RunRecord> runs{};  ///< that have ended, by seed
    std::size_t failed = 0;         ///< of them
    double mean = 0.0;              ///< validation loss of those that have not failed; NaN: there is none
    double low = 0.0, high = 0.0;   ///< of the same, over seeds
};

/// A recipe in a comparison: its rates, and the best of them. The best has the fewest failed runs, and of those the least mean loss.
struct RecipeSummary {
    Recipe recipe{};
    std::vector<RateSummary> rates{};
    std::size_t best = 0;

    [[nodiscard]] const RateSummary& best_rate() const { return rates[best]; }
};

/// The summary of what is done of `runs`. Recipes, and rates, of which nothing is done are left out.
/// Test: tests/experiments/comparison_table_test.cpp
[[nodiscard]] inline std::vector<RecipeSummary> summarise(const std::vector<Recipe>& recipes,
                                                          const std::vector<ComparedRun>& runs,
                                                          const std::vector<RunRecord>& records) {
    std::vector<RecipeSummary> result;
    for (const Recipe& recipe : recipes) {
        RecipeSummary summary{.recipe = recipe};
        for (const ComparedRun& run : runs) {
            const auto done = std::find_if(records.begin(), records.end(),
                                           [&](const RunRecord& record) { return record.run == run; });
            if (run.recipe != recipe.name || done == records.end()) continue;
            auto rate = std::find_if(summary.rates.begin(), summary.rates.end(),
                                     [&](const RateSummary& known) { return known.rate == run.rate; });
            if (rate == summary.rates.end()) rate = summary.rates.insert(rate, RateSummary{.rate = run.rate});
            rate->runs.push_back(*done);
        }
        for (RateSummary& rate : summary.rates) {
            constexpr double infinity = std::numeric_limits<double>::infinity();
            rate.low = infinity;
            rate.high = -infinity;
            for (const RunRecord& run : rate.runs) {
                if (run.failed) {
                    ++rate.failed;
                    continue;
                }
                rate.mean += run.valid_loss;
                rate.low = std::min(rate.low, run.valid_loss);
                rate.high = std::max(rate.high, run.valid_loss);
            }
            rate.mean /= static_cast<double>(rate.runs.size() - rate.failed);  // 0 / 0: NaN
        }
        const auto better = [](const RateSummary& a, const RateSummary& b) {
            return a.failed != b.failed ? a.failed < b.failed : a.mean < b.mean;
        };
        summary.best = static_cast<std::size_t>(std::min_element(summary.rates.begin(), summary.rates.end(), better) -
                                                summary.rates.begin());
        if (!summary.rates.empty()) result.push_back(std::move(summary));
    }
    return result;
}

/// The mean of a run's number over runs that have not failed, or nothing.
template <class Number>
[[nodiscard]] std::optional<double> mean_of(const RateSummary& rate, Number RunRecord::*number) {
    double sum = 0.0;
    std::size_t count = 0;
    for (const RunRecord& run : rate.runs)
        if (!run.failed) {
            sum += static_cast<double>(run.*number);
            ++count;
        }
    return count == 0 ? std::nullopt : std::optional(sum / static_cast<double>(count));
}

/// fp32's mean loss at its best rate, if it is among the recipes.
[[nodiscard]] inline std::optional<double> baseline_loss(const std::vector<RecipeSummary>& summaries) {
    for (const RecipeSummary& summary : summaries)
        if (summary.recipe.name == "fp32" && std::isfinite(summary.best_rate().mean)) return summary.best_rate().mean;
    return std::nullopt;
}

/// The table's first row names its columns. Losses are in bits per character, over seeds at the recipe's best rate; the spread is
/// the largest minus the least.
[[nodiscard]] inline std::vector<std::vector<std::string>> comparison_rows(
    const std::vector<RecipeSummary>& summaries) {
    std::vector<std::vector<std::string>> rows = {{"recipe", "rate", "validation loss", "spread", "to fp32", "failed",
                                                   "skipped steps", "weights MB", "state MB", "step MB", "tokens/s"}};
    const std::optional<double> baseline = baseline_loss(summaries);
    for (const RecipeSummary& summary : summaries) {
        const RateSummary& rate = summary.best_rate();
        const bool ended = rate.failed < rate.runs.size();
        const auto megabytes = [&](std::size_t RunRecord::*bytes) {
            const auto mean = mean_of(rate, bytes);
            return cell("%.2f", mean ? std::optional(*mean * 1e-6) : mean);
        };
        std::uint64_t skipped = 0;
        for (const RunRecord& run : rate.runs) skipped += run.skipped;
        rows.push_back({summary.recipe.name, concatenate(rate.rate), cell("%.4f", rate.mean),
                        rate.runs.size() - rate.failed > 1 ? cell("%.4f", rate.high - rate.low) : "-",
                        baseline && ended ? cell("%+.2f %%", 100.0 * (rate.mean / *baseline - 1.0)) : "-",
                        concatenate(rate.failed, " of ", rate.runs.size()), std::to_string(skipped),
                        megabytes(&RunRecord::weight_bytes), megabytes(&RunRecord::state_bytes),
                        megabytes(&RunRecord::step_bytes), cell("%.0f", mean_of(rate, &RunRecord::tokens_per_s))});
    }
    return rows;
}

/// A share as people write it; less than a hundredth of a percent is not 0.
[[nodiscard]] inline std::string share_text(double share) {
    if (share == 0.0) return "0";
    if (share < 1e-4) return "<0.01 %";
    return cell(share < 0.0995 ? "%.2f %%" : "%.1f %%", 100.0 * share);
}

/// Of every recipe the shares of gradients' elements that were zero, by kind of gradient, over the runs at its best rate: once
/// products have rounded them, and where that differs as they are stored in brackets.
[[nodiscard]] inline std::vector<std::vector<std::string>> zero_rows(const std::vector<RecipeSummary>& summaries) {
    std::set<std::string> kinds;
    for (const RecipeSummary& summary : summaries)
        for (const RunRecord& run : summary.best_rate().runs)
            for (const auto& [kind, counts] : run.zeros) kinds.insert(kind);
    std::vector<std::vector<std::string>> rows = {{"gradient of"}};
    rows.front().insert(rows.front().end(), kinds.begin(), kinds.end());
    for (const RecipeSummary& summary : summaries) {
        rows.push_back({summary.recipe.name});
        for (const std::string& kind : kinds) {
            double elements = 0.0, stored = 0.0, rounded = 0.0;
            for (const RunRecord& run : summary.best_rate().runs)
                if (const auto found = run.zeros.find(kind); found != run.zeros.end()) {
                    elements += static_cast<double>(found->second[0]);
                    stored += static_cast<double>(found->second[1]);
                    rounded += static_cast<double>(found->second[2]);
                }
            std::string text = elements == 0.0 ? "-" : share_text(rounded / elements);
            if (rounded != stored) text += " (" + share_text(stored / elements) + ")";
            rows.back().push_back(std::move(text));
        }
    }
    return rows;
}

/// One line per failed run, of all rates.
[[nodiscard]] inline std::vector<std::string> failure_lines(const std::vector<RecipeSummary>& summaries) {
    std::vector<std::string> lines;
    for (const RecipeSummary& summary : summaries)
        for (const RateSummary& rate : summary.rates)
            for (const RunRecord& run : rate.runs)
                if (run.failed) {
                    lines.push_back(concatenate(run.run.text(), ": failed: ", run.reason));
                    if (!run.first_bad.empty())
                        lines.back() += "; the first value that is not finite: " + run.first_bad;
                }
    return lines;
}

/// The losses with constant biases, and what each differs by from the loss without rounding. `works`: by at most 2 %.
[[nodiscard]] inline std::vector<std::vector<std::string>> window_rows(const BiasWindow& window) {
    std::vector<std::vector<std::string>> rows = {{"bias", "validation loss", "to unrounded", "works"}};
    for (std::size_t i = 0; i < window.biases.size(); ++i) {
        const double difference = window.losses[i] / window.unrounded - 1.0;
        rows.push_back({std::to_string(window.biases[i]), cell("%.4f", window.losses[i]),
                        cell("%+.2f %%", 100.0 * difference), difference <= 0.02 ? "yes" : "no"});
    }
    return rows;
}

}  // namespace unitscale::experiments
