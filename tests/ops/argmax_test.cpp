// SPDX-License-Identifier: MIT
#include <unitscale/ops/argmax.hpp>

#include "support/extreme_checks.hpp"

#include <functional>

using namespace unitscale;

namespace {
const auto argmax = [](const auto& x, const ops::ArgmaxOptions& options) { return ops::argmax(x, options); };
}  // namespace

TEST_CASE("argmax: along each axis, and over all elements") {
    test::check_places(argmax, {1, 0}, {0, 0, 0}, 1, std::greater<double>());
}

TEST_CASE("argmax: the first NaN is the largest; nothing is recorded") {
    CHECK(test::place_beside_nan(argmax, 5.0f) == test::Places{1});
}

TEST_CASE("argmax: errors") { test::check_place_errors("argmax", argmax); }
