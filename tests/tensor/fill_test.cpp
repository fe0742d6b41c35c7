// SPDX-License-Identifier: MIT
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {

struct Moments {
    double mean = 0.0, stddev = 0.0, fourth = 0.0;  // fourth: fourth moment of the standardised value
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

TEST_CASE("zeros, infinities and NaNs fit any scale, another constant does not", "[tensor]") {
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
    for (const float v : {0.0f, -0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
        CHECK(full<float>({2}, v).any_scale());
    CHECK(full<Half>({2}, Half(-std::numeric_limits<float>::infinity())).any_scale());
    CHECK_FALSE(full<Half>({2}, Half(6e-8f)).any_scale());
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

TEST_CASE("a fill is a function of its key, equal in every element type up to rounding", "[tensor]") {
    const auto x = normal<double>({1000}, {5, 6}), again = normal<double>({1000}, {5, 6}),
               other = normal<double>({1000}, {5, 7});
    const auto narrow = normal<Half>({1000}, {5, 6});
    const auto longer = normal<double>({2000}, {5, 6});
    std::size_t equal = 0, equal_other = 0, rounded = 0, prefix = 0, drawn = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        equal += x(i) == again(i);
        equal_other += x(i) == other(i);
        prefix += x(i) == longer(i);
        rounded += narrow(i) == element_cast<Half>(x(i));
        drawn += x(i) == random_normal({5, 6}, i);
    }
    CHECK(equal == 1000);
    CHECK(equal_other == 0);
    CHECK(prefix == 1000);
    CHECK(rounded == 1000);
    CHECK(drawn == 1000);
    CHECK(normal<double>({7}, {5, 6})(6) == x(6));  // the last of an odd number
    Tensor<BFloat16> spread(Shape{100});
    fill_uniform(spread, {5, 6}, 2.0, 4.0);
    CHECK(spread(7) == element_cast<BFloat16>(2.0 + 2.0 * static_cast<double>(uniform(random_word({5, 6}, 7)))));
}

TEST_CASE("a truncated normal fill keeps elements within its bound and draws the rest again", "[tensor]") {
    const auto x = truncated_normal<double>({200000}, {1, 2}, 3.0), plain = normal<double>({200000}, {1, 2}, 3.0);
    std::size_t outside = 0, kept = 0, redrawn = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        outside += std::abs(x(i)) > 6.0;
        if (std::abs(plain(i)) <= 6.0) kept += x(i) == plain(i);
        else redrawn += x(i) != plain(i);
    }
    CHECK(outside == 0);
    CHECK(kept + redrawn == 200000);
    CHECK(static_cast<double>(redrawn) / 200000.0 == Approx(0.0455).epsilon(0.05));
    const auto result = moments(x);
    CHECK(result.mean == Approx(0.0).margin(0.025));
    CHECK(result.stddev == Approx(3.0 * 0.8796).epsilon(0.006));
    REQUIRE_THROWS_WITH(truncated_normal<float>({1}, {1, 2}, 1.0, 0.01),
                        "truncated_normal: bound is 0.01; expected at least 0.1 standard deviations");
}

TEST_CASE("an integer fill gives every number of its range as often", "[tensor]") {
    const auto x = integers<std::int8_t>({70000}, {1, 2}, -3, 4);
    std::array<double, 7> counts{};
    for (const std::int8_t v : x.span())
        if (v >= -3 && v < 4) counts[static_cast<std::size_t>(v + 3)] += 1.0;
    CHECK(counts[0] + counts[1] + counts[2] + counts[3] + counts[4] + counts[5] + counts[6] == 70000.0);
    for (const double count : counts) CHECK(count == Approx(10000.0).margin(5.0 * std::sqrt(10000.0 * 6.0 / 7.0)));
    CHECK(integers<std::int32_t>({2}, {1, 2}, 5, 6)(1) == 5);
    const auto wide = integers<std::int64_t>({1000}, {1, 2}, -(std::int64_t{1} << 31), std::int64_t{1} << 31);
    CHECK(wide(3) == -(std::int64_t{1} << 31) + random_word({1, 2}, 3));
    REQUIRE_THROWS_WITH(integers<std::int32_t>({1}, {1, 2}, 3, 3),
                        "integers: from 3 to 3; expected low below high, at most 2^32 apart");
    REQUIRE_THROWS_AS(integers<std::int64_t>({1}, {1, 2}, 0, std::int64_t{1} << 33), Error);
}

TEST_CASE("numbers below a count that does not divide 2^32 are not favoured", "[tensor]") {
    // A third of the numbers below 3 2^30 are multiples of 3. With plain quotients of 32-bit words, half would be.
    std::size_t low = 0;
    for (std::uint64_t i = 0; i < 30000; ++i) low += random_below({3, 4}, i, std::uint64_t{3} << 30) % 3 == 0;
    CHECK(static_cast<double>(low) == Approx(10000.0).margin(5.0 * std::sqrt(30000.0 * 2.0 / 9.0)));
    CHECK(random_below({3, 4}, 9, 1) == 0);
}

TEST_CASE("a permutation holds every number once, each order as often", "[tensor]") {
    const auto x = permutation<std::int32_t>(1000, {1, 2});
    std::vector<bool> seen(1000);
    std::size_t fixed = 0;
    for (std::size_t i = 0; i < 1000; ++i) {
        seen[static_cast<std::size_t>(x(i))] = true;
        fixed += x(i) == static_cast<std::int32_t>(i);
    }
    CHECK(std::count(seen.begin(), seen.end(), true) == 1000);
    CHECK(fixed < 10);
    std::array<double, 6> orders{};
    for (std::uint64_t seed = 0; seed < 6000; ++seed) {
        const auto p = permutation<std::int32_t>(3, {seed, 2});
        orders[static_cast<std::size_t>(2 * p(0) + (p(1) > p(2)))] += 1.0;
    }
    for (const double count : orders) CHECK(count == Approx(1000.0).margin(5.0 * std::sqrt(1000.0 * 5.0 / 6.0)));
    CHECK(permutation<std::int32_t>(0, {1, 2}).empty());
    CHECK(permutation<std::uint8_t>(256, {1, 2}).size() == 256);
    REQUIRE_THROWS_WITH(permutation<std::uint8_t>(257, {1, 2}),
                        "permutation: 257 numbers are more than the type counts");
}

TEST_CASE("one-call fills: uniform, counting, from a vector", "[tensor]") {
    Tensor<float> x(Shape{10});
    fill_uniform(x, {5, 6}, 2.0, 4.0);
    const auto y = uniform<float>({10}, {5, 6}, 2.0, 4.0);
    CHECK((y(0) == x(0) && y(9) == x(9)));
    const auto steps = arange<float>(5, 1.0, -0.25);
    CHECK((steps.shape() == Shape{5} && steps(0) == 1.0f && steps(4) == 0.0f));
    CHECK(arange<std::int64_t>(4)(3) == 3);
    CHECK(arange<float>(0).empty());
    const std::vector<double> values{1.0, 2.0, 3.0, 4.0};
    CHECK(from(values).shape() == Shape{4});
    CHECK(from(values, {2, 2})(1, 0) == 3.0);
    CHECK(from(std::array<std::int32_t, 2>{7, 8})(1) == 8);
    REQUIRE_THROWS_WITH(from(values, {3}), "Tensor: shape [3] has 3 elements, but 4 values were given");
}
