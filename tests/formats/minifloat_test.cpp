// SPDX-License-Identifier: MIT
#include <unitscale/formats/minifloat.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

#include <sstream>
#include <unordered_set>

using namespace unitscale;
using reference::bits_of;

using E4M3 = Minifloat<e4m3>;
using E5M2 = Minifloat<e5m2>;
using Fnuz = Minifloat<e4m3fnuz>;

static_assert(sizeof(E4M3) == 1 && sizeof(Minifloat<e2m1>) == 1 && sizeof(Minifloat<fp16>) == 2 &&
              sizeof(Minifloat<tf32>) == 4);
static_assert(std::is_trivially_copyable_v<E4M3> && std::is_convertible_v<E4M3, float> &&
              !std::is_convertible_v<float, E4M3>);
static_assert(static_cast<float>(E4M3(3.3f)) == 3.25f && E4M3(465.0f).bits() == 0x7E && E4M3(2).bits() == 0x40);
static_assert(E4M3::from_bits(0x45) * 2 == 6.5f);

TEST_CASE("a minifloat stores the code of the nearest value") {
    for (std::uint32_t i = 0; i < 5000; ++i) {
        const float x = static_cast<float>(random_normal({1, 1}, i)) * 30.0f;
        REQUIRE(E4M3(x).bits() == encode(e4m3, x));
        REQUIRE(reference::bits_of(static_cast<float>(E5M2(x))) == reference::bits_of(quantise(e5m2, x)));
    }
    REQUIRE(E4M3(1.0625 + 0x1p-40).bits() == 0x39);  // from double in one rounding
    REQUIRE(E4M3().bits() == 0);
}

namespace {

/// Codes of F (all up to 16 bits) through every conversion. Returns the number of failures.
template <FloatFormat F>
std::size_t count_wrong_conversions() {
    using Number = Minifloat<F>;
    const std::uint64_t step = F.code_bits() <= 16 ? 1 : (F.code_count() >> 16) + 1;
    std::size_t wrong = 0;
    for (std::uint64_t code = 0; code < F.code_count(); code += step) {
        const auto x = Number::from_bits(static_cast<typename Number::Storage>(code));
        const float value = x;
        wrong += bits_of(value) != bits_of(decode(F, static_cast<std::uint32_t>(code))) ? 1u : 0u;
        wrong += x.is_nan() != is_nan(value) ? 1u : 0u;
        if (is_nan(value) || (bits_of(value) & 0x7FFFFFFFu) == reference::infinity_bits) continue;
        wrong += Number(value).bits() != code || Number(reference::to_double(value)).bits() != code ? 1u : 0u;
        if (F.is_signed()) wrong += bits_of(-value) != bits_of(-x) && code != 0 ? 1u : 0u;
    }
    using Limits = std::numeric_limits<Number>;
    wrong += bits_of(Limits::max()) != bits_of(F.max()) || bits_of(Limits::lowest()) != bits_of(F.lowest()) ? 1u : 0u;
    wrong += bits_of(Limits::min()) != bits_of(F.min_normal()) ? 1u : 0u;
    wrong += bits_of(Limits::denorm_min()) != bits_of(F.min_subnormal()) ? 1u : 0u;
    wrong += Limits::has_quiet_NaN && !Limits::quiet_NaN().is_nan() ? 1u : 0u;
    if (Limits::has_infinity) wrong += bits_of(Limits::infinity()) != reference::infinity_bits ? 1u : 0u;
    return wrong;
}

}  // namespace

TEST_CASE("every named format converts to float and back, and its limits are its own") {
    const auto check = [&]<std::size_t... i>(std::index_sequence<i...>) {
        for (const auto& [known, wrong] :
             {std::pair{named_formats[i].name, count_wrong_conversions<named_formats[i].format>()}...}) {
            INFO(known);
            CHECK(wrong == 0);
        }
    };
    check(std::make_index_sequence<named_formats.size()>());
}

