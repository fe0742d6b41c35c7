// SPDX-License-Identifier: MIT
#include "experiments/comparison_table.hpp"

#include <unitscale/io/text_table.hpp>

#include "experiments/page_parts.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace unitscale::experiments {

namespace {

/// The mean of one measurement over the runs that have not failed, or nothing.
template <class Number>
[[nodiscard]] std::optional<double> mean_of(const RateSummary& rate, Number RunResult::*number) {
    double sum = 0.0;
    std::size_t count = 0;
    for (const RunResult& run : rate.runs)
        if (!run.failed) {
            sum += static_cast<double>(run.*number);
            ++count;
        }
    return count == 0 ? std::nullopt : std::optional(sum / static_cast<double>(count));
}

}  // namespace

std::vector<RecipeSummary> summarise(const std::vector<Recipe>& recipes, const std::vector<ComparedRun>& runs,
                                     const std::vector<RunResult>& results) {
    std::vector<RecipeSummary> result;
    for (const Recipe& recipe : recipes) {
        RecipeSummary summary{.recipe = recipe};
        for (const ComparedRun& run : runs) {
            const auto done =
                std::find_if(results.begin(), results.end(), [&](const RunResult& known) { return known.run == run; });
            if (run.recipe != recipe.name || done == results.end()) continue;
            auto rate = std::find_if(summary.rates.begin(), summary.rates.end(),
                                     [&](const RateSummary& known) { return known.rate == run.rate; });
            if (rate == summary.rates.end()) rate = summary.rates.insert(rate, RateSummary{.rate = run.rate});
            rate->runs.push_back(*done);
        }
        for (RateSummary& rate : summary.rates) {
            constexpr double infinity = std::numeric_limits<double>::infinity();
            rate.low = infinity;
            rate.high = -infinity;
            for (const RunResult& run : rate.runs) {
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

std::optional<double> baseline_loss(const std::vector<RecipeSummary>& summaries) {
    for (const RecipeSummary& summary : summaries)
        if (summary.recipe.name == "fp32" && std::isfinite(summary.best_rate().mean)) return summary.best_rate().mean;
    return std::nullopt;
}

std::vector<std::vector<std::string>> comparison_rows(const std::vector<RecipeSummary>& summaries) {
    std::vector<std::vector<std::string>> rows = {{"recipe", "rate", "validation loss", "spread", "to fp32", "failed",
                                                   "skipped steps", "weights MB", "state MB", "step MB", "tokens/s"}};
    const std::optional<double> baseline = baseline_loss(summaries);
    for (const RecipeSummary& summary : summaries) {
        const RateSummary& rate = summary.best_rate();
        const bool ended = rate.failed < rate.runs.size();
        const auto megabytes = [&](std::size_t RunResult::*bytes) {
            const auto mean = mean_of(rate, bytes);
            return io::cell("%.2f", mean ? std::optional(*mean * 1e-6) : mean);
        };
        std::uint64_t skipped = 0;
        for (const RunResult& run : rate.runs) skipped += run.skipped;
        rows.push_back({summary.recipe.name, concatenate(rate.rate), io::cell("%.4f", rate.mean),
                        rate.runs.size() - rate.failed > 1 ? io::cell("%.4f", rate.high - rate.low) : "-",
                        baseline && ended ? io::cell("%+.2f %%", 100.0 * (rate.mean / *baseline - 1.0)) : "-",
                        concatenate(rate.failed, " of ", rate.runs.size()), std::to_string(skipped),
                        megabytes(&RunResult::weight_bytes), megabytes(&RunResult::state_bytes),
                        megabytes(&RunResult::step_bytes), io::cell("%.0f", mean_of(rate, &RunResult::tokens_per_s))});
    }
    return rows;
}

std::vector<std::vector<std::string>> zero_rows(const std::vector<RecipeSummary>& summaries) {
    std::set<std::string> kinds;
    for (const RecipeSummary& summary : summaries)
        for (const RunResult& run : summary.best_rate().runs)
            for (const auto& [kind, counts] : run.zeros) kinds.insert(kind);
    std::vector<std::vector<std::string>> rows = {{"gradient of"}};
    rows.front().insert(rows.front().end(), kinds.begin(), kinds.end());
    for (const RecipeSummary& summary : summaries) {
        rows.push_back({summary.recipe.name});
        for (const std::string& kind : kinds) {
            double elements = 0.0, stored = 0.0, rounded = 0.0;
            for (const RunResult& run : summary.best_rate().runs)
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

std::vector<std::vector<std::string>> overflow_rows(const std::vector<RecipeSummary>& summaries) {
    std::map<std::string, std::map<std::string, std::uint64_t>> by_recipe;
    std::set<std::string> kinds;
    for (const RecipeSummary& summary : summaries)
        for (const RunResult& run : summary.best_rate().runs)
            for (const auto& [kind, count] : run.overflows) {
                by_recipe[summary.recipe.name][kind] += count;
                kinds.insert(kind);
            }
    std::vector<std::vector<std::string>> rows = {{"overflows"}};
    rows.front().insert(rows.front().end(), kinds.begin(), kinds.end());
    for (const RecipeSummary& summary : summaries) {
        const auto found = by_recipe.find(summary.recipe.name);
        if (found == by_recipe.end()) continue;
        rows.push_back({summary.recipe.name});
        for (const std::string& kind : kinds) rows.back().push_back(std::to_string(found->second[kind]));
    }
    return rows;
}

std::vector<std::string> failure_lines(const std::vector<RecipeSummary>& summaries) {
    std::vector<std::string> lines;
    for (const RecipeSummary& summary : summaries)
        for (const RateSummary& rate : summary.rates)
            for (const RunResult& run : rate.runs)
                if (run.failed) {
                    lines.push_back(concatenate(run.run.text(), ": failed: ", run.reason));
                    if (!run.first_bad.empty())
                        lines.back() += "; the first value that is not finite: " + run.first_bad;
                }
    return lines;
}

std::vector<std::vector<std::string>> window_rows(const BiasWindow& window) {
    std::vector<std::vector<std::string>> rows = {{"bias", "validation loss", "to unrounded", "works"}};
    for (std::size_t i = 0; i < window.biases.size(); ++i) {
        const double difference = window.losses[i] / window.unrounded - 1.0;
        rows.push_back({std::to_string(window.biases[i]), io::cell("%.4f", window.losses[i]),
                        io::cell("%+.2f %%", 100.0 * difference), difference <= 0.02 ? "yes" : "no"});
    }
    return rows;
}

}  // namespace unitscale::experiments
