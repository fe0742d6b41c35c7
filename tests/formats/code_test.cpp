// SPDX-License-Identifier: MIT
#include <unitscale/base/vectors.hpp>
#include <unitscale/formats/code.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

#include <cstring>

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

/// Decodes and encodes again every code, alone and in a span. NaN codes come back as the one NaN code.
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
    for (const auto& [table, format] : reference::formats_with_tables()) {
        if (format.code_bits() <= 8) check_round_trip<std::uint8_t>(format);
        check_round_trip<std::uint16_t>(format);
    }
}

TEST_CASE("every format up to 16 bits has a decode table, and every table a format") {
    const auto tested = reference::formats_with_tables();  // an error if a table has no format
    REQUIRE(tested.size() == 33);
    for (const auto& [known, format] : named_formats) {
        const auto same = [&f = format](const reference::TestedFormat& entry) { return entry.format == f; };
        INFO(known);
        CHECK((format.code_bits() > 16 || std::any_of(tested.begin(), tested.end(), same)));
    }
}

TEST_CASE("every value agrees with the decode tables") {
    for (const auto& [table, format] : reference::formats_with_tables()) {
        const auto rows = reference::read_table(table);
        INFO(table);
        CHECK(rows.size() == (format.code_bits() <= 8 ? format.code_count() : 259));
        std::size_t wrong = 0;
        for (const auto& row : rows) {
            wrong += bits_of(decode(format, row.code)) != word_of(row) ? 1u : 0u;
            if (row.kind == Kind::finite) wrong += encode(format, from_bits(word_of(row))) != row.code ? 1u : 0u;
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("encode gives the codes that a search in the decode table gives") {
    for (const auto& [table, format] : reference::tested_formats()) {
        const reference::Lattice lattice(table);
        const auto rows = reference::read_table(table);
        const std::vector<float> in = reference::rounding_cases(lattice, 100000);
        std::vector<reference::Place> places;
        for (const float x : in) places.push_back(lattice.find(x));
        std::vector<std::uint8_t> codes(in.size());
        for (const Rounding rounding : reference::all_roundings)
            for (const Overflow overflow : {Overflow::saturate, Overflow::to_infinity}) {
                if (overflow == Overflow::to_infinity && !lattice.has_nan) continue;
                const QuantiseOptions options{.rounding = rounding, .overflow = overflow, .bits = 20, .key = {9, 8}};
                encode(format, std::span<const float>(in), std::span(codes), options);
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < in.size(); ++i) {
                    const std::uint32_t random = rounding == Rounding::stochastic ? random_piece(options, i) : 0;
                    const auto expected = lattice.round(places[i], rounding, overflow, options.bits, random);
                    const reference::TableRow& found = rows[codes[i]];
                    const bool same_number =
                        found.negative == expected.negative && std::abs(found.value) == expected.value;
                    wrong += found.kind != expected.kind || (found.kind != Kind::nan && !same_number) ? 1u : 0u;
                }
                INFO(table << ' ' << name(rounding));
                CHECK(wrong == 0);
            }
    }
}

TEST_CASE("loops of every instruction set encode and decode exactly the elements that they are given") {
    for (const auto& [known, format] : named_formats) {
        if (format.code_bits() > 8) continue;
        std::vector<float> in;
        for (std::uint32_t code = 0; code <= format.max_code(); ++code)
            for (const float x : {format.magnitude<float>(code), 1.5f * format.magnitude<float>(code)})
                for (const std::uint32_t step : {~0u, 0u, 1u}) {
                    const float y = from_bits((bits_of(x) + step) & 0x7FFFFFFFu);
                    if (!is_nan(y)) in.insert(in.end(), {y, -y});
                }
        for (std::size_t i = 0; i < 3000; ++i)
            if (const float x = from_bits(random_word({41, 42}, i)); format.has_nan() || !is_nan(x)) in.push_back(x);
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::up, Rounding::stochastic})
            for (const Overflow overflow : {Overflow::saturate, Overflow::to_infinity})
                for (const std::size_t count :
                     {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{100}, in.size()}) {
                    if (overflow == Overflow::to_infinity && !format.has_nan()) continue;
                    const QuantiseOptions options{
                        .rounding = rounding, .overflow = overflow, .bits = 12, .key = {9, 8}, .first_index = 7};
                    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
                        if (isa > active_isa()) continue;
                        const auto given = std::span<const float>(in).last(count);
                        std::vector<std::uint8_t> codes(count + 1, 0xA5);
                        std::vector<float> values(count + 1, 77.0f);
                        encode_span(isa, format, given, std::span(codes).first(count), options);
                        decode_span(isa, format, std::span<const std::uint8_t>(codes).first(count),
                                    std::span(values).first(count));
                        std::size_t wrong = codes[count] != 0xA5 || values[count] != 77.0f ? 1u : 0u;
                        for (std::size_t i = 0; i < count; ++i) {
                            wrong += codes[i] != encode(format, given[i], options, i) ? 1u : 0u;
                            wrong += bits_of(values[i]) != bits_of(decode(format, codes[i])) ? 1u : 0u;
                        }
                        INFO(known << ' ' << name(rounding) << ' ' << name(isa) << ' ' << count);
                        REQUIRE(wrong == 0);
                    }
                }
    }
}

