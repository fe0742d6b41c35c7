// SPDX-License-Identifier: MIT
#include <unitscale/formats/block_scale.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;
using reference::bits_of;
using reference::from_bits;
using reference::to_double;
using unitscale::test::error_of;

namespace {

const float infinity = from_bits(reference::infinity_bits);
const float quiet_nan = from_bits(reference::nan_bits);
const float float_max = from_bits(0x7F7FFFFFu);

/// The float nearest to an exact double, by the library's general rounding.
float fl(double exact) {
    const Rounded r = round_to(fp32, exact, Rounding::nearest_even, Overflow::to_infinity, 0, 0);
    return value_of<float>(fp32, r);
}
float times(float a, float b) { return fl(to_double(a) * to_double(b)); }
float over(float a, float b) { return fl(to_double(a) / to_double(b)); }

/// A named format with another field.
BlockFormat with(BlockFormat format, auto change) {
    change(format);
    return make_block_format(format);
}

BlockScale scale_of(const BlockFormat& format, float amax, float tensor_amax = 1) {
    return block_scale(format, amax, tensor_numbers(format, tensor_amax));
}

/// Positive numbers of every exponent: random, powers of two, and the neighbours of these and of short numbers.
std::vector<float> magnitudes(std::size_t count) {
    std::vector<float> numbers{from_bits(0), from_bits(1), from_bits(0x007FFFFFu), from_bits(0x00800000u), float_max};
    for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t word = random_word({21, 22}, i) & 0x7FFFFFFFu;
        if (i % 3 == 1) word = (word & 0x7FF80000u) + word % 5 - 2;
        if (i % 3 == 2) word = (word & 0x7F800000u) + word % 3 - 1;
        if (word < 0x7F800000u) numbers.push_back(from_bits(word));
    }
    return numbers;
}

/// The exponent of an MX scale as the specification words it, in double.
int expected_exponent(const BlockFormat& format, float amax) {
    const double b = to_double(amax);
    int u = -127;
    if (bits_of(amax) >= 0x00800000u) {
        std::frexp(b, &u);
        --u;
    }
    const double ratio = std::ldexp(b, -u);
    int exponent = u - format.element.max_exponent();
    if (format.exponent == ExponentRounding::ceil && (u > -127 ? ratio != 1 : b != 0)) ++exponent;
    if (format.exponent == ExponentRounding::even)
        exponent += ratio >= 2 - std::ldexp(1.0, -(format.element.mantissa_bits + 1)) ? 1 : 0;
    if (format.exponent == ExponentRounding::rceil) {
        const double d = to_double(times(amax, over(1.0f, format.element.max())));
        for (exponent = -127; std::ldexp(1.0, exponent) < d;) ++exponent;
    }
    return std::max(-127, std::min(127, exponent));
}

}  // namespace

static_assert(block_scale(mxfp8_e4m3, 150.0f, tensor_numbers(mxfp8_e4m3)).code == 126);

TEST_CASE("amax 150 and 957 in e4m3: the exponents of the four roundings") {
    struct Example {
        const char* format;
        int of_150, of_957;
    };
    for (const auto& [format, of_150, of_957] : {Example{"mxfp8_e4m3", -1, 1},
                                                 {"mxfp8_e4m3_ceil", 0, 2},
                                                 {"mxfp8_e4m3_rceil", -1, 2},
                                                 {"mxfp8_e4m3_even", -1, 1}}) {
        INFO(format);
        CHECK(static_cast<int>(scale_of(find_block_format(format), 150).code) - 127 == of_150);
        CHECK(static_cast<int>(scale_of(find_block_format(format), 957).code) - 127 == of_957);
    }
}

TEST_CASE("exponents of every format and rounding agree with the definition in double") {
    const std::vector<float> numbers = magnitudes(3000);
    each_named_block_format([&](std::string_view, std::string_view, const BlockFormat& format) {
        if (!format.has_exponent_codes()) return;
        std::size_t wrong = 0;
        for (const float b : numbers) {
            const BlockScale scale = scale_of(format, b);
            if (scale.nan()) {  // only `even`, next to the largest float
                const double bound = std::ldexp(1 - std::ldexp(1.0, -(format.element.mantissa_bits + 2)), 128);
                wrong += format.exponent == ExponentRounding::even && to_double(b) >= bound ? 0u : 1u;
                continue;
            }
            const int exponent = expected_exponent(format, b);
            wrong += scale.code != static_cast<std::uint32_t>(exponent + 127) ? 1u : 0u;
            wrong += to_double(scale.value) != std::ldexp(1.0, exponent) ? 1u : 0u;
            wrong += to_double(scale.encode.value) != std::ldexp(1.0, -exponent) || scale.encode.divides ? 1u : 0u;
            wrong += bits_of(scale.decode.value) != bits_of(scale.value) || scale.decode.divides ? 1u : 0u;
        }
        INFO(name(format));
        CHECK(wrong == 0);
    });
}

