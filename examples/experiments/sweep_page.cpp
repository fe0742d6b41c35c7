// SPDX-License-Identifier: MIT
#include "experiments/sweep_page.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/report/heat_table.hpp>
#include <unitscale/report/markup.hpp>

#include "experiments/page_parts.hpp"
#include "experiments/sweep_search.hpp"
#include "experiments/sweep_settings.hpp"
#include "experiments/sweep_space.hpp"
#include "experiments/sweep_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace unitscale::experiments {

namespace {

/// The look of a curve: a colour for each combination of sizes, dashes for each combination of names.
std::size_t sweep_look(const SweepResults& results, const SweepPoint& point) {
    std::vector<std::size_t> names, sizes;
    for (const std::size_t place : results.space.places(true))
        (results.space.axes[place].parameter.has_names() ? names : sizes).push_back(place);
    // The number of the point's combination on these axes.
    const auto number_of = [&](const std::vector<std::size_t>& places) {
        std::vector<SweepPoint> known;
        for (const SweepPoint& condition : results.conditions()) {
            const auto equal = [&](const SweepPoint& other) { return SweepResults::same(other, condition, places); };
            if (std::none_of(known.begin(), known.end(), equal)) known.push_back(condition);
            if (SweepResults::same(condition, point, places)) break;
        }
        return known.size() - 1;
    };
    const std::size_t dash = number_of(names);
    // Names alone have colours of their own.
    return sizes.empty() ? dash : 8 * dash + number_of(sizes) % 8;
}

constexpr std::string_view sweep_note =
    "\n"
    "<p class=\"soft\">Losses are those of the validation text at the end of a run, in bits per character; of several "
    "seeds the median, where a\n"
    "failed run counts as an infinite loss. An optimum is the vertex of the parabola through the best point and its "
    "neighbours on the axis, in\n"
    "powers of two (a bias is one already); at an edge of the axis, or beside a failed point, it is the best point "
    "itself. An asterisk marks the best.</p>";

}  // namespace

report::PlotAxis sweep_loss_axis(const std::vector<report::PlotCurve>& curves) {
    const double infinity = std::numeric_limits<double>::infinity();
    double low = infinity, high = -infinity, worst = -infinity;
    for (const report::PlotCurve& curve : curves) {
        double least = infinity;
        for (const double loss : curve.y)
            if (std::isfinite(loss)) least = std::min(least, loss);
        for (const std::vector<double>* losses : {&curve.y, &curve.low, &curve.high})
            for (const double loss : *losses)
                if (std::isfinite(loss)) {
                    low = std::min(low, loss);
                    high = std::max(high, loss);
                }
        if (std::isfinite(least)) worst = std::max(worst, least);
    }
    if (!std::isfinite(low)) return report::linear_axis(0.0, 1.0, "bits per character");
    high = std::min(high, worst + 0.3 * std::abs(low));
    if (!(high > low)) high = low + 0.1;
    return report::linear_axis(low - 0.05 * (high - low), high + 0.05 * (high - low), "bits per character");
}

report::Plot axis_plot(const SweepResults& results, std::size_t place) {
    const SweepParameter& parameter = results.space.axes[place].parameter;
    const std::vector<SweepSlice> slices = sweep_slices(results, {place});
    const std::map<double, std::string> values = values_of(slices, place);
    report::Plot plot{.label = concatenate("loss by ", results.space.axes[place].name())};
    if (values.size() < 2) return plot;
    for (const SweepSlice& slice : slices) {
        if (slice.points.size() < 2) continue;
        std::map<double, const PointResult*> points;
        for (const PointResult* result : slice.points) points[parameter.octaves(result->point[place])] = result;
        report::PlotCurve curve{
            .name = condition_text(results.space, slice.any()), .look = sweep_look(results, slice.any()), .dots = true};
        for (const auto& [at, result] : points) {
            curve.x.push_back(at);
            curve.y.push_back(std::isfinite(result->loss) ? result->loss : std::numeric_limits<double>::quiet_NaN());
            if (results.points.front().seeds.size() < 2) continue;
            const auto [low, high] = result->range();
            curve.low.push_back(std::isfinite(curve.y.back()) ? low : curve.y.back());
            curve.high.push_back(std::isfinite(curve.y.back()) ? high : curve.y.back());
        }
        plot.curves.push_back(std::move(curve));
    }
    const double low = parameter.octaves(values.begin()->second), high = parameter.octaves(values.rbegin()->second);
    plot.x = {.low = low - 0.03 * (high - low),
              .high = high + 0.03 * (high - low),
              .label = results.space.axes[place].name()};
    if (parameter.is_exponent()) {
        plot.x.ticks = report::linear_axis(low, high, "", 12, true).ticks;
    } else if (values.size() <= 12) {
        for (const auto& [number, text] : values) {
            const double log2 = std::log2(number);
            plot.x.ticks.push_back({log2, log2 == std::floor(log2) ? report::svg_power(2, static_cast<int>(log2))
                                                                   : report::plot_number(number)});
        }
    } else {
        for (double log2 = std::ceil(low); log2 <= high; ++log2)
            plot.x.ticks.push_back({log2, report::svg_power(2, static_cast<int>(log2))});
    }
    plot.y = sweep_loss_axis(plot.curves);
    return plot;
}

