// SPDX-License-Identifier: MIT
#include "experiments/sweep_table.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/text_table.hpp>

#include "experiments/constant_bias.hpp"
#include "experiments/page_parts.hpp"
#include "experiments/sweep_rms.hpp"
#include "experiments/sweep_search.hpp"
#include "experiments/sweep_settings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

namespace unitscale::experiments {

std::string loss_text(double loss) { return std::isinf(loss) ? "failed" : io::cell("%.4f", loss); }

std::string condition_text(const SweepSpace& space, const SweepPoint& point, const std::vector<std::size_t>& without) {
    std::vector<std::size_t> places = space.places(true);
    std::erase_if(places,
                  [&](std::size_t place) { return std::find(without.begin(), without.end(), place) != without.end(); });
    const std::string text = space.text(point, &places);
    return text.empty() ? space.run.recipe : text;
}

std::map<double, std::string> values_of(const std::vector<SweepSlice>& slices, std::size_t place) {
    std::map<double, std::string> values;
    for (const SweepSlice& slice : slices)
        for (const PointResult* result : slice.points)
            values[std::strtod(result->point[place].c_str(), nullptr)] = result->point[place];
    return values;
}

SweepTable best_table(const SweepResults& results) {
    const SweepSpace& space = results.space;
    SweepTable table{.title = "best point, median over seeds", .rows = {{""}}};
    for (const std::size_t place : space.places(false)) table.rows[0].push_back(space.axes[place].name());
    for (const char* name : {"bits/char", "spread", "test", "at defaults", "failed runs", "runs"})
        if (name != std::string_view("test") || space.run.test) table.rows[0].emplace_back(name);
    const std::vector<SweepPoint> defaults = sweep_conditions(space);
    for (const SweepPoint& condition : results.conditions()) {
        const auto at_defaults = std::find_if(defaults.begin(), defaults.end(), [&](const SweepPoint& point) {
            return SweepResults::same(point, condition, space.places(true));
        });
        std::size_t runs = 0, failed = 0;
        for (const PointResult& result : results.points)
            if (SweepResults::same(result.point, condition, space.places(true))) {
                runs += result.runs.size();
                failed += result.failed();
            }
        const PointResult* best = results.best(condition);
        std::vector<std::string> row = {condition_text(space, condition)};
        for (const std::size_t place : space.places(false)) row.push_back(best == nullptr ? "-" : best->point[place]);
        row.push_back(best == nullptr ? "-" : loss_text(best->loss));
        row.push_back(best == nullptr || best->runs.size() < 2
                          ? "-"
                          : io::cell("%.4f", best->range().second - best->range().first));
        if (space.run.test) row.push_back(best == nullptr ? "-" : loss_text(best->median_of(&SweepRun::test_loss)));
        row.push_back(at_defaults == defaults.end() ? "-" : loss_text(results.loss(*at_defaults)));
        row.push_back(std::to_string(failed));
        row.push_back(std::to_string(runs));
        table.rows.push_back(std::move(row));
    }
    return table;
}

SweepTable axis_table(const SweepResults& results, std::size_t place) {
    const std::string name = results.space.axes[place].name();
    const std::vector<SweepSlice> slices = sweep_slices(results, {place});
    const std::map<double, std::string> values = values_of(slices, place);
    SweepTable table{.title = concatenate("loss by ", name)};
    if (values.size() < 2) return table;
    const bool narrow = values.size() <= 16;
    table.rows.push_back({name});
    if (narrow)
        for (const auto& [number, text] : values) table.rows[0].push_back(text);
    const bool exponents = results.space.axes[place].parameter.is_exponent();
    for (const char* column : {"optimum", "log2", ""})
        if (!exponents || column != std::string_view("log2")) table.rows[0].emplace_back(column);
    for (const SweepSlice& slice : slices) {
        const std::optional<AxisOptimum> optimum = axis_optimum(results, slice, place);
        const bool marked = optimum && optimum->place != AxisOptimum::Place::nowhere;
        std::vector<std::string> row = {condition_text(results.space, slice.any())};
        if (narrow)
            for (const auto& value : values) {
                const auto found =
                    std::find_if(slice.points.begin(), slice.points.end(),
                                 [&](const PointResult* result) { return result->point[place] == value.second; });
                row.push_back(found == slice.points.end() ? "-" : loss_text((*found)->loss));
                if (marked && found != slice.points.end() && (*found)->loss == optimum->loss) row.back() += "*";
            }
        if (!exponents) row.push_back(marked ? io::cell("%.4g", std::exp2(optimum->octaves)) : "-");
        row.push_back(marked ? io::cell("%+.2f", optimum->octaves) : "-");
        row.push_back(optimum ? optimum->note() : "");
        table.rows.push_back(std::move(row));
    }
    return table;
}

SweepTable gradient_table(const SweepResults& results) {
    SweepTable table{.title = "gradients by loss scale: share of zeros, share of steps skipped as not finite"};
    const auto place = results.space.find("loss_scale");
    if (!place) return table;
    table.rows.push_back({"", "loss_scale", "bits/char", "zeros", "skipped"});
    const auto share = [](double number) { return std::isnan(number) ? "-" : share_text(number); };
    for (const SweepSlice& slice : sweep_slices(results, {*place}))
        for (const auto& [number, value] : values_of({slice}, *place))
            for (const PointResult* result : slice.points)
                if (result->point[*place] == value)
                    table.rows.push_back({condition_text(results.space, result->point), value, loss_text(result->loss),
                                          share(result->median_of(&SweepRun::zeros)),
                                          share(result->median_of(&SweepRun::skipped))});
    return table;
}

SweepTable bias_table(const SweepResults& results) {
    SweepTable table{.title = "constant biases that train within 1 % of the best"};
    const auto place = results.space.find("constant_bias");
    if (!place) return table;
    table.rows.push_back({"", "biases", "least loss", "of the biases"});
    for (const SweepSlice& slice : sweep_slices(results, {*place})) {
        std::map<int, double> losses;
        for (const PointResult* result : slice.points) losses[std::stoi(result->point[*place])] = result->loss;
        const auto least = std::min_element(losses.begin(), losses.end(),
                                            [](const auto& a, const auto& b) { return a.second < b.second; });
        std::vector<int> tried, good;
        for (const auto& [bias, loss] : losses) {
            tried.push_back(bias);
            if (std::isfinite(loss) && loss <= 1.01 * least->second) good.push_back(bias);
        }
        table.rows.push_back({condition_text(results.space, slice.any()), good.empty() ? "none" : bias_range_text(good),
                              loss_text(least->second), bias_range_text(tried)});
    }
    return table;
}

std::string OptimumMovement::text() const {
    if (at_least && octaves == 0.0) return "unknown";  // all optima lie at one edge
    return io::cell(at_least ? "at least %.2f" : "%.2f", octaves);
}

std::vector<OptimumMovement> optimum_movements(const SweepResults& results, std::size_t place, std::size_t size) {
    std::vector<std::size_t> others = results.space.places(true);
    std::erase(others, size);
    std::vector<OptimumMovement> movements;
    for (const SweepSlice& slice : sweep_slices(results, {place})) {
        const std::optional<AxisOptimum> optimum = axis_optimum(results, slice, place);
        if (!optimum || slice.points.size() < 2 || optimum->place == AxisOptimum::Place::nowhere) continue;
        auto group = std::find_if(movements.begin(), movements.end(), [&](const OptimumMovement& movement) {
            return SweepResults::same(movement.any, slice.any(), others);
        });
        if (group == movements.end()) group = movements.insert(group, {.any = slice.any()});
        group->optima.emplace_back(slice.any()[size], *optimum);
    }
    std::erase_if(movements, [](const OptimumMovement& movement) { return movement.optima.size() < 2; });
    for (OptimumMovement& movement : movements) {
        double low = std::numeric_limits<double>::infinity(), high = -low;
        for (const auto& [value, optimum] : movement.optima) {
            low = std::min(low, optimum.octaves);
            high = std::max(high, optimum.octaves);
            movement.at_least = movement.at_least || optimum.place != AxisOptimum::Place::inside;
        }
        movement.octaves = high - low;
    }
    return movements;
}

SweepTable movement_table(const SweepResults& results) {
    const SweepSpace& space = results.space;
    SweepTable table{.title = "how far optima move, in octaves", .rows = {{"", "of", "over", "", "moves by"}}};
    const bool exponents = std::any_of(space.axes.begin(), space.axes.end(),
                                       [](const SweepAxis& axis) { return axis.parameter.is_exponent(); });
    table.rows[0][3] = exponents ? "log2 of the optimum, or the bias itself" : "log2 of the optimum";
    for (const std::size_t place : space.places(false))
        for (const std::size_t size : space.places(true)) {
            if (space.axes[size].parameter.has_names()) continue;
            for (const OptimumMovement& movement : optimum_movements(results, place, size)) {
                std::string optima;
                for (const auto& [value, optimum] : movement.optima)
                    optima += concatenate(
                        optima.empty() ? "" : ", ", io::cell("%+.2f", optimum.octaves),
                        optimum.place == AxisOptimum::Place::inside ? "" : concatenate(" (", optimum.note(), ")"),
                        " at ", value);
                table.rows.push_back({condition_text(space, movement.any, {size}), space.axes[place].name(),
                                      space.axes[size].name(), std::move(optima), movement.text()});
            }
        }
    return table;
}

SweepTable independent_table(const SweepResults& results) {
    SweepTable table{
        .title = "independent search: the best multipliers together, beside defaults at the best learning rate"};
    if (results.search.strategy != SweepStrategy::independent) return table;
    const SweepSpace& space = results.space;
    table.rows.push_back({"", "at defaults", "together", "difference", "together at"});
    for (const SweepPoint& condition : sweep_conditions(space)) {
        const IndependentSearch search =
            independent_search(space, condition, [&](const SweepPoint& point) { return results.loss(point); });
        if (!search.best_rate || !search.combined) continue;
        const double before = results.loss(*search.best_rate), after = results.loss(*search.combined);
        const std::vector<std::size_t> searched = space.places(false);
        table.rows.push_back({condition_text(space, condition), loss_text(before), loss_text(after),
                              io::cell("%+.2f %%", 100.0 * (after / before - 1.0)),
                              space.text(*search.combined, &searched)});
    }
    return table;
}

SweepTable shorter_table(const SweepResults& results) {
    SweepTable table{.title = "shorter searches: the least loss to expect of so many of the points"};
    if (results.search.strategy != SweepStrategy::random) return table;
    std::vector<std::string> header = {"points"};
    std::vector<std::vector<double>> losses;
    std::size_t most = 0;
    for (const SweepPoint& condition : results.conditions()) {
        header.push_back(condition_text(results.space, condition));
        losses.emplace_back();
        for (const PointResult& result : results.points)
            if (SweepResults::same(result.point, condition, results.space.places(true)))
                losses.back().push_back(result.loss);
        most = std::max(most, losses.back().size());
    }
    if (most < 2) return table;
    table.rows.push_back(std::move(header));
    std::vector<std::size_t> lengths;
    for (std::size_t draws = 1; draws < most; draws *= 2) lengths.push_back(draws);
    lengths.push_back(most);
    for (const std::size_t draws : lengths) {
        std::vector<std::string>& row = table.rows.emplace_back();
        row.push_back(std::to_string(draws));
        for (const std::vector<double>& of_condition : losses) {
            if (draws > of_condition.size()) {
                row.emplace_back("-");
                continue;
            }
            const ShorterSearch search = shorter_search(of_condition, draws);
            if (std::isnan(search.loss)) row.emplace_back("failed");
            else if (search.none == 0.0) row.push_back(loss_text(search.loss));
            else row.push_back(concatenate(loss_text(search.loss), " (no point ", share_text(search.none), ')'));
        }
    }
    return table;
}

std::vector<FixedMap> sweep_maps(const SweepResults& results) {
    const std::vector<SweepAxis>& axes = results.space.axes;
    std::vector<FixedMap> maps;
    for (std::size_t i = 0; i < axes.size(); ++i)
        for (std::size_t j = i + 1; j < axes.size(); ++j) {
            if (axes[i].parameter.has_names() || axes[j].parameter.has_names()) continue;
            // Sizes are rows.
            const bool turned = axes[j].parameter.is_condition() && !axes[i].parameter.is_condition();
            const std::size_t row = turned ? j : i, column = turned ? i : j;
            for (const SweepSlice& slice : sweep_slices(results, {i, j})) {
                const std::optional<LossMap> map = loss_map(results, slice, row, column);
                if (!map) continue;
                std::vector<std::size_t> fixed;
                for (std::size_t place = 0; place < axes.size(); ++place)
                    if (place != i && place != j) fixed.push_back(place);
                const std::string text = results.space.text(slice.any(), &fixed);
                maps.push_back({text.empty() ? results.space.run.recipe : text, row, column, *map});
            }
        }
    return maps;
}

SweepTable transfer_table(const SweepResults& results) {
    SweepTable table{
        .title = "transfer error: mean loss, in bits/char, from tuning one at other values of the fixed one",
        .rows = {{"", "fixed", "tuned", "transfer error"}}};
    const auto add = [&](const FixedMap& at, const LossMap& map, std::size_t tuned) {
        if (results.space.axes[tuned].parameter.is_condition()) return;
        const double error = transfer_error(map);
        table.rows.push_back(
            {at.fixed, map.row_name, map.column_name, std::isinf(error) ? "infinite" : io::cell("%.4f", error)});
    };
    for (const FixedMap& at : sweep_maps(results)) {
        add(at, at.map, at.column_axis);
        add(at, at.map.transposed(), at.row_axis);
    }
    return table;
}

std::vector<SweepTable> sweep_tables(const SweepResults& results) {
    std::vector<SweepTable> tables = {best_table(results)};
    for (const std::size_t place : results.space.places(false)) tables.push_back(axis_table(results, place));
    tables.push_back(bias_table(results));
    tables.push_back(gradient_table(results));
    tables.push_back(settings_table(results));
    tables.push_back(against_table(results));
    tables.push_back(movement_table(results));
    tables.push_back(independent_table(results));
    tables.push_back(shorter_table(results));
    tables.push_back(transfer_table(results));
    tables.push_back(rms_table(results));
    tables.push_back(rms_trend_table(results));
    std::erase_if(tables, [](const SweepTable& table) { return table.rows.size() < 2; });
    return tables;
}

std::vector<std::string> failure_lines(const SweepResults& results) {
    std::vector<std::string> lines;
    for (const PointResult& result : results.points)
        for (const SweepRun& run : result.runs)
            if (run.failed)
                lines.push_back(
                    concatenate(results.space.text(run.point), ", seed ", run.seed, ": failed: ", run.reason));
    return lines;
}

}  // namespace unitscale::experiments
