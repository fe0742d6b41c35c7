// SPDX-License-Identifier: MIT
#include <unitscale/report/heat_table.hpp>

#include "support/catch.hpp"
#include "support/page.hpp"

#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::report;
using test::Page;
using test::PageElement;
using test::Texts;

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity(), missing = std::numeric_limits<double>::quiet_NaN();
}

TEST_CASE("heat table: shades by the share above the least") {
    CHECK(heat_of(2.0, 2.0) == 0);
    CHECK(heat_of(2.01, 2.0) == 0);  // 0.5 %
    CHECK(heat_of(2.0101, 2.0) == 1);
    CHECK(heat_of(2.039, 2.0) == 2);  // 1.95 %
    CHECK(heat_of(2.3, 2.0) == 5);    // 15 %
    CHECK(heat_of(9.0, 2.0) == 6);
    CHECK(heat_of(infinity, 2.0) == 7);
    CHECK(heat_of(missing, 2.0) == 7);
}

TEST_CASE("heat table: every value is text, the first best is marked, failed and missing numbers differ") {
    const Page page(heat_table({.caption = "a < b",
                                .row_name = "width & more",
                                .column_name = "lr",
                                .rows = {"32", "64"},
                                .columns = {"0.5", "1", "<2>"},
                                .numbers = {{2.5, 2.0, infinity}, {2.0, missing, 2.03}}}));
    CHECK(page.problems() == Texts{});
    REQUIRE(page.count("table", "heat") == 1);
    CHECK(page.rows(*page.all("table")[0]) == std::vector<Texts>{{"width & more \\ lr", "0.5", "1", "<2>"},
                                                                 {"32", "2.500", "2.000", "failed"},
                                                                 {"64", "2.000", "", "2.030"}});
    CHECK(page.texts("caption") == Texts{"a < b"});
    Texts shades;
    for (const PageElement* cell : page.all("td"))
        for (int heat = 0; heat <= 7; ++heat)
            if (cell->has_class("h" + std::to_string(heat))) shades.push_back(std::to_string(heat));
    CHECK(shades == Texts{"6", "0", "7", "0", "7", "2"});
    const auto cells = page.all("td");
    REQUIRE(page.count("td", "best") == 1);
    CHECK(page.all("td", "best")[0] == cells[1]);
    Texts scopes;  // screen readers read out the row and the column of a number
    for (const PageElement* header : page.all("th")) scopes.push_back(header->attribute("scope"));
    CHECK(scopes == Texts{"col", "col", "col", "col", "row", "row"});
    for (int heat = 0; heat <= 7; ++heat)
        CHECK(heat_table_style.find(".h" + std::to_string(heat) + " {") != std::string_view::npos);
    CHECK(heat_table_style.find("td.best") != std::string_view::npos);
}

TEST_CASE("heat table: nothing is the best where all have failed") {
    CHECK(Page(heat_table({.rows = {"1"}, .columns = {"2"}, .numbers = {{infinity}}})).count("td", "best") == 0);
    CHECK(Page(heat_table({.rows = {"1"}, .columns = {"2"}, .numbers = {{missing}}})).count("td", "best") == 0);
}

TEST_CASE("heat table: numbers are as many as the places") {
    REQUIRE_THROWS_WITH(heat_table({.rows = {"1", "2"}, .columns = {"1"}, .numbers = {{1.0}}}),
                        "heat_table: 2 rows, but numbers for 1");
    REQUIRE_THROWS_WITH(heat_table({.rows = {"1"}, .columns = {"1"}, .numbers = {{1.0, 2.0}}}),
                        "heat_table: 1 columns, but a row of 2");
}
