// SPDX-License-Identifier: MIT
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/rescale.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <limits>

using namespace unitscale;

namespace {

template <class T>
double worst_relative_error(const Tensor<T>& got, const Tensor<T>& from) {
    double worst = 0.0;
    for (std::size_t i = 0; i < from.size(); ++i) {
        const double expected = widest(from.data()[i]) * from.scale();
        worst = std::max(worst, std::abs(widest(got.data()[i]) * got.scale() - expected) / std::abs(expected));
    }
    return worst;
}

}  // namespace

TEMPLATE_TEST_CASE("powers of two move between data and scale without a change of value", "[tensor]", double, float,
                   Half, BFloat16, Minifloat<e5m2>) {
    auto x = normal<TestType>({1000}, {1, 2});
    for (TestType& v : x.span())  // normal numbers, far enough from the ends of every type
        if (std::abs(widest(v)) < 0.01) v = element_cast<TestType>(0.01);
    x.set_scale(0.5);
    const auto y = set_scaling(x, 4.0);
    CHECK(y.scale() == 4.0);
    CHECK(widest(y(3)) == widest(x(3)) / 8.0);
    CHECK(worst_relative_error(y, x) == 0.0);
    const auto z = rebalance(x, 0.125);
    CHECK(z.scale() == 0.0625);
    CHECK(widest(z(3)) == widest(x(3)) * 8.0);
    CHECK(worst_relative_error(z, x) == 0.0);
    const auto plain = value(x);
    CHECK(plain.scale() == 1.0);
    CHECK(worst_relative_error(plain, x) == 0.0);
    CHECK(x.scale() == 0.5);
    CHECK(value<double>(x)(7) == widest(x(7)) * 0.5);
}

TEMPLATE_TEST_CASE("other scales cost one rounding to the element type", "[tensor]", double, float, Half, BFloat16) {
    auto x = normal<TestType>({1000}, {1, 2});
    for (TestType& v : x.span())
        if (std::abs(widest(v)) < 0.01) v = element_cast<TestType>(0.01);
    x.set_scale(3.0);
    // Half a unit in the last place, and the errors of double arithmetic: the roundings of the ratio and of the
    // product.
    double half_ulp = std::is_same_v<TestType, double> ? 0.0 : 0x1p-24;
    if constexpr (CodedElement<TestType>) half_ulp = static_cast<double>(format_of<TestType>.epsilon()) / 2.0;
    const double bound = half_ulp + 0x1p-51;
    for (const auto& y : {set_scaling(x, 0.7), rebalance(x, 0.7), value(x)}) {
        const double worst = worst_relative_error(y, x);
        CHECK(worst <= bound);
        CHECK(worst >= half_ulp / 4.0);
    }
    CHECK(rebalance(x, 0.7).scale() == 3.0 * 0.7);
}

TEST_CASE("a value is rounded once, also where float would meet a tie", "[tensor]") {
    Tensor<Half> x({1}, {Half(3.0f)});
    x.set_scale((1.0 + 0x1p-11 + 0x1p-40) / 3.0);
    CHECK(static_cast<float>(value(x)(0)) == 1.0f + 0x1p-10f);
    Tensor<Minifloat<e4m3>> codes({2}, {Minifloat<e4m3>(448.0f), Minifloat<e4m3>(0.5f)});
    codes.set_scale(0x1p-20);
    CHECK(value<float>(codes)(0) == 448.0f * 0x1p-20f);
    CHECK(static_cast<float>(value(codes)(0)) == 0.0f);
    codes.set_scale(4.0);
    CHECK(static_cast<float>(value(codes)(0)) == 448.0f);  // saturates
    Tensor<Half> large({1}, {Half(60000.0f)});
    large.set_scale(2.0);
    CHECK(std::isinf(static_cast<float>(value(large)(0))));
}

TEST_CASE("ratios beyond double's range still move exactly", "[tensor]") {
    Tensor<double> x({2}, {0x1p900, 3.0 * 0x1p800});
    x.set_scale(0x1p-700);
    const auto y = set_scaling(x, 0x1p600);  // the ratio 2^-1300 is outside double's range
    CHECK(y(0) == 0x1p-400);
    CHECK(y(1) == 3.0 * 0x1p-500);
    const auto z = set_scaling(y, 0x1p-700);
    CHECK((z(0) == x(0) && z(1) == x(1)));
}

