// SPDX-License-Identifier: MIT
#include <unitscale/scaling/factors.hpp>

#include "support/catch.hpp"

using namespace unitscale;

TEST_CASE("logint is low at 0, high at 1 and their geometric mean half way") {
    REQUIRE(logint(0.0, 3.0, 48.0) == Approx(3.0).epsilon(1e-14));
    REQUIRE(logint(1.0, 3.0, 48.0) == Approx(48.0).epsilon(1e-14));
    REQUIRE(logint(0.5, 3.0, 48.0) == Approx(12.0).epsilon(1e-14));
    REQUIRE(logint(0.25, 16.0, 1.0) == Approx(8.0).epsilon(1e-14));
}

TEST_CASE("logint gives the gelu factor of the reference at multiplier 1") {
    REQUIRE(logint(1.0 / 1.25, 2.0, std::sqrt(2.0 / (1.0 - 1.0 / 3.14159265358979))) == Approx(1.767).epsilon(5e-4));
}

TEST_CASE("share_of_rows is rounded, and at least one row") {
    REQUIRE(share_of_rows(10, 1.0) == 10);
    REQUIRE(share_of_rows(10, 0.25) == 3);
    REQUIRE(share_of_rows(10, 0.24) == 2);
    REQUIRE(share_of_rows(10, 0.0) == 1);
    REQUIRE(share_of_rows(0, 0.5) == 0);
}

TEST_CASE("rsqrt_count is n to the power of minus one half, and 1 for nothing") {
    REQUIRE(rsqrt_count(1) == 1.0);
    REQUIRE(rsqrt_count(64) == 0.125);
    REQUIRE(rsqrt_count(3) == Approx(0.57735026918962576).epsilon(1e-15));
    REQUIRE(rsqrt_count(0) == 1.0);
}
