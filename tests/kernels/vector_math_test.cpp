// SPDX-License-Identifier: MIT
#include <unitscale/kernels/vector_math.hpp>

#include "kernels/kernel_checks.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

using namespace unitscale;
using namespace unitscale::kernels;

TEST_CASE("normal cdf and density in float agree with erfc in double, tails included", "[kernels]") {
    double worst_cdf = 0.0, worst_density = 0.0, near_zero = 0.0;
    for (double x = -12.99; x < 13.0; x += 0.000731) {
        const auto z = static_cast<float>(x);
        const auto [cdf, density] = normal_values(z);
        const auto exact = normal_values(static_cast<double>(z));
        const double error = std::abs(static_cast<double>(cdf) / exact.cdf - 1.0);
        worst_cdf = std::max(worst_cdf, error);
        if (std::abs(x) < 3.0) near_zero = std::max(near_zero, error);
        worst_density = std::max(worst_density, std::abs(static_cast<double>(density) / exact.density - 1.0));
    }
    CHECK(worst_cdf < 6e-7);
    CHECK(near_zero < 4.5e-7);
    CHECK(worst_density < 3e-7);
    CHECK(normal_values(100.0f).cdf == 1.0f);
    CHECK(normal_values(-100.0f).cdf < 1e-37f);
    CHECK(normal_values(0.5).cdf == Approx(0.6914624612740131).epsilon(1e-14));
    CHECK(normal_values(0.5).density == Approx(0.3520653267642995).epsilon(1e-14));
}

TEST_CASE("logarithm in float is within 1 ulp of the double one, subnormals included, and right at the ends",
          "[kernels]") {
    double worst = 0.0;
    const auto visit = [&](std::uint32_t code) {
        const float x = std::bit_cast<float>(code);
        const double exact = std::log(static_cast<double>(x));
        const auto nearest = static_cast<float>(exact);
        const double ulp =
            static_cast<double>(std::nextafter(std::abs(nearest), 1e9f)) - std::abs(static_cast<double>(nearest));
        worst = std::max(worst, std::abs(static_cast<double>(logarithm(x)) - exact) / ulp);
    };
    for (std::uint32_t code = 1; code < 0x7F800000u; code += 2003) visit(code);
    for (std::uint32_t code = 0x3F000000u; code < 0x40000000u; code += 37) visit(code);  // from 1/2 to 2
    for (std::uint32_t code = 0x3F7FFF00u; code < 0x3F800100u; ++code)
        if (code != 0x3F800000u) visit(code);
    CHECK(worst < 1.0);
    CHECK(worst > 0.51);  // the float version was called

    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(logarithm(1.0f) == 0.0f);
    CHECK(logarithm(0.0f) == -infinity);
    CHECK(logarithm(-0.0f) == -infinity);
    CHECK(logarithm(infinity) == infinity);
    CHECK(logarithm(std::numeric_limits<float>::max()) == Approx(88.72284f));
    for (const float bad : {-1.0f, -1e-40f, -infinity, std::nanf(""), -std::nanf("")})
        CHECK(std::isnan(logarithm(bad)));
    CHECK(logarithm(2.0) == std::log(2.0));
}

TEMPLATE_TEST_CASE("square roots of a block equal the standard library's, to the bit", "[kernels]", float, double) {
    const auto x = normal_data<TestType>(static_cast<std::size_t>(block_size), 1);
    for (const std::ptrdiff_t count : {1, 16, 17, 63, 64}) {
        Block<TestType> in{}, roots{};
        std::copy_n(x.begin(), count, in.begin());
        square_roots(in, count, roots);
        for (std::size_t l = 0; l < static_cast<std::size_t>(count); ++l) {
            if (in[l] < TestType(0)) CHECK(std::isnan(roots[l]));
            else CHECK(roots[l] == std::sqrt(in[l]));
        }
    }
}

TEST_CASE("logistic is right on both sides and saturates", "[kernels]") {
    for (float x = -80.0f; x < 80.0f; x += 0.37f)
        CHECK(logistic(x) == Approx(1.0 / (1.0 + std::exp(-static_cast<double>(x)))).epsilon(5e-7));
    CHECK(logistic(-200.0f) == 0.0f);
    CHECK(logistic(200.0f) == 1.0f);
}

TEST_CASE("blocks of every length map, sum and find the largest as plain loops do", "[kernels]") {
    for (const std::ptrdiff_t n : {0, 1, 15, 16, 17, 63, 64, 65, 130, 200}) {
        auto x = normal_data<float>(static_cast<std::size_t>(n) + 1, 1);
        std::vector<float> y(x.size(), -5.0f), expected(x.size(), -5.0f);
        double total = 0.0;
        float largest = -1e9f;
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
            expected[i] = 2.0f * x[i] + x[i];
            total += static_cast<double>(-x[i]);
            largest = std::max(largest, -x[i]);
        }
        map_range(
            std::ptrdiff_t{0}, n, y.data(), [](float a, float b) { return 2.0f * a + b; }, x.data(), x.data());
        CHECK(same_bits(y, expected));  // nothing after n is written
        CHECK(static_cast<double>(sum_range<float>(
                  n, [](float v) { return -v; }, x.data())) == Approx(total).margin(1e-5));
        CHECK(sum_range<double>(
                  n, [](float v) { return -v; }, x.data()) == Approx(total).margin(1e-12));
        if (n > 0)
            CHECK(max_range(
                      n, [](float v) { return -v; }, x.data()) == largest);
        map_range(
            std::ptrdiff_t{0}, n, x.data(), [](float a, float b) { return 2.0f * a + b; }, x.data(), x.data());
        expected[static_cast<std::size_t>(n)] = x[static_cast<std::size_t>(n)];
        CHECK(same_bits(x, expected));  // in place
    }
}
