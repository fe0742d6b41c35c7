// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/sweep_space.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

// The points that a search tries. A search is a function of the known losses and is called again when more are known.
// Its earlier points never change, so that a killed search resumes along its path.
namespace unitscale::experiments {

enum class SweepStrategy {
    grid,         ///< every combination of the axes' values
    line,         ///< one axis at a time, the others at their defaults
    random,       ///< points drawn at random
    independent,  ///< the learning rate; each multiplier alone at the best rate; the best multipliers together
    upwards       ///< learning rates from the lowest upwards, until one is clearly worse
};
inline constexpr std::array<std::string_view, 5> sweep_strategy_names = {"grid", "line", "random", "independent",
                                                                         "upwards"};

struct SweepSearch {
    SweepStrategy strategy = SweepStrategy::grid;
    std::size_t points = 20;  ///< of a random search, for each condition
    std::uint64_t seed = 1;   ///< of a random search
    double worse_by = 0.1;    ///< bits per character above the best loss that end an upward search
};

/// The loss of a point: infinite if its runs failed, NaN until it is known.
using PointLoss = std::function<double(const SweepPoint&)>;

/// The index of the least finite loss, the first of equals. Nothing if a loss is not known yet, or if all have failed.
[[nodiscard]] std::optional<std::size_t> best_point(const std::vector<SweepPoint>& points, const PointLoss& loss);

/// A point for each combination of names and sizes, with the default hyperparameters there. Under
/// `SweepSpace::sizes_alone`: for each combination of names, the run's sizes, then each size alone.
[[nodiscard]] std::vector<SweepPoint> sweep_conditions(const SweepSpace& space);

/// The stages of an independent search from one condition. Reference: Blake et al. 2024, arXiv:2407.17465, section 4.
struct IndependentSearch {
    std::vector<SweepPoint> rates{};        ///< all multipliers at their defaults
    std::optional<SweepPoint> best_rate{};  ///< the best rate, once all losses are known
    std::vector<SweepPoint> multipliers{};  ///< each multiplier alone, at the best rate
    std::optional<SweepPoint>
        combined{};  ///< the best value of each multiplier or its default, once all losses are known
};

[[nodiscard]] IndependentSearch independent_search(const SweepSpace& space, const SweepPoint& base,
                                                   const PointLoss& loss);

/// The points of an upward search from one condition: the learning rates in ascending order.
/// It ends with the first rate whose run failed, or whose loss is above the best loss so far by more than `worse_by`.
/// The last point is the one to try next, as long as its loss is not known.
/// Reference: Blake, Orr & Luschi 2023, arXiv:2303.11257, the character-level experiments.
[[nodiscard]] std::vector<SweepPoint> upward_search(const SweepSpace& space, const SweepPoint& base, double worse_by,
                                                    const PointLoss& loss);

/// All points to try, in order, as far as the known losses determine them. Names and sizes are conditions: each point
/// of `sweep_conditions` has its own search. A random search draws equal points for all. Errors: a random search of no
/// points; an interval in another search; an independent or upward search without a learning rate; an upward search
/// with further hyperparameters, or with a negative `worse_by`. Test: tests/experiments/sweep_search_test.cpp
[[nodiscard]] std::vector<SweepPoint> sweep_points(const SweepSpace& space, const SweepSearch& search,
                                                   const PointLoss& loss);

}  // namespace unitscale::experiments
