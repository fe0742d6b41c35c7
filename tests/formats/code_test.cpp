// SPDX-License-Identifier: MIT
#include <unitscale/formats/code.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

using namespace unitscale;
using reference::bits_of;
using reference::from_bits;
using reference::Kind;

static_assert(encode(e4m3, 448.0f) == 0x7E && encode(e4m3, -0.0f) == 0x80 && encode(e4m3, 3.25) == 0x45);
static_assert(decode(e4m3, 0x45) == 3.25f && decode(e5m2, 0x7B) == 57344.0f);

namespace {

std::uint32_t word_of(const reference::TableRow& row) {
    const reference::Result result{row.kind, row.negative, row.code, row.value};
    return result.word();
}

template <class Code>
std::vector<Code> codes_of(const FloatFormat& format) {
    std::vector<Code> codes;
    for (std::uint64_t code = 0; code < format.code_count(); ++code) codes.push_back(static_cast<Code>(code));
    return codes;
}

/// Every code, decoded and encoded again, alone and in a span. NaN codes come back as the one NaN code.
template <class Code>
void check_round_trip(const FloatFormat& format) {
    const std::vector<Code> codes = codes_of<Code>(format);
    std::vector<float> values(codes.size());
    std::vector<Code> again(codes.size());
    decode(format, std::span<const Code>(codes), std::span<float>(values));
    const Overflow overflow = format.has_nan() ? Overflow::to_infinity : Overflow::saturate;
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::toward_zero, Rounding::stochastic}) {
        const QuantiseOptions options{.rounding = rounding, .overflow = overflow};
        encode(format, std::span<const float>(values), std::span<Code>(again), options);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < codes.size(); ++i) {
            const std::uint32_t expected = is_nan(values[i]) ? format.nan_code() : codes[i];
            wrong += again[i] != expected || encode(format, values[i], options) != expected ? 1u : 0u;
            wrong += bits_of(decode(format, codes[i])) != bits_of(values[i]) ? 1u : 0u;
        }
        INFO(name(format) << ' ' << name(rounding));
        CHECK(wrong == 0);
    }
}

}  // namespace

TEST_CASE("every code of every format up to 16 bits decodes and encodes back") {
    for (const auto& tested : reference::tested_formats()) check_round_trip<std::uint8_t>(tested.format);
    check_round_trip<std::uint16_t>(e4m3);
    check_round_trip<std::uint16_t>(fp16);
    check_round_trip<std::uint16_t>(bf16);
}

TEST_CASE("every value agrees with the decode tables") {
    std::vector<reference::TestedFormat> formats = reference::tested_formats();
    for (const auto& tested : formats) REQUIRE(reference::read_table(tested.table).size() == tested.format.code_count());
    formats.push_back({"binary16", fp16});
    formats.push_back({"bfloat16", bf16});
    for (const auto& [table, format] : formats) {
        std::size_t wrong = 0;
        for (const auto& row : reference::read_table(table)) {
            wrong += bits_of(decode(format, row.code)) != word_of(row) ? 1u : 0u;
            if (row.kind == Kind::finite) wrong += encode(format, from_bits(word_of(row))) != row.code ? 1u : 0u;
        }
        INFO(table);
        CHECK(wrong == 0);
    }
}

TEST_CASE("codes of a span are the codes of its quantised elements") {
    std::vector<float> in(2500);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = from_bits(random_word({3, 3}, i));
    std::vector<std::uint8_t> codes(in.size());
    const QuantiseOptions options{
        .rounding = Rounding::stochastic, .overflow = Overflow::to_infinity, .key = {4, 5}, .first_index = 2};
    for (const FloatFormat& format : {e5m2, e4m3, e4m3fnuz, e8m0, find_format("p3109_k8p3ue")}) {
        encode(format, std::span<const float>(in), std::span(codes), options);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < in.size(); ++i) {
            wrong += codes[i] != encode(format, in[i], options, i) ? 1u : 0u;
            wrong += bits_of(decode(format, codes[i])) != bits_of(quantise(format, in[i], options, i)) ? 1u : 0u;
        }
        INFO(name(format));
        CHECK(wrong == 0);
    }
}

TEST_CASE("encoding a double rounds once") {
    const double x = 1.0625 + 0x1p-40;
    REQUIRE(encode(e4m3, static_cast<float>(x)) == 0x38);
    REQUIRE(encode(e4m3, x) == 0x39);
}

TEST_CASE("codes that do not fit are errors") {
    std::vector<float> values(3);
    std::vector<std::uint8_t> codes(3);
    REQUIRE_THROWS_WITH(encode(fp16, std::span<const float>(values), std::span(codes)),
                        "encode: codes of fp16 take 16 bits, not 8");
    REQUIRE_THROWS_WITH(decode(bf16, std::span<const std::uint8_t>(codes), std::span(values)),
                        "decode: codes of bf16 take 16 bits, not 8");
    REQUIRE_THROWS_WITH(decode(e4m3, std::span<const std::uint8_t>(codes), std::span(values).first(2)),
                        "decode: input and output sizes differ: 3 != 2");
    REQUIRE_THROWS_WITH(decode(e2m1, 16), "decode: code 16 does not fit the 4 bits of e2m1");
    REQUIRE_THROWS_WITH(encode(e2m3, from_bits(reference::nan_bits)), "encode: e2m3 has no NaN: element 0 of the input is NaN");
}
