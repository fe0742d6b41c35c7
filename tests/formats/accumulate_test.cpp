// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/formats/accumulate.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

std::string message(const Accumulate& options) {
    return test::error_of([&] { check_accumulate("op", options); });
}

std::uint32_t word_of(float x) { return std::bit_cast<std::uint32_t>(x); }
float number_of(std::uint32_t word) { return std::bit_cast<float>(word); }
constexpr std::uint32_t infinity = 0x7F800000u, quiet_nan = 0x7FC00000u;

/// The value of a finite float's word, in double. Made by its bits: this test also runs under fast-math, with
/// subnormals flushed.
double value_of_word(std::uint32_t word) {
    const int field = static_cast<int>((word >> 23) & 0xFFu);
    const std::uint32_t significand = (word & 0x7FFFFFu) | (field > 0 ? 0x800000u : 0u);
    const double magnitude = std::ldexp(static_cast<double>(significand), (field > 0 ? field : 1) - 150);
    return word >> 31 != 0 ? -magnitude : magnitude;
}

/// Whether `result` is the word of x rounded. In double: x scaled to multiples of the step, rounded to an integer,
/// scaled back.
bool is_rounded(const FloatFormat& format, const Accumulate& options, Rounding rounding, std::uint32_t word,
                std::uint32_t result) {
    const std::uint32_t magnitude = word & 0x7FFFFFFFu;
    if (magnitude > infinity) return result == quiet_nan;
    if (magnitude == infinity) return result == word;
    if ((result & 0x7FFFFFFFu) > infinity) return false;
    const bool infinite = (result & 0x7FFFFFFFu) == infinity;
    if (magnitude != 0 && ((result ^ word) >> 31) != 0) return false;
    const double x = std::abs(value_of_word(word)), y = infinite ? 0 : std::abs(value_of_word(result));
    const int bits = format.mantissa_bits, least = 2 - (1 << (format.exponent_bits - 1));
    if (!options.subnormals && x < std::ldexp(1.0, least)) {
        const bool up = rounding == Rounding::nearest_even && x > std::ldexp(0.75, least);
        return !infinite && y == (up ? std::ldexp(1.0, least) : 0.0);
    }
    const int step = std::max(x == 0 ? least : std::ilogb(x), least) - bits;
    const double steps = std::ldexp(x, -step),
                 exact =
                     std::ldexp(rounding == Rounding::toward_zero ? std::trunc(steps) : std::nearbyint(steps), step);
    const double largest = (2 - std::ldexp(1.0, -bits)) * std::ldexp(1.0, 1 - least);
    if (exact <= largest) return !infinite && y == exact;
    if (options.overflow == Overflow::to_infinity && rounding == Rounding::nearest_even) return infinite;
    return !infinite && y == largest;
}

}  // namespace

TEST_CASE("a sum is rounded as mptorch's Q does, with each option", "[formats]") {
    std::size_t wrong = 0, count = 0;
    for (const FloatFormat& format : {e8m13, fp32, bf16, tf32, fp16, e5m2, e4m3_ieee, e3m4, make_format({5, 21, 15}),
                                      make_format({2, 1, 1}), make_format({7, 9, 63})})
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::toward_zero})
            for (const Overflow overflow : {Overflow::to_infinity, Overflow::saturate})
                for (const bool subnormals : {true, false}) {
                    const Accumulate options{.sums = format, .overflow = overflow, .subnormals = subnormals};
                    std::vector<std::uint32_t> inputs{0u,          0x80000000u, 1u,       0x7F7FFFFFu,
                                                      0xFF7FFFFFu, 0x00800000u, infinity, infinity | 0x80000000u,
                                                      0xFFFFFFFFu};
                    const std::uint32_t least = word_of(format.min_normal()), largest = word_of(format.max()),
                                        half = format.mantissa_bits < 23 ? 1u << (22 - format.mantissa_bits) : 0u;
                    const auto three_quarters = word_of(compose<float>(false, 3, format.min_exponent() - 2));
                    for (const std::uint32_t edge : {least, largest, largest + half, three_quarters,
                                                     word_of(format.min_subnormal()), least / 2, 0x3F800000u})
                        for (const std::uint32_t word : {edge - 1, edge, edge + 1})
                            inputs.insert(inputs.end(), {word, word | 0x80000000u});
                    for (std::uint64_t i = 0; i < 1000; ++i) inputs.push_back(random_word({1, 2}, i));
                    for (std::uint64_t i = 0; i < 1000; ++i)  // near the least and the largest numbers
                        inputs.push_back((i % 2 == 0 ? least : largest) + (random_word({1, 3}, i) >> 5) - (1u << 26));
                    for (const std::uint32_t word : inputs) {
                        const float y = round_sum(options, format, rounding, number_of(word));
                        wrong += !is_rounded(format, options, rounding, word, word_of(y));
                        ++count;
                    }
                }
    REQUIRE(count > 100000);
    REQUIRE(wrong == 0);
}

