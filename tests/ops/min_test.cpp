// SPDX-License-Identifier: MIT
#include <unitscale/ops/min.hpp>

#include "support/extreme_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
const auto min = [](const auto& x, const ops::UnruledReductionOptions& options) { return ops::min(x, options); };
}  // namespace

TEST_CASE("min: gradient and value, with stated factors") { test::check_reduction_factors(min); }

TEST_CASE("min: the gradient goes to the first of equals") {
    test::check_first_of_equals(min, {9, 7, 7, 4, 5, 4}, 7.0, 4.0);
}

TEST_CASE("min: a NaN is the smallest") { CHECK(std::isnan(test::extreme_beside_nan(min))); }

TEST_CASE("min: empty inputs and errors") { test::check_extreme_along_axes_errors("min", min); }

TEST_CASE("min: propagates scales") { test::check_extreme_along_axes_propagates(min); }
