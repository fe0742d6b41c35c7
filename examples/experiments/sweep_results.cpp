// SPDX-License-Identifier: MIT
#include "experiments/sweep_results.hpp"

#include <unitscale/base/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

namespace unitscale::experiments {

double median(std::vector<double> numbers) {
    if (numbers.empty()) return std::numeric_limits<double>::quiet_NaN();
    std::sort(numbers.begin(), numbers.end());
    const std::size_t half = numbers.size() / 2;
    return numbers.size() % 2 == 1 ? numbers[half] : 0.5 * (numbers[half - 1] + numbers[half]);
}

std::size_t PointResult::failed() const {
    return static_cast<std::size_t>(
        std::count_if(runs.begin(), runs.end(), [](const SweepRun& run) { return run.failed; }));
}

double PointResult::median_of(std::optional<double> SweepRun::*measured) const {
    std::vector<double> numbers;
    for (const SweepRun& run : runs)
        if (run.*measured) numbers.push_back(*(run.*measured));
    return median(std::move(numbers));
}

std::pair<double, double> PointResult::range() const {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const SweepRun& run : runs)
        if (!run.failed) {
            low = std::min(low, run.valid_loss);
            high = std::max(high, run.valid_loss);
        }
    return {low, high};
}

const PointResult* SweepResults::find(const SweepPoint& point) const {
    const auto found =
        std::find_if(points.begin(), points.end(), [&](const PointResult& p) { return p.point == point; });
    return found == points.end() ? nullptr : &*found;
}

double SweepResults::loss(const SweepPoint& point) const {
    const PointResult* result = find(point);
    return result != nullptr && result->whole() ? result->loss : std::numeric_limits<double>::quiet_NaN();
}

const PointResult* SweepResults::best(const SweepPoint& condition) const {
    const PointResult* best = nullptr;
    for (const PointResult& result : points)
        if (same(result.point, condition, space.places(true)) && std::isfinite(result.loss) &&
            (best == nullptr || result.loss < best->loss))
            best = &result;
    return best;
}

std::vector<SweepPoint> SweepResults::conditions() const {
    std::vector<SweepPoint> result;
    for (const PointResult& candidate : points)
        if (std::none_of(result.begin(), result.end(),
                         [&](const SweepPoint& known) { return same(known, candidate.point, space.places(true)); }))
            result.push_back(candidate.point);
    return result;
}

bool SweepResults::same(const SweepPoint& a, const SweepPoint& b, const std::vector<std::size_t>& places) {
    return std::all_of(places.begin(), places.end(), [&](std::size_t place) { return a[place] == b[place]; });
}

std::vector<SweepSlice> sweep_slices(const SweepResults& results, const std::vector<std::size_t>& free) {
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

double parabola_vertex(double a, double fa, double b, double fb, double c, double fc) {
    const double left = (b - a) * (fb - fc), right = (b - c) * (fb - fa);
    const double below = left - right;
    return below == 0.0 ? b : b - 0.5 * ((b - a) * left - (b - c) * right) / below;
}

std::string AxisOptimum::note() const {
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

std::optional<AxisOptimum> axis_optimum(std::vector<std::pair<double, double>> curve) {
    std::sort(curve.begin(), curve.end());
    const auto best =
        std::min_element(curve.begin(), curve.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == curve.end() || !std::isfinite(best->second)) return std::nullopt;
    AxisOptimum optimum{.octaves = best->first, .loss = best->second};
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
        optimum.octaves = std::clamp(parabola_vertex(a, fa, best->first, best->second, c, fc), a, c);
    }
    return optimum;
}

std::optional<AxisOptimum> axis_optimum(const SweepResults& results, const SweepSlice& slice, std::size_t place) {
    std::vector<std::pair<double, double>> curve;
    for (const PointResult* result : slice.points)
        curve.emplace_back(results.space.axes[place].parameter.octaves(result->point[place]), result->loss);
    return axis_optimum(std::move(curve));
}

LossMap LossMap::transposed() const {
    LossMap other{.row_name = column_name, .column_name = row_name, .rows = columns, .columns = rows};
    other.losses.assign(columns.size(), std::vector<double>(rows.size()));
    for (std::size_t i = 0; i < rows.size(); ++i)
        for (std::size_t j = 0; j < columns.size(); ++j) other.losses[j][i] = losses[i][j];
    return other;
}

std::optional<LossMap> loss_map(const SweepResults& results, const SweepSlice& slice, std::size_t row_axis,
                                std::size_t column_axis) {
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

double transfer_error(const LossMap& map) {
    // The index of the least finite loss of a row, or nothing.
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

ShorterSearch shorter_search(std::vector<double> losses, std::size_t draws) {
    const std::size_t count = losses.size();
    check(draws >= 1 && draws <= count, "shorter_search: ", draws, " draws of ", count, " losses; expected 1 to ",
          count);
    std::sort(losses.begin(), losses.end());
    double probability = static_cast<double>(draws) / static_cast<double>(count), found = 0.0, sum = 0.0, none = 0.0;
    for (std::size_t i = 0; i + draws <= count; ++i) {
        if (std::isfinite(losses[i])) {
            found += probability;
            sum += probability * losses[i];
        } else {
            none += probability;
        }
        // From C(N - i, n - 1) to C(N - i - 1, n - 1), as a ratio: no binomial coefficient is formed.
        const std::size_t behind = count - i - 1;
        if (behind > 0) probability *= static_cast<double>(behind + 1 - draws) / static_cast<double>(behind);
    }
    return {.loss = sum / found, .none = none};  // 0 / 0: NaN
}

}  // namespace unitscale::experiments
