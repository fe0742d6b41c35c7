// SPDX-License-Identifier: MIT
#include <unitscale/formats/float_arithmetic.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

#include <vector>

using namespace unitscale;
using reference::bits_of;
using reference::from_bits;

namespace {

/// A number as sign, significand and exponent.
struct Parts {
    std::uint64_t significand = 0;
    int exponent = 0;
};

Parts parts_of(float x) {
    const std::uint32_t magnitude = bits_of(x) & 0x7FFFFFFFu;
    const int field = static_cast<int>(magnitude >> 23);
    return {(magnitude & 0x7FFFFFu) | (field > 0 ? 0x800000u : 0u), (field > 0 ? field : 1) - 150};
}

/// significand 2^exponent rounded to float by steps of halving, with a sticky bit: slow, and without a double.
std::uint32_t rounded_word(std::uint64_t significand, int exponent, bool sticky) {
    if (significand == 0) return 0;
    significand = significand * 4 + (sticky ? 1 : 0);  // two bits more: half and sticky
    exponent -= 2;
    while (exponent < -151 || (significand >> 26) != 0) {
        significand = (significand >> 1) | (significand & 1);
        ++exponent;
    }
    while (exponent > -151 && (significand >> 25) == 0) {
        significand <<= 1;
        --exponent;
    }
    auto kept = static_cast<std::uint32_t>(significand >> 2);
    const auto rest = static_cast<std::uint32_t>(significand & 3);
    if (rest > 2 || (rest == 2 && kept % 2 == 1)) ++kept;
    // A normal number's leading bit counts as one step of the exponent field.
    const std::uint64_t word = kept + (static_cast<std::uint64_t>(exponent + 151) << 23);
    return word < 0x7F800000u ? static_cast<std::uint32_t>(word) : 0x7F800000u;
}

/// Words of every exponent, many of them subnormal or near the ends, no NaN and no infinity.
std::vector<float> operands(std::size_t count, std::uint32_t seed) {
    std::vector<float> numbers;
    for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t word = random_word({seed, 1}, i);
        if (i % 5 == 1) word &= 0x80FFFFFFu;
        if (i % 5 == 2) word &= 0xFF800000u | (0x7Fu << 16);
        if (i % 5 == 3) word = (word & 0x80FFFFFFu) | 0x7E000000u;
        if ((word & 0x7F800000u) == 0x7F800000u) word ^= 0x40000000u;
        numbers.push_back(from_bits(word));
    }
    return numbers;
}

}  // namespace

static_assert(rounded_product(3.0f, 0.5f) == 1.5f && rounded_quotient(1.0f, 3.0f) == 0x1.555556p-2f);
static_assert(rounded_sum(0x1p24f, 1.0f) == 0x1p24f && rounded_sum(0x1p24f, 3.0f) == 0x1p24f + 4.0f);
static_assert(power_of_two_below(1.999f) == 1.0f && power_of_two_above(1.001f) == 2.0f);

TEST_CASE("products, quotients and sums are rounded once, for every size of operands") {
    const std::vector<float> left = operands(200000, 1), right = operands(200000, 2);
    std::size_t products = 0, quotients = 0, sums = 0, subnormal = 0, infinite = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
        const Parts a = parts_of(left[i]), b = parts_of(right[i]);
        const std::uint32_t sign = (bits_of(left[i]) ^ bits_of(right[i])) & 0x80000000u;
        std::uint32_t expected = rounded_word(a.significand * b.significand, a.exponent + b.exponent, false);
        products += bits_of(rounded_product(left[i], right[i])) != (expected | sign) ? 1u : 0u;
        subnormal += expected != 0 && expected < 0x00800000u ? 1u : 0u;
        infinite += expected == 0x7F800000u ? 1u : 0u;
        if (b.significand != 0) {
            const int shift = std::countl_zero(a.significand | 1) - 5;
            const std::uint64_t numerator = a.significand << shift;
            expected = rounded_word(numerator / b.significand, a.exponent - b.exponent - shift,
                                    numerator % b.significand != 0);
            quotients += bits_of(rounded_quotient(left[i], right[i])) != (expected | sign) ? 1u : 0u;
        }
        // Sums: exponents no more than 35 apart, so that integers hold them.
        const int low = std::min(a.exponent, b.exponent);
        if (std::max(a.exponent, b.exponent) - low > 35) continue;
        const auto part = [low](const Parts& p, float x) {
            const auto wide = static_cast<std::int64_t>(p.significand << (p.exponent - low));
            return (bits_of(x) >> 31) != 0 ? -wide : wide;
        };
        const std::int64_t sum = part(a, left[i]) + part(b, right[i]);
        expected = rounded_word(static_cast<std::uint64_t>(sum < 0 ? -sum : sum), low, false);
        const std::uint32_t got = bits_of(rounded_sum(left[i], right[i]));
        sums += (got & 0x7FFFFFFFu) != expected || (sum != 0 && (got >> 31 != 0) != (sum < 0)) ? 1u : 0u;
    }
    CHECK(products == 0);
    CHECK(quotients == 0);
    CHECK(sums == 0);
    CHECK(subnormal > 1000);
    CHECK(infinite > 1000);
}

