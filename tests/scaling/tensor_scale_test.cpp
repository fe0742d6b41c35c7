// SPDX-License-Identifier: MIT
#include <unitscale/scaling/tensor_scale.hpp>

#include "support/catch.hpp"

#include <unitscale/base/random.hpp>
#include <unitscale/formats/code.hpp>

#include <cmath>
#include <limits>

using namespace unitscale;

TEST_CASE("amax_bias is the largest power of two that leaves amax within the format") {
    for (const FloatFormat& format : {e4m3, e5m2, e4m3fnuz, e2m1, fp16}) {
        INFO(name(format));
        const double largest = static_cast<double>(format.max());
        for (std::uint64_t i = 0; i < 20000; ++i) {
            const auto bits = static_cast<std::uint32_t>(random_word({1, 2}, i)) % 0x7F800000u;
            const float amax = std::bit_cast<float>(bits == 0 ? 1u : bits);
            const int bias = amax_bias(format, amax, 0);
            CHECK(std::ldexp(static_cast<double>(amax), bias) <= largest);
            CHECK(std::ldexp(static_cast<double>(amax), bias + 1) > largest);
        }
        CHECK(amax_bias(format, format.max(), 0) == 0);
        CHECK(amax_bias(format, std::nextafter(format.max(), 1e30f), 0) == -1);
        CHECK(amax_bias(format, format.max(), 3) == -3);
        CHECK(amax_bias(format, -format.max(), 0) == 0);
    }
    CHECK(amax_bias(e4m3, 0.0f, 3) == 0);
    CHECK(amax_bias(e4m3, std::numeric_limits<float>::infinity(), 3) == 0);
    CHECK(amax_bias(e4m3, std::numeric_limits<float>::quiet_NaN(), 3) == 0);
}

TEST_CASE("rounding to a shifted format is rounding the multiplied number") {
    for (const FloatFormat& format : {e4m3, e5m2, e2m1, fp16})
        for (const int bias : {-40, -8, -1, 0, 3, 11, 60}) {
            const FloatFormat moved = shifted(format, bias);
            REQUIRE(problem(moved).empty());
            REQUIRE(moved.bias == format.bias + bias);
            for (std::uint64_t i = 0; i < 2000; ++i) {
                const float x = std::ldexp(static_cast<float>(uniform(random_word({3, 4}, i))) - 0.5f,
                                           static_cast<int>(i % 30) - 15 - bias);
                const double want = std::ldexp(static_cast<double>(quantise(format, std::ldexp(x, bias), {})), -bias);
                CHECK(static_cast<double>(quantise(moved, x, {})) == want);
            }
        }
}

TEST_CASE("a shifted format stays one that float, and for 8 bits bf16, holds") {
    for (const FloatFormat& format : {e4m3, e5m2, e2m1, bf16, fp16, fp32})
        for (const int bias : {-1000, -130, 130, 1000}) {
            INFO(name(format) << " " << bias);
            CHECK(problem(shifted(format, bias)).empty());
        }
    CHECK(shifted(e5m2, 1000).quantum_exponent() == -126);
    CHECK(shifted(e5m2, -1000).max_exponent() == 127);
    CHECK(shifted(fp32, 5) == fp32);
}

TEST_CASE("invalid rules are errors") {
    check_rule("x", {});
    check_rule("x", {.source = ScaleSource::amax, .granularity = ScaleGranularity::row});
    CHECK_THROWS_WITH(
        check_rule("matmul.weight", {.source = ScaleSource::constant, .granularity = ScaleGranularity::row}),
        "matmul.weight: scale by row needs the source amax; it is constant");
    CHECK_THROWS_WITH(check_rule("x", {.source = ScaleSource::delayed, .history = 0}),
                      "x: history is 0; expected at least 1");
    CHECK_THROWS_WITH(check_rule("x", {.bias = 301}), "x: bias is 301; expected a number in [-300,300]");
    CHECK_THROWS_WITH(check_rule("x", {.margin = -301}), "x: margin is -301; expected a number in [-300,300]");
}
