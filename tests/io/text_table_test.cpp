// SPDX-License-Identifier: MIT
#include <unitscale/io/text_table.hpp>

#include "support/catch.hpp"

#include <limits>
#include <optional>

using namespace unitscale;
using namespace unitscale::io;

TEST_CASE("columns are as wide as their widest cell and two blanks apart") {
    CHECK(text_table({{"op", "alpha", "x"}, {"matmul", "1", "y"}, {"a", "", "z"}}) ==
          "op      alpha  x\n"
          "matmul  1      y\n"
          "a              z\n");
}

TEST_CASE("rows of different lengths, no rows, and characters of several bytes") {
    CHECK(text_table({}).empty());
    CHECK(text_table({{}, {"a"}, {"b", "c"}}) == "\na\nb  c\n");
    CHECK(text_table({{"\xC2\xB5P", "1"}, {"abc", "2"}}) == "\xC2\xB5P   1\nabc  2\n");
}

TEST_CASE("text table: a number as a cell, or a dash for none") {
    CHECK(io::cell("%.2f bits", 1.234) == "1.23 bits");
    CHECK(io::cell("%.2f", std::nullopt) == "-");
    CHECK(io::cell("%.2f", std::numeric_limits<double>::infinity()) == "-");
    CHECK(io::cell("%.2f", std::numeric_limits<double>::quiet_NaN()) == "-");
}
