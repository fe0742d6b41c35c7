// SPDX-License-Identifier: MIT
#include "experiments/comparison_page.hpp"

#include <unitscale/report/markup.hpp>

#include "experiments/comparison.hpp"
#include "experiments/page_parts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace unitscale::experiments {

namespace {

constexpr std::string_view comparison_note =
    "\n"
    "<p class=\"soft\">Validation loss in bits per character, mean over seeds at the recipe's best learning rate; "
    "spread: largest minus least.\n"
    "Bytes: weights, as they are stored; the optimiser's state with master weights, and the most that a training step "
    "holds at once\n"
    "(activations, gradients, scratch), as their memory pools count. Tokens per second while training, beside the "
    "other jobs.</p>";

constexpr std::string_view zeros_note =
    "\n"
    "<p class=\"soft\">Share of the elements that were zero in the gradient of every op's output, by op, and of the "
    "parameters: once products\n"
    "have rounded their operands, and in brackets as they are stored, where that differs. What fp32 shows is zero by "
    "itself.</p>";

constexpr std::string_view overflows_note =
    "\n"
    "<p class=\"soft\">Elements that are not finite though their op had finite inputs, in the steps whose gradients "
    "are counted. What follows from them is not counted.</p>";

/// A curve for each recipe.
template <class CurveOf>
std::vector<report::PlotCurve> curves_of(const std::vector<RecipeSummary>& summaries, const CurveOf& curve_of) {
    std::vector<report::PlotCurve> curves;
    for (const RecipeSummary& summary : summaries) {
        report::PlotCurve curve = curve_of(summary);
        curve.name = summary.recipe.name;
        curve.look = curves.size();
        curves.push_back(std::move(curve));
    }
    return curves;
}

/// Losses over the steps at each recipe's best rate, with axes.
report::Plot plot_over_steps(const std::vector<RecipeSummary>& summaries, std::vector<std::size_t> RunResult::*steps,
                             std::vector<double> RunResult::*values) {
    report::Plot plot{.curves = curves_of(summaries, [&](const RecipeSummary& summary) {
                          return mean_curve(summary.best_rate(), steps, values);
                      })};
    double end = 1.0;  // of both plots: the last step with a training loss
    for (const RecipeSummary& summary : summaries)
        for (const double step : mean_curve(summary.best_rate(), &RunResult::train_steps, &RunResult::train).x)
            end = std::max(end, step);
    plot.x = report::linear_axis(0.0, end, "step");
    plot.y = loss_axis(plot.curves, end);
    return plot;
}

/// Training and validation losses over steps. Several rates add a plot of the final loss over rates.
std::string loss_plots(const std::vector<RecipeSummary>& summaries) {
    report::Plot valid = plot_over_steps(summaries, &RunResult::valid_steps, &RunResult::valid),
                 train = plot_over_steps(summaries, &RunResult::train_steps, &RunResult::train);
    valid.key = train.key = false;
    std::string html = "<div class=\"pair\">";
    html +=
        plot_card("Validation loss",
                  "mean over seeds, from least to largest; the last point is over the whole validation text", valid);
    html += plot_card("Training loss", "mean over seeds, from least to largest", train);
    const std::vector<report::PlotCurve> sweep = curves_of(summaries, [](const RecipeSummary& summary) {
        std::vector<std::pair<double, double>> points;
        for (const RateSummary& each : summary.rates) points.emplace_back(std::log10(each.rate), each.mean);
        std::sort(points.begin(), points.end());
        report::PlotCurve rates{.dots = true};
        for (const auto& [at, loss] : points) {
            rates.x.push_back(at);
            rates.y.push_back(loss);
        }
        return rates;
    });
    report::PlotAxis rates{
        .low = std::numeric_limits<double>::infinity(), .high = -rates.low, .label = "peak learning rate"};
    std::map<double, std::string> ticks;
    std::size_t place = 0;
    for (const RecipeSummary& summary : summaries)
        for (const RateSummary& rate : summary.rates) ticks[std::log10(rate.rate)] = concatenate(rate.rate);
    for (const auto& [at, text] : ticks) {
        rates.low = std::min(rates.low, at - 0.05);
        rates.high = std::max(rates.high, at + 0.05);
        // At most eight texts, from the least rate on.
        if (place++ % ((ticks.size() + 7) / 8) == 0) rates.ticks.push_back({at, text});
    }
    html += plot_card("Final validation loss by learning rate", "mean over seeds; the best is the one of the table",
                      report::Plot{.x = rates, .y = loss_axis(sweep, 0.0), .curves = sweep, .key = false});
    return html + "</div>\n";
}

/// The biases that a recipe's amax rules measured, over steps: a plot for each role and product, a curve for each
/// layer.
std::string bias_plots(const RecipeSummary& summary) {
    const RunResult& run = summary.best_rate().runs.front();
    std::map<std::pair<std::string, std::string>, report::Plot> plots;
    double low = std::numeric_limits<double>::infinity(), high = -low;
    std::map<std::string, std::pair<double, double>> ranges;
    for (const auto& [name, biases] : run.biases) {
        const BiasPlace place = bias_place(name);
        report::PlotCurve curve{.name = concatenate("layer ", place.layer), .look = place.layer};
        auto& range = ranges.try_emplace(place.role, low, high).first->second;
        for (std::size_t i = 0; i < biases.size(); ++i) {
            curve.x.push_back(static_cast<double>(run.bias_steps[i]));
            curve.y.push_back(biases[i]);
            range = {std::min(range.first, curve.y.back()), std::max(range.second, curve.y.back())};
        }
        plots[{place.role, place.product}].curves.push_back(std::move(curve));
    }
    if (plots.empty()) return "";
    std::string html =
        concatenate("<div class=\"card\"><h2>", report::escaped(summary.recipe.name),
                    ": biases over training, by layer and role</h2><span class=\"soft\">an operand is multiplied by "
                    "2<sup>bias</sup> before it is rounded; seed ",
                    run.run.seed, "; curves, by layer:");
    std::map<std::size_t, bool> layers;
    for (const auto& [name, biases] : run.biases) layers[bias_place(name).layer] = true;
    for (const auto& [layer, is] : layers)
        html += concatenate(" <svg class=\"swatch ", report::look_classes(layer),
                            "\" viewBox=\"0 0 22 12\"><path class=\"curve\" d=\"M0 6H22\"/></svg>", layer);
    html += "</span>";
    std::string role;
    for (auto& [key, plot] : plots) {
        if (key.first != role)
            html += concatenate(role.empty() ? "" : "</div>", "<h2>", key.first,
                                key.first.find('.') == std::string::npos ? "s" : "", "</h2><div class=\"grid\">");
        role = key.first;
        plot.x = report::linear_axis(1.0, static_cast<double>(run.steps), "step", 4);
        plot.y = report::linear_axis(ranges[role].first - 0.5, ranges[role].second + 0.5, "bias", 5, true);
        plot.width = 300.0;
        plot.height = 130.0;
        plot.key = plot.alone = false;
        plot.label = concatenate("biases of the ", role, " of ", key.second);
        html += concatenate("<div><h3>", report::escaped(key.second), "</h3>", report::svg_plot(plot), "</div>");
    }
    return html + "</div></div>\n";
}

std::string window_card(const BiasWindow& window) {
    report::PlotCurve losses{.name = "operands rounded to FP8", .y = window.losses, .dots = true};
    report::PlotCurve unrounded{.name = "not rounded", .look = 7};
    for (const int bias : window.biases) {
        losses.x.push_back(bias);
        unrounded.x.push_back(bias);
        unrounded.y.push_back(window.unrounded);
    }
    report::Plot plot{.curves = {losses, unrounded}};
    plot.x = report::linear_axis(losses.x.front(), losses.x.back(), "bias", 16, true);
    plot.y = loss_axis(plot.curves, 0.0);
    plot.label = "validation loss by constant bias";
    plot.alone = false;
    return concatenate(
        "<div class=\"card\"><h2>One constant bias for all (FP8-CSCALE)</h2><span class=\"soft\">the weights of ",
        report::escaped(window.run.text()),
        ", evaluated with every weight and activation of linear layers times 2<sup>bias</sup> before it is "
        "rounded</span>",
        report::svg_plot(plot), html_table(window_rows(window), [](std::size_t) { return ""; }), "</div>\n");
}

}  // namespace

