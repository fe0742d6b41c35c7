// SPDX-License-Identifier: MIT
#include "experiments/page_parts.hpp"
#include "support/catch.hpp"
#include "support/page.hpp"

#include <unitscale/report/heat_table.hpp>
#include <unitscale/report/report_page.hpp>
#include <unitscale/report/svg_plot.hpp>

#include <cstddef>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::Page;
using test::PageElement;
using test::Texts;

TEST_CASE("page parts: a table has a header, escaped text and an element at the start of each row") {
    const Page page(html_table({{"a", "b"}, {"1<2", "x"}, {"3", "y&"}},
                               [](std::size_t row) { return "<i>" + std::to_string(row) + "</i>"; }));
    CHECK(page.problems() == Texts{});
    REQUIRE(page.count("table") == 1);
    CHECK(page.rows(*page.all("table")[0]) == std::vector<Texts>{{"a", "b"}, {"01<2", "x"}, {"13", "y&"}});
    CHECK(page.texts("th") == Texts{"a", "b"});  // the first row alone
    CHECK(page.texts("i") == Texts{"0", "1"});
    for (const PageElement* lead : page.all("i")) CHECK(page.parent(*lead).text.starts_with(lead->text));
    CHECK(Page(html_table({}, [](std::size_t) { return ""; })).problems() == Texts{});
}

TEST_CASE("page parts: shares are percentages, and a small one is not 0") {
    CHECK(share_text(0.0) == "0");
    CHECK(share_text(1e-6) == "<0.01 %");
    CHECK(share_text(0.0123) == "1.23 %");
    CHECK(share_text(0.5) == "50.0 %");
    CHECK(share_text(1.0) == "100.0 %");
}

TEST_CASE("page parts: a plot needs a curve of two points") {
    report::Plot plot{.curves = {{.name = "one", .x = {1.0}, .y = {2.0}}}};
    CHECK(plot_card("title", "note", plot).empty());
    plot.curves.push_back({.name = "two", .x = {0.0, 1.0}, .y = {0.0, 1.0}});
    const Page page(plot_card("title", "note", plot));
    CHECK(page.problems() == Texts{});
    CHECK(page.texts("h2") == Texts{"title"});
    CHECK(page.texts("span") == Texts{"note"});
    CHECK(page.count("div", "card") == 1);
    CHECK(page.count("div", "recipes") == 1);  // the class that a comparison's script selects
    const auto curves = curves_of(page, "title");
    REQUIRE(curves.size() == 2);
    REQUIRE(curves.at("two").size() == 1);
    CHECK(curves.at("two")[0].size() == 2);
    CHECK(page.count("style") == 0);  // the page has one style for all charts
    const Page odd(plot_card("a < b", "c & d", plot));
    CHECK(odd.problems() == Texts{});
    CHECK(odd.texts("h2") == Texts{"a < b"});
    CHECK(odd.texts("span") == Texts{"c & d"});
}

TEST_CASE("page parts: a page brings all styles along") {
    const Page page(figures_page("a & b", "<main>body</main>"));
    CHECK(page.problems() == Texts{});
    CHECK(page.requests() == Texts{});
    CHECK(page.texts("title") == Texts{"a & b"});
    CHECK(page.texts("body") == Texts{"body"});
    REQUIRE(page.count("style") == 1);
    const std::string style = page.texts("style")[0];
    for (const std::string_view part :
         {report::report_style, report::svg_plot_style, report::heat_table_style, figures_style})
        CHECK(style.find(part) != std::string::npos);
    // Pictures keep their size in narrow windows: no rule for them has a width.
    for (std::size_t at = style.find("svg.chart {"); at != std::string::npos; at = style.find("svg.chart {", at + 1))
        CHECK(style.substr(at, style.find('}', at) - at).find("width") == std::string::npos);
    for (const char* name : {"svg.chart", "table.heat", ".pair", ".card"}) CHECK(style.find(name) != std::string::npos);
}
