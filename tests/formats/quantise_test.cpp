// SPDX-License-Identifier: MIT
#include <unitscale/formats/quantise.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

#include <cmath>

using namespace unitscale;
using reference::bits_of;
using reference::from_bits;

namespace {

std::vector<Isa> available_isas() {
    std::vector<Isa> isas;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (isa <= active_isa()) isas.push_back(isa);
    return isas;
}

std::size_t count_different(std::span<const float> a, std::span<const float> b) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) count += bits_of(a[i]) != bits_of(b[i]) ? 1u : 0u;
    return count;
}

/// Words of every exponent with varied endings of the mantissa, then the given words.
std::vector<float> float_sample(std::size_t count, bool with_nan) {
    std::vector<float> sample;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t word = random_word({5, 6}, i);
        const std::uint32_t mantissa = i % 4 == 0   ? word & 0x00700000u
                                       : i % 4 == 1 ? (word & 0x00700000u) | 1u
                                                    : word & 0x007FFFFFu;
        const float x = from_bits((word & 0xFF800000u) | mantissa);
        if (with_nan || !is_nan(x)) sample.push_back(x);
    }
    return sample;
}

}  // namespace

// The build names which of the two programs this is; the flag must have reached the compiler.
#if defined(UNITSCALE_TEST_FAST_MATH) != defined(__FAST_MATH__)
#error "-ffast-math is on in the wrong program"
#endif

static_assert(quantise(e4m3, 3.3f) == 3.25f && quantise(e4m3, 1e9f) == 448.0f && quantise(e4m3, -1e9) == -448.0);

TEST_CASE("quantise gives the values that a search in the decode table gives, for every instruction set") {
    struct Way {
        Rounding rounding;
        int bits;
    };
    constexpr Way ways[] = {{Rounding::nearest_even, 16}, {Rounding::toward_zero, 16},  {Rounding::up, 16},
                            {Rounding::down, 16},         {Rounding::nearest_away, 16}, {Rounding::stochastic, 1},
                            {Rounding::stochastic, 11},   {Rounding::stochastic, 16},   {Rounding::stochastic, 24}};
    for (const auto& [table, format] : reference::tested_formats()) {
        const reference::Lattice lattice(table);
        const std::vector<float> in = reference::rounding_cases(lattice, 100000);
        std::vector<reference::Place> places;
        for (const float x : in) places.push_back(lattice.find(x));
        std::vector<float> out(in.size()), expected(in.size());
        for (const auto& [rounding, bits] : ways)
            for (const Overflow overflow : {Overflow::saturate, Overflow::to_infinity}) {
                if (overflow == Overflow::to_infinity && !format.has_nan()) continue;
                const QuantiseOptions options{.rounding = rounding, .overflow = overflow, .bits = bits, .key = {3, 4}};
                // Words for more than 16 bits; otherwise half words, the low half first.
                std::vector<std::uint32_t> words(in.size());
                if (rounding == Rounding::stochastic) fill_random_words(options.key, 0, words);
                for (std::size_t i = 0; i < in.size(); ++i) {
                    const std::uint32_t random = bits > 16 ? words[i] : (words[i / 2] >> (16 * (i % 2))) << 16;
                    expected[i] = from_bits(lattice.round(places[i], rounding, overflow, bits, random).word());
                }
                for (const Isa isa : available_isas()) {
                    quantise_span(isa, format, in, out, options);
                    INFO(table << ' ' << name(rounding) << ' ' << bits << ' ' << name(isa));
                    CHECK(count_different(out, expected) == 0);
                }
            }
    }
}

