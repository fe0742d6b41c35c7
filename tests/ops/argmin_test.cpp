// SPDX-License-Identifier: MIT
#include <unitscale/ops/argmin.hpp>

#include "support/extreme_checks.hpp"

#include <functional>

using namespace unitscale;

namespace {
const auto argmin = [](const auto& x, const ops::ArgmaxOptions& options) { return ops::argmin(x, options); };
}  // namespace

TEST_CASE("argmin: along each axis, and over all elements") {
    test::check_places(argmin, {0, 1}, {1, 1, 1}, 4, std::less<double>());
}

TEST_CASE("argmin: the first NaN is the smallest; nothing is recorded") {
    CHECK(test::place_beside_nan(argmin, -5.0f) == test::Places{1});
}

TEST_CASE("argmin: errors") { test::check_place_errors("argmin", argmin); }