report::PlotCurve mean_curve(const RateSummary& rate, std::vector<std::size_t> RunResult::*steps,
                             std::vector<double> RunResult::*values) {
    std::vector<const RunResult*> runs;
    for (const RunResult& run : rate.runs)
        if (!run.failed || rate.failed == rate.runs.size()) runs.push_back(&run);
    std::map<std::size_t, std::vector<double>> at;
    for (const RunResult* run : runs)
        for (std::size_t i = 0; i < (run->*steps).size(); ++i) at[(run->*steps)[i]].push_back((run->*values)[i]);
    report::PlotCurve curve;
    for (const auto& [step, all] : at) {
        if (all.size() != runs.size()) continue;
        double sum = 0.0;
        for (const double value : all) sum += value;
        curve.x.push_back(static_cast<double>(step));
        curve.y.push_back(sum / static_cast<double>(all.size()));
        if (runs.size() > 1) {
            curve.low.push_back(*std::min_element(all.begin(), all.end()));
            curve.high.push_back(*std::max_element(all.begin(), all.end()));
        }
    }
    return curve;
}

report::PlotAxis loss_axis(const std::vector<report::PlotCurve>& curves, double steps) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const report::PlotCurve& curve : curves)
        for (std::size_t i = 0; i < curve.y.size(); ++i) {
            if (!std::isfinite(curve.y[i])) continue;
            low = std::min(low, curve.y[i]);
            if (10.0 * curve.x[i] >= steps || steps == 0.0) high = std::max(high, curve.y[i]);
        }
    if (!std::isfinite(low)) low = 0.0;
    const double longest = low + 4.0 * (high - low);
    for (const report::PlotCurve& curve : curves) {
        const auto first = std::find_if(curve.y.begin(), curve.y.end(), [](double y) { return std::isfinite(y); });
        if (first != curve.y.end() && *first <= longest) high = std::max(high, *first);
    }
    if (!(high > low)) high = low + 1.0;
    return report::linear_axis(low - 0.04 * (high - low), high + 0.04 * (high - low), "bits per character");
}

