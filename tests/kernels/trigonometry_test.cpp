// SPDX-License-Identifier: MIT
#include <unitscale/kernels/trigonometry.hpp>

#include "kernels/kernel_checks.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {
/// |found - want| in units of the last place of a float near `want`.
double places(float found, double want) {
    const float near = std::abs(static_cast<float>(want));
    const double step =
        static_cast<double>(std::nextafter(near, std::numeric_limits<float>::infinity())) - static_cast<double>(near);
    return std::abs(static_cast<double>(found) - want) / step;
}
}  // namespace

TEST_CASE("sine, cosine and error function are right to a few places for finite floats of every size", "[kernels]") {
    double of_sine = 0.0, of_cosine = 0.0, of_erf = 0.0;
    for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += 9973) {
        for (const std::uint32_t sign : {0u, 0x80000000u}) {
            const float x = std::bit_cast<float>(bits | sign);
            const auto wide = static_cast<double>(x);
            of_sine = std::max(of_sine, places(sine(x), std::sin(wide)));
            of_cosine = std::max(of_cosine, places(cosine(x), std::cos(wide)));
            of_erf = std::max(of_erf, places(error_function(x), std::erf(wide)));
        }
    }
    CHECK(of_sine < 2.0);
    CHECK(of_cosine < 2.0);
    CHECK(of_erf < 3.0);
}

TEST_CASE("sine, cosine and error function at multiples of pi/4, at the error function's seam and near 0",
          "[kernels]") {
    for (int k = -2000; k <= 2000; ++k) {
        const double multiple = std::numbers::pi / 4.0 * k;
        for (const float x : {static_cast<float>(multiple), std::nextafter(static_cast<float>(multiple), 1e9f)}) {
            CHECK(places(sine(x), std::sin(static_cast<double>(x))) < 2.0);
            CHECK(places(cosine(x), std::cos(static_cast<double>(x))) < 2.0);
        }
    }
    for (float x = 0.7f; x < 0.8f; x = std::nextafter(x, 1.0f) + 1e-6f)
        CHECK(places(error_function(x), std::erf(static_cast<double>(x))) < 3.0);
    for (const float x : {1e-30f, 1e-6f}) {
        CHECK(sine(x) == x);
        CHECK(cosine(x) == 1.0f);
    }
    CHECK(std::signbit(sine(-0.0f)));
    CHECK(std::signbit(error_function(-0.0f)));
}

TEST_CASE("sine, cosine and error function of infinity and NaN", "[kernels]") {
    const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    for (const float x : {infinity, -infinity, nan}) {
        CHECK(std::isnan(sine(x)));
        CHECK(std::isnan(cosine(x)));
    }
    CHECK(error_function(infinity) == 1.0f);
    CHECK(error_function(-infinity) == -1.0f);
    CHECK(std::isnan(error_function(nan)));
    CHECK(sine(0.5) == std::sin(0.5));
    CHECK(cosine(0.5) == std::cos(0.5));
    CHECK(error_function(0.5) == std::erf(0.5));
}
