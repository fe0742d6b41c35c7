// SPDX-License-Identifier: MIT
#include <unitscale/kernels/round.hpp>

#include "kernels/kernel_checks.hpp"

#include <limits>

using namespace unitscale;
using namespace unitscale::kernels;

TEST_CASE("rounding elements is quantise of each, for every element type, in place too", "[kernels]") {
    const auto run = [](auto zero, const Quantiser& quantiser) {
        using T = decltype(zero);
        const auto x = normal_data<T>(300, 1);
        std::vector<T> y(x.size()), expected(x.size()), same = x;
        for (std::size_t i = 0; i < x.size(); ++i)
            expected[i] = static_cast<T>(quantise(quantiser.format, widen(x[i]), quantiser.options({3, 4}), i));
        round_elements(Execution{}, "test", quantiser, {3, 4}, x.data(), y.data(), 300);
        round_elements(Execution{}, "test", quantiser, {3, 4}, same.data(), same.data(), 300);
        CHECK(same_bits(y, expected));
        CHECK(same_bits(same, expected));
        CHECK(!same_bits(y, x));
    };
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        const Quantiser quantiser{.format = e4m3, .rounding = rounding};
        run(0.0, quantiser);
        run(0.0f, quantiser);
        run(Half(0), quantiser);
        run(BFloat16(0), quantiser);
    }
}

TEST_CASE("rounding elements gives the same bits for any thread count", "[kernels]") {
    const auto x = normal_data<float>(100000, 2);
    const Quantiser quantiser{.format = e5m2, .rounding = Rounding::stochastic};
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> y(x.size());
        round_elements(execution, "test", quantiser, {1, 2}, x.data(), y.data(), size_of(x));
        return y;
    }));
}

TEST_CASE("rounding elements reports NaN where the format has none, before it writes", "[kernels]") {
    const std::vector<float> x{1.3f, std::nanf("")};
    std::vector<float> y(2, 7.0f);
    REQUIRE_THROWS_WITH(round_elements(Execution{}, "test", {.format = e2m1}, {}, x.data(), y.data(), 2),
                        "test: e2m1 has no NaN: element 1 is NaN");
    CHECK(y == std::vector<float>{7.0f, 7.0f});
    for (const std::size_t at : {0u, 255u, 256u, 1499u, 2999u}) {
        std::vector<Half> many(3000, Half(1.0f));
        many[at] = std::numeric_limits<Half>::quiet_NaN();
        REQUIRE_THROWS_WITH(
            round_elements(Execution{}, "test", {.format = e2m1}, {}, many.data(), many.data(), size_of(many)),
            concatenate("test: e2m1 has no NaN: element ", at, " is NaN"));
    }
    round_elements<float>(Execution{}, "test", {.format = e4m3}, {}, x.data(), y.data(), 2);
    CHECK(y[0] == 1.25f);
    CHECK(std::isnan(y[1]));
    round_elements<float>(Execution{}, "test", {.format = e4m3}, {}, nullptr, nullptr, 0);
}
