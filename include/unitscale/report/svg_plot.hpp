// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/report/markup.hpp>
#include <unitscale/report/plot_overlap.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Curves over two axes as SVG text, light or dark as the reader's system is. Axes are linear in the given numbers. For
// a logarithmic axis give logarithms, and ticks with matching texts. A picture has a fixed size, so that its text stays
// readable: a page lets a wide picture scroll and does not shrink it.
namespace unitscale::report {

/// Colours and lettering of the plots of a document. Colours belong to classes: not every program that shows SVG knows
/// variables of CSS. A stand-alone SVG contains the style; a page has it once.
inline constexpr std::string_view svg_plot_style = R"css(
svg.chart { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; }
svg.chart .back { fill: #fff; } svg.chart text { fill: #5d646d; }
svg.chart .title, svg.chart .name { fill: #1c1e21; }
svg.chart .tick { stroke: #e6e8ea; } svg.chart .strong { stroke: #9aa1a9; }
.c0 { color: #2463c9; } .c1 { color: #c2570c; } .c2 { color: #0b7d6b; } .c3 { color: #8443b8; }
.c4 { color: #b3261e; } .c5 { color: #6a6f00; } .c6 { color: #0a7ea8; } .c7 { color: #a03a78; }
@media (prefers-color-scheme: dark) {
  svg.chart .back { fill: #15171a; } svg.chart text { fill: #9ba3ac; }
  svg.chart .title, svg.chart .name { fill: #e6e8ea; }
  svg.chart .tick { stroke: #2a2e33; } svg.chart .strong { stroke: #68717a; }
  .c0 { color: #74a9ff; } .c1 { color: #ffa05c; } .c2 { color: #4fd0b6; } .c3 { color: #cb9dff; }
  .c4 { color: #ff8a80; } .c5 { color: #d2d65a; } .c6 { color: #62c9ee; } .c7 { color: #f295c9; } }
svg.chart .title { font-size: 16px; font-weight: 600; }
.curve { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.band { fill: currentColor; opacity: .16; } .beyond { fill: currentColor; }
.dash1 { stroke-dasharray: 6 4; } .dash2 { stroke-dasharray: 2 3; }
)css";

/// A tick of an axis; `text` is markup. A strong tick has a darker line.
struct PlotTick {
    double at = 0.0;
    std::string text{};
    bool strong = false;
};

struct PlotAxis {
    double low = 0.0, high = 1.0;
    std::vector<PlotTick> ticks{};
    std::string label{};
};

/// A curve. It has gaps where y is not finite. With `low` and `high` the band between them is filled.
struct PlotCurve {
    std::string name{};  ///< text for the key, and shown under the pointer
    std::vector<double> x{}, y{};
    std::vector<double> low{}, high{};
    std::size_t look = 0;  ///< colour and dashes: 24 different looks, then repeated
    bool dots = false;     ///< a dot at every point
};

struct Plot {
    std::string title{}, label{};  ///< text; the label is for screen readers
    PlotAxis x{}, y{};
    std::vector<PlotCurve> curves{};
    double width = 620.0, height = 380.0;  ///< of the frame
    bool key = true;                       ///< names beside the frame
    bool alone = true;                     ///< a stand-alone document, with `svg_plot_style`
    PageSource source{};                   ///< of a stand-alone document: its description
};

/// A power as SVG text: base and raised exponent, with the Unicode minus sign.
[[nodiscard]] inline std::string svg_power(int base, int exponent) {
    return concatenate(base, "<tspan dy=\"-5\" font-size=\"75%\">", exponent < 0 ? "\u2212" : "", std::abs(exponent),
                       "</tspan>");
}

/// A number of at most four significant digits, with the Unicode minus sign.
[[nodiscard]] inline std::string plot_number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", std::abs(value));
    return (value < 0.0 ? "\u2212" : "") + std::string(text);
}

/// An axis with about `count` ticks, a step of 1, 2 or 5 times a power of ten apart. `whole`: ticks at whole numbers
/// only.
[[nodiscard]] inline PlotAxis linear_axis(double low, double high, std::string label, int count = 6,
                                          bool whole = false) {
    if (!(high > low)) high = low + 1.0;
    PlotAxis axis{.low = low, .high = high, .label = std::move(label)};
    const double rough = (high - low) / count, power = std::pow(10.0, std::floor(std::log10(rough)));
    double step = power * (rough <= power ? 1.0 : rough <= 2.0 * power ? 2.0 : rough <= 5.0 * power ? 5.0 : 10.0);
    if (whole) step = std::max(step, 1.0);
    for (double tick = std::ceil(low / step); tick * step <= high + 1e-9 * (high - low); tick += 1.0)
        axis.ticks.push_back({tick * step, plot_number(tick == 0.0 ? 0.0 : tick * step)});
    return axis;
}

/// The CSS classes for the look of a curve or of its name.
[[nodiscard]] inline std::string look_classes(std::size_t look) {
    const std::size_t dash = look / 8 % 3;
    return concatenate('c', look % 8, dash == 0 ? "" : dash == 1 ? " dash1" : " dash2");
}

/// The plot as SVG. Parts outside the axes are cut off, 5 pixels beyond the frame: points on the frame are drawn whole.
/// A triangle at the frame's edge stands for a curve's first point if that lies above or below, and for every such
/// point of a curve with dots. Where curves would hide each other they take turns (`turns_of`).
/// Errors: no curve; a curve with lists of different lengths.
/// Test: tests/report/svg_plot_test.cpp
[[nodiscard]] inline std::string svg_plot(const Plot& plot) {
    check(!plot.curves.empty(), "svg_plot: no curve");
    for (const PlotCurve& curve : plot.curves)
        check(curve.x.size() == curve.y.size() && curve.low.size() == curve.high.size() &&
                  (curve.low.empty() || curve.low.size() == curve.x.size()),
              "svg_plot: the curve ", curve.name, " has ", curve.x.size(), " places, but ", curve.y.size(),
              " values and a band of ", curve.low.size(), " and ", curve.high.size());
    const double left = plot.y.label.empty() ? 66.0 : 82.0, top = plot.title.empty() ? 12.0 : 46.0;
    std::size_t longest = 0;
    for (const PlotCurve& curve : plot.curves) longest = std::max(longest, curve.name.size());
    const double key = std::max(174.0, 62.0 + 7.5 * static_cast<double>(longest));  // 7.5: the widest letter
    const double whole_width = left + plot.width + (plot.key ? key : 16.0);
    const double whole_height = top + plot.height + (plot.x.label.empty() ? 32.0 : 64.0);
    const auto x = [&](double at) { return plot.width * (at - plot.x.low) / (plot.x.high - plot.x.low); };
    // Far points are drawn at this distance, in pixels: the dashes of a line to a loss of 1e15 would fill the memory.
    static constexpr double far = 1e4;
    const auto y = [&](double at) {
        const double pixels = plot.height - plot.height * (at - plot.y.low) / (plot.y.high - plot.y.low);
        return std::isfinite(pixels) ? std::clamp(pixels, -far, far) : pixels;
    };
    const auto number = [](double v) { return fixed_decimals(std::clamp(v, -far, far), 1); };

    std::string svg = concatenate("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 ",
                                  whole_width, ' ', whole_height, "\" width=\"", whole_width, "\" height=\"",
                                  whole_height, "\" role=\"img\" aria-label=\"", escaped(plot.label), "\">\n");
    if (const std::string source = source_text(plot.source); plot.alone && !source.empty())
        svg += concatenate("<desc>", escaped(source), "</desc>\n");
    if (plot.alone)
        svg += concatenate("<style>", svg_plot_style, "</style>\n<rect width=\"", whole_width, "\" height=\"",
                           whole_height, "\" class=\"back\"/>\n");
    if (!plot.title.empty())
        svg += concatenate("<text class=\"title\" x=\"", left, "\" y=\"26\">", escaped(plot.title), "</text>\n");
    const auto line = [&](double x1, double y1, double x2, double y2, bool strong) {
        svg += concatenate("<path d=\"M", number(x1), ' ', number(y1), 'L', number(x2), ' ', number(y2),
                           "\" class=\"tick", strong ? " strong" : "", "\"/>\n");
    };
    const auto label = [&](double at_x, double at_y, std::string_view anchor, std::string_view text,
                           std::string_view more = "") {
        svg += concatenate("<text x=\"", number(at_x), "\" y=\"", number(at_y), "\" text-anchor=\"", anchor, '"', more,
                           '>', text, "</text>\n");
    };
    for (const PlotTick& tick : plot.x.ticks) {
        line(left + x(tick.at), top, left + x(tick.at), top + plot.height, tick.strong);
        label(left + x(tick.at), top + plot.height + 20.0, "middle", tick.text);
    }
    for (const PlotTick& tick : plot.y.ticks) {
        line(left, top + y(tick.at), left + plot.width, top + y(tick.at), tick.strong);
        label(left - 8.0, top + y(tick.at) + 5.0, "end", tick.text);
    }
    if (!plot.x.label.empty())
        label(left + plot.width / 2.0, top + plot.height + 46.0, "middle", escaped(plot.x.label));
    if (!plot.y.label.empty())
        label(20.0, top + plot.height / 2.0, "middle", escaped(plot.y.label),
              concatenate(" transform=\"rotate(-90 20 ", number(top + plot.height / 2.0), ")\""));

    std::vector<PlotLine> drawn;
    for (const PlotCurve& curve : plot.curves) {
        drawn.emplace_back();
        for (std::size_t i = 0; i < curve.x.size(); ++i) drawn.back().push_back({x(curve.x[i]), y(curve.y[i])});
    }
    const std::vector<std::vector<bool>> turns = turns_of(drawn, plot.width, plot.height);
    const double edge = 5.0;  // a dot's radius and half a line's width
    svg += concatenate("<svg class=\"frame\" x=\"", left - edge, "\" y=\"", top - edge, "\" width=\"",
                       plot.width + 2.0 * edge, "\" height=\"", plot.height + 2.0 * edge, "\" viewBox=\"", -edge, ' ',
                       -edge, ' ', plot.width + 2.0 * edge, ' ', plot.height + 2.0 * edge, "\">\n");
    for (std::size_t c = 0; c < plot.curves.size(); ++c) {
        const PlotCurve& curve = plot.curves[c];
        const std::string look = look_classes(curve.look);
        const auto begin = [&] {
            svg += concatenate("<g class=\"", look, "\" data-look=\"", curve.look, "\"><title>", escaped(curve.name),
                               "</title>");
        };
        begin();
        if (!curve.low.empty()) {
            std::string outline;
            for (std::size_t i = 0; i < curve.x.size(); ++i)
                if (std::isfinite(curve.high[i]))
                    outline +=
                        concatenate(outline.empty() ? 'M' : 'L', number(x(curve.x[i])), ' ', number(y(curve.high[i])));
            for (std::size_t i = curve.x.size(); i-- > 0;)
                if (std::isfinite(curve.low[i]))
                    outline += concatenate('L', number(x(curve.x[i])), ' ', number(y(curve.low[i])));
            if (!outline.empty()) svg += concatenate("<path class=\"band\" d=\"", outline, "Z\"/>");
        }
        // Dashes begin anew behind a gap. So each unbroken part of a dashed curve is a path of its own.
        constexpr std::array<std::array<double, 2>, 3> own_dashes = {{{0.0, 0.0}, {6.0, 4.0}, {2.0, 3.0}}};
        const auto [dash, space] = own_dashes[curve.look / 8 % 3];
        std::string path, dashes;
        const auto end_path = [&] {
            svg += concatenate("<path class=\"curve\"",
                               dashes.empty() ? "" : concatenate(" style=\"stroke-dasharray:", dashes, '"'), " d=\"",
                               path, "\"/>");
            path.clear();
        };
        const bool turned = std::find(turns[c].begin(), turns[c].end(), false) != turns[c].end();
        for (std::size_t i = 0; i < drawn[c].size();) {
            std::size_t end = i;
            for (; end < drawn[c].size() && std::isfinite(drawn[c][end].y); ++end)
                path += concatenate(end == i ? 'M' : 'L', number(drawn[c][end].x), ' ', number(drawn[c][end].y));
            if (turned && end > i) {
                dashes = turn_dashes(std::span(drawn[c]).subspan(i, end - i), turns[c], dash, space);
                end_path();
            }
            i = std::max(end, i + 1);
        }
        if (!turned) end_path();
        for (std::size_t i = 0; i < curve.x.size() && (curve.dots || i == 0); ++i) {
            const auto [at_x, at_y] = drawn[c][i];
            if (!std::isfinite(at_y)) continue;
            if (const bool above = at_y < 0.0; above || at_y > plot.height) {
                const double tip = above ? -edge + 1.0 : plot.height + edge - 1.0, base = tip + (above ? 7.0 : -7.0);
                svg +=
                    concatenate("<path class=\"beyond\" d=\"M", number(at_x), ' ', number(tip), 'L', number(at_x - 4.5),
                                ' ', number(base), 'L', number(at_x + 4.5), ' ', number(base), "Z\"/>");
            } else if (curve.dots) {
                svg += concatenate("<circle cx=\"", number(at_x), "\" cy=\"", number(at_y),
                                   "\" r=\"3.5\" fill=\"currentColor\"/>");
            }
        }
        svg += "</g>\n";
    }
    svg += "</svg>\n";
    if (plot.key)
        for (std::size_t i = 0; i < plot.curves.size(); ++i) {
            const double at = top + 12.0 + 24.0 * static_cast<double>(i);
            svg += concatenate("<g class=\"", look_classes(plot.curves[i].look), "\"><path class=\"curve\" d=\"M",
                               number(left + plot.width + 22.0), ' ', number(at), "h26\"/></g>");
            label(left + plot.width + 56.0, at + 4.5, "start", escaped(plot.curves[i].name), " class=\"name\"");
        }
    return svg + "</svg>\n";
}

}  // namespace unitscale::report