TEST_CASE("even goes up from the number whose significand rounds to 2") {
    struct Border {
        BlockFormat format;
        float border;
    };
    for (auto [format, border] : {Border{mxfp4, 1.75f},
                                  {mxfp6_e3m2, 1.875f},
                                  {mxfp8_e5m2, 1.875f},
                                  {mxfp6_e2m3, 1.9375f},
                                  {mxfp8_e4m3, 1.9375f}}) {
        format.exponent = ExponentRounding::even;
        const std::uint32_t at_one = scale_of(format, 1).code;
        CHECK(scale_of(format, border).code == at_one + 1);
        CHECK(scale_of(format, from_bits(bits_of(border) - 1)).code == at_one);
    }
}

TEST_CASE("rceil maps the largest element onto itself, and nothing above it") {
    for (const BlockFormat& base : {mxfp8_e4m3, mxfp8_e5m2, mxfp6_e3m2, mxfp6_e2m3, mxfp4}) {
        const BlockFormat format = with(base, [](BlockFormat& f) { f.exponent = ExponentRounding::rceil; });
        const float max = format.element.max();
        CHECK(scale_of(format, max).code == 127);
        CHECK(scale_of(format, from_bits(bits_of(max) + 1)).code == 128);
        CHECK(scale_of(format, max / 2).code == 126);
    }
    // fl(1/max) is below 1/max for int8: the next float above max still counts as max.
    const BlockFormat format = with(mxint8, [](BlockFormat& f) { f.exponent = ExponentRounding::rceil; });
    CHECK(scale_of(format, from_bits(bits_of(127.0f / 64) + 1)).code == 127);
}

TEST_CASE("zero, subnormal and the largest amax of power-of-two codes") {
    each_named_block_format([&](std::string_view, std::string_view, const BlockFormat& format) {
        if (!format.has_exponent_codes()) return;
        CHECK(scale_of(format, from_bits(0)).code == 0);
        CHECK(bits_of(scale_of(format, from_bits(0)).value) == 0x00400000u);  // 2^-127
        CHECK(scale_of(format, from_bits(0)).encode.value == 0x1p127f);
        CHECK(scale_of(format, from_bits(1)).code <= 1);  // 1: MXINT8's ceil
        CHECK(scale_of(format, from_bits(0x007FFFFFu)).code <= 1);
        const BlockScale largest = scale_of(format, float_max);
        CHECK(largest.nan() == (format.exponent == ExponentRounding::even));
        CHECK((largest.nan() || largest.code <= 254));
    });
    // MXINT8's largest scale is 2^127, and its multiplier 2^-127 is subnormal.
    const BlockScale largest = scale_of(mxint8, float_max);
    CHECK(largest.code == 254);
    CHECK(bits_of(largest.encode.value) == 0x00400000u);
}

TEST_CASE("even beside the largest float: a NaN block, the next exponent, or amax's own") {
    const auto format = [](EvenOverflow overflow) {
        return with(mxfp8_e4m3, [overflow](BlockFormat& f) {
            f.exponent = ExponentRounding::even;
            f.even_overflow = overflow;
        });
    };
    const float border = from_bits(0x7F780000u);  // 2^128 (1 - 2^-5)
    const float below = from_bits(0x7F77FFFFu);
    for (const EvenOverflow overflow : {EvenOverflow::nan_block, EvenOverflow::next, EvenOverflow::clamp})
        CHECK(scale_of(format(overflow), below).code == 127 + 127 - 8);
    CHECK(scale_of(format(EvenOverflow::nan_block), border).nan());
    CHECK(scale_of(format(EvenOverflow::nan_block), border).code == 255);
    CHECK(scale_of(format(EvenOverflow::next), border).code == 127 + 128 - 8);
    CHECK(scale_of(format(EvenOverflow::clamp), border).code == 127 + 127 - 8);
}