TEST_CASE("minifloats compare as numbers") {
    for (std::uint32_t a = 0; a < 256; a += 3)
        for (std::uint32_t b = 0; b < 256; ++b) {
            const auto x = E5M2::from_bits(static_cast<std::uint8_t>(a));
            const auto y = E5M2::from_bits(static_cast<std::uint8_t>(b));
            const bool ordered = !is_nan(decode(e5m2, a)) && !is_nan(decode(e5m2, b));
            // Infinities stand beyond the largest number.
            const auto value = [](std::uint32_t code) {
                const double magnitude = (code & 0x7F) == 0x7C ? 1e6 : reference::to_double(decode(e5m2, code & 0x7F));
                return code >= 0x80 ? -magnitude : magnitude;
            };
            const bool less = ordered && value(a) < value(b);
            const bool equal = ordered && value(a) == value(b);
            if ((x < y) != less || (x == y) != equal || (x > y) != (ordered && !less && !equal) || (x != y) == equal) {
                INFO(a << ' ' << b);
                CHECK(false);
            }
        }
    REQUIRE(E4M3(-0.0f) == E4M3(0.0f));
    REQUIRE(E4M3::from_bits(0x7F).is_nan());
    REQUIRE_FALSE(E4M3::from_bits(0x7E).is_nan());
    REQUIRE(Fnuz::from_bits(0x80).is_nan());
    REQUIRE_FALSE(E5M2::from_bits(0x7C).is_nan());
    REQUIRE_FALSE(Minifloat<e2m1>::from_bits(0xF).is_nan());
}

TEST_CASE("negation keeps to the format's numbers") {
    REQUIRE((-E4M3(1.5f)).bits() == E4M3(-1.5f).bits());
    REQUIRE((-E4M3(0.0f)).bits() == 0x80);
    REQUIRE((-Fnuz(0.0f)).bits() == 0x00);
    REQUIRE((-Fnuz::from_bits(0x80)).is_nan());
}

TEST_CASE("numeric_limits of minifloats state the format's facts") {
    using Limits = std::numeric_limits<E4M3>;
    STATIC_REQUIRE(Limits::is_specialized);
    STATIC_REQUIRE(Limits::digits == 4);
    STATIC_REQUIRE(Limits::digits10 == 0);
    STATIC_REQUIRE(Limits::max_digits10 == 3);
    STATIC_REQUIRE(Limits::min_exponent == -5);
    STATIC_REQUIRE(Limits::max_exponent == 9);
    STATIC_REQUIRE_FALSE(Limits::has_infinity);
    STATIC_REQUIRE(Limits::has_quiet_NaN);
    REQUIRE(Limits::max() == 448.0f);
    REQUIRE(Limits::lowest() == -448.0f);
    REQUIRE(Limits::min() == 0x1p-6f);
    REQUIRE(Limits::denorm_min() == 0x1p-9f);
    REQUIRE(Limits::epsilon() == 0.125f);
    REQUIRE(Limits::round_error() == 0.5f);
    REQUIRE(Limits::quiet_NaN().is_nan());
    REQUIRE(std::numeric_limits<E5M2>::infinity().bits() == 0x7C);
    REQUIRE(std::numeric_limits<Minifloat<fp16>>::digits10 ==
            std::numeric_limits<Minifloat<fp16>>::digits * 301 / 1000);
    REQUIRE(std::numeric_limits<Minifloat<e8m0>>::min().bits() == 0);
    REQUIRE(std::numeric_limits<Minifloat<e8m0>>::lowest().bits() == 0);
    STATIC_REQUIRE_FALSE(std::numeric_limits<Minifloat<e8m0>>::is_signed);
}

TEST_CASE("minifloats print as numbers and hash by value") {
    std::ostringstream out;
    out << E4M3(3.3f) << ' ' << E5M2(-0.5f);
    REQUIRE(out.str() == "3.25 -0.5");
    std::unordered_set<E4M3> set;
    for (std::uint32_t code = 0; code < 256; ++code)
        if (const auto x = E4M3::from_bits(static_cast<std::uint8_t>(code)); !x.is_nan()) set.insert(x);
    REQUIRE(set.size() == 253);  // without the two NaN codes, and with one zero for both
}