std::string comparison_plot(const std::vector<RecipeSummary>& summaries, const report::PageSource& source) {
    std::size_t seeds = 0;
    for (const RecipeSummary& summary : summaries) seeds = std::max(seeds, summary.best_rate().runs.size());
    report::Plot plot = plot_over_steps(summaries, &RunResult::valid_steps, &RunResult::valid);
    if (std::all_of(plot.curves.begin(), plot.curves.end(), [](const auto& curve) { return curve.x.empty(); }))
        return "";
    plot.title = concatenate("Validation loss, ", seeds, seeds == 1 ? " seed" : " seeds");
    plot.label = plot.title + " of a character model over training steps, by recipe";
    plot.source = source;
    return report::svg_plot(plot);
}

BiasPlace bias_place(const std::string& name) {
    const std::size_t bar = name.rfind('|'), block = name.find("/block");
    BiasPlace place{.role = name.substr(bar + 1), .product = name.substr(0, bar)};
    if (block == std::string::npos) return place;
    std::size_t end = block + 6;
    for (; end < bar && name[end] >= '0' && name[end] <= '9'; ++end)
        place.layer = 10 * place.layer + static_cast<std::size_t>(name[end] - '0');
    if (end > block + 6 && end < bar && name[end] == '/') place.product = name.substr(end + 1, bar - end - 1);
    return place;
}

std::string comparison_page(const std::vector<RecipeSummary>& summaries, std::string_view heading,
                            const std::optional<BiasWindow>& window, const report::PageSource& source) {
    const auto swatch = [&](std::size_t i) {
        return concatenate("<label title=\"", report::escaped(summaries[i].recipe.description),
                           "\"><input type=\"checkbox\" checked data-recipe=\"", i, "\"><svg class=\"swatch ",
                           report::look_classes(i),
                           "\" viewBox=\"0 0 22 12\"><path class=\"curve\" d=\"M0 6H22\"/></svg></label>");
    };
    std::string body = concatenate("<main><h1>Recipes compared</h1><p class=\"soft\">", report::escaped(heading),
                                   "</p>\n", report::source_paragraph(source));
    for (const std::string& line : failure_lines(summaries))
        body += concatenate("<div class=\"alert\">", report::escaped(line), "</div>\n");
    body += "<div class=\"card\">" + html_table(comparison_rows(summaries), swatch);
    (body += comparison_note) += "</div>\n";
    body += loss_plots(summaries);
    if (const auto rows = zero_rows(summaries); rows.front().size() > 1) {
        body += "<div class=\"card\"><h2>Gradients that became zero</h2>" +
                html_table(rows, [](std::size_t) { return ""; });
        (body += zeros_note) += "</div>\n";
    }
    if (const auto rows = overflow_rows(summaries); rows.size() > 1) {
        body +=
            "<div class=\"card\"><h2>Elements that overflowed</h2>" + html_table(rows, [](std::size_t) { return ""; });
        (body += overflows_note) += "</div>\n";
    }
    for (const RecipeSummary& summary : summaries) body += bias_plots(summary);
    if (window) body += window_card(*window);
    body += "</main><script>";
    (body += comparison_script) += "</script>";
    return figures_page("Recipes compared", body);
}

}  // namespace unitscale::experiments
