// SPDX-License-Identifier: MIT
#include <unitscale/scaling/residual.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

using namespace unitscale;

namespace {

/// The shares of variance in the last output that come from the stream's start and from every branch. Branches are
/// independent, and a branch of layer i has variance f[i]: y = (tau f + x) / sqrt(tau^2 + 1), layer after layer.
std::vector<double> variance_shares(const ResidualRule& rule, const std::vector<double>& f, double& worst_std) {
    std::vector<double> share = {1.0};
    worst_std = 0.0;
    for (std::size_t i = 0; i < f.size(); ++i) {
        const double tau = residual_tau(rule, i, f.size());
        double total = 0.0;
        for (double& part : share) total += part /= tau * tau + 1.0;
        share.push_back(tau * tau * f[i] / (tau * tau + 1.0));
        total += share.back();
        worst_std = std::max(worst_std, std::abs(std::sqrt(total) - 1.0));
    }
    return share;
}

}  // namespace

TEST_CASE("the u-muP depth rule keeps the stream's scale and gives every branch its share") {
    for (const std::size_t layers : {2u, 4u, 8u, 16u, 64u}) {
        for (const double multiplier : {0.25, 1.0, 3.0}) {
            for (const double ratio : {0.5, 1.0, 4.0}) {
                double worst = 0.0;
                const std::vector<double> share = variance_shares(
                    {.scheme = ResidualScheme::depth, .multiplier = multiplier, .attention_ratio = ratio},
                    std::vector<double>(layers, 1.0), worst);
                REQUIRE(worst < 0.003);
                // A branch adds a^2 to a start of L/2. The two kinds have the ratio r^2, and a pair adds 2
                // multiplier^2.
                const double start = share[0];
                double branches = 0.0;
                for (std::size_t i = 1; i <= layers; i += 2) {
                    REQUIRE(share[i] / share[i + 1] == Approx(ratio * ratio).epsilon(1e-12));
                    REQUIRE(share[i] == Approx(share[1]).epsilon(1e-12));
                    branches += share[i] + share[i + 1];
                }
                REQUIRE(branches / start == Approx(2.0 * multiplier * multiplier).epsilon(1e-12));
            }
        }
    }
}

TEST_CASE("the depth rule's first values for four layers, by hand") {
    const ResidualRule rule{.scheme = ResidualScheme::depth};  // a = 1: tau^2 = 1/2, 1/3, 1/4, 1/5
    for (std::size_t i = 0; i < 4; ++i)
        REQUIRE(residual_tau(rule, i, 4) == Approx(1.0 / std::sqrt(2.0 + static_cast<double>(i))).epsilon(1e-14));
    const ResidualRule twice{.scheme = ResidualScheme::depth, .multiplier = 2.0, .attention_ratio = 3.0};
    const double ffn_squared = 4.0 * 2.0 / 10.0, attention_squared = 9.0 * ffn_squared;
    REQUIRE(residual_tau(twice, 0, 4) == Approx(std::sqrt(attention_squared / 2.0)).epsilon(1e-14));
    REQUIRE(residual_tau(twice, 1, 4) == Approx(std::sqrt(ffn_squared / (2.0 + attention_squared))).epsilon(1e-14));
    REQUIRE(residual_tau(twice, 2, 4) ==
            Approx(std::sqrt(attention_squared / (2.0 + attention_squared + ffn_squared))).epsilon(1e-14));
}

TEST_CASE("the depth rule in blocks of three layers: the last is feed-forward, and multiplier^2 is the mean square") {
    const ResidualRule rule{.scheme = ResidualScheme::depth, .multiplier = 2.0, .attention_ratio = 3.0};
    const double ffn = 4.0 * 3.0 / 19.0, attention = 9.0 * ffn;  // squares
    double gathered = 3.0;                                       // L/2
    for (std::size_t i = 0; i < 6; ++i) {
        const double own = i % 3 == 2 ? ffn : attention;
        CHECK(residual_tau(rule, i, 6, 3) == Approx(std::sqrt(own / gathered)).epsilon(1e-14));
        gathered += own;
    }
    CHECK(gathered - 3.0 == Approx(6.0 * 4.0));
    CHECK_THROWS_WITH(
        residual_tau(rule, 0, 5, 3),
        "residual: 5 layers in blocks of 3; the depth rule needs whole blocks, with the feed-forward last");
}

