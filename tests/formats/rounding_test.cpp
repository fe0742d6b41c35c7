// SPDX-License-Identifier: MIT
#include <unitscale/formats/rounding.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

using namespace unitscale;
using reference::Lattice;

namespace {

constexpr Rounded round_even(const FloatFormat& format, float x, Overflow overflow = Overflow::saturate) {
    return round_to(format, x, Rounding::nearest_even, overflow, 16, 0);
}

/// Tests every rounding, saturating or not, of the rounding cases against the search. Stochastic with every number of
/// bits.
std::size_t count_wrong(const std::string& table, const FloatFormat& format, std::size_t random_count) {
    const Lattice lattice(table);
    const std::vector<float> inputs = reference::rounding_cases(lattice, random_count);
    std::vector<std::uint32_t> random(inputs.size());
    fill_random_words({1, 2}, 0, random);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const reference::Place place = lattice.find(inputs[i]);
        const int bits = 1 + static_cast<int>(i % max_random_bits);
        for (const Rounding rounding : reference::all_roundings)
            for (const Overflow overflow : {Overflow::saturate, Overflow::to_infinity}) {
                if (overflow == Overflow::to_infinity && !lattice.has_nan) continue;
                const auto expected = lattice.round(place, rounding, overflow, bits, random[i]);
                const Rounded found = round_to(format, inputs[i], rounding, overflow, bits, random[i]);
                const bool same = static_cast<int>(found.kind) == static_cast<int>(expected.kind) &&
                                  found.negative == expected.negative && found.code == expected.code;
                if (!same && wrong++ < 5) {
                    INFO(table << ' ' << name(rounding) << " word " << std::hex << reference::bits_of(inputs[i])
                               << " found " << found.code << " expected " << expected.code);
                    CHECK(same);
                }
            }
    }
    return wrong;
}

}  // namespace

TEST_CASE("rounding agrees with a search for the neighbours in exact arithmetic") {
    for (const auto& [table, format] : reference::tested_formats()) {
        INFO(table);
        CHECK(count_wrong(table, format, 100000) == 0);
    }
}

TEST_CASE("rounding comes before the comparison with the maximum") {
    STATIC_REQUIRE(round_even(e4m3, 464.0f).code == e4m3.max_code());
    REQUIRE(round_even(e4m3, 464.0f, Overflow::to_infinity).kind == Rounded::Kind::finite);
    REQUIRE(round_even(e4m3, 464.00003f, Overflow::to_infinity).kind == Rounded::Kind::nan);
    REQUIRE(round_even(e5m2, 61439.996f, Overflow::to_infinity).code == e5m2.max_code());
    REQUIRE(round_even(e5m2, 61440.0f, Overflow::to_infinity).kind == Rounded::Kind::infinity);
    REQUIRE(round_even(e4m3fnuz, 248.0f, Overflow::to_infinity).kind == Rounded::Kind::nan);
    REQUIRE(round_even(find_format("p3109_k8p4se"), 232.0f, Overflow::to_infinity).code == 0x7E);
}

TEST_CASE("saturation holds overflow and infinite input, not NaN") {
    const float infinity = reference::from_bits(reference::infinity_bits);
    REQUIRE(round_even(e5m2, infinity).code == e5m2.max_code());
    REQUIRE(round_even(e5m2, infinity, Overflow::to_infinity).kind == Rounded::Kind::infinity);
    REQUIRE(round_even(e5m2, reference::from_bits(0xFFC00001u)).kind == Rounded::Kind::nan);
    const auto to_infinity = [&](Rounding rounding, float x) {
        return round_to(e5m2, x, rounding, Overflow::to_infinity, 16, 0).kind == Rounded::Kind::infinity;
    };
    REQUIRE_FALSE(to_infinity(Rounding::toward_zero, 1e6f));
    REQUIRE_FALSE(to_infinity(Rounding::down, 1e6f));
    REQUIRE_FALSE(to_infinity(Rounding::up, -1e6f));
    REQUIRE(to_infinity(Rounding::up, 1e6f));
    REQUIRE(to_infinity(Rounding::down, -1e6f));
    REQUIRE(to_infinity(Rounding::toward_zero, infinity));
    REQUIRE(to_infinity(Rounding::down, infinity));
}

TEST_CASE("negative zero and negative underflow keep the sign only where the format has it") {
    REQUIRE(round_even(e4m3, -0.0f).negative);
    REQUIRE(round_even(e4m3, -1e-9f).negative);
    REQUIRE_FALSE(round_even(e4m3fnuz, -0.0f).negative);
    REQUIRE_FALSE(round_even(e4m3fnuz, -1e-9f).negative);
    REQUIRE(round_even(e4m3fnuz, -1e-9f).code == 0);
}

TEST_CASE("a scale format gives its smallest number to everything below and NaN to negative input") {
    REQUIRE(round_even(e8m0, 0.0f).code == 0);
    REQUIRE(round_even(e8m0, reference::from_bits(1)).code == 0);
    REQUIRE(round_even(e8m0, 3.0f).code == 128);  // a tie of 2 (code 128) and 4 (code 129)
    REQUIRE(round_even(e8m0, 6.0f).code == 130);
    REQUIRE(round_even(e8m0, -1.0f).kind == Rounded::Kind::nan);
}

TEST_CASE("stochastic rounding adds random bits below the last kept bit") {
    // 1.125 + d 0.125 in e4m3 with d = 3/4: away from zero for R >= 1 of 0..3
    const float x = 1.125f + 0.09375f;
    const auto code = [&](std::uint32_t random) {
        return round_to(e4m3, x, Rounding::stochastic, Overflow::saturate, 2, random << 30).code;
    };
    REQUIRE(code(0) == 0x39);
    REQUIRE(code(1) == 0x3A);
    REQUIRE(code(3) == 0x3A);
    REQUIRE(round_to(e4m3, 1.125f, Rounding::stochastic, Overflow::saturate, 24, ~0u).code == 0x39);
}

TEST_CASE("up to 16 random bits take half words of the stream, more take words") {
    const RandomKey key{3, 4};
    for (const std::uint64_t i : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6}, std::uint64_t{0x300000007}}) {
        const QuantiseOptions halves{.bits = 16, .key = key, .first_index = 2};
        const std::uint32_t shared = random_word(key, (i + 2) / 2);
        REQUIRE(random_piece(halves, i) >> 16 == (i % 2 == 0 ? shared & 0xFFFFu : shared >> 16));
        REQUIRE(random_piece({.bits = 17, .key = key, .first_index = 2}, i) == random_word(key, i + 2));
    }
}

TEST_CASE("rounding options are checked with readable messages") {
    REQUIRE_THROWS_WITH(check_options("quantise", e4m3, {.bits = 0}), "quantise: bits is 0; expected 1 to 24");
    REQUIRE_THROWS_WITH(check_options("quantise", e2m1, {.overflow = Overflow::to_infinity}),
                        "quantise: e2m1 has neither infinity nor NaN; expected Overflow::saturate");
    REQUIRE_THROWS_WITH(check_options("encode", {.exponent_bits = 9, .mantissa_bits = 1, .bias = 0}, {}),
                        "encode: format: exponent_bits must be 1 to 8, so that values are exact in float");
    REQUIRE(name(Rounding::nearest_away) == "nearest_away");
}