TEST_CASE("the largest numbers and the limit of flushing are the sheet's", "[formats]") {
    const Accumulate plain{.sums = e4m3_ieee}, saturating{.sums = e4m3_ieee, .overflow = Overflow::saturate},
        flushing{.sums = e4m3_ieee, .subnormals = false};
    const auto round = [](const Accumulate& options, float x) {
        return round_sum(options, options.sums, options.rounding, x);
    };
    REQUIRE(round(plain, 247.0f) == 240.0f);
    REQUIRE(word_of(round(plain, 248.0f)) == infinity);
    REQUIRE(round(saturating, -1000.0f) == -240.0f);
    REQUIRE(word_of(round(saturating, number_of(infinity))) == infinity);
    REQUIRE(round(flushing, 0.75f * 0x1p-6f) == 0.0f);
    REQUIRE(round(flushing, std::nextafter(0.75f * 0x1p-6f, 1.0f)) == 0x1p-6f);
    REQUIRE(round(plain, 0x1p-9f) == 0x1p-9f);
}

TEST_CASE("named sums are the published ones", "[formats]") {
    STATIC_REQUIRE(hopper_sums.group == 32);
    STATIC_REQUIRE(hopper_sums.fraction_bits == 13);
    STATIC_REQUIRE(hopper_sums.sums.mantissa_bits == 13);
    STATIC_REQUIRE(hopper_sums_promoted.run_length == 128);
    STATIC_REQUIRE(hopper_sums_promoted.totals == fp32);
    STATIC_REQUIRE(blackwell_sums.fraction_bits == 25);
    STATIC_REQUIRE(blackwell_sums.sums == fp32);
    STATIC_REQUIRE(mptorch_sums(fp16).fused);
    STATIC_REQUIRE(!mptorch_sums(fp16, e5m2).fused);
    STATIC_REQUIRE(mptorch_cuda_sums(fp16).run_length == 8);
    STATIC_REQUIRE(mptorch_cuda_sums(fp16).totals == fp16);
    REQUIRE(message(mptorch_cuda_sums(bf16, bf16)).empty());
    REQUIRE(message(Accumulate{}).empty());
}

TEST_CASE("options that make no sense are errors that name the field", "[formats]") {
    REQUIRE(message({.sums = e4m3_ieee, .fused = false, .products = e5m2}) ==
            "op: accumulate.sums (e4m3_ieee) cannot hold its products; expected a largest exponent of at least theirs");
    REQUIRE(message({.sums = {.exponent_bits = 9, .mantissa_bits = 1, .bias = 3}}) ==
            "op: accumulate.sums (e9m1b3) exponent_bits must be 1 to 8, so that values are exact in float");
    REQUIRE(message({.sums = e4m3}) ==
            "op: accumulate.sums (e4m3) must be signed with ieee specials, because sums can be infinity or NaN");
    REQUIRE(message({.fused = false, .products = e2m1}) ==
            "op: accumulate.products (e2m1) must be signed with ieee specials, because sums can be infinity or NaN");
    REQUIRE(message({.sums = make_format({5, 22, 15})}) ==
            "op: accumulate.sums (e5m22b15) must have the least exponent -126, or at most 21 mantissa bits and "
            "exponents from -100 to 100");
    REQUIRE(message({.rounding = Rounding::stochastic}) ==
            "op: accumulate.rounding (stochastic) of sums must be nearest_even or toward_zero");
    REQUIRE(message({.run_length = -1}) ==
            "op: accumulate.run_length (-1) must be a number of products, or 0 for no promotion");
    REQUIRE(message({.run_length = 128, .totals = fp16}) ==
            "op: accumulate.totals (fp16) cannot hold every number of sums; expected a format at least as wide");
    const auto aligned = [](auto change) {
        Accumulate options = hopper_sums;
        change(options);
        return message(options);
    };
    REQUIRE(aligned([](auto& o) { o.sums = fp16; }) ==
            "op: accumulate.sums (fp16) of an aligned sum must have float's exponents: 8 exponent bits, bias 127");
    REQUIRE(aligned([](auto& o) { o.group = 65; }) == "op: accumulate.group (65) must be 1 to 64 products");
    REQUIRE(aligned([](auto& o) { o.fraction_bits = 35; }) ==
            "op: accumulate.fraction_bits (35) must be 1 to 28, so that cut terms are exact");
    REQUIRE(aligned([](auto& o) { o.run_length = 100; }) ==
            "op: accumulate.run_length (100) must be a multiple of group");
    REQUIRE(aligned([](auto& o) { o.rounding = Rounding::nearest_even; }) ==
            "op: accumulate.rounding (nearest_even) of an aligned sum must be toward_zero");
    REQUIRE(aligned([](auto& o) { o.overflow = Overflow::saturate; }) ==
            "op: accumulate.overflow (saturate) of an aligned sum must be to_infinity");
    REQUIRE(aligned([](auto& o) { o.subnormals = false; }) ==
            "op: accumulate.subnormals (false) of an aligned sum must be kept");
}

TEST_CASE("operands whose products overflow the sums are an error", "[formats]") {
    const auto of = [](const Accumulate& options, const FloatFormat& a, const FloatFormat& b) {
        return test::error_of([&] { check_products("op", options, a, b); });
    };
    REQUIRE(of(mptorch_sums(fp16), e4m3, e4m3) ==
            "op: accumulate.sums (fp16) cannot hold its products: e4m3 times e4m3 reaches 200704; expected a largest "
            "number of at least that, Overflow::saturate or a measured bias");
    REQUIRE(of({.sums = fp16, .overflow = Overflow::saturate}, e4m3, e4m3).empty());
    REQUIRE(of(mptorch_sums(fp16), e3m4, e4m3_ieee).empty());
    REQUIRE(of(hopper_sums, e5m2, e5m2).empty());
}
