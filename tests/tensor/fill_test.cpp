// SPDX-License-Identifier: MIT
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <cmath>

using namespace unitscale;

namespace {

struct Moments {
    double mean = 0.0, stddev = 0.0, fourth = 0.0;  // fourth: of the standardised value
};

template <class T>
Moments moments(const Tensor<T>& x) {
    Moments result;
    const auto n = static_cast<double>(x.size());
    for (const T v : x.span()) result.mean += static_cast<double>(v) / n;
    double square = 0.0;
    for (const T v : x.span()) {
        const double d = static_cast<double>(v) - result.mean;
        square += d * d / n;
        result.fourth += d * d * d * d / n;
    }
    result.stddev = std::sqrt(square);
    result.fourth /= square * square;
    return result;
}

}  // namespace

TEST_CASE("zeros fit any scale, a constant does not", "[tensor]") {
    Tensor<float> x({3}, {1, 2, 3});
    x.set_scale(8.0);
    fill_zero(x);
    CHECK((x(0) == 0.0f && x(1) == 0.0f && x(2) == 0.0f));
    CHECK(x.any_scale());
    CHECK(x.scale() == 1.0);
    fill_constant(x, 2.5f);
    CHECK((x(0) == 2.5f && x(2) == 2.5f));
    CHECK_FALSE(x.any_scale());
    CHECK(zeros<double>({2, 2}).any_scale());
    CHECK(full<float>({2, 2}, 3.0f)(1, 1) == 3.0f);
}

TEST_CASE("a normal fill has the moments of its distribution", "[tensor]") {
    const auto result = moments(normal<float>({200, 1000}, {1, 2}, 3.0));
    CHECK(result.mean == Approx(0.0).margin(0.03));
    CHECK(result.stddev == Approx(3.0).epsilon(0.006));
    CHECK(result.fourth == Approx(3.0).epsilon(0.02));
}

TEST_CASE("a uniform fill has the moments of its distribution and stays inside", "[tensor]") {
    Tensor<float> x(Shape{200000});
    fill_uniform(x, {1, 2}, -1.0, 3.0);
    const auto result = moments(x);
    CHECK(result.mean == Approx(1.0).margin(0.012));
    CHECK(result.stddev == Approx(4.0 / std::sqrt(12.0)).epsilon(0.005));
    CHECK(result.fourth == Approx(1.8).epsilon(0.01));
    float low = 1e9f, high = -1e9f;
    for (const float v : x.span()) {
        low = std::min(low, v);
        high = std::max(high, v);
    }
    CHECK((low >= -1.0f && high < 3.0f));
}

TEST_CASE("a fill is a function of its key, the same in every element type up to rounding", "[tensor]") {
    const auto x = normal<double>({1000}, {5, 6}), again = normal<double>({1000}, {5, 6}), other = normal<double>({1000}, {5, 7});
    const auto narrow = normal<Half>({1000}, {5, 6});
    const auto longer = normal<double>({2000}, {5, 6});
    std::size_t equal = 0, equal_other = 0, rounded = 0, prefix = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        equal += x(i) == again(i);
        equal_other += x(i) == other(i);
        prefix += x(i) == longer(i);
        rounded += narrow(i) == element_cast<Half>(x(i));
    }
    CHECK(equal == 1000);
    CHECK(equal_other == 0);
    CHECK(prefix == 1000);
    CHECK(rounded == 1000);
    CHECK(x(3) == random_normal({5, 6}, 3));
    Tensor<BFloat16> spread(Shape{100});
    fill_uniform(spread, {5, 6}, 2.0, 4.0);
    CHECK(spread(7) == element_cast<BFloat16>(2.0 + 2.0 * static_cast<double>(uniform(random_word({5, 6}, 7)))));
}