TEST_CASE("a factor is held unless it would become 0, subnormal or infinite", "[tensor]") {
    CHECK(holds_factor<float>(0x1p-126));
    CHECK(holds_factor<float>(0x1p127));
    CHECK_FALSE(holds_factor<float>(0x1p-127));
    CHECK_FALSE(holds_factor<float>(0x1p128));
    CHECK_FALSE(holds_factor<float>(0.0));
    CHECK(holds_factor<double>(0x1p-260));
    CHECK(holds_factor<double>(0x1p260));
}

TEST_CASE("zeros, infinities and NaN keep their data and their flag", "[tensor]") {
    Tensor<float> x({4}, {0.0f, -0.0f, std::numeric_limits<float>::infinity(), std::nanf("")});
    x.set_any_scale(true);
    for (const auto& y : {set_scaling(x, 0x1p-30), rebalance(x, 3.0), value(x)}) {
        CHECK(y.any_scale());
        CHECK((y(0) == 0.0f && !std::signbit(y(0)) && std::signbit(y(1)) && std::isinf(y(2)) && std::isnan(y(3))));
    }
    CHECK_FALSE(set_scaling(normal<float>({3}, {1, 1}), 2.0).any_scale());
    CHECK(set_scaling(Tensor<float>(), 2.0).scale() == 2.0);
}

TEST_CASE("scales and factors that are not positive and finite are refused", "[tensor]") {
    Tensor<float> x({1}, {1.0f});
    REQUIRE_THROWS_WITH(set_scaling(x, 0.0), "set_scaling: scale is 0; expected a positive finite number");
    REQUIRE_THROWS_WITH(set_scaling(x, -2.0), "set_scaling: scale is -2; expected a positive finite number");
    REQUIRE_THROWS_WITH(set_scaling(x, std::nan("")), "set_scaling: scale is nan; expected a positive finite number");
    REQUIRE_THROWS_WITH(rebalance(x, std::numeric_limits<double>::infinity()),
                        "rebalance: factor is inf; expected a positive finite number");
    x.set_scale(0x1p1000);
    REQUIRE_THROWS_WITH(rebalance(x, 0x1p100),
                        "rebalance: the tensor's scale times factor is inf; "
                        "expected a positive finite number");
    x.set_scale(0.0);
    REQUIRE_THROWS_WITH(set_scaling(x, 1.0),
                        "set_scaling: the tensor's scale is 0; expected a "
                        "positive finite number");
    REQUIRE_THROWS_WITH(value(x), "value: the tensor's scale is 0; expected a positive finite number");
}

TEMPLATE_TEST_CASE("root_mean_square: of data and scale, in double", "[tensor]", double, float, Half, BFloat16) {
    Tensor<TestType> x({4}, {TestType(3.0f), TestType(-4.0f), TestType(0.0f), TestType(5.0f)});
    x.set_scale(0.5);
    CHECK(root_mean_square(x) == 0.5 * std::sqrt(50.0 / 4.0));
    CHECK(root_mean_square(Tensor<TestType>(Shape{0})) == 0.0);
    x.data()[2] = std::numeric_limits<TestType>::quiet_NaN();
    CHECK(std::isnan(root_mean_square(x)));
    if constexpr (std::is_same_v<TestType, Half>) {  // squares beyond the range of the type
        x = full<Half>({1000}, Half(60000.0f));
        CHECK(root_mean_square(x) == Approx(60000.0).epsilon(1e-3));
    }
}

TEST_CASE("a tensor that is moved in keeps its memory", "[tensor]") {
    Tensor<float> x({2}, {1, 2});
    const float* const memory = x.data();
    const auto y = rebalance(set_scaling(std::move(x), 2.0), 2.0);
    CHECK(y.data() == memory);
    CHECK((y.scale() == 4.0 && y(1) == 0.5f));
}

TEMPLATE_TEST_CASE("multiply_out writes the plain numbers into another tensor or in place", "[tensor]", double, float,
                   Half) {
    auto x = normal<TestType>({100}, {1, 2});
    x.set_scale(8.0);
    Tensor<TestType> plain({100});
    multiply_out(x, plain);
    CHECK(plain.scale() == 1.0);
    for (std::size_t i = 0; i < 100; ++i) CHECK(widest(plain(i)) == 8.0 * widest(x(i)));
    multiply_out(x, x);
    x.set_scale(1.0);
    for (std::size_t i = 0; i < 100; ++i) CHECK(widest(x(i)) == widest(plain(i)));
    CHECK_FALSE(plain.any_scale());
    x.set_any_scale(true);
    multiply_out(x, plain);
    CHECK(plain.any_scale());
}
