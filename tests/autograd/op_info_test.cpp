// SPDX-License-Identifier: MIT
#include <unitscale/autograd/op_info.hpp>

#include "support/catch.hpp"

#include <array>
#include <span>

using namespace unitscale;

TEST_CASE("an op's factors are a list in braces or a span") {
    const std::array<double, 3> three = {1.0, 2.0, 3.0};
    const OpInfo op{.name = "f", .alpha = 0.5, .betas = std::span<const double>(three)};
    REQUIRE(op.betas.values().size() == 3);
    CHECK(op.betas.values()[2] == 3.0);
    CHECK(Betas({4.0, 5.0}).values().size() == 2);
    REQUIRE_THROWS_WITH(Betas({1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0}),
                        "betas: 9 in braces; expected at most 8, or a span");
}

TEST_CASE("factors in braces live as long as the OpInfo that holds them") {
    const auto make = [](double first) {
        return OpInfo{.name = "f", .betas = {first, 0.5}, .output_weights = {2.0 * first}};
    };
    const OpInfo op = make(3.0), other = make(4.0);
    REQUIRE(op.betas.values().size() == 2);
    CHECK(op.betas.values()[0] == 3.0);
    CHECK(op.betas.values()[1] == 0.5);
    CHECK(op.output_weights.values()[0] == 6.0);
    CHECK(other.betas.values()[0] == 4.0);
}

TEST_CASE("by default the plan joins an op's factors and arriving gradients are not weighted") {
    const OpInfo op{.name = "f"};
    CHECK(op.alpha == 1.0);
    CHECK(op.joined_by == JoinedBy::plan);
    CHECK(op.output_weights.values().empty());
    CHECK(op.multiply_adds == 0);
}
