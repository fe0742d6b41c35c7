// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

using namespace unitscale;

TEST_CASE("a number becomes a scale as the rounding says") {
    CHECK(as_scale(ScaleRounding::down, 6.0) == 4.0);
    CHECK(as_scale(ScaleRounding::up, 5.0) == 8.0);
    CHECK(as_scale(ScaleRounding::nearest, 5.0) == 4.0);
    CHECK(as_scale(ScaleRounding::nearest, 6.0) == 8.0);
    CHECK(as_scale(ScaleRounding::none, 6.0) == 6.0);
    CHECK(as_scale(ScaleRounding::stochastic, 5.0, 0u) == 4.0);
    CHECK(as_scale(ScaleRounding::stochastic, 5.0, ~0u) == 8.0);
    for (const ScaleRounding rounding : {ScaleRounding::down, ScaleRounding::none, ScaleRounding::up,
                                         ScaleRounding::nearest, ScaleRounding::stochastic})
        CHECK(as_scale(rounding, 0.125, ~0u) == 0.125);
    CHECK(name(ScaleRounding::down) == "down");
    CHECK(name(ScaleRounding::stochastic) == "stochastic");
}

TEST_CASE("the true scale is factor times scale for every wanted scale") {
    CHECK(with_scale(12.0, 4.0).factor == 3.0);
    CHECK(with_scale(12.0, 4.0).scale == 4.0);
    // The part beyond the range of scales goes to the data.
    const Scaled small = with_scale(0x1p-200, 0x1p-200), large = with_scale(0x1p150, 0x1p150);
    CHECK(small.scale == 0x1p-126);
    CHECK(small.factor == 0x1p-74);
    CHECK(large.scale == 0x1p127);
    CHECK(large.factor == 0x1p23);
}

TEST_CASE("the scale of a product of k terms is the scale of its inputs times k^1/2, rounded") {
    const Scaled exact = product_scale(ScaleRounding::down, 0.5, 1.0 / std::sqrt(64.0));
    CHECK(exact.scale == 4.0);
    CHECK(exact.factor == 0.125);
    const Scaled down = product_scale(ScaleRounding::down, 0.5, 1.0 / std::sqrt(100.0));
    CHECK(down.scale == 4.0);
    CHECK(down.factor == 0.125);
    CHECK(product_scale(ScaleRounding::up, 0.5, 0.1).scale == 8.0);
    CHECK(product_scale(ScaleRounding::none, 0.5, 0.1).scale == Approx(5.0));
    CHECK(product_scale(ScaleRounding::stochastic, 0.5, 0.1, 0u).scale == 4.0);
    CHECK(product_scale(ScaleRounding::stochastic, 0.5, 0.1, ~0u).scale == 8.0);
    CHECK(product_scale(ScaleRounding::down, 0x1p-130, 0.25).scale == 0x1p-126);
    CHECK(product_scale(ScaleRounding::down, 0x1p-130, 0.25).factor == 0x1p-4);
    CHECK_THROWS_WITH(product_scale(ScaleRounding::down, 1.0, 0.0),
                      "pow2_down: x is inf; expected a positive finite number");
}

TEST_CASE("the scale of a sum is the root of the squares, rounded, without overflow") {
    CHECK(sum_scale(ScaleRounding::none, 3.0, 4.0) == Approx(5.0));
    CHECK(sum_scale(ScaleRounding::down, 2.0, 2.0) == 2.0);
    CHECK(sum_scale(ScaleRounding::up, 2.0, 2.0) == 4.0);
    CHECK(sum_scale(ScaleRounding::nearest, 3.0, 6.0) == 8.0);
    CHECK(sum_scale(ScaleRounding::down, 0x1p127, 0x1p127) == 0x1p127);
    CHECK(sum_scale(ScaleRounding::up, 0x1p127, 0x1p127) == 0x1p127);
    CHECK(sum_scale(ScaleRounding::down, 0x1p-126, 0x1p100) == 0x1p100);
    CHECK(sum_scale(ScaleRounding::down, 0x1p-126, 0x1p-126) == 0x1p-126);
    CHECK(sum_scale(ScaleRounding::stochastic, 3.0, 4.0, ~0u) == 8.0);
}

TEST_CASE("stochastic scales have the right mean") {
    double sum = 0.0;
    const int n = 20000;
    for (int i = 0; i < n; ++i)
        sum += product_scale(ScaleRounding::stochastic, 1.0, 0.2,
                             static_cast<std::uint32_t>(random_word({1, 2}, static_cast<std::uint64_t>(i))))
                   .scale;
    CHECK(sum / n == Approx(5.0).epsilon(0.01));
}

TEST_CASE("a constant is a mantissa and a power of two") {
    const auto split = [](double c) { return split_constant(Tensor<double>(Shape{}, {c})); };
    CHECK(split(-1e-6).data()[0] == -1e-6 * 0x1p20);
    CHECK(split(-1e-6).scale() == 0x1p-20);
    CHECK(split(8.0).data()[0] == 1.0);
    CHECK(split(8.0).scale() == 8.0);
    CHECK_FALSE(split(8.0).any_scale());
    CHECK(split(0x1.8p150).data()[0] == 0x1.8p23);
    CHECK(split(0x1.8p150).scale() == 0x1p127);
    for (const double c : {0.0, std::numeric_limits<double>::infinity()}) {
        CHECK(split(c).data()[0] == c);
        CHECK(split(c).scale() == 1.0);
        CHECK(split(c).any_scale());
    }
    // An array filled with one number, and one that is not.
    const Tensor<double> filled = split_constant(full<double>({3, 50}, -12.0));
    CHECK(filled.scale() == 8.0);
    for (const double x : filled.span()) REQUIRE(x == -1.5);
    Tensor<double> uneven = full<double>({3, 50}, -12.0);
    uneven.data()[149] = -12.5;
    CHECK(split_constant(uneven).scale() == 1.0);
    CHECK(split_constant(Tensor<double>(Shape{0})).scale() == 1.0);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    CHECK_FALSE(split_constant(Tensor<double>({2}, {nan, nan})).any_scale());  // only a fill says so
    CHECK(split_constant(full<double>({2}, nan)).any_scale());
    Tensor<double> scaled(Shape{}, {8.0});
    scaled.set_scale(4.0);
    CHECK(split_constant(scaled).data()[0] == 8.0);
}

TEST_CASE("dynamic rescaling divides by the power of two below the norm, by 2^-14 at least") {
    CHECK(rescaling(1.0) == 1.0);
    CHECK(rescaling(7.9) == 4.0);
    CHECK(rescaling(0.3) == 0.25);
    CHECK(rescaling(0x1p-20) == 0x1p-14);
    for (const double norm : {0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
        CHECK(rescaling(norm) == 1.0);
    CHECK(rms_rescaling(160.0, 2) == 8.0);  // the square root of 80 is 8.9
    CHECK(rms_rescaling(0.0, 0) == 1.0);
}
