// SPDX-License-Identifier: MIT
#include "experiments/coordinate_page.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/report/markup.hpp>
#include <unitscale/report/report_page.hpp>

#include "experiments/page_parts.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace unitscale::experiments {

report::PlotAxis power_axis(const std::vector<report::PlotCurve>& curves, std::string label, int count) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const report::PlotCurve& curve : curves)
        for (const double y : curve.y) {
            if (!std::isfinite(y)) continue;
            low = std::min(low, y);
            high = std::max(high, y);
        }
    if (!(high >= low)) low = high = 0.0;
    // At least three octaves, so that a flat curve looks flat.
    const double room = std::max(0.25, 0.5 * (3.0 - (high - low)));
    report::PlotAxis axis{.low = low - room, .high = high + room, .label = std::move(label)};
    const int step = std::max(1, static_cast<int>(std::ceil((axis.high - axis.low) / count)));
    for (int tick = static_cast<int>(std::ceil(axis.low / step)); tick * step <= axis.high; ++tick)
        axis.ticks.push_back({static_cast<double>(tick * step), report::svg_power(2, tick * step), tick == 0});
    return axis;
}

std::string coordinate_page(const std::vector<WidthCoordinates>& measured, std::string_view heading,
                            const report::PageSource& source) {
    check(!measured.empty() && measured.front().steps.size() >= 2, "coordinates: nothing was trained");
    const std::size_t steps = measured.front().steps.size() - 1;
    const std::vector<LayerTrend> first = layer_trends(measured, 0), last = layer_trends(measured, steps);
    const CoordinateJudgement judgement = judge(last);

    report::PlotAxis widths{.low = std::numeric_limits<double>::infinity(), .high = -widths.low, .label = "width"};
    for (const WidthCoordinates& width : measured) {
        const double at = std::log2(static_cast<double>(width.width));
        widths.low = std::min(widths.low, at - 0.1);
        widths.high = std::max(widths.high, at + 0.1);
        widths.ticks.push_back({at, concatenate(width.width)});
    }
    const auto curve = [&](std::string name, std::size_t look, const std::vector<double>& values) {
        report::PlotCurve result{.name = std::move(name), .look = look, .dots = true};
        for (std::size_t i = 0; i < values.size(); ++i) {
            result.x.push_back(widths.ticks[i].at);
            result.y.push_back(std::log2(values[i]));
        }
        return result;
    };
    const auto layers = [&](std::string title, std::vector<double> LayerTrend::*values) {
        report::Plot plot{.label = title, .x = widths, .alone = false};
        for (std::size_t i = 0; i < last.size(); ++i) plot.curves.push_back(curve(last[i].layer, i, last[i].*values));
        plot.y = power_axis(plot.curves, "rms", 8);
        return concatenate("<div class=\"card\"><h2>", title, "</h2>", report::svg_plot(plot), "</div>\n");
    };
    const auto table = [&](std::string_view title, const std::vector<LayerTrend>& trends, auto values, auto trend) {
        return concatenate("<div class=\"card\"><h2>", title, "</h2>",
                           html_table(trend_rows(measured, trends, values, trend), [](std::size_t) { return ""; }),
                           "</div>\n");
    };

    const std::string after = concatenate("after ", steps, steps == 1 ? " step" : " steps");
    std::string body = concatenate("<main><h1>Coordinate check: ", name(judgement.verdict), "</h1><p class=\"soft\">",
                                   report::escaped(heading), "</p>", report::source_paragraph(source),
                                   "<p class=\"lines\">", report::escaped(explain(judgement, steps)), "</p>\n");
    body += "<div class=\"pair\">" + layers("Change of each layer's output " + after, &LayerTrend::changes);
    body += layers("Each layer's output " + after, &LayerTrend::outputs) + "</div>\n";
    body += table("Change " + after, last, &LayerTrend::changes, &LayerTrend::change);
    body += table("Output " + after, last, &LayerTrend::outputs, &LayerTrend::output);
    body += table("Output at initialisation", first, &LayerTrend::outputs, &LayerTrend::output);

    std::vector<std::vector<report::PlotCurve>> panels(last.size());
    std::vector<report::PlotCurve> all;
    for (std::size_t step = 1; step <= steps; ++step) {
        const std::vector<LayerTrend> trends = layer_trends(measured, step);
        for (std::size_t i = 0; i < trends.size(); ++i) {
            panels[i].push_back(curve(concatenate("step ", step), step - 1, trends[i].changes));
            all.push_back(panels[i].back());
        }
    }
    body +=
        "<div class=\"card\"><h2>Change by layer</h2><span class=\"soft\">a curve for each step; the axes are the same "
        "for all:";
    for (std::size_t step = 1; step <= steps; ++step)
        body += concatenate(" <svg class=\"swatch ", report::look_classes(step - 1),
                            "\" viewBox=\"0 0 22 12\"><path class=\"curve\" d=\"M0 6H22\"/></svg>", step);
    body += "</span><div class=\"grid\">";
    for (std::size_t i = 0; i < panels.size(); ++i) {
        report::Plot plot{.label = "change of " + last[i].layer, .x = widths, .curves = std::move(panels[i])};
        plot.y = power_axis(all, "rms of the change", 6);
        plot.width = 300.0;
        plot.height = 160.0;
        plot.key = plot.alone = false;
        body += concatenate("<div><h3>", report::escaped(last[i].layer), "</h3>", report::svg_plot(plot), "</div>");
    }
    body += "</div></div></main>";
    std::string style(report::report_style);
    ((style += report::svg_plot_style) += figures_style) += ".lines { white-space: pre-line; }\n";
    return report::html_page("Coordinate check", style, body);
}

}  // namespace unitscale::experiments
