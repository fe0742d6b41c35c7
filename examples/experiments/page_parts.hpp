// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/report/svg_plot.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// Shared parts of the pages about many runs. Test: tests/experiments/page_parts_test.cpp
namespace unitscale::experiments {

/// The style of tables, plots and maps on a page. A plot keeps its size, and so its letters: in a narrow window the
/// card around it scrolls.
inline constexpr std::string_view figures_style = R"css(
html { scroll-padding-top: 20px; }
main { max-width: 1760px; }
main > .card { margin-top: 16px; }
main > .soft { margin: 4px 0 0; }
svg.chart { display: block; }
.pair { display: flex; flex-wrap: wrap; align-items: start; gap: 16px; margin-top: 16px; }
.pair > .card { width: min-content; max-width: 100%; }
.grid { display: flex; flex-wrap: wrap; gap: 4px 14px; }
.grid > div { max-width: 100%; overflow-x: auto; }
.grid h3 { font-size: 13px; font-weight: 550; margin: 8px 0 0; }
td:not(:first-child), th:not(:first-child) { text-align: right; white-space: nowrap; }
svg.swatch { vertical-align: -1px; margin-right: 6px; }
.card > h2:not(:first-child) { margin-top: 14px; }
.hidden { display: none; }
)css";

/// A share in percent. A positive share below a hundredth of a percent does not print as 0.
[[nodiscard]] std::string share_text(double share);

/// Rows as an HTML table; the first row is the header. `lead(i)` is markup before the first cell of row i after it.
[[nodiscard]] std::string html_table(const std::vector<std::vector<std::string>>& rows,
                                     const std::function<std::string(std::size_t)>& lead);

/// A card with a plot; empty if no curve has two points.
[[nodiscard]] std::string plot_card(std::string_view title, std::string_view note, report::Plot plot);

/// A whole page with tables and plots. `title` is plain text, `body` markup.
[[nodiscard]] std::string figures_page(std::string_view title, std::string_view body);

}  // namespace unitscale::experiments
