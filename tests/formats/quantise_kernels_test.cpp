// SPDX-License-Identifier: MIT
#include <unitscale/formats/quantise_kernels.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

using namespace unitscale;
using reference::bits_of;
using reference::from_bits;

// 3.3 = 1.65 2^1 is 1.625 2^1 in e4m3; the last kept bit of its float word is bit 20.
static_assert(NearestSaturating::apply(quantise_constants(e4m3, {}), std::bit_cast<std::uint32_t>(3.3f), 0) ==
              std::bit_cast<std::uint32_t>(3.25f));
static_assert(power_to_mask(last_bit_power(quantise_constants(e4m3, {}), std::bit_cast<std::int32_t>(3.3f))) ==
              (1u << 20) - 1);
// 0.01 = 5.12 2^-9 is subnormal in e4m3: 2^-9 is bit 23 - (-7 + 9) = 21 of its word.
static_assert(power_to_mask(last_bit_power(quantise_constants(e4m3, {}), std::bit_cast<std::int32_t>(0.01f))) ==
              (1u << 21) - 1);

TEST_CASE("the kernels know which formats they can handle") {
    REQUIRE(has_quantise_kernel(e4m3));
    REQUIRE(has_quantise_kernel(fp32));
    REQUIRE(has_quantise_kernel(bf16));
    REQUIRE(has_quantise_kernel(find_format("p3109_k8p1se")));
    REQUIRE_FALSE(has_quantise_kernel(e8m0));
    REQUIRE_FALSE(has_quantise_kernel(find_format("p3109_k8p1ue")));
    REQUIRE_FALSE(has_quantise_kernel(make_format({5, 10, 100})));
}

TEST_CASE("the short kernel and the general one agree on nearest even") {
    for (const FloatFormat& format : {e4m3, e5m2, e4m3fnuz, e3m4, fp16, bf16, tf32, fp32, e2m3}) {
        const QuantiseConstants c = quantise_constants(format, {});
        std::size_t wrong = 0;
        for (std::uint32_t i = 0; i < 200000; ++i) {
            const std::uint32_t word = i < 1000 ? i * 0x00400000u + i % 3 : random_word({1, 2}, i);
            wrong += NearestSaturating::apply(c, word, 0) != Deterministic::apply(c, word, 0) ? 1u : 0u;
        }
        INFO(name(format));
        CHECK(wrong == 0);
    }
}

TEST_CASE("the general kernel gives the reference's bits where sign matters") {
    const auto apply = [](const FloatFormat& format, float x, const QuantiseOptions& options) {
        return Deterministic::apply(quantise_constants(format, options), bits_of(x), 0);
    };
    REQUIRE(apply(e4m3, 1.01f, {.rounding = Rounding::up}) == bits_of(1.125f));
    REQUIRE(apply(e4m3, -1.01f, {.rounding = Rounding::up}) == bits_of(-1.0f));
    REQUIRE(apply(e4m3, 1.01f, {.rounding = Rounding::down}) == bits_of(1.0f));
    REQUIRE(apply(e4m3, -1.01f, {.rounding = Rounding::down}) == bits_of(-1.125f));
    REQUIRE(apply(e4m3, from_bits(1), {.rounding = Rounding::up}) == bits_of(0x1p-9f));
    REQUIRE(apply(e4m3, 1.0625f, {.rounding = Rounding::nearest_away}) == bits_of(1.125f));
    REQUIRE(apply(e4m3, -0x1p-10f, {.rounding = Rounding::nearest_away}) == bits_of(-0x1p-9f));
    REQUIRE(apply(e4m3, -1e6f, {.overflow = Overflow::to_infinity}) == reference::nan_bits);
    REQUIRE(apply(e5m2, -1e6f, {.overflow = Overflow::to_infinity}) == (reference::infinity_bits | 0x80000000u));
    REQUIRE(apply(e5m2, -1e6f, {.rounding = Rounding::up, .overflow = Overflow::to_infinity}) == bits_of(-57344.0f));
    const FloatFormat unsigned_format = find_format("p3109_k8p3ue");
    REQUIRE(apply(unsigned_format, -1.0f, {}) == 0u);
    REQUIRE(apply(unsigned_format, -1.0f, {.overflow = Overflow::to_infinity}) == reference::nan_bits);
}

