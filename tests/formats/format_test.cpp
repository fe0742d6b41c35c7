// SPDX-License-Identifier: MIT
#include <unitscale/formats/format.hpp>

#include "support/catch.hpp"

#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

using namespace unitscale;

// Bits, max, smallest normal and smallest number of every named format.
struct Facts {
    FloatFormat format;
    int bits;
    float max;
    float min_normal;
    float min_subnormal;
    bool infinity;
    bool nan;
    bool negative_zero;
};

constexpr Facts facts[] = {
    {fp32, 32, 0x1.fffffep127f, 0x1p-126f, 0x1p-149f, true, true, true},
    {tf32, 19, 0x1.ffcp127f, 0x1p-126f, 0x1p-136f, true, true, true},
    {bf16, 16, 0x1.fep127f, 0x1p-126f, 0x1p-133f, true, true, true},
    {fp16, 16, 65504.0f, 0x1p-14f, 0x1p-24f, true, true, true},
    {e5m2, 8, 57344.0f, 0x1p-14f, 0x1p-16f, true, true, true},
    {e4m3, 8, 448.0f, 0x1p-6f, 0x1p-9f, false, true, true},
    {e5m2fnuz, 8, 57344.0f, 0x1p-15f, 0x1p-17f, false, true, false},
    {e4m3fnuz, 8, 240.0f, 0x1p-7f, 0x1p-10f, false, true, false},
    {e4m3b11fnuz, 8, 30.0f, 0x1p-10f, 0x1p-13f, false, true, false},
    {e4m3_ieee, 8, 240.0f, 0x1p-6f, 0x1p-9f, true, true, true},
    {e3m4, 8, 15.5f, 0x1p-2f, 0x1p-6f, true, true, true},
    {e3m2, 6, 28.0f, 0x1p-2f, 0x1p-4f, false, false, true},
    {e2m3, 6, 7.5f, 1.0f, 0x1p-3f, false, false, true},
    {e2m1, 4, 6.0f, 1.0f, 0.5f, false, false, true},
    {e8m0, 8, 0x1p127f, 0x1p-127f, 0x1p-127f, false, true, false},
};

constexpr std::uint32_t word(float x) { return std::bit_cast<std::uint32_t>(x); }

constexpr bool facts_hold() {
    for (const Facts& f : facts) {
        if (f.format.code_bits() != f.bits || f.format.code_count() != std::uint64_t{1} << f.bits) return false;
        if (word(f.format.max()) != word(f.max) || word(f.format.min_normal()) != word(f.min_normal)) return false;
        if (word(f.format.min_subnormal()) != word(f.min_subnormal)) return false;
        if (f.format.has_infinity() != f.infinity || f.format.has_nan() != f.nan) return false;
        if (f.format.has_negative_zero() != f.negative_zero) return false;
    }
    return true;
}
static_assert(facts_hold());
static_assert(std::size(facts) == named_formats.size());

static_assert(e4m3.max_code() == 0x7E && e4m3.nan_code() == 0x7F && e4m3.sign_mask() == 0x80);
static_assert(e5m2.max_code() == 0x7B && e5m2.infinity_code() == 0x7C && e5m2.nan_code() == 0x7E);
static_assert(e4m3fnuz.max_code() == 0x7F && e4m3fnuz.nan_code() == 0x80);
static_assert(e8m0.max_code() == 0xFE && e8m0.nan_code() == 0xFF && !e8m0.is_signed() && !e8m0.has_zero());
static_assert(e4m3.max_exponent() == 8 && e5m2.max_exponent() == 15 && e3m2.max_exponent() == 4);
static_assert(e2m3.max_exponent() == 2 && e2m1.max_exponent() == 2 && e4m3.quantum_exponent() == -9);
static_assert(e4m3.lowest() == -448.0f && e4m3.epsilon() == 0.125f && e4m3.precision() == 4);

// The fnuz formats are P3109's finite ones; a template argument keeps a format apart from an equal layout.
static_assert(e4m3fnuz == p3109(8, 4, Signedness::signed_format, Domain::finite));
static_assert(e5m2fnuz == p3109(8, 3, Signedness::signed_format, Domain::finite));
static_assert(e4m3 != e4m3_ieee);
static_assert(p3109(8, 4, Signedness::signed_format, Domain::extended).max() == 224.0f);
static_assert(p3109(8, 3, Signedness::unsigned_format, Domain::extended).max_code() == 0xFD);
template <FloatFormat F>
constexpr int bits_of_format = F.code_bits();
static_assert(bits_of_format<e2m1> == 4);

TEST_CASE("formats are found by their names") {
    for (const auto& [known, format] : named_formats) {
        REQUIRE(name(format) == known);
        REQUIRE(find_format(known) == format);
    }
    REQUIRE(find_format("p3109_k8p3ue") == p3109(8, 3, Signedness::unsigned_format, Domain::extended));
    REQUIRE(name(find_format("p3109_k8p3ue")) == "p3109_k8p3ue");
    REQUIRE(name(find_format("p3109_k8p4sf")) == "e4m3fnuz");
    REQUIRE(name(make_format({3, 3, 3})) == "e3m3b3");
    REQUIRE(name(make_format({3, 3, 2, Specials::top_nan})) == "e3m3b2fn");
}

