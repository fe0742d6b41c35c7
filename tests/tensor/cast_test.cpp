// SPDX-License-Identifier: MIT
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

using namespace unitscale;

namespace {

using Wide = Minifloat<tf32>;
using Types =
    std::tuple<double, float, Half, BFloat16, Minifloat<e4m3>, Wide, bool, std::int8_t, std::int64_t, std::uint64_t>;

/// An element as a double: exact for every element type but 64-bit integers above 2^53.
template <class T>
double as_double(T x) {
    if constexpr (CodedElement<T>) return static_cast<double>(static_cast<float>(x));
    else return static_cast<double>(x);
}

/// The documented result of a cast, in double.
template <class To>
double expected(double x) {
    if constexpr (std::is_same_v<To, bool>) return x != 0.0;
    else if constexpr (std::integral<To>) {
        if (std::isnan(x)) return 0.0;
        const double low = as_double(std::numeric_limits<To>::min()), high = as_double(std::numeric_limits<To>::max());
        return std::min(std::max(std::trunc(x), low), high);
    } else if constexpr (CodedElement<To>) {
        return quantise(format_of<To>, x, cast_options<To>);
    } else if constexpr (std::is_same_v<To, float>) {
        return quantise(fp32, x, {.overflow = Overflow::to_infinity});
    } else {
        return x;
    }
}

template <class T>
Tensor<T> samples() {
    std::vector<T> values;
    std::vector<double> wide{0.0,
                             -0.0,
                             1.0,
                             -1.0,
                             0.5,
                             -0.5,
                             0.99,
                             -0.99,
                             1.5,
                             2.5,
                             127.0,
                             127.5,
                             128.0,
                             -128.0,
                             -129.0,
                             255.0,
                             255.5,
                             256.0,
                             448.0,
                             464.0,
                             464.5,
                             1e-3,
                             0x1p-9,
                             0x1p-10,
                             0x1.8p-10,
                             0x1p-24,
                             0x1p-25,
                             0x1.1p-25,
                             65504.0,
                             65519.9,
                             65520.0,
                             2147483647.0,
                             2147483648.0,
                             -2147483648.5,
                             -2147483649.0,
                             4294967295.0,
                             4294967296.0,
                             0x1p53,
                             0x1p63,
                             -0x1p63,
                             0x1p64,
                             1e30,
                             -1e30,
                             3e38,
                             1e-40,
                             1e300,
                             -1e300,
                             1e-300,
                             1.0 + 0x1p-11 + 0x1p-40,
                             1.0 + 0x1p-8 + 0x1p-40,
                             1.0 + 0x1p-4 + 0x1p-40,
                             1.0 + 0x1p-11,
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()};
    for (std::size_t i = 0; i < 3000; ++i)
        wide.push_back(random_normal({3, 1}, i) *
                       std::exp2(40.0 * static_cast<double>(uniform(random_word({3, 2}, i))) - 20.0));
    for (const double x : wide) {
        if constexpr (std::is_floating_point_v<T>) values.push_back(static_cast<T>(x));
        else if constexpr (CodedElement<T>) values.push_back(static_cast<T>(static_cast<float>(x)));
        else if (std::abs(x) < 1e15 && x >= as_double(std::numeric_limits<T>::min()) &&
                 x <= as_double(std::numeric_limits<T>::max()))
            values.push_back(static_cast<T>(x));
    }
    Tensor<T> tensor(Shape{values.size()});
    std::copy(values.begin(), values.end(), tensor.data());
    return tensor;
}

/// Counts elements that differ from the documented result: value, sign of zero, NaN.
template <class To, class From>
std::size_t wrong_casts(const Tensor<From>& in) {
    const Tensor<To> out = cast<To>(in);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
        const double want = expected<To>(as_double(in(i)));
        for (const double got : {as_double(out(i)), as_double(element_cast<To>(in(i)))}) {
            const bool same_sign = std::integral<To> || std::signbit(got) == std::signbit(want);
            const bool good = std::isnan(want) ? std::isnan(got) : got == want && same_sign;
            if (!good)
                UNSCOPED_INFO("element " << i << ": " << as_double(in(i)) << " gave " << got << ", not " << want);
            wrong += !good;
        }
    }
    return wrong;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("every element type casts to every other as documented, rounded once", "[tensor]", Types) {
    const Tensor<TestType> in = samples<TestType>();
    REQUIRE(in.size() > 1);
    std::apply([&]<class... To>(To...) { CHECK(((wrong_casts<To>(in) == 0) && ...)); }, Types());
}

TEST_CASE("casts keep shape, scale and flag, and may take their memory from a pool", "[tensor]") {
    Tensor<float> x({2, 2}, {1, -2, 0.5f, 3});
    x.set_scale(0.25);
    x.set_any_scale(true);
    const auto y = cast<Half>(x);
    CHECK(y.shape() == Shape{2, 2});
    CHECK(y.scale() == 0.25);
    CHECK(y.any_scale());
    CHECK(static_cast<float>(y(0, 1)) == -2.0f);
    const auto pool = std::make_shared<MemoryPool>();
    { const auto pooled = cast<double>(x, pool); }
    CHECK(pool->system_allocations() == 1);
    CHECK(cast<Minifloat<e4m3>>(Tensor<Half>(Shape{0, 3})).shape() == Shape{0, 3});
    CHECK(cast<std::int32_t>(Tensor<Minifloat<e4m3>>(Shape{0})).empty());
}

TEST_CASE("a cast to a wider type and back changes nothing", "[tensor]") {
    const auto narrow = normal<Half>({5000}, {1, 1});
    const auto brain = normal<BFloat16>({5000}, {1, 1});
    const auto mini = normal<Minifloat<e4m3>>({5000}, {1, 1});
    const auto single = normal<float>({5000}, {1, 1});
    std::size_t same = 0;
    const auto half_back = cast<Half>(cast<float>(narrow));
    const auto brain_back = cast<BFloat16>(cast<double>(brain));
    const auto mini_back = cast<Minifloat<e4m3>>(cast<Half>(mini));
    const auto single_back = cast<float>(cast<double>(single));
    for (std::size_t i = 0; i < 5000; ++i)
        same += half_back(i) == narrow(i) && brain_back(i) == brain(i) && mini_back(i) == mini(i) &&
                single_back(i) == single(i);
    CHECK(same == 5000);
}

TEST_CASE("doubles and integers are rounded to narrow types once", "[tensor]") {
    // Just above a tie of the narrow type: rounding to float first would reach the tie and then round down to even.
    CHECK(static_cast<float>(element_cast<Half>(1.0 + 0x1p-11 + 0x1p-40)) == 1.0f + 0x1p-10f);
    CHECK(static_cast<float>(element_cast<Half>(1.0 + 0x3p-11 - 0x1p-40)) == 1.0f + 0x1p-10f);
    CHECK(static_cast<float>(element_cast<Half>(-1.0 - 0x1p-11 - 0x1p-40)) == -1.0f - 0x1p-10f);
    CHECK(static_cast<float>(element_cast<Half>(0x1p-25 + 0x1p-60)) == 0x1p-24f);
    CHECK(static_cast<float>(element_cast<Minifloat<e4m3>>(1.0 + 0x1p-4 + 0x1p-40)) == 1.0f + 0x1p-3f);
    CHECK(static_cast<float>(element_cast<BFloat16>((std::int32_t{1} << 30) + (std::int32_t{1} << 22) + 1)) ==
          0x1p30f + 0x1p23f);
    // Not exact in double.
    const std::int64_t above_tie = (std::int64_t{1} << 62) + (std::int64_t{1} << 54) + 1;
    CHECK(static_cast<float>(element_cast<BFloat16>(above_tie)) == 0x1p62f + 0x1p55f);
    CHECK(static_cast<float>(element_cast<BFloat16>(-above_tie)) == -0x1p62f - 0x1p55f);
    CHECK(static_cast<float>(element_cast<BFloat16>(above_tie - 1)) == 0x1p62f);
    const std::uint64_t top = ~std::uint64_t{0};
    CHECK(static_cast<float>(element_cast<BFloat16>(top)) == 0x1p64f);
    const auto tensor = cast<BFloat16>(Tensor<std::int64_t>({2}, {above_tie, above_tie - 1}));
    CHECK((static_cast<float>(tensor(0)) == 0x1p62f + 0x1p55f && static_cast<float>(tensor(1)) == 0x1p62f));
}

TEST_CASE("integers that do not fit another integer type are clamped", "[tensor]") {
    CHECK(element_cast<std::int8_t>(std::int64_t{300}) == 127);
    CHECK(element_cast<std::uint8_t>(std::int64_t{-1}) == 0);
    CHECK(element_cast<std::int32_t>(~std::uint64_t{0}) == 2147483647);
    CHECK(element_cast<std::int64_t>(std::int64_t{-5}) == -5);
    CHECK(element_cast<std::int64_t>(1e30f) == std::numeric_limits<std::int64_t>::max());
    CHECK(element_cast<std::uint64_t>(0x1p63) == std::uint64_t{1} << 63);
}

TEST_CASE(
    "with options a cast rounds as quantise does, a stochastic one as "
    "the element's number has it",
    "[tensor]") {
    constexpr FloatFormat narrow = make_format({5, 3, 15});
    const QuantiseOptions up{.rounding = Rounding::up, .overflow = Overflow::to_infinity};
    const QuantiseOptions random{
        .rounding = Rounding::stochastic, .overflow = Overflow::saturate, .bits = 20, .key = {4, 5}};
    const auto wide = normal<double>({3000}, {1, 1}, 100.0);
    const auto single = cast<float>(wide);
    const auto check_all = [&](const auto& x, const QuantiseOptions& options) {
        const auto mini = cast<Minifloat<narrow>>(x, options);
        const auto brain = cast<BFloat16>(x, options);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            wrong += static_cast<double>(static_cast<float>(mini(i))) !=
                     static_cast<double>(quantise(narrow, x(i), options, i));
            wrong += static_cast<double>(static_cast<float>(brain(i))) !=
                     static_cast<double>(quantise(bf16, x(i), options, i));
        }
        return wrong;
    };
    CHECK(check_all(wide, up) == 0);
    CHECK(check_all(single, up) == 0);
    CHECK(check_all(wide, random) == 0);
    CHECK(check_all(single, random) == 0);
    CHECK(static_cast<float>(cast<Half>(Tensor<float>({1}, {1e6f}), {.overflow = Overflow::saturate})(0)) == 65504.0f);
}