report::Plot search_plot(const SweepResults& results) {
    report::Plot plot{.label = "best loss so far by number of runs"};
    if (results.search.strategy == SweepStrategy::grid) return plot;
    double most = 1.0;
    for (const SweepPoint& condition : results.conditions()) {
        report::PlotCurve curve{
            .name = condition_text(results.space, condition), .look = sweep_look(results, condition), .dots = true};
        double best = std::numeric_limits<double>::infinity(), runs = 0.0;
        for (const PointResult& result : results.points) {
            if (!SweepResults::same(result.point, condition, results.space.places(true))) continue;
            runs += static_cast<double>(result.runs.size());
            best = std::min(best, result.loss);
            curve.x.push_back(runs);
            curve.y.push_back(std::isfinite(best) ? best : std::numeric_limits<double>::quiet_NaN());
        }
        most = std::max(most, runs);
        plot.curves.push_back(std::move(curve));
    }
    plot.x = report::linear_axis(0.0, 1.03 * most, "runs", 8, true);
    plot.y = sweep_loss_axis(plot.curves);
    return plot;
}

std::string sweep_plot(const SweepResults& results, const report::PageSource& source) {
    const auto rate = results.space.rate();
    if (!rate || results.points.empty()) return "";
    report::Plot plot = axis_plot(results, *rate);
    if (plot.curves.empty()) return "";
    if (results.space.axes[*rate].name() == "lr") plot.x.label = "learning rate";
    plot.source = source;
    return report::svg_plot(plot);
}

std::vector<std::vector<std::string>> point_rows(const SweepResults& results) {
    std::vector<std::vector<std::string>> rows = {{}};
    for (const SweepAxis& axis : results.space.axes) rows[0].push_back(axis.name());
    for (const char* name : {"bits/char", "by seed", "training", "tokens/s"}) rows[0].emplace_back(name);
    for (const PointResult& result : results.points) {
        std::vector<std::string> row = result.point;
        row.push_back(loss_text(result.loss));
        std::string losses;
        double training = 0.0, speed = 0.0;
        for (const SweepRun& run : result.runs) {
            (losses += losses.empty() ? "" : ", ") += run.failed ? "failed" : io::cell("%.4f", run.valid_loss);
            training += run.failed ? std::numeric_limits<double>::infinity() : run.train_loss;
            speed += run.tokens_per_s;
        }
        const auto count = static_cast<double>(result.runs.size());
        row.push_back(losses);
        row.push_back(io::cell("%.4f", training / count));
        row.push_back(io::cell("%.0f", speed / count));
        rows.push_back(std::move(row));
    }
    return rows;
}

std::string sweep_page(const SweepResults& results, std::string_view heading, const report::PageSource& source) {
    const auto no_lead = [](std::size_t) { return ""; };
    const auto card = [](const std::string& inside) { return concatenate("<div class=\"card\">", inside, "</div>\n"); };
    std::string body = concatenate("<main><h1>Hyperparameter sweep</h1><p class=\"soft\">", report::escaped(heading),
                                   "</p>", report::source_paragraph(source));
    body += sweep_note;
    if (const std::vector<std::string> lines = failure_lines(results); !lines.empty()) {
        body += concatenate("<details class=\"alert\"><summary>failed runs: ", lines.size(), "</summary><ul>");
        for (const std::string& line : lines) body += concatenate("<li>", report::escaped(line), "</li>");
        body += "</ul></details>\n";
    }
    if (!results.points.empty()) {
        body += "<div class=\"pair\">";
        for (const std::size_t place : results.space.places(false))
            body += plot_card(
                concatenate("Loss by ", results.space.axes[place].name()),
                "median over seeds, from least to largest; the rest of the point is that of the best, or the search's",
                axis_plot(results, place));
        body += plot_card("Recipes over settings",
                          "the least loss of each recipe in each setting; a line connects the recipes of one setting",
                          settings_plot(results));
        body += plot_card("Best loss so far", "over the runs in the order of the search", search_plot(results));
        body += "</div>\n";
        for (const SweepTable& table : sweep_tables(results))
            body += card(concatenate("<h2>", report::escaped(table.title), "</h2>", html_table(table.rows, no_lead)));
        std::string maps;
        for (const FixedMap& at : sweep_maps(results))
            maps += report::heat_table({.caption = at.fixed,
                                        .row_name = at.map.row_name,
                                        .column_name = at.map.column_name,
                                        .rows = at.map.rows,
                                        .columns = at.map.columns,
                                        .numbers = at.map.losses});
        if (!maps.empty())
            body +=
                card(concatenate("<h2>Maps of pairs</h2><p class=\"soft\">coloured the more strongly the closer to "
                                 "the map's best, which has a "
                                 "frame: at most 0.5, 1, 2, 4, 8, 16 % above it, and more</p><div>",
                                 maps, "</div>"));
        body += card(concatenate("<details><summary>all points</summary>", html_table(point_rows(results), no_lead),
                                 "</details>"));
    }
    return figures_page("Hyperparameter sweep", body + "</main>");
}

}  // namespace unitscale::experiments
