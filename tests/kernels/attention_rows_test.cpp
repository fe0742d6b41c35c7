// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/kernels/attention_rows.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

TEMPLATE_TEST_CASE("row loops of attention agree with their formulas on every instruction set", "[kernels][attention]",
                   float, double) {
    using P = TestType;
    const double bound = std::is_same_v<P, float> ? 1e-6 : 1e-14;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::ptrdiff_t n : {score_lanes, 5 * score_lanes}) {
            std::vector<P> x(static_cast<std::size_t>(n)), d(x.size());
            for (std::size_t i = 0; i < x.size(); ++i) {
                x[i] = static_cast<P>(random_normal({1, 1}, i));
                d[i] = static_cast<P>(random_normal({1, 2}, i));
            }
            const P maximum = row_maximum(isa, x.data(), n);
            REQUIRE(maximum == *std::max_element(x.begin(), x.end()));

            auto p = x;
            const P sum = row_exponential(isa, p.data(), n, maximum);
            double total = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double expected = std::exp(double(x[i]) - double(maximum));
                REQUIRE(double(p[i]) == Approx(expected).epsilon(bound));
                total += expected;
            }
            REQUIRE(double(sum) == Approx(total).epsilon(bound));

            double inner = 0;
            for (std::size_t i = 0; i < x.size(); ++i) inner += double(p[i]) * double(d[i]);
            auto gradient = d;
            row_softmax_gradient(isa, p.data(), gradient.data(), n);
            for (std::size_t i = 0; i < x.size(); ++i)
                REQUIRE(double(gradient[i]) ==
                        Approx(double(p[i]) * (double(d[i]) - inner)).epsilon(10 * bound).margin(20 * bound));

            x[3] = std::numeric_limits<P>::quiet_NaN();
            REQUIRE(std::isnan(row_exponential(isa, x.data(), n, maximum)));
        }
    }
}

TEST_CASE("a hidden score adds nothing to a row's sum", "[kernels][attention]") {
    std::vector<float> x(static_cast<std::size_t>(score_lanes), -hidden_score);
    x[7] = 0.0f;
    REQUIRE(row_exponential(active_isa(), x.data(), score_lanes, 0.0f) == 1.0f);
    REQUIRE(x[0] >= std::numeric_limits<float>::min());
}

#if UNITSCALE_X86
TEST_CASE("exponentials of a row of floats in registers have the bits of the loop", "[kernels][attention]") {
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        std::vector<float> x(static_cast<std::size_t>(3 * score_lanes));
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(20 * random_normal({1, 3}, i));
        x[5] = -std::numeric_limits<float>::infinity();
        std::vector<float> expected = x;
        const std::ptrdiff_t n = std::ssize(x);
        const float shift = row_maximum(isa, x.data(), n),
                    total = isa == Isa::avx512 ? row_exponential_avx512<float>(expected.data(), n, shift)
                                               : row_exponential_avx2<float>(expected.data(), n, shift);
        REQUIRE(row_exponential(isa, x.data(), n, shift) == total);
        REQUIRE(x == expected);
    }
}
#endif
