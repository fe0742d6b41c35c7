// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include "experiments/sweep_search.hpp"
#include "experiments/sweep_space.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What the losses of a sweep say: medians over seeds, the best values, where an axis has its optimum, what it costs to take one
// hyperparameter's best value to another value of a second one. A failed run counts as an infinite loss.
namespace unitscale::experiments {

/// One run of a sweep, when it has ended. Losses in bits per character.
struct SweepRun {
    SweepPoint point{};
    std::uint64_t seed = 1;
    std::string recipe_fingerprint{};
    bool failed = false;   ///< its loss was no longer finite, or all its steps were skipped
    std::string reason{};  ///< of a failure
    double train_loss = 0.0, valid_loss = 0.0, tokens_per_s = 0.0, seconds = 0.0;
};

/// The middle one of the sorted numbers, or the mean of the middle two. NaN: there are none.
[[nodiscard]] inline double median(std::vector<double> numbers) {
    if (numbers.empty()) return std::numeric_limits<double>::quiet_NaN();
    std::sort(numbers.begin(), numbers.end());
    const std::size_t half = numbers.size() / 2;
    return numbers.size() % 2 == 1 ? numbers[half] : 0.5 * (numbers[half - 1] + numbers[half]);
}

/// The runs of a point.
struct PointResult {
    SweepPoint point{};
    std::vector<SweepRun> runs{};        ///< that have ended
    std::vector<std::uint64_t> seeds{};  ///< that are asked for
    double loss = 0.0;                   ///< median of the runs that have ended; infinite: most have failed

    [[nodiscard]] bool whole() const noexcept { return runs.size() == seeds.size(); }
    [[nodiscard]] std::size_t failed() const {
        return static_cast<std::size_t>(
            std::count_if(runs.begin(), runs.end(), [](const SweepRun& run) { return run.failed; }));
    }
    /// The least and the largest loss of the runs that did not fail.
    [[nodiscard]] std::pair<double, double> range() const {
        double low = std::numeric_limits<double>::infinity(), high = -low;
        for (const SweepRun& run : runs)
            if (!run.failed) {
                low = std::min(low, run.valid_loss);
                high = std::max(high, run.valid_loss);
            }
        return {low, high};
    }
};

/// What is known of a sweep: the points of its search of which a run has ended, in the order of the search.
struct SweepResults {
    SweepSpace space{};
    SweepSearch search{};
    std::vector<PointResult> points{};

    [[nodiscard]] const PointResult* find(const SweepPoint& point) const {
        const auto found =
            std::find_if(points.begin(), points.end(), [&](const PointResult& p) { return p.point == point; });
        return found == points.end() ? nullptr : &*found;
    }
    /// As a search asks for it: NaN until all seeds of the point have ended.
    [[nodiscard]] double loss(const SweepPoint& point) const {
        const PointResult* result = find(point);
        return result != nullptr && result->whole() ? result->loss : std::numeric_limits<double>::quiet_NaN();
    }
    /// The place of the best of the points that have this one's recipe and sizes; null: none of them has a loss.
    [[nodiscard]] const PointResult* best(const SweepPoint& condition) const {
        const PointResult* best = nullptr;
        for (const PointResult& result : points)
            if (same(result.point, condition, space.places(true)) && std::isfinite(result.loss) &&
                (best == nullptr || result.loss < best->loss))
                best = &result;
        return best;
    }
    /// A point of each combination of recipe and sizes that there is.
    [[nodiscard]] std::vector<SweepPoint> conditions() const {
        std::vector<SweepPoint> result;
        for (const PointResult& candidate : points)
            if (std::none_of(result.begin(), result.end(),
                             [&](const SweepPoint& known) { return same(known, candidate.point, space.places(true)); }))
                result.push_back(candidate.point);
        return result;
    }
    [[nodiscard]] static bool same(const SweepPoint& a, const SweepPoint& b, const std::vector<std::size_t>& places) {
        return std::all_of(places.begin(), places.end(), [&](std::size_t place) { return a[place] == b[place]; });
    }
};

/// Points that differ only on the axes that a slice is along.
struct SweepSlice {
    std::vector<const PointResult*> points{};  ///< never empty

