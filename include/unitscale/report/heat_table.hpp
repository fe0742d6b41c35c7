// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/report/markup.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

// Numbers over two axes as an HTML table. The closer a number is to the least, the darker is its cell. Every value is
// text, so that no reader depends on the colours.
namespace unitscale::report {

/// Colours, light or dark as the reader's system is. Text has a contrast of at least 4.5 to 1 to every colour.
inline constexpr std::string_view heat_table_style = R"css(
table.heat { --heat: 36 99 201; display: inline-table; width: auto; margin: 6px 28px 6px 0; vertical-align: top;
  border-collapse: separate; border-spacing: 2px; }
@media (prefers-color-scheme: dark) { table.heat { --heat: 116 169 255; } }
table.heat td, table.heat th { padding: 4px 9px; border: 0; text-align: right; white-space: nowrap; }
table.heat caption { text-align: left; color: var(--soft); }
.h0 { background: rgb(var(--heat) / .45); } .h1 { background: rgb(var(--heat) / .37); }
.h2 { background: rgb(var(--heat) / .29); } .h3 { background: rgb(var(--heat) / .22); }
.h4 { background: rgb(var(--heat) / .15); } .h5 { background: rgb(var(--heat) / .08); }
.h6 { background: none; }
table.heat td.best { font-weight: 700; outline: 2px solid currentColor; outline-offset: -2px; }
.h7 { color: var(--soft); font-style: italic; }
)css";

/// The table's numbers by row. NaN gives an empty cell, infinity gives `failed`.
struct HeatTable {
    std::string caption{};                       ///< text
    std::string row_name{}, column_name{};       ///< of the axes
    std::vector<std::string> rows{}, columns{};  ///< their values
    std::vector<std::vector<double>> numbers{};
};

/// The class of a number: 0 to 5 for at most 0.5, 1, 2, 4, 8, 16 % above the least, 6 for more, 7 for NaN and infinity.
[[nodiscard]] inline int heat_of(double number, double least) {
    if (!std::isfinite(number)) return 7;
    int heat = 0;
    for (double limit = 0.005; heat < 6 && number > least + limit * std::abs(least); limit *= 2.0) ++heat;
    return heat;
}

/// The table as HTML. The first of the least numbers is marked. Error: the number of values is not rows times columns.
/// Test: tests/report/heat_table_test.cpp
[[nodiscard]] inline std::string heat_table(const HeatTable& table) {
    double least = std::numeric_limits<double>::infinity();
    check(table.numbers.size() == table.rows.size(), "heat_table: ", table.rows.size(), " rows, but numbers for ",
          table.numbers.size());
    for (const std::vector<double>& row : table.numbers) {
        check(row.size() == table.columns.size(), "heat_table: ", table.columns.size(), " columns, but a row of ",
              row.size());
        for (const double number : row)
            if (number < least) least = number;
    }
    std::string html =
        concatenate("<table class=\"heat\"><caption>", escaped(table.caption), "</caption><tr><th scope=\"col\">",
                    escaped(table.row_name), " \\ ", escaped(table.column_name), "</th>");
    for (const std::string& column : table.columns) html += concatenate("<th scope=\"col\">", escaped(column), "</th>");
    html += "</tr>\n";
    bool marked = false;
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
        html += concatenate("<tr><th scope=\"row\">", escaped(table.rows[i]), "</th>");
        for (const double number : table.numbers[i]) {
            const bool best = !marked && number == least && std::isfinite(least);
            marked = marked || best;
            const std::string text = std::isfinite(number) ? fixed_decimals(number, 3)
                                     : std::isinf(number)  ? "failed"
                                                           : "";
            html += concatenate("<td class=\"h", heat_of(number, least), best ? " best" : "", "\">", text, "</td>");
        }
        html += "</tr>\n";
    }
    return html + "</table>";
}

}  // namespace unitscale::report
