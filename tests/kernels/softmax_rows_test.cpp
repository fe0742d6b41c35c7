// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/kernels/softmax_rows.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

template <class P>
std::vector<P> normals(std::ptrdiff_t n, std::uint64_t stream) {
    std::vector<P> x(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<P>(3 * random_normal({1, stream}, i));
    return x;
}

}  // namespace

TEMPLATE_TEST_CASE("rows of a softmax and its gradient agree with their formulas on every instruction set", "[kernels]",
                   float, double) {
    using P = TestType;
    const double bound = std::is_same_v<P, float> ? 2e-6 : 1e-14;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::ptrdiff_t n : {1, 5, 16, 37, 64, 100, 128, 333}) {
            const std::vector<P> x = normals<P>(n, 1), dy = normals<P>(n, 2);
            std::vector<P> y(x.size()), dx(x.size());
            softmax_row_of(isa, x.data(), y.data(), n, P(0.75), P(4));
            double total = 0, dot = 0;
            for (const P v : x) total += std::exp(0.75 * double(v));
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double p = std::exp(0.75 * double(x[i])) / total;
                REQUIRE(double(y[i]) == Approx(4 * p).epsilon(bound));
                dot += p * double(dy[i]);
            }
            softmax_gradient_row_of(isa, y.data(), dy.data(), dx.data(), n, P(0.5), P(4));
            for (std::size_t i = 0; i < x.size(); ++i)
                REQUIRE(double(dx[i]) == Approx(0.5 * double(y[i]) * (double(dy[i]) - dot)).margin(10 * bound));

            std::vector<P> in_place = x;
            softmax_row_of(isa, in_place.data(), in_place.data(), n, P(0.75), P(4));
            REQUIRE(in_place == y);
            softmax_gradient_row_of(isa, y.data(), dy.data(), in_place.data(), n, P(0.5), P(4));
            REQUIRE(in_place == dx);
        }
    }
}

TEMPLATE_TEST_CASE("hidden and missing elements of a row count as 0, and NaN shows", "[kernels]", float, double) {
    using P = TestType;
    constexpr P hidden = -std::numeric_limits<P>::infinity();
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        std::vector<P> x = normals<P>(100, 1), y(200, P(-1));
        softmax_row_of(isa, x.data(), y.data(), 100, P(1), P(1));
        CHECK(y[100] == P(-1));  // nothing is written behind the row
        std::vector<P> longer(x);
        longer.resize(200, hidden);
        softmax_row_of(isa, longer.data(), longer.data(), 200, P(1), P(1));
        CHECK(std::equal(longer.begin(), longer.begin() + 100, y.begin()));
        CHECK(std::count(longer.begin() + 100, longer.end(), P(0)) == 100);
        for (const std::size_t place : std::initializer_list<std::size_t>{0, 70, 99}) {
            std::vector<P> broken(x);
            broken[place] = std::numeric_limits<P>::quiet_NaN();
            softmax_row_of(isa, broken.data(), broken.data(), 100, P(1), P(1));
            CHECK(std::all_of(broken.begin(), broken.end(), [](P v) { return std::isnan(v); }));
        }
    }
}

#if UNITSCALE_X86
TEST_CASE("rows of floats in registers have the bits of the loop", "[kernels]") {
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::ptrdiff_t n : {1, 7, 31, 32, 33, 63, 64, 65, 96, 101, 128, 200, 333}) {
            std::vector<float> x = normals<float>(n, 3), expected(x.size()), y(x.size());
            if (n > 40) x[40] = -std::numeric_limits<float>::infinity();
            for (const float m : {0.75f, -0.75f, 0.0f}) {
                if (m != 0.75f && n > 40) x[40] = 0;
                if (isa == Isa::avx512) softmax_row_avx512<float>(x.data(), expected.data(), n, m, 4.0f);
                else softmax_row_avx2<float>(x.data(), expected.data(), n, m, 4.0f);
                softmax_row_of(isa, x.data(), y.data(), n, m, 4.0f);
                CAPTURE(name(isa), n, m);
                REQUIRE(y == expected);
            }
        }
    }
}
#endif