    [[nodiscard]] const SweepPoint& any() const { return points.front()->point; }
};

/// The slices along `free`: one for each combination of the recipe and sizes that are not among them. Of those that differ in other
/// hyperparameters, it is the one with the most points, and of several such the one with the least loss. On a grid it goes through the
/// best point; in a line or independent search it is the line that was searched.
[[nodiscard]] inline std::vector<SweepSlice> sweep_slices(const SweepResults& results,
                                                          const std::vector<std::size_t>& free) {
    const auto is_free = [&](std::size_t place) { return std::find(free.begin(), free.end(), place) != free.end(); };
    std::vector<std::size_t> conditions, fixed;
    for (std::size_t place = 0; place < results.space.axes.size(); ++place) {
        if (is_free(place)) continue;
        fixed.push_back(place);
        if (results.space.axes[place].parameter.is_condition()) conditions.push_back(place);
    }
    std::vector<SweepSlice> all;
    for (const PointResult& result : results.points) {
        const auto known = std::find_if(all.begin(), all.end(), [&](const SweepSlice& slice) {
            return SweepResults::same(slice.any(), result.point, fixed);
        });
        if (known == all.end()) all.push_back({{&result}});
        else known->points.push_back(&result);
    }
    const auto least = [](const SweepSlice& slice) {
        double loss = std::numeric_limits<double>::infinity();
        for (const PointResult* point : slice.points) loss = std::min(loss, point->loss);
        return loss;
    };
    std::vector<SweepSlice> chosen;
    for (SweepSlice& slice : all) {
        const auto rival = std::find_if(chosen.begin(), chosen.end(), [&](const SweepSlice& other) {
            return SweepResults::same(slice.any(), other.any(), conditions);
        });
        if (rival == chosen.end()) chosen.push_back(std::move(slice));
        else if (slice.points.size() != rival->points.size() ? slice.points.size() > rival->points.size()
                                                             : least(slice) < least(*rival))
            *rival = std::move(slice);
    }
    return chosen;
}

/// The lowest or highest point of the parabola through three points with a < b < c. Without a curve in it: b.
[[nodiscard]] inline double parabola_vertex(double a, double fa, double b, double fb, double c, double fc) {
    const double left = (b - a) * (fb - fc), right = (b - c) * (fb - fa);
    const double below = left - right;
    return below == 0.0 ? b : b - 0.5 * ((b - a) * left - (b - c) * right) / below;
}

/// Where an axis has its least loss, in powers of two.
struct AxisOptimum {
    enum class Place { inside, low_edge, high_edge, beside_failed, nowhere } place = Place::inside;
    double log2 =
        0.0;  ///< of the vertex of the parabola through the best point and its neighbours; elsewhere of the best point
    double loss = 0.0;  ///< the least one measured

    /// What is to be known about its place; empty: it lies between its neighbours.
    [[nodiscard]] std::string note() const {
        switch (place) {
            case Place::low_edge:
                return "at the lower edge";
            case Place::high_edge:
                return "at the upper edge";
            case Place::nowhere:
                return "no effect";
            case Place::beside_failed:
                return "beside a failed point";
            default:
                return "";
        }
    }
};

/// The optimum of a curve, given as logarithms to base 2 and losses; nothing where no loss is finite. The vertex never lies outside the
/// neighbours. At the end of the curve, or beside an infinite loss, there is no parabola: it is the best point itself.
/// Losses that are all the same have none: the recipe does not read the hyperparameter.
[[nodiscard]] inline std::optional<AxisOptimum> axis_optimum(std::vector<std::pair<double, double>> curve) {
    std::sort(curve.begin(), curve.end());
    const auto best =
        std::min_element(curve.begin(), curve.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == curve.end() || !std::isfinite(best->second)) return std::nullopt;
    AxisOptimum optimum{.log2 = best->first, .loss = best->second};
    using Place = AxisOptimum::Place;
    const bool flat =
        std::all_of(curve.begin(), curve.end(), [&](const auto& point) { return point.second == best->second; });
    if (flat && curve.size() > 1) {
        optimum.place = Place::nowhere;
    } else if (best == curve.begin() || best + 1 == curve.end()) {
        optimum.place = best == curve.begin() ? Place::low_edge : Place::high_edge;
    } else if (!std::isfinite((best - 1)->second) || !std::isfinite((best + 1)->second)) {
        optimum.place = Place::beside_failed;
    } else {
        const auto [a, fa] = *(best - 1);
        const auto [c, fc] = *(best + 1);
        optimum.log2 = std::clamp(parabola_vertex(a, fa, best->first, best->second, c, fc), a, c);
    }
    return optimum;
}

/// The same along an axis of a slice.
[[nodiscard]] inline std::optional<AxisOptimum> axis_optimum(const SweepSlice& slice, std::size_t place) {
    std::vector<std::pair<double, double>> curve;
    for (const PointResult* result : slice.points)
        curve.emplace_back(std::log2(std::strtod(result->point[place].c_str(), nullptr)), result->loss);
    return axis_optimum(std::move(curve));
}

/// Losses by the values of two axes. NaN: not known; infinite: failed.
struct LossMap {
    std::string row_name{}, column_name{};
    std::vector<std::string> rows{}, columns{};  ///< in order
    std::vector<std::vector<double>> losses{};   ///< by row

