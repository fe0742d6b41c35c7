// SPDX-License-Identifier: MIT
#include <unitscale/train/page_parts.hpp>

#include "support/catch.hpp"

#include <string>

using namespace unitscale;
using namespace unitscale::train;

TEST_CASE("page parts: a table has a header, text that is escaped, and what leads its rows") {
    const std::string html =
        html_table({{"a", "b"}, {"1<2", "x"}, {"3", "y"}}, [](std::size_t row) { return "<i>" + std::to_string(row) + "</i>"; });
    CHECK(html ==
          "<table><tr><th>a</th><th>b</th></tr>\n<tr><td><i>0</i>1&lt;2</td><td>x</td></tr>\n"
          "<tr><td><i>1</i>3</td><td>y</td></tr>\n</table>");
}

TEST_CASE("page parts: a plot needs a curve of two points") {
    analysis::Plot plot{.curves = {{.name = "one", .x = {1.0}, .y = {2.0}}}};
    CHECK(plot_card("title", "note", plot).empty());
    plot.curves.push_back({.name = "two", .x = {0.0, 1.0}, .y = {0.0, 1.0}});
    const std::string html = plot_card("title", "note", plot);
    CHECK(html.starts_with("<div class=\"card recipes\"><h2>title</h2>"));
    CHECK(html.find("aria-label=\"title\"") != std::string::npos);
    CHECK(html.find("<style>") == std::string::npos);  // the page's own
}

TEST_CASE("page parts: a page brings all styles along") {
    const std::string page = figures_page("a & b", "<main>body</main>");
    CHECK(page.starts_with("<!DOCTYPE html>"));
    CHECK(page.find("<title>a &amp; b</title>") != std::string::npos);
    for (const char* style : {"svg.chart", "table.heat", ".pair", ".card"}) CHECK(page.find(style) != std::string::npos);
    CHECK(page.ends_with("<main>body</main></body></html>\n"));
}