TEST_CASE("the running mean gives equal parts to all branches, and the first one replaces the stream") {
    const ResidualRule rule{.scheme = ResidualScheme::running_mean};
    std::vector<double> parts;  // of the last output's variance
    for (std::size_t i = 0; i < 7; ++i) {
        const double tau = residual_tau(rule, i, 7), square = tau * tau;
        const double share = std::isinf(tau) ? 1.0 : square / (square + 1.0);
        CHECK(share == Approx(1.0 / static_cast<double>(1 + i)).epsilon(1e-14));  // 1, 1/2, 1/3, ...
        for (double& part : parts) part *= 1.0 - share;
        parts.push_back(share);
    }
    CHECK(std::isinf(residual_tau(rule, 0, 7)));
    CHECK(residual_tau(rule, 1, 7) == 1.0);
    for (const double part : parts) CHECK(part == Approx(1.0 / 7.0).epsilon(1e-12));
}

TEST_CASE("a fixed rule takes tau, or the published share of the variance, not both") {
    const auto fixed = [](double share) { return ResidualRule{.scheme = ResidualScheme::fixed, .share = share}; };
    for (const double share : {0.1, 0.2, 0.5, 0.9}) {
        const double tau = residual_tau(fixed(share), 3, 8);
        CHECK(tau * tau / (tau * tau + 1.0) == Approx(share).epsilon(1e-14));
        CHECK(tau == tau_of_share(share));
    }
    CHECK(residual_tau(fixed(0.2), 0, 1) == Approx(0.5).epsilon(1e-14));  // tau's default
    CHECK(residual_tau(fixed(0.5), 0, 1) == 1.0);
    CHECK(std::isinf(residual_tau(fixed(1.0), 0, 1)));
    CHECK_THROWS_WITH(residual_tau({.scheme = ResidualScheme::fixed, .tau = 0.25, .share = 0.5}, 0, 1),
                      "residual: tau is 0.25 and share is 0.5; expected one of the two");
    for (const double share : {0.0, -1.0, 1.5})
        CHECK_THROWS_WITH(check_residual(fixed(share)),
                          concatenate("residual: share is ", share, "; expected a number in (0, 1]"));
    CHECK_THROWS_WITH(check_residual({.scheme = ResidualScheme::depth, .share = 0.5}),
                      "residual: share is for the scheme fixed; the scheme is depth");
    CHECK_NOTHROW(check_residual({.scheme = ResidualScheme::depth, .tau = 0.25}));
}

TEST_CASE("a fixed tau is equal in every layer and plain has none") {
    const ResidualRule fixed{.scheme = ResidualScheme::fixed, .tau = 0.25};
    REQUIRE(residual_tau(fixed, 0, 3) == 0.25);
    REQUIRE(residual_tau(fixed, 2, 3) == 0.25);
    REQUIRE(residual_tau({}, 2, 3) == 1.0);
}

TEST_CASE("residual rules refuse an odd count under depth, a layer beyond the count and a tau that is not positive") {
    REQUIRE_THROWS_WITH(
        residual_tau({.scheme = ResidualScheme::depth}, 0, 5),
        "residual: 5 layers in blocks of 2; the depth rule needs whole blocks, with the feed-forward last");
    REQUIRE_THROWS_WITH(residual_tau({}, 4, 4), "residual: layer 4 of 4; expected a number below the count");
    REQUIRE_THROWS_WITH(residual_tau({.scheme = ResidualScheme::fixed, .tau = 0.0}, 0, 1),
                        "residual: tau is 0; expected a positive number");
    REQUIRE(name(ResidualScheme::running_mean) == "running_mean");
    REQUIRE(name(ResidualScheme::plain) == "plain");
}