TEST_CASE("NaN to a type without NaN, and options that do not fit, are errors", "[tensor]") {
    Tensor<float> x = zeros<float>({3000});
    x(2000) = std::nanf("");
    const std::string text = "cast: e2m1 has no NaN: element 2000 of the input is NaN";
    REQUIRE_THROWS_WITH(cast<Minifloat<e2m1>>(x), text);
    REQUIRE_THROWS_WITH(cast<Minifloat<e2m1>>(cast<Half>(x)), text);
    REQUIRE_THROWS_WITH(cast<Minifloat<e2m1>>(cast<double>(x)), text);
    REQUIRE_THROWS_WITH(cast<Minifloat<e2m1>>(cast<double>(x), {.rounding = Rounding::stochastic}), text);
    REQUIRE_THROWS_AS(cast<Minifloat<e2m1>>(x, {.overflow = Overflow::to_infinity}), Error);
    CHECK(std::isnan(static_cast<float>(cast<Minifloat<e4m3>>(x)(2000))));
    std::vector<Half> short_out(2);
    REQUIRE_THROWS_WITH(cast_elements(std::span<const float>(x.span().first(3)), std::span<Half>(short_out)),
                        "cast: input and output sizes differ: 3 != 2");
}

TEST_CASE("0, infinity and NaN are free of scale, other numbers are not", "[tensor]") {
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float x : {0.0f, -0.0f, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
        CHECK(is_scale_free(x));
        CHECK(is_scale_free(static_cast<double>(x)));
        CHECK(is_scale_free(Half(x)));
        CHECK(is_scale_free(BFloat16(x)));
    }
    CHECK(is_scale_free(0));
    CHECK_FALSE(is_scale_free(1));
    CHECK_FALSE(is_scale_free(std::numeric_limits<double>::denorm_min()));
    CHECK_FALSE(is_scale_free(std::numeric_limits<double>::max()));
    CHECK_FALSE(is_scale_free(Half(6e-8f)));
}