TEST_CASE("infinite and NaN amax of power-of-two codes") {
    for (const BlockFormat& format : {mxfp8_e4m3, mxfp4, mxint8}) {
        for (const float amax : {infinity, quiet_nan}) {
            const BlockScale scale = scale_of(format, amax);
            CHECK(scale.nan());
            CHECK(scale.code == 255);
            CHECK(is_nan(scale.decode.value));
        }
        const BlockFormat saturating = with(format, [](BlockFormat& f) { f.non_finite = NonFiniteAmax::saturate; });
        CHECK(scale_of(saturating, infinity).code == 254);
        CHECK(bits_of(scale_of(saturating, infinity).encode.value) == 0x00400000u);
        CHECK(scale_of(saturating, quiet_nan).code == 255);
    }
}

TEST_CASE("flushed blocks have the least scale and a multiplier of zero") {
    const BlockFormat format = with(mxfp8_e5m2, [](BlockFormat& f) { f.flush_subnormal_blocks = true; });
    CHECK(is_any_zero(scale_of(format, from_bits(0x007FFFFFu)).encode.value));
    CHECK(scale_of(format, from_bits(0x007FFFFFu)).code == 0);
    CHECK(scale_of(format, from_bits(0x00800000u)).encode.value == 0x1p127f);
    CHECK(scale_of(mxfp8_e5m2, from_bits(0x007FFFFFu)).encode.value == 0x1p127f);
}

TEST_CASE("a user's power-of-two format clamps to its own range") {
    // 2^-3 to 2^3, code 7 is NaN.
    const BlockFormat format = make_block_format({.element = e2m1, .scale = {3, 0, 3, Specials::scale, 0}});
    CHECK(scale_of(format, 6.0f).value == 1.0f);
    CHECK(scale_of(format, 6.0f).code == 3);
    CHECK(scale_of(format, 1e9f).value == 8.0f);
    CHECK(scale_of(format, 1e9f).code == 6);
    CHECK(scale_of(format, from_bits(0)).value == 0.125f);
    CHECK(scale_of(format, quiet_nan).code == 7);
}

TEST_CASE("scale codes with a mantissa are made by each library's operations") {
    const reference::Lattice lattice("ocp_e4m3");
    const auto e4m3_code = [&](float x) {
        return lattice.round(lattice.find(x), Rounding::nearest_even, Overflow::saturate, 0, 0);
    };
    const BlockFormat engine_one = with(nvfp4, [](BlockFormat& f) { f.tensor_scale = false; });
    const BlockFormat torchao_one = by_rule(BlockRule::torchao, engine_one);
    const BlockFormat torchao = by_rule(BlockRule::torchao, nvfp4);
    std::size_t wrong = 0, subnormal = 0, zero = 0, clamped = 0;
    const auto count = [&](const BlockScale& got, const reference::Result& s, float q, float decode) {
        const bool equal = got.code == s.code && bits_of(got.value) == s.word() &&
                           bits_of(got.encode.value) == bits_of(q) && bits_of(got.decode.value) == bits_of(decode) &&
                           !got.encode.divides && !got.decode.divides;
        wrong += equal ? 0u : 1u;
    };
    const auto least = [](float a, float b) { return to_double(a) < to_double(b) ? a : b; };
    const std::vector<float> numbers = magnitudes(4000);
    for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
        const float b = numbers[i];
        const float scaling = fl(std::ldexp(1.0, static_cast<int>(i % 24)));  // A is 1 to 2^23 times b
        const float a = least(times(b, scaling), float_max);
        if (is_any_zero(a)) continue;

        // TransformerEngine, two levels.
        const float forward = least(over(2688, a), float_max), inverse = over(1, forward);
        reference::Result s = e4m3_code(least(times(b, times(forward, over(1, 6))), 448));
        const auto value = [&] { return from_bits(s.word()); };
        float divisor = times(value(), inverse);
        float q = is_any_zero(divisor) ? float_max : least(over(1, divisor), float_max);
        const float product = times(value(), a);
        if (!is_infinite(product)) count(scale_of(nvfp4, b, a), s, q, times(product, over(1, 2688)));
        subnormal += s.code > 0 && s.code < 8 ? 1u : 0u;
        zero += s.code == 0 ? 1u : 0u;

        // torchao, two levels. A quotient by T = 0 is infinite, or 0 where torchao makes NaN of 0/0.
        const float t = over(a, 2688);
        float wanted = is_any_zero(over(b, 6)) ? 0.0f : is_any_zero(t) ? infinity : over(over(b, 6), t);
        clamped += to_double(wanted) < 0x1p-6 ? 1u : 0u;
        s = e4m3_code(to_double(wanted) < 0x1p-6 ? 0x1p-6f : least(wanted, 448));
        const float inverse_t = is_any_zero(t) ? infinity : over(1, t);
        count(scale_of(torchao, b, a), s, is_infinite(inverse_t) ? infinity : over(inverse_t, value()),
              times(t, value()));

        // One level: subnormal and zero scales, or none below the least normal one.
        s = e4m3_code(least(over(b, 6), 448));
        q = s.code == 0 ? float_max : over(1, value());
        count(scale_of(engine_one, b), s, q, value());
        wanted = over(b, 6);
        s = e4m3_code(to_double(wanted) < 0x1p-6 ? 0x1p-6f : least(wanted, 448));
        count(scale_of(torchao_one, b), s, over(1, value()), value());
    }
    CHECK(wrong == 0);
    CHECK(subnormal > 100);
    CHECK(zero > 100);
    CHECK(clamped > 100);
}

