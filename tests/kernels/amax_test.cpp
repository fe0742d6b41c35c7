// SPDX-License-Identifier: MIT
#include <unitscale/kernels/amax.hpp>

#include "support/catch.hpp"

#include <unitscale/tensor/fill.hpp>

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

TEMPLATE_TEST_CASE("amax is the largest magnitude, for any thread count", "", float, double, Half, BFloat16) {
    for (const std::size_t n : {1u, 7u, 1000u, 300001u}) {
        const Tensor<TestType> x = normal<TestType>({n}, {1, n});
        float want = 0.0f;
        Accum<TestType> largest = 0;
        for (const TestType value : x.span()) {
            const double exact = std::abs(static_cast<double>(value));
            float up = static_cast<float>(exact);
            if (static_cast<double>(up) < exact) up = std::nextafter(up, std::numeric_limits<float>::infinity());
            want = std::max(want, up);
            largest = std::max(largest, static_cast<Accum<TestType>>(exact));
        }
        for (const int threads : {1, 2, 3}) {
            CHECK(kernels::amax({threads, nullptr}, x.data(), static_cast<std::ptrdiff_t>(n)) == want);
            CHECK(kernels::largest_magnitude({threads, nullptr}, x.data(), static_cast<std::ptrdiff_t>(n)) == largest);
        }
    }
}

TEST_CASE("amax of nothing is 0, of negative numbers positive, and NaN and infinity show") {
    const Execution one{};
    const std::vector<float> numbers = {-3.0f, 2.0f, -0.0f};
    CHECK(kernels::amax(one, numbers.data(), 3) == 3.0f);
    CHECK(kernels::amax(one, numbers.data(), 0) == 0.0f);
    const std::vector<float> infinite = {1.0f, -std::numeric_limits<float>::infinity()};
    CHECK(std::isinf(kernels::amax(one, infinite.data(), 2)));
    const std::vector<float> nan = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
    CHECK(std::isnan(kernels::amax(one, nan.data(), 2)));
    const std::vector<double> fine = {1.0 + 1e-12};
    CHECK(kernels::amax(one, fine.data(), 1) > 1.0f);
    CHECK(kernels::largest_magnitude(one, fine.data(), 1) == 1.0 + 1e-12);
    const std::vector<double> huge = {1e300, std::numeric_limits<double>::quiet_NaN()};
    CHECK(std::isinf(kernels::amax(one, huge.data(), 1)));
    CHECK(std::isnan(kernels::amax(one, huge.data(), 2)));
}
