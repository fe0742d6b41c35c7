// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/report/heat_table.hpp>
#include <unitscale/report/markup.hpp>
#include <unitscale/report/report_page.hpp>
#include <unitscale/report/svg_plot.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

// What pages about many runs share. Test: tests/experiments/page_parts_test.cpp
namespace unitscale::experiments {

/// How tables, plots and maps stand on a page.
inline constexpr std::string_view figures_style = R"css(
html { scroll-padding-top: 20px; }
main { max-width: 1480px; }
main > .card { margin-top: 16px; }
main > .soft { margin: 4px 0 0; }
svg.chart { max-width: 100%; height: auto; display: block; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; margin-top: 16px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(310px, 1fr)); gap: 4px 14px; }
.grid h3 { font-size: 13px; font-weight: 550; margin: 8px 0 0; }
@media (max-width: 1000px) { .pair { grid-template-columns: 1fr; } }
td:not(:first-child), th:not(:first-child) { text-align: right; white-space: nowrap; }
svg.swatch { vertical-align: -1px; margin-right: 6px; }
.hidden { display: none; }
)css";

/// Rows as an HTML table; `lead(i)` is markup before the first cell of row i, which the header does not have.
template <class Lead>
[[nodiscard]] std::string html_table(const std::vector<std::vector<std::string>>& rows, Lead&& lead) {
    std::string html = "<table>";
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const char* tag = i == 0 ? "th" : "td";
        html += "<tr>";
        for (std::size_t j = 0; j < rows[i].size(); ++j)
            html += concatenate('<', tag, '>', i > 0 && j == 0 ? lead(i - 1) : "", report::escaped(rows[i][j]), "</",
                                tag, '>');
        html += "</tr>\n";
    }
    return html + "</table>";
}

/// A card with a plot in it; nothing if there is no curve of two points.
[[nodiscard]] inline std::string plot_card(std::string_view title, std::string_view note, report::Plot plot) {
    const bool drawable =
        std::any_of(plot.curves.begin(), plot.curves.end(), [](const auto& curve) { return curve.x.size() > 1; });
    if (!drawable) return "";
    plot.label = title;
    plot.alone = false;
    return concatenate("<div class=\"card recipes\"><h2>", title, "</h2><span class=\"soft\">", note, "</span>",
                       report::svg_plot(plot), "</div>\n");
}

/// A whole page with tables and plots in it. `title` is text, `body` markup.
[[nodiscard]] inline std::string figures_page(std::string_view title, std::string_view body) {
    std::string style(report::report_style);
    ((style += report::svg_plot_style) += report::heat_table_style) += figures_style;
    return report::html_page(title, style, body);
}

}  // namespace unitscale::experiments