TEST_CASE("two levels: zero, infinite and NaN tensors") {
    const BlockScale zero = scale_of(nvfp4, from_bits(0), from_bits(0));
    CHECK(zero.code == 0);
    CHECK(zero.encode.value == float_max);
    CHECK(is_any_zero(zero.decode.value));
    CHECK(tensor_numbers(nvfp4, from_bits(0)).forward == 1.0f);
    CHECK(tensor_numbers(nvfp4, infinity).forward == 1.0f);
    CHECK(tensor_numbers(nvfp4, 1e-38f).forward == float_max);
    CHECK(scale_of(nvfp4, 6.0f, infinity).value == 1.0f);
    CHECK(scale_of(nvfp4, infinity, infinity).value == 448.0f);
    CHECK(is_infinite(scale_of(nvfp4, infinity, infinity).decode.value));
    CHECK(scale_of(nvfp4, 6.0f, quiet_nan).nan());
    CHECK(scale_of(nvfp4, quiet_nan, quiet_nan).code == e4m3.nan_code());

    const BlockFormat torchao = by_rule(BlockRule::torchao, nvfp4);
    CHECK(scale_of(torchao, from_bits(0), 1.0f).value == 0x1p-6f);
    CHECK(scale_of(torchao, from_bits(0), from_bits(0)).value == 0x1p-6f);  // NaN in torchao
    CHECK(scale_of(torchao, from_bits(0), from_bits(0)).encode.value == 1.0f);
    CHECK(scale_of(torchao, infinity, infinity).nan());
    CHECK(scale_of(torchao, quiet_nan, quiet_nan).nan());
    CHECK(scale_of(torchao, 1.0f, quiet_nan).nan());
    CHECK(tensor_numbers(torchao, 2688.0f).number == 1.0f);
    CHECK(tensor_numbers(nvfp4, 2688.0f).number == 2688.0f);
    CHECK(tensor_numbers(mxfp4, 2688.0f).number == 1.0f);
}

TEST_CASE("a tensor's amax above FLT_MAX / 448 decodes to infinity, or in the other order to numbers") {
    const BlockFormat reordered = with(nvfp4, [](BlockFormat& f) { f.tensor_overflow = TensorOverflow::reordered; });
    const float huge = 0x1p125f;
    CHECK(is_infinite(scale_of(nvfp4, huge, huge).decode.value));
    const BlockScale scale = scale_of(reordered, huge, huge);
    CHECK(bits_of(scale.decode.value) == bits_of(times(448, times(huge, over(1, 2688)))));
    CHECK(bits_of(scale_of(reordered, 1.0f, 3.3f).decode.value) == bits_of(scale_of(nvfp4, 1.0f, 3.3f).decode.value));
    CHECK(is_infinite(scale_of(reordered, infinity, infinity).decode.value));
}