TEST_CASE("the stochastic kernels draw between the two neighbours") {
    const QuantiseConstants c = quantise_constants(e4m3, {.rounding = Rounding::stochastic, .bits = 2});
    const auto check = [&c](auto apply) {
        const std::uint32_t x = bits_of(1.125f + 0.09375f);  // three quarters of the way to 1.25
        REQUIRE(apply(c, x, 0u << 30) == bits_of(1.125f));
        REQUIRE(apply(c, x, 1u << 30) == bits_of(1.25f));
        REQUIRE(apply(c, x, 3u << 30) == bits_of(1.25f));
        REQUIRE(apply(c, x, 0x3FFFFFFFu) == bits_of(1.125f));  // only the first two bits count
        const std::uint32_t small = bits_of(-0x1p-10f);        // half of the smallest number
        REQUIRE(apply(c, small, 1u << 30) == 0x80000000u);
        REQUIRE(apply(c, small, 2u << 30) == bits_of(-0x1p-9f));
        const std::uint32_t subnormal = bits_of(2.25f * 0x1p-9f);  // a quarter of the way from 2 to 3 smallest numbers
        REQUIRE(apply(c, subnormal, 2u << 30) == bits_of(0x1p-8f));
        REQUIRE(apply(c, subnormal, 3u << 30) == bits_of(3 * 0x1p-9f));
    };
    check(Stochastic::apply);
    check(StochasticSaturating::apply);
}

TEST_CASE("the short stochastic kernel and the general one agree") {
    for (const FloatFormat& format : {e4m3, e5m2, e4m3fnuz, e3m4, fp16, bf16, tf32, e2m3, make_format({4, 14, 7})})
        for (const int bits : {1, 7, 13, 16}) {
            const QuantiseConstants c = quantise_constants(format, {.rounding = Rounding::stochastic, .bits = bits});
            std::size_t wrong = 0;
            for (std::uint32_t i = 0; i < 50000; ++i) {
                const std::uint32_t word = i < 1000 ? i * 0x00400000u + i % 3 : random_word({1, 2}, i);
                const std::uint32_t random = random_word({3, 4}, i) & 0xFFFF0000u;
                wrong += StochasticSaturating::apply(c, word, random) != Stochastic::apply(c, word, random) ? 1u : 0u;
            }
            INFO(name(format) << ' ' << bits);
            CHECK(wrong == 0);
        }
}

TEST_CASE("the kernel of powers of two knows float's subnormals and the odd codes") {
    const auto apply = [](std::uint32_t word, const QuantiseOptions& options) {
        return PowersOfTwo::apply(quantise_constants(e8m0, options), word, 0);
    };
    REQUIRE(apply(0, {}) == bits_of(0x1p-127f));
    REQUIRE(apply(bits_of(0x1p-149f), {.rounding = Rounding::up}) == bits_of(0x1p-127f));
    REQUIRE(apply(bits_of(0x1.8p-127f), {}) == bits_of(0x1p-127f));  // a tie: codes 0 and 1
    REQUIRE(apply(bits_of(0x1.8p-126f), {}) == bits_of(0x1p-125f));  // codes 1 and 2
    REQUIRE(apply(bits_of(0x1.8p-127f), {.rounding = Rounding::nearest_away}) == bits_of(0x1p-126f));
    REQUIRE(apply(bits_of(0x1.000004p-127f), {.rounding = Rounding::up}) == bits_of(0x1p-126f));
    REQUIRE(apply(bits_of(0x1.8p127f), {}) == bits_of(0x1p127f));
    REQUIRE(apply(bits_of(0x1.8p127f), {.overflow = Overflow::to_infinity}) == bits_of(0x1p127f));  // codes 254 and 255
    REQUIRE(apply(bits_of(0x1.800002p127f), {.overflow = Overflow::to_infinity}) == reference::nan_bits);
    REQUIRE(apply(bits_of(-1.0f), {}) == reference::nan_bits);
    REQUIRE(apply(0x80000000u, {}) == bits_of(0x1p-127f));
    const QuantiseConstants c = quantise_constants(e8m0, {.rounding = Rounding::stochastic, .bits = 24});
    REQUIRE(PowersOfTwo::apply(c, bits_of(0x1.8p5f), 0x7FFFFFFFu) == bits_of(0x1p5f));
    REQUIRE(PowersOfTwo::apply(c, bits_of(0x1.8p5f), 0x80000000u) == bits_of(0x1p6f));
}
