// SPDX-License-Identifier: MIT
#include <unitscale/ops/minimum.hpp>

#include "support/extreme_checks.hpp"

#include <numbers>

using namespace unitscale;

namespace {
const auto minimum = [](const auto& x, const auto& z, const ops::MaximumOptions& options) {
    return ops::minimum(x, z, options);
};
}  // namespace

TEST_CASE("minimum: gradient, factors and value") { test::check_extreme_factors(minimum); }

TEST_CASE("minimum: unit scale") {
    CHECK(test::check_extreme_unit_scale(minimum) ==
          Approx(-test::extreme_alpha * std::numbers::inv_sqrtpi).epsilon(0.02));
}

TEST_CASE("minimum: equal elements and NaN") { test::check_extreme_of_equals_and_nan(minimum, 2.0, true); }

TEST_CASE("minimum: empty inputs and errors") { test::check_extreme_errors("minimum", minimum); }

TEST_CASE("minimum: propagates scales") { test::check_extreme_propagates(minimum); }