TEST_CASE("subnormal quotients in the middle of two floats go to the even one") {
    const float step = from_bits(1);
    for (std::uint32_t divisor = 2; divisor < 200; divisor += 2)
        for (std::uint32_t odd = 1; odd < 20; odd += 2) {
            const float numerator = from_bits(odd * divisor / 2);  // odd/2 divisor steps
            CHECK(bits_of(rounded_quotient(numerator, static_cast<float>(divisor))) == (odd / 2 + 1) / 2 * 2);
        }
    CHECK(bits_of(rounded_quotient(step, 0x1p60f)) == 0);
    CHECK(bits_of(rounded_quotient(-step, 2.0f)) == 0x80000000u);
}

TEST_CASE("infinity and NaN follow IEEE 754, by bits") {
    const float infinity = from_bits(reference::infinity_bits), nan = from_bits(0x7FC00000u), zero = from_bits(0);
    for (const float x : {nan, -1.0f, infinity, zero}) {
        CHECK(is_nan(rounded_product(x, nan)));
        CHECK(is_nan(rounded_quotient(nan, x)));
        CHECK(is_nan(rounded_sum(x, nan)));
    }
    CHECK(is_nan(rounded_product(zero, infinity)));
    CHECK(is_nan(rounded_quotient(zero, from_bits(0x80000000u))));
    CHECK(is_nan(rounded_quotient(infinity, infinity)));
    CHECK(is_nan(rounded_sum(infinity, from_bits(0xFF800000u))));
    CHECK(bits_of(rounded_product(-2.0f, infinity)) == 0xFF800000u);
    CHECK(bits_of(rounded_quotient(-2.0f, zero)) == 0xFF800000u);
    CHECK(bits_of(rounded_quotient(2.0f, infinity)) == 0);
    CHECK(bits_of(rounded_sum(infinity, infinity)) == reference::infinity_bits);
    CHECK(bits_of(rounded_product(from_bits(0x7F7FFFFFu), 1.5f)) == reference::infinity_bits);
}

TEST_CASE("doubles are narrowed once, and floats are widened exactly") {
    for (const float x : operands(2000, 3)) {
        CHECK(widened(x) == reference::to_double(x));
        CHECK(bits_of(narrowed(widened(x))) == bits_of(x));
    }
    CHECK(bits_of(narrowed(0x1p-150)) == 0);
    CHECK(bits_of(narrowed(0x1.0000000000001p-150)) == 1);
    CHECK(bits_of(narrowed(0x3p-150)) == 2);
    CHECK(bits_of(narrowed(0x1.fffffep-127)) == 0x00800000u);
    CHECK(bits_of(narrowed(0x1.ffffffp127)) == reference::infinity_bits);
    CHECK(bits_of(narrowed(0x1.fffffefffffffp127)) == 0x7F7FFFFFu);
    CHECK(bits_of(narrowed(-1e300)) == 0xFF800000u);
    CHECK(bits_of(narrowed(1e-300)) == 0);
    CHECK(is_nan(narrowed(std::bit_cast<double>(std::uint64_t{0x7FF8} << 48))));
    CHECK((std::bit_cast<std::uint64_t>(widened(from_bits(0xFF800000u))) >> 52) == 0xFFF);
    CHECK((std::bit_cast<std::uint64_t>(widened(from_bits(0x7FC00000u))) >> 48) == 0x7FF8);
}

TEST_CASE("a double is rounded to float's precision as by way of float") {
    std::size_t wrong = 0;
    const std::vector<float> left = operands(20000, 5), right = operands(20000, 6);
    for (std::size_t i = 0; i < left.size(); ++i) {
        const double exact = widened(left[i]) * widened(right[i]);
        const auto word = std::bit_cast<std::uint64_t>(rounded_to_float(exact));
        wrong += word != std::bit_cast<std::uint64_t>(widened(narrowed(exact))) ? 1u : 0u;
    }
    CHECK(wrong == 0);
    CHECK(rounded_to_float(0x1.ffffffp3) == 16.0);
    CHECK(std::bit_cast<std::uint64_t>(rounded_to_float(0x1.ffffffp127)) == std::uint64_t{0x7FF} << 52);
    CHECK(is_normal(1.0f));
    CHECK(is_normal(from_bits(0x80800000u)));
    CHECK(is_normal(from_bits(0x7F7FFFFFu)));
    for (const std::uint32_t word : {0u, 0x007FFFFFu, 0x7F800000u, 0xFFC00000u}) CHECK(!is_normal(from_bits(word)));
}

TEST_CASE("neighbouring powers of two are taken from the bits") {
    for (const float x : operands(5000, 4)) {
        const float magnitude = from_bits(magnitude_word(x));
        if (is_any_zero(magnitude)) continue;
        const double below = widened(power_of_two_below(magnitude)), above = widened(power_of_two_above(magnitude));
        int exponent = 0;
        CHECK(std::frexp(below, &exponent) == 0.5);
        CHECK((below <= widened(magnitude) && widened(magnitude) < 2 * below));
        CHECK(std::frexp(above, &exponent) == 0.5);
        CHECK((widened(magnitude) <= above || above == 0x1p127));
        CHECK(above < 2 * widened(magnitude));
    }
    CHECK(bits_of(power_of_two_above(from_bits(3))) == 4);
    CHECK(bits_of(power_of_two_below(from_bits(3))) == 2);
    CHECK(power_of_two_above(0x1.000002p127f) == 0x1p127f);
}
