// SPDX-License-Identifier: MIT
#include <unitscale/formats/quantiser.hpp>

#include "support/catch.hpp"

using namespace unitscale;

TEST_CASE("a quantiser's options are its own, with the caller's key") {
    constexpr Quantiser quantiser{
        .format = e5m2, .rounding = Rounding::stochastic, .overflow = Overflow::to_infinity, .bits = 5};
    const QuantiseOptions options = quantiser.options({8, 9});
    REQUIRE(options.rounding == Rounding::stochastic);
    REQUIRE(options.overflow == Overflow::to_infinity);
    REQUIRE(options.bits == 5);
    REQUIRE(options.key == RandomKey{8, 9});
    REQUIRE(options.first_index == 0);
    REQUIRE(quantise(quantiser.format, 1e9f, Quantiser{.format = e5m2}.options()) == 57344.0f);
}

TEST_CASE("quantisers are equal when every field is") {
    REQUIRE(Quantiser{.format = e4m3} == Quantiser{.format = e4m3});
    REQUIRE_FALSE(Quantiser{.format = e4m3} == Quantiser{.format = e4m3_ieee});
    REQUIRE_FALSE(Quantiser{.bits = 4} == Quantiser{.bits = 8});
    REQUIRE(Quantiser{}.format == fp32);
}
