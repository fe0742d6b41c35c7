// SPDX-License-Identifier: MIT
#include <unitscale/ops/max.hpp>

#include "support/extreme_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
const auto max = [](const auto& x, const ops::UnruledReductionOptions& options) { return ops::max(x, options); };
}  // namespace

TEST_CASE("max: gradient and value, with stated factors") { test::check_reduction_factors(max); }

TEST_CASE("max: the gradient goes to the first of equals") {
    test::check_first_of_equals(max, {1, 7, 7, -4, -5, -4}, 7.0, -4.0);
}

TEST_CASE("max: a NaN is the largest") { CHECK(std::isnan(test::extreme_beside_nan(max))); }

TEST_CASE("max: empty inputs and errors") { test::check_extreme_along_axes_errors("max", max); }

TEST_CASE("max: propagates scales") { test::check_extreme_along_axes_propagates(max); }
