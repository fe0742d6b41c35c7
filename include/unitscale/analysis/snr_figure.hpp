// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/snr.hpp>
#include <unitscale/base/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace unitscale::analysis {

/// A power as SVG text: base and raised exponent, with a minus sign that is one.
[[nodiscard]] inline std::string svg_power(int base, int exponent) {
    return concatenate(base, "<tspan dy=\"-5\" font-size=\"75%\">", exponent < 0 ? "\u2212" : "", std::abs(exponent), "</tspan>");
}

/// The curves as one SVG image, signal-to-noise ratio over the scale of a normal tensor, both logarithmic. It follows the
/// reader's choice of light or dark. Names are those of formats and need no escaping.
/// Error: no curve. Test: tests/analysis/snr_figure_test.cpp
[[nodiscard]] inline std::string snr_figure(std::span<const SnrCurve> curves) {
    check(!curves.empty() && !curves.front().exponents.empty(), "snr_figure: no curve");
    constexpr double left = 66.0, top = 46.0, width = 620.0, height = 380.0;
    const double low = curves.front().exponents.front(), high = curves.front().exponents.back();
    double most = 10.0;
    for (const SnrCurve& curve : curves)
        for (const double ratio : curve.ratios)
            if (std::isfinite(ratio)) most = std::max(most, ratio);
    const double decades = std::ceil(std::log10(most) + 0.05);
    const auto x = [&](double exponent) { return left + width * (exponent - low) / (high - low); };
    const auto y = [&](double ratio) { return top + height - height * std::clamp(std::log10(ratio) / decades, 0.0, 1.0); };
    const auto number = [](double v) {
        char text[32];
        std::snprintf(text, sizeof text, "%.1f", v);
        return std::string(text);
    };

    std::string svg =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 490\" width=\"860\" height=\"490\" role=\"img\" "
        "aria-label=\"signal-to-noise ratio of number formats\">\n<style>\n"
        "svg { --page: #fff; --ink: #1c1e21; --soft: #5d646d; --grid: #e6e8ea; --one: #9aa1a9; --c0: #2463c9; --c1: #c2570c; "
        "--c2: #0b7d6b; --c3: #8443b8; --c4: #b3261e; --c5: #6a6f00; --c6: #0a7ea8; --c7: #a03a78; "
        "font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; }\n"
        "@media (prefers-color-scheme: dark) { svg { --page: #15171a; --ink: #e6e8ea; --soft: #9ba3ac; --grid: #2a2e33; "
        "--one: #68717a; --c0: #74a9ff; --c1: #ffa05c; --c2: #4fd0b6; --c3: #cb9dff; --c4: #ff8a80; --c5: #d2d65a; --c6: "
        "#62c9ee; "
        "--c7: #f295c9; } }\n"
        "text { fill: var(--soft); } .title { fill: var(--ink); font-size: 16px; font-weight: 600; } .name { fill: var(--ink); "
        "}\n"
        ".curve { fill: none; stroke-width: 2; stroke-linejoin: round; }\n</style>\n"
        "<rect width=\"860\" height=\"490\" fill=\"var(--page)\"/>\n";
    svg += concatenate("<text class=\"title\" x=\"", left, "\" y=\"26\">Signal-to-noise ratio of a normal tensor</text>\n");
    const auto line = [&](double x1, double y1, double x2, double y2, bool strong) {
        svg += concatenate("<path d=\"M", number(x1), ' ', number(y1), 'L', number(x2), ' ', number(y2), "\" stroke=\"var(",
                           strong ? "--one" : "--grid", ")\"/>\n");
    };
    const auto label = [&](double at_x, double at_y, std::string_view anchor, const std::string& text) {
        svg += concatenate("<text x=\"", number(at_x), "\" y=\"", number(at_y), "\" text-anchor=\"", anchor, "\">", text,
                           "</text>\n");
    };
    for (int tick = static_cast<int>(std::ceil(low)); tick <= static_cast<int>(high); ++tick) {
        if (tick % 4 != 0) continue;
        line(x(tick), top, x(tick), top + height, tick == 0);
        label(x(tick), top + height + 20.0, "middle", svg_power(2, tick));
    }
    for (int decade = 0; decade <= static_cast<int>(decades); ++decade) {
        const double at = top + height - height * decade / decades;
        line(left, at, left + width, at, decade == 0);
        label(left - 8.0, at + 5.0, "end", svg_power(10, decade));
    }
    label(left + width / 2.0, top + height + 46.0, "middle", "standard deviation of the tensor");

    for (std::size_t i = 0; i < curves.size(); ++i) {
        const SnrCurve& curve = curves[i];
        const std::string stroke =
            concatenate("stroke=\"var(--c", i % 8, ")\"", i / 8 % 2 == 1 ? " stroke-dasharray=\"6 4\"" : "");
        svg += concatenate("<path class=\"curve\" ", stroke, " d=\"");
        for (std::size_t j = 0; j < curve.ratios.size(); ++j) {
            svg += j == 0 ? 'M' : 'L';
            svg += number(x(curve.exponents[j])) + ' ' + number(y(curve.ratios[j]));
        }
        svg += concatenate("\"><title>", curve.format.label, "</title></path>\n");
        const double at = top + 12.0 + 24.0 * static_cast<double>(i);
        svg += concatenate("<path class=\"curve\" ", stroke, " d=\"M", number(left + width + 22.0), ' ', number(at), "h26\"/>\n");
        svg += concatenate("<text class=\"name\" x=\"", number(left + width + 56.0), "\" y=\"", number(at + 4.5), "\">",
                           curve.format.label, "</text>\n");
    }
    return svg + "</svg>\n";
}

}  // namespace unitscale::analysis
