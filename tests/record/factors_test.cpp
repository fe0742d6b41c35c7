// SPDX-License-Identifier: MIT
#include <unitscale/record/factors.hpp>

#include "support/catch.hpp"

#include <array>

using namespace unitscale;

TEST_CASE("Factors: every factor is 1 unless it is given") {
    constexpr ops::Factors<3> none{}, alpha{.alpha = 2.0};
    CHECK(none.alpha == 1.0);
    CHECK(none.betas == std::array{1.0, 1.0, 1.0});
    CHECK(alpha.alpha == 2.0);
    CHECK(alpha.betas == none.betas);
    CHECK(alpha != none);
    constexpr ops::Factors<2> given{.alpha = 0.5, .betas = {3.0, 4.0}};
    CHECK(given == ops::Factors<2>{.alpha = 0.5, .betas = {3.0, 4.0}});
    CHECK(ops::Factors<2>{.betas = {3.0}}.betas == std::array{3.0, 0.0});  // missing betas of a short list are 0, not 1
}