TEST_CASE("an unknown format name is an error that lists the known ones") {
    const std::string expected =
        "format: unknown name 'e9m9'; expected fp32, tf32, bf16, fp16, e5m2, e4m3, e5m2fnuz, e4m3fnuz, e4m3b11fnuz, "
        "e4m3_ieee, "
        "e3m4, e3m2, e2m3, e2m1, e8m0, or p3109_k<width>p<precision><s|u><e|f>";
    REQUIRE_THROWS_WITH(find_format("e9m9"), expected);
    for (const char* text :
         {"", "p3109_k", "p3109_k8", "p3109_k8p", "p3109_k8p3", "p3109_k8p3sx", "p3109_k8p3see", "E4M3"})
        REQUIRE_THROWS_AS(find_format(text), Error);
    REQUIRE_THROWS_WITH(find_format("p3109_k8p8se"),
                        "p3109: width 8 and precision 8 leave no exponent; expected width 3 to 15, precision 1 to 7");
}

TEST_CASE("a nonsensical format is an error that names the fault") {
    const auto message = [](const FloatFormat& format) { return std::string(problem(format)); };
    REQUIRE(message(e4m3).empty());
    REQUIRE(message({0, 3, 7}) == "exponent_bits must be 1 to 8, so that values are exact in float");
    REQUIRE(message({4, 24, 7}) == "mantissa_bits must be 0 to 23, so that values are exact in float");
    REQUIRE(message({4, 0, 7}) == "ieee specials need a mantissa bit to tell NaN from infinity");
    REQUIRE(message({1, 4, 0}) ==
            "ieee specials take the top exponent: with one exponent bit no normal number is left");
    REQUIRE(message({8, 0, 127, Specials::scale}) == "a scale format is unsigned: set sign_bits to 0");
    REQUIRE(message({4, 3, 7, Specials::none, 0}) ==
            "an unsigned format needs a NaN for negative input: use single_nan");
    REQUIRE(message({4, 3, 7, Specials::none, 2}) == "sign_bits must be 0 or 1");
    REQUIRE(message({1, 0, 0, Specials::none}) == "at least two magnitude bits are needed");
    REQUIRE(message({4, 3, 999}) == "bias is out of range: values must be exact in float");
    REQUIRE(message({4, 3, -120}) == "the largest number exceeds float's: raise bias");
    REQUIRE(message({4, 3, 150}) == "the smallest number is below float's 2^-149: lower bias or mantissa_bits");
    REQUIRE_THROWS_WITH(make_format({4, 3, 150}),
                        "format: the smallest number is below float's 2^-149: lower bias or mantissa_bits");
}

TEST_CASE("compose builds normal and subnormal numbers by their bits") {
    REQUIRE(word(compose<float>(false, 3, -1)) == word(1.5f));
    REQUIRE(word(compose<float>(true, 1, -149)) == 0x80000001u);
    REQUIRE(word(compose<float>(false, 3, -149)) == 3u);
    REQUIRE(word(compose<float>(false, 0x800000, -149)) == 0x00800000u);
    REQUIRE(word(compose<float>(true, 0, 5)) == 0x80000000u);
    REQUIRE(std::bit_cast<std::uint64_t>(compose<double>(false, 1, -149)) == std::uint64_t{1023 - 149} << 52);
    REQUIRE(std::bit_cast<std::uint64_t>(compose<double>(true, 3, 0)) == std::bit_cast<std::uint64_t>(-3.0));
}

namespace {

std::string shortest(float x) {
    std::array<char, 32> text{};
    return {text.data(), std::to_chars(text.data(), text.data() + text.size(), x).ptr};
}

/// The row of the document's table, up to the last column (other names).
std::string table_row(std::string_view name, const FloatFormat& format) {
    std::string specials;
    if (format.has_infinity()) specials += "infinity, ";
    if (format.has_nan()) specials += "NaN, ";
    if (format.has_negative_zero()) specials += "-0, ";
    specials.resize(specials.size() - 2);
    if (!format.is_signed()) specials += "; unsigned";
    if (!format.has_zero()) specials += ", no zero";
    const std::string subnormal = format.has_subnormals() ? concatenate("2^", format.quantum_exponent()) : "none";
    return concatenate("| `", name, "` | ", format.exponent_bits, " | ", format.mantissa_bits, " | ", format.bias,
                       " | ", shortest(format.max()), " | 2^", format.min_exponent(), " | ", subnormal, " | ", specials,
                       " |");
}

}  // namespace

TEST_CASE("the table of docs/formats.md states the facts of every named format") {
    std::ifstream file(UNITSCALE_TEST_DATA "/../../docs/formats.md");
    REQUIRE(file);
    std::vector<std::string> rows;
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("| `") && line.find(" | 2^") != std::string::npos) rows.push_back(line);
    REQUIRE(rows.size() == named_formats.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::string expected = table_row(named_formats[i].name, named_formats[i].format);
        CHECK(rows[i].substr(0, expected.size()) == expected);
    }
}
