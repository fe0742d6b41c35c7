// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/sweep_results.hpp"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::test {

/// The results of a sweep with these losses.
/// Each point has two seeds, a tenth of a bit below and above the loss.
/// A point with an infinite loss failed for `reason`.
[[nodiscard]] inline experiments::SweepResults sweep_results(
    const std::vector<std::string>& axes, const std::vector<std::pair<experiments::SweepPoint, double>>& losses,
    experiments::SweepStrategy strategy, const char* reason) {
    experiments::SweepResults results{.search = {.strategy = strategy}};
    results.space.run.recipe = "unit-fp8";
    for (const std::string& axis : axes) results.space.axes.push_back(experiments::parse_axis(axis));
    for (const auto& [point, loss] : losses) {
        experiments::PointResult result{.point = point, .seeds = {1, 2}, .loss = loss};
        for (const double sign : {-1.0, 1.0})
            result.runs.push_back({.point = point,
                                   .seed = sign < 0.0 ? 1u : 2u,
                                   .failed = std::isinf(loss),
                                   .reason = std::isinf(loss) ? reason : "",
                                   .train_loss = loss,
                                   .valid_loss = loss + 0.1 * sign,
                                   .tokens_per_s = 1000.0});
        results.points.push_back(std::move(result));
    }
    return results;
}

}  // namespace unitscale::test