TEST_CASE("spans and single elements agree for every format, rounding and instruction set") {
    std::vector<FloatFormat> formats{
        fp32, tf32, bf16, fp16, make_format({5, 3, 100}), make_format({2, 1, -60, Specials::top_nan})};
    for (const auto& tested : reference::tested_formats()) formats.push_back(tested.format);
    for (const FloatFormat& format : formats) {
        std::vector<float> in = float_sample(1500, format.has_nan());
        for (const float special :
             {0.0f, format.max(), format.min_subnormal(), format.min_normal(), from_bits(reference::infinity_bits)})
            for (const std::uint32_t step : {0u, 1u, ~0u})
                for (const std::uint32_t sign : {0u, 0x80000000u}) {
                    const float x = from_bits((bits_of(special) + step) ^ sign);
                    if (format.has_nan() || !is_nan(x)) in.push_back(x);
                }
        std::vector<float> out(in.size());
        std::vector<float> expected(in.size());
        for (const Rounding rounding : reference::all_roundings)
            for (const Overflow overflow : {Overflow::saturate, Overflow::to_infinity}) {
                if (overflow == Overflow::to_infinity && !format.has_nan()) continue;
                const QuantiseOptions options{
                    .rounding = rounding, .overflow = overflow, .bits = 11, .key = {3, 4}, .first_index = 7};
                for (std::size_t i = 0; i < in.size(); ++i) expected[i] = quantise(format, in[i], options, i);
                for (const Isa isa : available_isas()) {
                    quantise_span(isa, format, in, out, options);
                    INFO(name(format) << ' ' << name(rounding) << ' ' << name(isa));
                    CHECK(count_different(out, expected) == 0);
                }
            }
    }
}

TEST_CASE("spans may have any length and start, and may be quantised in place") {
    const std::vector<float> in = float_sample(300, true);
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::up, Rounding::stochastic})
        for (const Isa isa : available_isas())
            for (const std::size_t start : {0u, 1u, 3u, 13u})
                for (const std::size_t length : {0u, 1u, 5u, 63u, 64u, 65u, 127u, 200u}) {
                    const QuantiseOptions options{.rounding = rounding, .key = {8, 9}};
                    std::vector<float> copy = in;
                    quantise_span(isa, e5m2, std::span(copy).subspan(start, length),
                                  std::span(copy).subspan(start, length), options);
                    bool same = true;
                    for (std::size_t i = 0; i < in.size(); ++i) {
                        const bool inside = i >= start && i < start + length;
                        const float expected = inside ? quantise(e5m2, in[i], options, i - start) : in[i];
                        same = same && bits_of(copy[i]) == bits_of(expected);
                    }
                    INFO(name(isa) << ' ' << start << ' ' << length);
                    CHECK(same);
                }
}

TEST_CASE("large spans are streamed with equal results") {
    std::vector<float> in(stream_threshold + 37);
    for (std::size_t i = 0; i < in.size(); ++i)
        in[i] = static_cast<float>(static_cast<std::int32_t>(i * 2654435761u)) * 0x1p-26f;
    std::vector<float> out(in.size() + 3);
    const auto target = std::span(out).subspan(3, in.size());
    for (const QuantiseOptions& options :
         {QuantiseOptions{}, QuantiseOptions{.rounding = Rounding::stochastic, .key = {1, 2}, .first_index = 3}}) {
        for (const Isa isa : available_isas()) {
            quantise_span(isa, e4m3, in, target, options);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < in.size(); i += i < 5000 || i + 5000 > in.size() ? 1u : 97u)
                wrong += bits_of(target[i]) != bits_of(quantise(e4m3, in[i], options, i)) ? 1u : 0u;
            INFO(name(isa) << ' ' << name(options.rounding));
            REQUIRE(wrong == 0);
            REQUIRE(bits_of(out[2]) == 0);
        }
    }
}

TEST_CASE("stochastic rounding does not depend on how a span is cut") {
    std::vector<float> in(3000);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(random_normal({1, 1}, i));
    const QuantiseOptions options{.rounding = Rounding::stochastic, .bits = 8, .key = {21, 22}, .first_index = 5};
    std::vector<float> whole(in.size());
    quantise(e4m3, in, whole, options);
    for (const std::size_t chunk : {1u, 7u, 64u, 1000u, 1025u}) {
        std::vector<float> parts(in.size());
        for (std::size_t begin = 0; begin < in.size(); begin += chunk) {
            const std::size_t count = std::min<std::size_t>(chunk, in.size() - begin);
            QuantiseOptions part = options;
            part.first_index += begin;
            quantise(e4m3, std::span<const float>(in).subspan(begin, count), std::span(parts).subspan(begin, count),
                     part);
        }
        REQUIRE(count_different(whole, parts) == 0);
    }
    std::vector<float> other(in.size());
    quantise(e4m3, in, other, {.rounding = Rounding::stochastic, .bits = 8, .key = {21, 23}, .first_index = 5});
    REQUIRE(count_different(whole, other) > 800);
}

