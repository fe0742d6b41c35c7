// SPDX-License-Identifier: MIT
#include <unitscale/kernels/cumulate.hpp>

#include "kernels/kernel_checks.hpp"

using namespace unitscale;
using namespace unitscale::kernels;

namespace {
template <class T>
void check_sums(std::ptrdiff_t outer, std::ptrdiff_t n, std::ptrdiff_t inner, double tolerance) {
    const auto x = normal_data<T>(static_cast<std::size_t>(outer * n * inner), 1);
    for (const bool reverse : {false, true}) {
        INFO(outer << " x " << n << " x " << inner << (reverse ? ", reverse" : ""));
        Doubles expected(x.size());
        for (std::ptrdiff_t o = 0; o < outer; ++o)
            for (std::ptrdiff_t c = 0; c < inner; ++c) {
                double sum = 0.0;
                for (std::ptrdiff_t i = 0; i < n; ++i) {
                    const auto at = static_cast<std::size_t>((o * n + (reverse ? n - 1 - i : i)) * inner + c);
                    sum += static_cast<double>(x[at]);
                    expected[at] = 0.5 * sum;
                }
            }
        std::vector<T> y(x.size()), in_place = x;
        cumulative_sum(Execution{}, x.data(), y.data(), outer, n, inner, Accum<T>(0.5), reverse);
        CHECK(largest_error(y, expected, 1.0) < tolerance);
        cumulative_sum(Execution{}, in_place.data(), in_place.data(), outer, n, inner, Accum<T>(0.5), reverse);
        CHECK(std::equal(y.begin(), y.end(), in_place.begin()));
    }
}
}  // namespace

TEST_CASE("cumulative sums agree with a plain loop along every axis, in place too", "[kernels]") {
    check_sums<double>(3, 7, 1, 1e-14);
    check_sums<double>(1, 1, 5, 1e-14);
    check_sums<double>(2, 5, 64, 1e-14);
    check_sums<double>(2, 5, 193, 1e-14);
    check_sums<float>(4, 90, 3, 1e-5);
    check_sums<Half>(2, 30, 65, 1e-3);
    check_sums<BFloat16>(2, 30, 1, 5e-3);
    check_sums<double>(0, 3, 2, 1e-14);
    check_sums<double>(2, 0, 3, 1e-14);
}

TEST_CASE("cumulative sums give the same bits for any thread count", "[kernels]") {
    const auto x = normal_data<float>(40 * 50 * 100, 6);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> y(x.size());
        cumulative_sum(execution, x.data(), y.data(), 40, 50, 100, 1.0f);
        return y;
    }));
}
