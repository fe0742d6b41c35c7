// SPDX-License-Identifier: MIT
#include <unitscale/formats/counts.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

using namespace unitscale;
using reference::bits_of;
using reference::from_bits;

TEST_CASE("saturated and underflown elements are counted at their borders") {
    const float infinity = from_bits(reference::infinity_bits), nan = from_bits(0x7FC00000u);
    const auto above = [](float x) { return from_bits(bits_of(x) + 1); };
    const auto below = [](float x) { return from_bits(bits_of(x) - 1); };
    const float max = e4m3.max(), tiny = e4m3.min_subnormal();
    // In order: fine, saturated, saturated, fine, saturated; zero, tie to zero, above it, fine, below, not counted.
    const std::vector<float> in{max,      above(max),      -above(max), below(max), -infinity, -0.0f,
                                tiny / 2, above(tiny / 2), tiny,        -tiny / 4,  nan};
    std::vector<float> out(in.size());
    REQUIRE(quantise_and_count(e4m3, in, out) == QuantiseCounts{3, 2});
    REQUIRE(quantise_and_count(e4m3, in, out, {.rounding = Rounding::up}) == QuantiseCounts{3, 1});
    REQUIRE(quantise_and_count(e4m3, in, out, {.rounding = Rounding::toward_zero}) == QuantiseCounts{3, 3});
    REQUIRE(quantise_and_count(e4m3, in, out, {.overflow = Overflow::to_infinity}) == QuantiseCounts{3, 2});
    // A float subnormal is a number, in every floating-point mode.
    REQUIRE(quantise_and_count(e5m2, std::vector<float>{from_bits(1)}, std::span(out).first(1)) ==
            QuantiseCounts{0, 1});
}

TEST_CASE("unsigned formats saturate at negative numbers, and scales have no zero to underflow to") {
    constexpr FloatFormat format = p3109(8, 4, Signedness::unsigned_format, Domain::finite);
    std::vector<float> out(4);
    const std::vector<float> in{-1.0f, -0.0f, format.min_subnormal() / 4, format.max() * 2};
    REQUIRE(quantise_and_count(format, in, out) == QuantiseCounts{2, 1});
    REQUIRE(quantise_and_count(e8m0, std::vector<float>{-1.0f, 1.0f, from_bits(1), 2.0f}, out) == QuantiseCounts{0, 0});
}

TEST_CASE("counting does not change the rounded results") {
    std::vector<float> in;
    for (std::size_t i = 0; i < 3000; ++i) in.push_back(from_bits(random_word({5, 6}, i)));
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        const QuantiseOptions options{.rounding = rounding, .bits = 9, .key = {1, 2}, .first_index = 3};
        std::vector<float> expected(in.size()), out = in;
        quantise(fp16, in, expected, options);
        const QuantiseCounts counts = quantise_and_count(fp16, out, out, options);
        std::size_t saturated = 0, underflown = 0, different = 0;
        for (std::size_t i = 0; i < in.size(); ++i) {
            const std::uint32_t a = bits_of(in[i]) & 0x7FFFFFFFu;
            different += bits_of(out[i]) != bits_of(expected[i]) ? 1u : 0u;
            saturated += a > bits_of(65504.0f) && a <= reference::infinity_bits ? 1u : 0u;
            underflown += a != 0 && (bits_of(expected[i]) & 0x7FFFFFFFu) == 0 ? 1u : 0u;
        }
        REQUIRE(different == 0);
        REQUIRE(counts == QuantiseCounts{saturated, underflown});
        REQUIRE(saturated > 100);
        REQUIRE(underflown > 100);
    }
}

TEST_CASE("counts equal the counts of a plain loop for every format and rounding") {
    std::vector<FloatFormat> formats{fp32, tf32};
    for (const auto& tested : reference::formats_with_tables()) formats.push_back(tested.format);
    for (const FloatFormat& format : formats) {
        std::vector<float> in;
        for (std::size_t i = 0; i < 3000; ++i) {
            // Half of the numbers lie within two binades of the smallest or the largest one.
            const std::uint32_t word = random_word({7, 8}, i);
            const std::uint32_t border = bits_of(i % 4 == 1 ? format.max() : format.min_subnormal());
            const float x =
                from_bits(i % 2 == 0 ? word : (border + word % 0x02000000u - 0x01000000u) ^ (word & 0x80000000u));
            if (!is_nan(x)) in.push_back(x);
        }
        for (const std::uint32_t word :
             {0u, 0x80000000u, reference::infinity_bits, bits_of(format.max()), bits_of(format.lowest())})
            in.push_back(from_bits(word));
        const double max = reference::to_double(format.max());
        std::vector<float> out(in.size());
        for (const Rounding rounding : reference::all_roundings)
            for (const Overflow overflow : {Overflow::saturate, Overflow::to_infinity}) {
                if (overflow == Overflow::to_infinity && !format.has_nan()) continue;
                const QuantiseOptions options{.rounding = rounding, .overflow = overflow, .key = {1, 2}};
                QuantiseCounts expected;
                for (std::size_t i = 0; i < in.size(); ++i) {
                    const float y = quantise(format, in[i], options, i);
                    const bool infinite = (bits_of(in[i]) & 0x7FFFFFFFu) == reference::infinity_bits;
                    const double x = infinite ? 0 : reference::to_double(in[i]);
                    const bool negative = (bits_of(in[i]) >> 31) != 0 && (infinite || x != 0);
                    const bool unsigned_clips = negative && !format.is_signed() && format.has_zero();
                    const bool saturated = infinite || std::abs(x) > max || unsigned_clips;
                    expected.saturated += saturated ? 1u : 0u;
                    expected.underflown += !saturated && x != 0 && (bits_of(y) & 0x7FFFFFFFu) == 0 ? 1u : 0u;
                }
                INFO(name(format) << ' ' << name(rounding));
                CHECK(quantise_and_count(format, in, out, options) == expected);
                CHECK(expected.saturated > 0);
            }
    }
}

TEST_CASE("counting raises the errors of quantise, and names the element of the whole span") {
    std::vector<float> in(2000, 1.0f), out(2000);
    REQUIRE_THROWS_WITH(quantise_and_count(e4m3, in, std::span(out).first(5)),
                        "quantise: input and output sizes differ: 2000 != 5");
    in[1500] = from_bits(0x7FC00000u);
    REQUIRE_THROWS_WITH(quantise_and_count(e2m1, in, out),
                        "quantise: e2m1 has no NaN: element 1500 of the input is NaN");
}
