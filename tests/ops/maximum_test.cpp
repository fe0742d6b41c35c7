// SPDX-License-Identifier: MIT
#include <unitscale/ops/maximum.hpp>

#include "support/extreme_checks.hpp"

#include <numbers>

using namespace unitscale;

namespace {
const auto maximum = [](const auto& x, const auto& z, const ops::MaximumOptions& options) {
    return ops::maximum(x, z, options);
};
}  // namespace

TEST_CASE("maximum: gradient, factors and value") { test::check_extreme_factors(maximum); }

TEST_CASE("maximum: unit scale") {
    CHECK(test::check_extreme_unit_scale(maximum) ==
          Approx(test::extreme_alpha * std::numbers::inv_sqrtpi).epsilon(0.02));
}

TEST_CASE("maximum: equal elements and NaN") { test::check_extreme_of_equals_and_nan(maximum, 5.0, false); }

TEST_CASE("maximum: empty inputs and errors") { test::check_extreme_errors("maximum", maximum); }

TEST_CASE("maximum: propagates scales") { test::check_extreme_propagates(maximum); }
