// SPDX-License-Identifier: MIT
#include <unitscale/record/arguments.hpp>

#include "support/op_checks.hpp"

using namespace unitscale;

TEST_CASE("arguments: rows and last extent of a shape") {
    CHECK(ops::row_count({2, 3, 4}) == 6);
    CHECK(ops::row_count({4}) == 1);
    CHECK(ops::row_count({0, 4}) == 0);
    CHECK(ops::last_extent("op", "x", {2, 3, 4}) == 4);
    CHECK(ops::with_last_extent({2, 3, 4}, 7) == Shape{2, 3, 7});
    REQUIRE_THROWS_WITH(ops::last_extent("gelu", "x", Shape{}), "gelu: x has rank 0; expected at least one dimension");
}

TEST_CASE("arguments: axes from either end, and positive options") {
    CHECK(ops::front_axis("op", "x", {2, 3, 4}, 2) == 2);
    CHECK(ops::front_axis("op", "x", {2, 3, 4}, -3) == 0);
    REQUIRE_THROWS_WITH(ops::front_axis("op", "x", {2, 3}, 2), "op: axis 2 is outside x [2,3]");
    REQUIRE_THROWS_WITH(ops::front_axis("op", "x", Shape{}, -1), "op: axis -1 is outside x []");
    REQUIRE_NOTHROW(ops::check_positive("op", "mult", 1e-300));
    REQUIRE_THROWS_WITH(ops::check_positive("op", "mult", 0.0), "op: mult is 0; expected a positive number");
    REQUIRE_THROWS_WITH(ops::check_positive("op", "mult", std::nan("")), "op: mult is nan; expected a positive number");
    REQUIRE_THROWS_WITH(ops::check_positive("op", "mult", std::numeric_limits<double>::infinity()),
                        "op: mult is inf; expected a positive number");
}
