// SPDX-License-Identifier: MIT
#include <unitscale/products/aligned_sums.hpp>
#include <unitscale/products/limited_sums.hpp>

#include "support/catch.hpp"

using namespace unitscale;
using namespace unitscale::products;

TEST_CASE("aligned sums run in float where their terms are exact there", "[kernels][matmul]") {
    REQUIRE(limited_constants(hopper_sums, e4m3, e5m2, 64).in_float);
    REQUIRE(limited_constants(hopper_sums, fp16, fp16, 64).in_float);
    REQUIRE_FALSE(limited_constants(hopper_sums, fp32, e4m3, 64).in_float);
    REQUIRE_FALSE(limited_constants(hopper_sums, bf16, bf16, 64).in_float);
    REQUIRE_FALSE(limited_constants(blackwell_sums, e4m3, e4m3, 64).in_float);
    REQUIRE(limited_constants(hopper_sums, fp32, fp32, 64).run_length == 64);
    REQUIRE(limited_constants(hopper_sums_promoted, fp32, fp32, 1000).run_length == 128);
}

TEST_CASE("subnormal factors have their format's least exponent", "[kernels][matmul]") {
    // In e4m3, 2^-9 has exponent -6 and significand 1/8. The product with 2^-6 has exponent -12, not -15, so that the
    // accumulator is cut at 2^-25, not at 2^-26 or below.
    const float a[] = {0x1p-6f, 0x1p-9f}, b[] = {0x1p-6f, 0x1p-6f};
    Accumulate options = hopper_sums;
    options.group = 1, options.fraction_bits = 2, options.sums = fp32;
    const auto sum = [&](const FloatFormat& format) {
        float c = 0;
        limited_product({}, options,
                        {.m = 1,
                         .n = 1,
                         .k = 2,
                         .a = {a, 2, 1},
                         .b = {b, 1, 1},
                         .c = {&c, 1, 1},
                         .format_a = format,
                         .format_b = format});
        return c;
    };
    REQUIRE(sum(e4m3) == 0x1p-12f);  // units of 2^-14: the second product is cut to 0
    const float small_a[] = {0x1p-9f, 0x1p-9f}, small_b[] = {0x1p-6f, 0x1p-6f};
    options.fraction_bits = 3;
    const auto small_sum = [&](const FloatFormat& format) {
        float c = 0;
        limited_product({}, options,
                        {.m = 1,
                         .n = 1,
                         .k = 2,
                         .a = {small_a, 2, 1},
                         .b = {small_b, 1, 1},
                         .c = {&c, 1, 1},
                         .format_a = format,
                         .format_b = format});
        return c;
    };
    REQUIRE(small_sum(e4m3) == 0x1p-14f);
    options.fraction_bits = 2;
    REQUIRE(small_sum(e4m3) == 0.0f);      // exponent -12: units of 2^-14
    REQUIRE(small_sum(fp32) == 0x1p-14f);  // exponent -15: units of 2^-17
}

TEST_CASE("a term below the point's last place is cut toward zero, and products keep significands up to 4",
          "[kernels][matmul]") {
    // 1.5 1.5 = 2.25 keeps exponent 0: its units are 2^-13, not 2^-12.
    const float a[] = {1.5f, 0x1p-7f, -0x1p-7f, -0x1.8p-7f}, b[] = {1.5f, 0x1p-6f, 0x1p-7f, 0x1p-6f};
    const auto sum = [&](std::ptrdiff_t k) {
        float c = 0;
        limited_product({}, hopper_sums,
                        {.m = 1,
                         .n = 1,
                         .k = k,
                         .a = {a, 4, 1},
                         .b = {b, 1, 1},
                         .c = {&c, 1, 1},
                         .format_a = e4m3,
                         .format_b = e4m3});
        return c;
    };
    REQUIRE(sum(1) == 2.25f);
    REQUIRE(sum(2) == 2.25f);  // 2.25 + 2^-13 has 15 bits: the result is cut to 14
    REQUIRE(sum(3) == 2.25f);  // -2^-14 is cut to 0
    REQUIRE(sum(4) == 2.25f);  // 2^-13 - 2^-13
}