TEST_CASE("a user's scale format keeps subnormal scales, and saturates") {
    constexpr FloatFormat ue5m3{5, 3, 15, Specials::single_nan, 0};
    const BlockFormat format = make_block_format({.element = e2m1, .along = 24, .scale = ue5m3});
    CHECK(scale_of(format, 6.0f).value == 1.0f);
    CHECK(scale_of(format, 6.6f).value == 1.125f);            // 1.1 is nearer to 1.125 than to 1
    CHECK(scale_of(format, 6 * 0x1p-17f).value == 0x1p-17f);  // the least one
    CHECK(scale_of(format, 6 * 0x1p-17f).encode.value == 0x1p17f);
    CHECK(is_any_zero(scale_of(format, 6 * 0x1p-19f).value));
    CHECK(scale_of(format, 6 * 0x1p-19f).encode.value == float_max);
    CHECK(is_any_zero(scale_of(format, 6 * 0x1p-19f).decode.value));
    CHECK(scale_of(format, 1e30f).value == ue5m3.max());
    CHECK(scale_of(format, infinity).nan());
    CHECK(scale_of(format, infinity).code == ue5m3.nan_code());
    CHECK(scale_of(by_rule(BlockRule::torchao, format), infinity).value == ue5m3.max());
    CHECK(scale_of(by_rule(BlockRule::torchao, format), quiet_nan).nan());
    CHECK(scale_of(by_rule(BlockRule::torchao, format), from_bits(1)).value == 0x1p-14f);
}

TEST_CASE("scales in float are made by each library's operations") {
    const std::vector<float> numbers = magnitudes(3000);
    const BlockFormat engine = with(fp8_tile, [](BlockFormat& f) { f.form = ScaleForm::float32; });
    const auto as_powers = [](BlockFormat f) {
        f.form = ScaleForm::power_of_two;
        return f;
    };
    const BlockFormat torchao = by_rule(BlockRule::torchao, engine);
    const BlockFormat deepgemm = by_rule(BlockRule::deepgemm, engine), deepseek = by_rule(BlockRule::deepseek, engine);
    std::size_t wrong = 0;
    const auto expect = [&wrong](const BlockScale& got, float encode, bool divides, float value, bool decode_divides) {
        const bool equal = bits_of(got.encode.value) == bits_of(encode) && got.encode.divides == divides &&
                           bits_of(got.value) == bits_of(value) && got.decode.divides == decode_divides;
        wrong += equal ? 0u : 1u;
    };
    for (const float amax : numbers) {
        // TransformerEngine: S = 448 / amax.
        float s = is_any_zero(amax) ? 1.0f : over(448, amax);
        if (is_infinite(s)) s = float_max;
        expect(scale_of(engine, amax), s, false, over(1, s), false);
        const auto down = [](float x) { return from_bits(bits_of(x) & 0x7F800000u); };
        expect(scale_of(fp8_tile, amax), down(s), false, over(1, down(s)), false);

        // torchao: amax is at least 1e-12, in double.
        s = fl(448.0 / std::max(to_double(amax), 1e-12));
        expect(scale_of(torchao, amax), s, false, over(1, s), false);
        expect(scale_of(float8_tensor, amax), s, false, s, (bits_of(s) & 0x7FFFFFu) != 0);
        expect(scale_of(float8_line, amax), down(s), false, down(s), false);
        wrong += bits_of(scale_of(float8_line, amax).decode.value) != bits_of(over(1, down(s))) ? 1u : 0u;

        // DeepGEMM and DeepSeek: f = amax / 448, at least 1e-4 / 448.
        const float f = over(to_double(amax) < to_double(1e-4f) ? 1e-4f : amax, 448);
        expect(scale_of(deepgemm, amax), over(1, f), false, f, false);
        wrong += scale_of(deepgemm, amax).decode.value != f ? 1u : 0u;
        const bool power = (bits_of(f) & 0x7FFFFFu) == 0;
        expect(scale_of(deepseek, amax), power ? over(1, f) : f, !power, f, false);
        const float up = power ? f : from_bits((bits_of(f) & 0x7F800000u) + 0x00800000u);
        expect(scale_of(as_powers(deepgemm), amax), over(1, up), false, up, false);
        expect(scale_of(as_powers(deepseek), amax), over(1, up), false, up, false);
    }
    CHECK(wrong == 0);
}

