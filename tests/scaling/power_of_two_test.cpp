// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/scaling/power_of_two.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

using namespace unitscale;

static_assert(pow2_down(3.0) == 2.0 && pow2_up(3.0f) == 4.0f, "usable in constant expressions");

TEMPLATE_TEST_CASE("powers of two in the range of scales stay, and their neighbours go to one side", "", float,
                   double) {
    using T = TestType;
    for (int exponent = min_scale_exponent; exponent <= max_scale_exponent; ++exponent) {
        const T power = std::ldexp(T{1}, exponent);
        CAPTURE(exponent);
        REQUIRE(pow2_down(power) == power);
        REQUIRE(pow2_up(power) == power);
        REQUIRE(pow2_nearest(power) == power);
        REQUIRE(pow2_stochastic(power, 0u) == power);
        REQUIRE(pow2_stochastic(power, ~0u) == power);

        const T above = std::nextafter(power, std::numeric_limits<T>::infinity());
        const T twice = std::ldexp(T{1}, std::min(exponent + 1, max_scale_exponent));
        REQUIRE(pow2_down(above) == power);
        REQUIRE(pow2_up(above) == twice);
        REQUIRE(pow2_nearest(above) == power);
        REQUIRE(pow2_stochastic(above, 0u) == power);

        const T below = std::nextafter(power, T{0});
        const T half = std::ldexp(T{1}, std::max(exponent - 1, min_scale_exponent));
        REQUIRE(pow2_down(below) == half);
        REQUIRE(pow2_up(below) == power);
        REQUIRE(pow2_nearest(below) == (exponent == min_scale_exponent ? half : power));
        REQUIRE(pow2_stochastic(below, ~0u) == power);
    }
}

TEMPLATE_TEST_CASE("the nearest power of two in the logarithm changes at sqrt 2", "", float, double) {
    using T = TestType;
    for (const int exponent : {-126, -100, -1, 0, 1, 50, 126}) {
        // The number of T next to 2^exponent sqrt 2, and its side of 2^exponent sqrt 2.
        const T root = static_cast<T>(std::sqrt(2.0));
        const bool near_is_above = static_cast<double>(root) * static_cast<double>(root) > 2.0;
        const T near = std::ldexp(root, exponent);
        const T up = std::nextafter(near, std::numeric_limits<T>::infinity());
        const T down = std::nextafter(near, T{0});
        CAPTURE(exponent);
        REQUIRE(pow2_nearest(near_is_above ? near : up) == std::ldexp(T{1}, exponent + 1));
        REQUIRE(pow2_nearest(near_is_above ? down : near) == std::ldexp(T{1}, exponent));
    }
}

TEMPLATE_TEST_CASE("random numbers lie between their rounded powers of two", "", float, double) {
    using T = TestType;
    for (std::uint64_t i = 0; i < 10000; ++i) {
        const auto block = random_block({3, 9}, i);
        const T x = std::ldexp(T{1} + static_cast<T>(uniform(block[0])), static_cast<int>(block[1] % 240) - 120);
        const T down = pow2_down(x), up = pow2_up(x);
        CAPTURE(x);
        REQUIRE(std::exp2(std::floor(std::log2(static_cast<long double>(x)))) == static_cast<long double>(down));
        REQUIRE((x == down ? up == down : up == 2 * down));
        const T nearest = pow2_nearest(x);
        REQUIRE(nearest ==
                (static_cast<long double>(x) > std::sqrt(2.0L) * static_cast<long double>(down) ? up : down));
        const T stochastic = pow2_stochastic(x, block[2]);
        REQUIRE((stochastic == down || stochastic == up));
    }
}

TEST_CASE("stochastic rounding to a power of two is unbiased") {
    // Of the 2^32 random words, f 2^32 round 2^e (1 + f) up: the threshold is tested from both sides.
    for (const float fraction : {0.0f, 0x1p-23f, 0.25f, 0.5f, 0.7f, 1.0f - 0x1p-23f}) {
        const float x = (1.0f + fraction) * 0x1p5f;
        CAPTURE(fraction);
        const double exact = static_cast<double>(x) * 0x1p-5 - 1.0;
        const auto first = (std::uint64_t{1} << 32) - static_cast<std::uint64_t>(exact * 0x1p32);
        if (first <= 0xFFFFFFFFu) {
            REQUIRE(pow2_stochastic(x, static_cast<std::uint32_t>(first)) == 0x1p6f);
            REQUIRE(pow2_stochastic(static_cast<double>(x), static_cast<std::uint32_t>(first)) == 0x1p6);
        }
        REQUIRE(pow2_stochastic(x, static_cast<std::uint32_t>(first - 1)) == 0x1p5f);
        REQUIRE(pow2_stochastic(static_cast<double>(x), static_cast<std::uint32_t>(first - 1)) == 0x1p5);
    }
    double sum = 0;
    constexpr int count = 100000;
    for (std::uint64_t i = 0; i < count; ++i) sum += pow2_stochastic(1.3, random_word({5, 2}, i));
    // A draw is 1 + Bernoulli(0.3): the mean's sigma is sqrt(0.21 / count).
    REQUIRE(std::abs(sum / count - 1.3) < 5 * std::sqrt(0.21 / count));
}

TEMPLATE_TEST_CASE("a result outside the range of scales becomes the nearer bound", "", float, double) {
    using T = TestType;
    const T smallest = static_cast<T>(0x1p-126), largest = static_cast<T>(0x1p127);
    for (const T tiny :
         {std::numeric_limits<T>::denorm_min(), static_cast<T>(0x1.8p-127), static_cast<T>(0x1.fffp-130)}) {
        CAPTURE(tiny);
        REQUIRE(pow2_down(tiny) == smallest);
        REQUIRE(pow2_up(tiny) == smallest);
        REQUIRE(pow2_nearest(tiny) == smallest);
        REQUIRE(pow2_stochastic(tiny, ~0u) == smallest);
    }
    const T huge = std::numeric_limits<T>::max();
    REQUIRE(pow2_down(huge) == largest);
    REQUIRE(pow2_up(huge) == largest);
    REQUIRE(pow2_nearest(huge) == largest);
    REQUIRE(pow2_stochastic(huge, ~0u) == largest);
}

TEST_CASE("numbers without a power of two are errors that name the function") {
    REQUIRE_THROWS_WITH(pow2_down(0.0), "pow2_down: x is 0; expected a positive finite number");
    REQUIRE_THROWS_WITH(pow2_up(-1.5f), "pow2_up: x is -1.5; expected a positive finite number");
    REQUIRE_THROWS_WITH(pow2_nearest(std::numeric_limits<double>::infinity()),
                        "pow2_nearest: x is inf; expected a positive finite number");
    REQUIRE_THROWS_WITH(pow2_stochastic(std::numeric_limits<float>::quiet_NaN(), 1u),
                        "pow2_stochastic: x is nan; expected a positive finite number");
    REQUIRE_THROWS_AS(pow2_down(-0.0f), Error);
}
