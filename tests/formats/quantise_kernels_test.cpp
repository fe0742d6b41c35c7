// SPDX-License-Identifier: MIT
#include <unitscale/formats/quantise_kernels.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

#include <array>

using namespace unitscale;
using reference::bits_of;
using reference::from_bits;

// 3.3 = 1.65 2^1 is 1.625 2^1 in e4m3; the last kept bit of its float word is bit 20.
static_assert(NearestSaturating::apply(quantise_constants(e4m3, {}), std::bit_cast<std::uint32_t>(3.3f), 0) ==
              std::bit_cast<std::uint32_t>(3.25f));
static_assert(power_to_mask(last_bit_power(quantise_constants(e4m3, {}), std::bit_cast<std::int32_t>(3.3f))) == (1u << 20) - 1);
// 0.01 = 5.12 2^-9 is subnormal in e4m3: 2^-9 is bit 23 - (-7 + 9) = 21 of its word.
static_assert(power_to_mask(last_bit_power(quantise_constants(e4m3, {}), std::bit_cast<std::int32_t>(0.01f))) == (1u << 21) - 1);

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

TEST_CASE("the stochastic kernel draws between the two neighbours") {
    const QuantiseConstants c = quantise_constants(e4m3, {.rounding = Rounding::stochastic, .bits = 2});
    const std::uint32_t x = bits_of(1.125f + 0.09375f);  // three quarters of the way to 1.25
    REQUIRE(Stochastic::apply(c, x, 0u << 30) == bits_of(1.125f));
    REQUIRE(Stochastic::apply(c, x, 1u << 30) == bits_of(1.25f));
    REQUIRE(Stochastic::apply(c, x, 3u << 30) == bits_of(1.25f));
    REQUIRE(Stochastic::apply(c, x, 0x3FFFFFFFu) == bits_of(1.125f));  // bits past the second are not looked at
    const std::uint32_t small = bits_of(-0x1p-10f);                    // half of the smallest number
    REQUIRE(Stochastic::apply(c, small, 1u << 30) == 0x80000000u);
    REQUIRE(Stochastic::apply(c, small, 2u << 30) == bits_of(-0x1p-9f));
}

TEST_CASE("loops write exactly the elements that they are given") {
    std::array<float, 200> in{};
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = 0.37f * static_cast<float>(i) - 20.0f;
    const QuantiseConstants c = quantise_constants(e4m3, {});
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::size_t count : {0u, 1u, 64u, 100u, 191u}) {
            std::array<float, 200> out{};
            out.fill(-1000.0f);
            quantise_dispatched<NearestSaturating>(isa, c, in.data() + 1, out.data() + 3, count);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < out.size(); ++i) {
                const bool inside = i >= 3 && i < 3 + count;
                const std::uint32_t expected = inside ? NearestSaturating::apply(c, bits_of(in[i - 2]), 0) : bits_of(-1000.0f);
                wrong += bits_of(out[i]) != expected ? 1u : 0u;
            }
            CHECK(wrong == 0);
        }
    }
}