#if UNITSCALE_X86
namespace {

bool processor_flushes_subnormals() { return (_mm_getcsr() & 0x40u) != 0; }

template <int mode>
__attribute__((target("avx,f16c"))) void processor_halves(const float* in, std::uint16_t* out, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), mode));
}

__attribute__((target("avx,f16c"))) void processor_floats(const std::uint16_t* in, float* out, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
}

UNITSCALE_TARGET_AVX512_BF16 void processor_brains(const float* in, std::uint16_t* out, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 16) {
        const auto converted = _mm512_cvtneps_pbh(_mm512_loadu_ps(in + i));
        std::memcpy(out + i, &converted, sizeof converted);
    }
}

/// The values of all codes, their midpoints and neighbours, and 100000 floats of every exponent; none is NaN. Their
/// number is a multiple of 16.
std::vector<float> floats_around(const FloatFormat& format) {
    std::vector<std::uint32_t> words;
    for (std::uint32_t code = 0; code <= format.max_code(); ++code) {
        const double value = format.magnitude<double>(code), next = format.magnitude<double>(code + 1);
        for (const double x : {value, value + (next - value) / 2})
            if (x < 3.4e38)
                for (const std::uint32_t step : {~0u, 0u, 1u}) words.push_back(reference::to_word(x, false) + step);
    }
    for (std::size_t i = 0; i < 100000; ++i) words.push_back(random_word({31, 32}, i));
    std::vector<float> floats;
    for (std::size_t i = 0; i < words.size(); ++i)
        if (const float x = from_bits(words[i] ^ (i % 2 == 0 ? 0x80000000u : 0u)); !is_nan(x)) floats.push_back(x);
    floats.resize(floats.size() / 16 * 16);
    return floats;
}

std::size_t count_unlike(const std::vector<std::uint16_t>& codes, const std::vector<std::uint16_t>& expected) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < codes.size(); ++i) count += codes[i] != expected[i] ? 1u : 0u;
    return count;
}

}  // namespace

TEST_CASE("fp16 agrees with the processor's conversions in all their roundings") {
    if (active_isa() == Isa::baseline) return;
    std::vector<float> in = floats_around(fp16);
    if (processor_flushes_subnormals())
        for (float& x : in) x = (bits_of(x) & 0x7F800000u) == 0 ? 1.0f : x;
    std::vector<std::uint16_t> codes(in.size()), expected(in.size());
    const auto check = [&](Rounding rounding, auto convert) {
        encode(fp16, std::span<const float>(in), std::span(codes),
               {.rounding = rounding, .overflow = Overflow::to_infinity});
        convert(in.data(), expected.data(), in.size());
        INFO(name(rounding));
        CHECK(count_unlike(codes, expected) == 0);
    };
    check(Rounding::nearest_even, processor_halves<_MM_FROUND_TO_NEAREST_INT>);
    check(Rounding::down, processor_halves<_MM_FROUND_TO_NEG_INF>);
    check(Rounding::up, processor_halves<_MM_FROUND_TO_POS_INF>);
    check(Rounding::toward_zero, processor_halves<_MM_FROUND_TO_ZERO>);

    const std::vector<std::uint16_t> all = codes_of<std::uint16_t>(fp16);
    std::vector<float> values(all.size()), expected_values(all.size());
    decode(fp16, std::span<const std::uint16_t>(all), std::span(values));
    processor_floats(all.data(), expected_values.data(), all.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const bool same = bits_of(values[i]) == bits_of(expected_values[i]);
        wrong += same || (is_nan(values[i]) && is_nan(expected_values[i])) ? 0u : 1u;
    }
    REQUIRE(wrong == 0);
}

TEST_CASE("bf16 agrees with the processor's conversion") {
    if (!has_avx512_bf16()) return;
    std::vector<float> in;
    for (const float x : floats_around(bf16))
        if ((bits_of(x) & 0x7F800000u) != 0) in.push_back(x);  // the instruction flushes subnormals
    in.resize(in.size() / 16 * 16);
    std::vector<std::uint16_t> codes(in.size()), expected(in.size());
    encode(bf16, std::span<const float>(in), std::span(codes), {.overflow = Overflow::to_infinity});
    processor_brains(in.data(), expected.data(), in.size());
    REQUIRE(in.size() > 100000);
    REQUIRE(count_unlike(codes, expected) == 0);
}
#endif

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
    REQUIRE_THROWS_WITH(encode(e2m3, from_bits(reference::nan_bits)),
                        "encode: e2m3 has no NaN: element 0 of the input is NaN");
}
