// SPDX-License-Identifier: MIT
#include <unitscale/record/softmax_factors.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

using namespace unitscale;

TEST_CASE("softmax factors: attention without a mask has the factors of its softmax and its second product") {
    for (const double m : {0.5, 1.0, 8.0, 40.0})
        for (const double s : {2.0, 16.0, 100.0}) {
            const std::size_t d = 16;
            const auto softmax = ops::softmax_unit_factors(m / 4.0, s, ops::SoftmaxRule::fitted);
            CHECK(ops::attention_unit_factor(m, d, s, false) == Approx(softmax.alpha / std::sqrt(s)));
        }
}

TEST_CASE("softmax factors: a window's variance is the mean over positions of 1 over the keys that each sees") {
    for (const std::size_t window : {2u, 16u, 100u}) {
        const std::size_t s = 400;
        double sum = 0.0;
        for (std::size_t i = 1; i <= s; ++i) sum += 1.0 / static_cast<double>(std::min(i, window));
        CHECK(ops::attention_unit_factor(1e-6, 16, s, true, window) ==
              Approx(std::sqrt(static_cast<double>(s) / sum)).epsilon(0.1));
    }
    CHECK(ops::attention_unit_factor(1.0, 16, 64, true, 64) == ops::attention_unit_factor(1.0, 16, 64, true));
    CHECK(ops::attention_unit_factor(1.0, 16, 64, true, 65) == ops::attention_unit_factor(1.0, 16, 64, true));
    CHECK(ops::attention_unit_factor(1.0, 16, 64, true, 1) == 1.0);
}

TEST_CASE("softmax factors: limits for flat and for peaked probabilities") {
    CHECK(ops::softmax_unit_factors(1e-6, 64, ops::SoftmaxRule::fitted).alpha == Approx(64.0));
    CHECK(ops::softmax_unit_factors(1e6, 64, ops::SoftmaxRule::fitted).alpha == Approx(8.0));
    CHECK(ops::softmax_unit_factors(2.0, 64, ops::SoftmaxRule::flat).betas[0] == 32.0);
    CHECK(ops::softmax_unit_factors(2.0, 0, ops::SoftmaxRule::flat).alpha == 1.0);
    CHECK(ops::attention_unit_factor(1e6, 16, 64, true) == Approx(1.0));
    CHECK(ops::attention_logit_factor(1e-3, 4) == Approx(1.0 / 5e-4).epsilon(1e-3));
}