TEST_CASE("the mean of stochastic rounding is the input, within five standard errors") {
    constexpr std::size_t n = 20000;
    // Normal, subnormal and smaller numbers of each kind of format.
    const std::vector<std::pair<FloatFormat, float>> cases{{e4m3, 1.03125f},
                                                           {e4m3, -3.4f},
                                                           {e4m3, 0.0049f},
                                                           {e4m3, 0.0003f},
                                                           {e5m2, 0.9f},
                                                           {e5m2, -4e-5f},
                                                           {e5m2, 1e-6f},
                                                           {e2m1, 0.2f},
                                                           {e2m1, -0.7f},
                                                           {e3m4, 0.1f},
                                                           {e4m3fnuz, 100.1f},
                                                           {e4m3fnuz, -0.0031f},
                                                           {fp16, 0.3001f},
                                                           {fp16, 3.33e-6f},
                                                           {fp16, -2e-8f},
                                                           {bf16, 1.001f},
                                                           {bf16, 0x1.23456p-130f},
                                                           {tf32, -1e5f / 3},
                                                           {e8m0, 5.5f},
                                                           {e8m0, 0x1.4p-127f},
                                                           {find_format("p3109_k8p3ue"), 0.7f},
                                                           {find_format("p3109_k8p1se"), -2.9f}};
    for (const auto& [format, x] : cases)
        for (const int bits : {1, 4, 8, 20}) {
            const std::vector<float> in(n, x);
            std::vector<float> out(n);
            quantise(format, in, out,
                     {.rounding = Rounding::stochastic, .bits = bits, .key = {77, static_cast<std::uint64_t>(bits)}});
            double sum = 0;
            for (const float value : out) sum += reference::to_double(value);
            const double exact = reference::to_double(x);
            const double low = reference::to_double(quantise(format, x, {.rounding = Rounding::down}));
            const double high = reference::to_double(quantise(format, x, {.rounding = Rounding::up}));
            // With N bits the probability of the outer neighbour is d cut to N bits.
            const double inner = exact > 0 ? low : high;
            const double outer = exact > 0 ? high : low;
            const double d = std::floor(std::ldexp((exact - inner) / (outer - inner), bits)) / std::ldexp(1.0, bits);
            const double expected = inner + d * (outer - inner);
            const double error = (high - low) * std::sqrt(d * (1 - d) / static_cast<double>(n));
            INFO(name(format) << ' ' << x << " bits " << bits);
            CHECK(std::abs(sum / static_cast<double>(n) - expected) <= 5 * error + 1e-12 * (high - low));
            CHECK(std::abs(expected - exact) <= std::ldexp(high - low, -bits));
        }
}

TEST_CASE("elements that share a random word are rounded independently") {
    constexpr std::size_t pairs = 40000;
    for (const int bits : {1, 8, 16}) {
        const std::vector<float> in(2 * pairs, 1.0625f);  // half way from 1 to 1.125
        std::vector<float> out(in.size());
        quantise(e4m3, in, out, {.rounding = Rounding::stochastic, .bits = bits, .key = {5, 5}});
        std::size_t equal = 0;
        for (std::size_t i = 0; i < pairs; ++i) equal += bits_of(out[2 * i]) == bits_of(out[2 * i + 1]) ? 1u : 0u;
        INFO(bits);
        CHECK(std::abs(static_cast<double>(equal) - pairs / 2.0) <= 5 * std::sqrt(pairs / 4.0));
    }
}

TEST_CASE("stochastic rounding never moves exact values") {
    std::vector<float> in;
    for (std::uint32_t code = 0; code <= e4m3.max_code(); ++code) in.push_back(e4m3.magnitude<float>(code));
    std::vector<float> out(in.size());
    for (std::uint64_t stream = 0; stream < 20; ++stream) {
        quantise(e4m3, in, out, {.rounding = Rounding::stochastic, .bits = 24, .key = {1, stream}});
        REQUIRE(count_different(in, out) == 0);
    }
}

