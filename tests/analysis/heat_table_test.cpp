// SPDX-License-Identifier: MIT
#include <unitscale/analysis/heat_table.hpp>

#include "support/catch.hpp"

#include <limits>
#include <string>

using namespace unitscale;
using namespace unitscale::analysis;

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

TEST_CASE("heat table: every value is text, the first best is marked, what failed and what is missing is told apart") {
    const std::string html = heat_table({.caption = "a < b",
                                         .row_name = "width",
                                         .column_name = "lr",
                                         .rows = {"32", "64"},
                                         .columns = {"0.5", "1", "2"},
                                         .numbers = {{2.5, 2.0, infinity}, {2.0, missing, 2.03}}});
    CHECK(html ==
          "<table class=\"heat\"><caption>a &lt; b</caption><tr><th scope=\"col\">width \\ lr</th>"
          "<th scope=\"col\">0.5</th><th scope=\"col\">1</th><th scope=\"col\">2</th></tr>\n"
          "<tr><th scope=\"row\">32</th><td class=\"h6\">2.500</td><td class=\"h0 best\">2.000</td>"
          "<td class=\"h7\">failed</td></tr>\n"
          "<tr><th scope=\"row\">64</th><td class=\"h0\">2.000</td><td class=\"h7\"></td><td class=\"h2\">2.030</td></tr>\n"
          "</table>");
    CHECK(heat_table({.rows = {"1"}, .columns = {"2"}, .numbers = {{infinity}}}).find("best") == std::string::npos);
}

TEST_CASE("heat table: numbers are as many as the places") {
    REQUIRE_THROWS_WITH(heat_table({.rows = {"1", "2"}, .columns = {"1"}, .numbers = {{1.0}}}),
                        "heat_table: 2 rows, but numbers for 1");
    REQUIRE_THROWS_WITH(heat_table({.rows = {"1"}, .columns = {"1"}, .numbers = {{1.0, 2.0}}}),
                        "heat_table: 1 columns, but a row of 2");
}
