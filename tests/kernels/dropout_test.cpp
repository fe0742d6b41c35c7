// SPDX-License-Identifier: MIT
#include <unitscale/kernels/dropout.hpp>

#include "kernels/kernel_checks.hpp"

using namespace unitscale;
using namespace unitscale::kernels;

TEST_CASE("dropout keeps the elements that the stream selects and divides by the kept share", "[kernels]") {
    const auto run = [](auto zero, double p, std::uint64_t first, double tolerance) {
        using T = decltype(zero);
        const RandomKey key{5, 9};
        const auto x = normal_data<T>(603, 1);
        std::vector<T> y(x.size());
        dropout(Execution{}, x.data(), y.data(), size_of(x), p, key, Accum<T>(0.5), first);
        Doubles expected(x.size());
        for (std::size_t i = 0; i < x.size(); ++i)
            if (static_cast<double>(uniform(random_word(key, first + i))) >= p)
                expected[i] = 0.5 * static_cast<double>(x[i]) / (1.0 - p);
        CHECK(largest_error(y, expected) < tolerance);
    };
    for (const double p : {0.0, 0.1, 0.5, 0.999}) {
        run(0.0, p, 0, 1e-12);
        run(0.0f, p, 6, 1e-6);
    }
    run(Half(0), 0.3, 4, 1e-3);
    run(BFloat16(0), 0.3, 4, 8e-3);
}

TEST_CASE("dropout drops the share p and keeps the mean", "[kernels]") {
    const std::vector<float> ones(100000, 1.0f);
    std::vector<float> y(ones.size());
    dropout(Execution{}, ones.data(), y.data(), size_of(ones), 0.25, RandomKey{1, 2}, 1.0f);
    double zeros = 0.0, total = 0.0;
    for (const float v : y) {
        zeros += v == 0.0f;
        total += static_cast<double>(v);
    }
    CHECK(zeros / 1e5 == Approx(0.25).margin(0.006));
    CHECK(total / 1e5 == Approx(1.0).margin(0.008));
}

TEST_CASE("dropout gives the same bits for any thread count, in place, and for two halves of an array", "[kernels]") {
    const auto x = normal_data<float>(80000, 1);
    CHECK(threads_agree([&](const Execution& execution) {
        auto y = x;
        dropout(execution, y.data(), y.data(), size_of(y), 0.4, RandomKey{1, 2}, 1.0f);
        auto halves = x;
        dropout(execution, halves.data(), halves.data(), 40000, 0.4, RandomKey{1, 2}, 1.0f);
        dropout(execution, halves.data() + 40000, halves.data() + 40000, 40000, 0.4, RandomKey{1, 2}, 1.0f, 40000);
        CHECK(same_bits(y, halves));
        return y;
    }));
    dropout<float>(Execution{}, nullptr, nullptr, 0, 0.5, RandomKey{}, 1.0f);
}