TEST_CASE("doubles are rounded once") {
    const double x = 1.0625 + 0x1p-40;  // just above a tie of e4m3; as a float it is the tie
    REQUIRE(quantise(e4m3, static_cast<float>(x)) == 1.0f);
    REQUIRE(quantise(e4m3, x) == 1.125);
    const double tiny = 0x1p-10 + 0x1p-60;
    REQUIRE(quantise(e4m3, tiny) == 0x1p-9);
    const std::vector<double> in{x, -x, 1e300, -1e-300, 464.0, 464.0 + 1e-12};
    std::vector<double> out(in.size());
    quantise(e4m3, std::span<const double>(in), std::span<double>(out), {.overflow = Overflow::to_infinity});
    REQUIRE(out[0] == 1.125);
    REQUIRE(out[1] == -1.125);
    REQUIRE(is_nan(out[2]));
    REQUIRE(std::bit_cast<std::uint64_t>(out[3]) == std::uint64_t{1} << 63);
    REQUIRE(out[4] == 448.0);
    REQUIRE(is_nan(out[5]));
    for (std::size_t i = 0; i < 2000; ++i) {
        const float y = static_cast<float>(random_normal({2, 2}, i));
        REQUIRE(quantise(fp16, static_cast<double>(y)) == static_cast<double>(quantise(fp16, y)));
    }
}

TEST_CASE("bf16 is the upper half of a float, rounded") {
    const std::vector<float> in = float_sample(40000, false);
    std::vector<float> out(in.size());
    quantise(bf16, in, out, {.overflow = Overflow::to_infinity});
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
        const std::uint32_t word = bits_of(in[i]);
        const std::uint32_t expected = (word + 0x7FFFu + ((word >> 16) & 1u)) & 0xFFFF0000u;  // subnormals included
        wrong += bits_of(out[i]) != expected ? 1u : 0u;
    }
    REQUIRE(wrong == 0);
}

TEST_CASE("fp32 returns floats unchanged, except infinity when saturating") {
    const std::vector<float> in = float_sample(2000, false);
    std::vector<float> out(in.size());
    quantise(fp32, in, out, {.overflow = Overflow::to_infinity});
    REQUIRE(count_different(in, out) == 0);
    REQUIRE(bits_of(quantise(fp32, from_bits(reference::infinity_bits))) == 0x7F7FFFFFu);
}

TEST_CASE("quantise names the fault of its input") {
    std::vector<float> in(300, 1.0f);
    std::vector<float> out(in.size());
    REQUIRE_THROWS_WITH(quantise(e4m3, in, std::span(out).first(2)),
                        "quantise: input and output sizes differ: 300 != 2");
    REQUIRE_THROWS_WITH(quantise(e4m3, in, out, {.rounding = Rounding::stochastic, .bits = 25}),
                        "quantise: bits is 25; expected 1 to 24");
    REQUIRE_THROWS_WITH(quantise(FloatFormat{}, in, out),
                        "quantise: format: exponent_bits must be 1 to 8, so that values are exact in float");
    in[257] = from_bits(0xFFC00000u);
    REQUIRE(find_nan(std::span<const float>(in)) == 257);
    REQUIRE(find_nan(std::span<const float>(in).first(257)) == 257);
    REQUIRE_THROWS_WITH(quantise(e2m1, in, out), "quantise: e2m1 has no NaN: element 257 of the input is NaN");
    in[0] = 1.3f;
    REQUIRE_THROWS_WITH(quantise(e2m1, in, in), "quantise: e2m1 has no NaN: element 257 of the input is NaN");
    REQUIRE(in[0] == 1.3f);  // in place, nothing is overwritten
    REQUIRE_THROWS_WITH(quantise(e3m2, in[257]), "quantise: e3m2 has no NaN: element 0 of the input is NaN");
    quantise(e4m3, in, out);
    REQUIRE(bits_of(out[257]) == reference::nan_bits);
}