TEST_CASE("zero, small, infinite and NaN amax of scales in float") {
    CHECK(scale_of(fp8_tile, from_bits(0)).value == 1.0f);
    CHECK(scale_of(fp8_tile, from_bits(1)).encode.value == 0x1p127f);
    CHECK(bits_of(scale_of(fp8_tile, from_bits(1)).value) == 0x00400000u);
    for (const float amax : {infinity, quiet_nan}) {
        CHECK(scale_of(fp8_tile, amax).value == 1.0f);  // the kernel's
        CHECK(scale_of(fp8_tile, amax).encode.value == 1.0f);
        for (const BlockRule rule :
             {BlockRule::torchao, BlockRule::torchao_float8, BlockRule::deepgemm, BlockRule::deepseek}) {
            CHECK(scale_of(by_rule(rule, fp8_tile), amax).nan());
            CHECK(is_nan(scale_of(by_rule(rule, fp8_tile), amax).decode.value));
        }
    }
    BlockFormat format = fp8_tile;
    format.non_finite = NonFiniteAmax::saturate;
    CHECK(scale_of(format, infinity).value == scale_of(format, float_max).value);
    CHECK(scale_of(format, quiet_nan).nan());
    // The least amax: of every rule, and of none.
    format.amax_floor = 0.5;
    CHECK(scale_of(format, 0.25f).value == scale_of(format, 0.5f).value);
    CHECK(scale_of(format, from_bits(0)).value == scale_of(format, 0.5f).value);
    CHECK(scale_of(format, 0.75f).value == scale_of(fp8_tile, 0.75f).value);
    for (const BlockRule rule : {BlockRule::torchao, BlockRule::deepgemm, BlockRule::deepseek}) {
        format = by_rule(rule, fp8_tile);
        CHECK(scale_of(format, from_bits(0)).value == scale_of(format, 1e-13f).value);
        format.amax_floor = 0.0;
        CHECK(scale_of(format, from_bits(0)).value == 1.0f);
    }
    // f underflows to 0: elements saturate, and decode to 0.
    CHECK(is_any_zero(scale_of(format, from_bits(1)).value));
    CHECK(scale_of(format, from_bits(1)).encode == BlockFactor{float_max, false});
    // A power of two f has an exponent field of at least 1.
    format.form = ScaleForm::power_of_two;
    CHECK(scale_of(format, from_bits(1)).value == 0x1p-126f);
    CHECK(scale_of(fp8_tile, 448.0f).value == 1.0f);
    CHECK(scale_of(fp8_tile, from_bits(bits_of(448.0f) + 1)).value == 2.0f);
    CHECK(scale_of(format, 448.0f).value == 1.0f);
    CHECK(scale_of(format, from_bits(bits_of(448.0f) + 1)).value == 2.0f);
}

TEST_CASE("factors of spans give the bits of single operations, wherever numbers are subnormal") {
    std::vector<float> in;
    for (std::size_t i = 0; i < 61; ++i) in.push_back(from_bits(random_word({31, 32}, i) & 0xBFFFFFFFu));
    std::vector<float> elements;
    for (std::uint32_t code = 0; code < 127; ++code) elements.push_back(e4m3.magnitude<float>(code, code % 3 == 0));
    std::size_t wrong_codes = 0, wrong_values = 0;
    for (const float f : magnitudes(600)) {
        for (const bool divides : {false, true}) {
            if (divides && is_any_zero(f)) continue;
            const BlockFactor factor{f, divides};
            std::vector<float> out(in.size());
            BlockScaler::encode(e4m3, factor, in.data(), out.data(), in.size());
            for (std::size_t i = 0; i < in.size(); ++i) {
                const float expected = divides ? over(in[i], f) : times(in[i], f);
                wrong_codes += encode(e4m3, out[i]) != encode(e4m3, expected) ? 1u : 0u;
            }
            out.resize(elements.size());
            BlockScaler::decode(e4m3, factor, elements.data(), out.data(), elements.size());
            for (std::size_t i = 0; i < elements.size(); ++i) {
                const float expected = divides ? over(elements[i], f) : times(elements[i], f);
                wrong_values += bits_of(out[i]) != bits_of(expected) ? 1u : 0u;
            }
        }
    }
    CHECK(wrong_codes == 0);
    CHECK(wrong_values == 0);
}

TEST_CASE("lines that overlap are an error") {
    std::vector<float> x(20);
    CHECK(error_of([&] {
              check_lines("op", "input", MatrixLines<float>{x.data(), 3, 5, 4});
          }) == "op: input [3,5] has stride 4; expected at least 5");
    CHECK(error_of([&] { check_lines("op", "input", MatrixLines<float>{x.data(), 1, 5, 0}); }).empty());
}
