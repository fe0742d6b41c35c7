// SPDX-License-Identifier: MIT
#include "experiments/sweep_rms.hpp"

#include <unitscale/io/text_table.hpp>

#include "experiments/coordinate_trend.hpp"
#include "experiments/layer_rms.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::experiments {

namespace {

/// The medians over the runs of a point.
std::vector<LayerRms> layers_of(const PointResult& result) {
    std::vector<LayerRms> all;
    for (const SweepRun& run : result.runs) all.insert(all.end(), run.rms.begin(), run.rms.end());
    return medians_by_layer(all);
}

/// A header: these columns, then the tensors.
std::vector<std::string> header(std::vector<std::string> columns) {
    for (const LayerTensor& tensor : layer_tensors) {
        columns.emplace_back(tensor.name);
        std::replace(columns.back().begin(), columns.back().end(), '_', ' ');
    }
    return columns;
}

/// The slope of a tensor's log2(rms) over the points of an axis, which `layers` holds by value. NaN: fewer than two
/// points have the number.
double slope_of(const std::map<double, std::vector<LayerRms>>& layers, const std::string& layer,
                const LayerTensor& tensor) {
    std::vector<double> values, sizes;
    for (const auto& [value, of_point] : layers)
        for (const LayerRms& rms : of_point)
            if (rms.layer == layer && rms.*tensor.rms > 0.0) {
                values.push_back(value);
                sizes.push_back(rms.*tensor.rms);
            }
    return values.size() < 2 ? LayerRms::none : width_trend(values, sizes).slope;
}

/// Adds a row for each layer of the points, which differ on the axis at `place`.
void add_trends(const SweepResults& results, std::size_t place, const std::vector<const PointResult*>& points,
                const std::string& text, SweepTable& table) {
    std::map<double, std::vector<LayerRms>> layers;
    for (const PointResult* result : points) {
        const double value = std::strtod(result->point[place].c_str(), nullptr);
        std::vector<LayerRms> of_point = layers_of(*result);
        if (value > 0.0 && !of_point.empty()) layers[value] = std::move(of_point);
    }
    if (layers.size() < 2) return;
    for (const LayerRms& first : layers.begin()->second) {
        std::vector<std::string>& row = table.rows.emplace_back();
        row = {text, results.space.axes[place].name(), first.layer};
        for (const LayerTensor& tensor : layer_tensors)
            row.push_back(io::cell("%+.2f", slope_of(layers, first.layer, tensor)));
    }
}

}  // namespace

SweepTable rms_table(const SweepResults& results) {
    SweepTable table{.title = "root mean squares at the end, at the best point: medians over blocks and seeds",
                     .rows = {header({"", "layer"})}};
    for (const SweepPoint& condition : results.conditions()) {
        const PointResult* const best = results.best(condition);
        if (best == nullptr) continue;
        for (const LayerRms& layer : layers_of(*best)) {
            std::vector<std::string>& row = table.rows.emplace_back();
            row = {condition_text(results.space, condition), layer.layer};
            for (const LayerTensor& tensor : layer_tensors) row.push_back(io::cell("%.3g", layer.*tensor.rms));
        }
    }
    return table;
}

SweepTable rms_trend_table(const SweepResults& results) {
    SweepTable table{.title = "how root mean squares at the end grow along an axis: slope of log2, per doubling",
                     .rows = {header({"", "along", "layer"})}};
    const SweepSpace& space = results.space;
    for (std::size_t place = 0; place < space.axes.size(); ++place) {
        const SweepParameter& parameter = space.axes[place].parameter;
        if (parameter.is_rate())
            for (const SweepSlice& slice : sweep_slices(results, {place}))
                add_trends(results, place, slice.points, condition_text(space, slice.any()), table);
        if (parameter.size == nullptr) continue;
        std::vector<std::size_t> others = space.places(true);
        std::erase(others, place);
        std::vector<std::vector<const PointResult*>> groups;  // differ on this axis, and in their best hyperparameters
        for (const SweepPoint& condition : results.conditions()) {
            const PointResult* const best = results.best(condition);
            if (best == nullptr) continue;
            const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& points) {
                return SweepResults::same(points.front()->point, best->point, others);
            });
            if (group == groups.end()) groups.push_back({best});
            else group->push_back(best);
        }
        for (const auto& points : groups)
            add_trends(results, place, points, condition_text(space, points.front()->point, {place}), table);
    }
    return table;
}

}  // namespace unitscale::experiments
