// SPDX-License-Identifier: MIT
#include "experiments/coordinate_trend.hpp"

#include <unitscale/base/error.hpp>

#include "experiments/coordinate_probe.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace unitscale::experiments {

WidthCoordinates pooled(const std::vector<WidthCoordinates>& runs) {
    check(!runs.empty(), "coordinates: no run");
    WidthCoordinates pool = runs.front();
    for (const WidthCoordinates& run : runs) {
        bool same = run.width == pool.width && run.steps.size() == pool.steps.size();
        for (std::size_t i = 0; same && i < pool.steps.size(); ++i) same = run.steps[i].size() == pool.steps[i].size();
        check(same, "coordinates: runs of widths ", pool.width, " and ", run.width,
              " differ in width, steps or layers");
    }
    const auto count = static_cast<double>(runs.size());
    for (std::size_t i = 0; i < pool.steps.size(); ++i)
        for (std::size_t j = 0; j < pool.steps[i].size(); ++j) {
            double outputs = 0.0, changes = 0.0;
            for (const WidthCoordinates& run : runs) {
                outputs += run.steps[i][j].output * run.steps[i][j].output;
                changes += run.steps[i][j].change * run.steps[i][j].change;
            }
            pool.steps[i][j].output = std::sqrt(outputs / count);
            pool.steps[i][j].change = std::sqrt(changes / count);
        }
    pool.first_loss = pool.last_loss = 0.0;
    for (const WidthCoordinates& run : runs) {
        pool.first_loss += run.first_loss / count;
        pool.last_loss += run.last_loss / count;
    }
    return pool;
}

WidthTrend width_trend(const std::vector<double>& widths, const std::vector<double>& values) {
    check(widths.size() == values.size() && widths.size() >= 2, "width_trend: ", values.size(), " values at ",
          widths.size(), " widths; expected as many, and at least 2");
    const auto count = static_cast<double>(widths.size());
    double mean_x = 0.0, mean_y = 0.0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
        mean_x += std::log2(widths[i]) / count;
        mean_y += std::log2(values[i]) / count;
    }
    double xx = 0.0, xy = 0.0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
        const double x = std::log2(widths[i]) - mean_x;
        xx += x * x;
        xy += x * (std::log2(values[i]) - mean_y);
    }
    const auto [least, largest] = std::minmax_element(values.begin(), values.end());
    return {.slope = xy / xx, .spread = *largest / *least};
}

std::vector<LayerTrend> layer_trends(const std::vector<WidthCoordinates>& measured, std::size_t step) {
    check(measured.size() >= 2, "coordinates: of ", measured.size(), " widths; a trend needs at least 2");
    std::vector<double> widths;
    for (const WidthCoordinates& width : measured) {
        check(step < width.steps.size() && width.steps[step].size() == measured.front().steps[step].size(),
              "coordinates: width ", width.width, " was not measured at step ", step,
              " in as many layers as the first width");
        widths.push_back(static_cast<double>(width.width));
    }
    std::vector<LayerTrend> trends;
    for (std::size_t i = 0; i < measured.front().steps[step].size(); ++i) {
        LayerTrend& trend = trends.emplace_back();
        trend.layer = measured.front().steps[step][i].layer;
        for (const WidthCoordinates& width : measured) {
            trend.outputs.push_back(width.steps[step][i].output);
            trend.changes.push_back(width.steps[step][i].change);
        }
        trend.output = width_trend(widths, trend.outputs);
        trend.change = width_trend(widths, trend.changes);
    }
    return trends;
}

CoordinateJudgement judge(const std::vector<LayerTrend>& trends) {
    CoordinateJudgement judgement;
    for (const LayerTrend& trend : trends) {
        if (trend.layer == "embedding") continue;
        for (const double change : trend.changes)
            check(std::isfinite(change) && change > 0.0, "coordinates: the change of ", trend.layer, " is ", change,
                  " at one of the widths; expected a positive number");
        if (!judgement.layer.empty() && std::abs(trend.change.slope) <= std::abs(judgement.slope)) continue;
        judgement.layer = trend.layer;
        judgement.slope = trend.change.slope;
    }
    check(!judgement.layer.empty(), "coordinates: no layer to judge");
    if (judgement.slope > flat_slope) judgement.verdict = CoordinateVerdict::growing;
    if (judgement.slope < -flat_slope) judgement.verdict = CoordinateVerdict::shrinking;
    return judgement;
}

std::string explain(const CoordinateJudgement& judgement, std::size_t steps) {
    char slope[32];
    std::snprintf(slope, sizeof slope, "%+.2f", judgement.slope);
    return concatenate(
        "slope: of log2(rms) per doubling of the width, least squares\n",
        "rule: of the changes' slopes the one farthest from 0 decides; within ", flat_slope,
        " of 0 is flat: powers of the width come in halves. The embedding has no say (its change is its own update), "
        "nor have outputs (under mup and umup logits at initialisation fall with width^-1/2 on purpose)\n",
        "found: ", slope, ", the change of ", judgement.layer, " after ", steps, steps == 1 ? " step" : " steps");
}

std::vector<std::vector<std::string>> trend_rows(const std::vector<WidthCoordinates>& measured,
                                                 const std::vector<LayerTrend>& trends,
                                                 std::vector<double> LayerTrend::*values,
                                                 WidthTrend LayerTrend::*trend) {
    const auto text = [](const char* format, double value) {
        if (!std::isfinite(value)) return std::string("none");
        char buffer[32];
        std::snprintf(buffer, sizeof buffer, format, value);
        return std::string(buffer);
    };
    std::vector<std::vector<std::string>> rows = {{"layer"}};
    for (const WidthCoordinates& width : measured) rows.front().push_back(concatenate("width ", width.width));
    rows.front().insert(rows.front().end(), {"slope", "max/min"});
    for (const LayerTrend& layer : trends) {
        auto& row = rows.emplace_back(1, layer.layer);
        for (const double value : layer.*values) row.push_back(text("%.3g", value));
        row.push_back(text("%+.2f", (layer.*trend).slope));
        row.push_back(text("%.3g", (layer.*trend).spread));
    }
    return rows;
}

}  // namespace unitscale::experiments
