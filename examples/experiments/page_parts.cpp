// SPDX-License-Identifier: MIT
#include "experiments/page_parts.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/report/heat_table.hpp>
#include <unitscale/report/markup.hpp>
#include <unitscale/report/report_page.hpp>

#include <algorithm>

namespace unitscale::experiments {

std::string share_text(double share) {
    if (share == 0.0) return "0";
    if (share < 1e-4) return "<0.01 %";
    return io::cell(share < 0.0995 ? "%.2f %%" : "%.1f %%", 100.0 * share);
}

std::string html_table(const std::vector<std::vector<std::string>>& rows,
                       const std::function<std::string(std::size_t)>& lead) {
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

std::string plot_card(std::string_view title, std::string_view note, report::Plot plot) {
    const bool drawable =
        std::any_of(plot.curves.begin(), plot.curves.end(), [](const auto& curve) { return curve.x.size() > 1; });
    if (!drawable) return "";
    plot.label = title;
    plot.alone = false;
    plot.width = 540.0;  // two cards without a key fit into a window of 1400 pixels
    plot.height = 340.0;
    return concatenate("<div class=\"card recipes\"><h2>", report::escaped(title), "</h2><span class=\"soft\">",
                       report::escaped(note), "</span>", report::svg_plot(plot), "</div>\n");
}

std::string figures_page(std::string_view title, std::string_view body) {
    std::string style(report::report_style);
    ((style += report::svg_plot_style) += report::heat_table_style) += figures_style;
    return report::html_page(title, style, body);
}

}  // namespace unitscale::experiments