    [[nodiscard]] LossMap transposed() const {
        LossMap other{.row_name = column_name, .column_name = row_name, .rows = columns, .columns = rows};
        other.losses.assign(columns.size(), std::vector<double>(rows.size()));
        for (std::size_t i = 0; i < rows.size(); ++i)
            for (std::size_t j = 0; j < columns.size(); ++j) other.losses[j][i] = losses[i][j];
        return other;
    }
};

/// The map of a slice along two axes; nothing where it has fewer than two values on one, or no more points than a cross has.
[[nodiscard]] inline std::optional<LossMap> loss_map(const SweepResults& results, const SweepSlice& slice,
                                                     std::size_t row_axis, std::size_t column_axis) {
    std::map<double, std::string> rows, columns;
    for (const PointResult* result : slice.points) {
        rows[std::strtod(result->point[row_axis].c_str(), nullptr)] = result->point[row_axis];
        columns[std::strtod(result->point[column_axis].c_str(), nullptr)] = result->point[column_axis];
    }
    if (rows.size() < 2 || columns.size() < 2 || slice.points.size() < rows.size() + columns.size())
        return std::nullopt;
    LossMap map{.row_name = results.space.axes[row_axis].name(), .column_name = results.space.axes[column_axis].name()};
    for (const auto& [number, text] : rows) map.rows.push_back(text);
    for (const auto& [number, text] : columns) map.columns.push_back(text);
    map.losses.assign(rows.size(), std::vector<double>(columns.size(), std::numeric_limits<double>::quiet_NaN()));
    for (const PointResult* result : slice.points) {
        const auto row = std::find(map.rows.begin(), map.rows.end(), result->point[row_axis]) - map.rows.begin();
        const auto column =
            std::find(map.columns.begin(), map.columns.end(), result->point[column_axis]) - map.columns.begin();
        map.losses[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)] = result->loss;
    }
    return map;
}

/// How much is lost where the columns' hyperparameter is tuned at another value of the rows' one:
///   (f*, t*) = argmin L;   mean over f != f* of  L(f*, argmin_t L(f, t)) - L(f*, t*)
/// A row f without any finite loss, or whose best t is not known at f*, is left out; where that t fails at f*, the error is infinite.
/// NaN: no row is left. Reference: Blake et al. 2024, arXiv:2407.17465, algorithm 1.
[[nodiscard]] inline double transfer_error(const LossMap& map) {
    // The place of the least finite loss of a row, or nothing.
    const auto best_of = [](const std::vector<double>& row) {
        std::optional<std::size_t> best;
        for (std::size_t t = 0; t < row.size(); ++t)
            if (std::isfinite(row[t]) && (!best || row[t] < row[*best])) best = t;
        return best;
    };
    std::optional<std::size_t> best_row;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t f = 0; f < map.losses.size(); ++f)
        if (const auto t = best_of(map.losses[f]); t && map.losses[f][*t] < least) {
            best_row = f;
            least = map.losses[f][*t];
        }
    double sum = 0.0;
    std::size_t count = 0;
    for (std::size_t f = 0; f < map.losses.size(); ++f) {
        const auto t = best_of(map.losses[f]);
        if (f == best_row || !t || std::isnan(map.losses[*best_row][*t])) continue;
        sum += map.losses[*best_row][*t] - least;
        ++count;
    }
    return sum / static_cast<double>(count);  // 0 / 0: NaN
}

}  // namespace unitscale::experiments
