// SPDX-License-Identifier: MIT
#include <unitscale/kernels/reduce.hpp>

#include "kernels/kernel_checks.hpp"

using namespace unitscale;
using namespace unitscale::kernels;

TEST_CASE("column and row sums agree with plain loops", "[kernels]") {
    const auto run = [](auto zero, std::size_t rows, std::size_t n, double tolerance) {
        using T = decltype(zero);
        const auto x = normal_data<T>(rows * n, 1);
        Doubles columns(n), lines(rows);
        for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t j = 0; j < n; ++j) {
                columns[j] += 0.5 * static_cast<double>(x[i * n + j]);
                lines[i] += 0.5 * static_cast<double>(x[i * n + j]);
            }
        std::vector<T> out(n, T(3.0f)), sums(rows, T(3.0f));
        const auto r = static_cast<std::ptrdiff_t>(rows), size = static_cast<std::ptrdiff_t>(n);
        column_sums(Execution{}, x.data(), out.data(), r, size, Accum<T>(0.5));
        row_sums(Execution{}, x.data(), sums.data(), r, size, Accum<T>(0.5));
        CHECK(largest_error(out, columns) < tolerance);
        CHECK(largest_error(sums, lines) < tolerance);
    };
    for (const std::size_t n : {1u, 17u, 130u})
        for (const std::size_t rows : {0u, 1u, 700u}) {
            run(0.0, rows, n, 1e-13);
            run(0.0f, rows, n, 1e-5);
        }
    run(Half(0), 700, 70, 1e-3);
    run(BFloat16(0), 700, 70, 4e-3);
}

TEST_CASE("sum and mean of all elements equal the results of a plain loop", "[kernels]") {
    for (const std::size_t n : {0u, 1u, 16384u, 50001u}) {
        const auto x = normal_data<float>(n, 2);
        double total = 0.0;
        for (const float v : x) total += static_cast<double>(v);
        CHECK(static_cast<double>(sum(Execution{}, x.data(), size_of(x))) == Approx(total).margin(1e-4));
        if (n > 0)
            CHECK(static_cast<double>(mean(Execution{}, x.data(), size_of(x))) ==
                  Approx(total / static_cast<double>(n)).margin(1e-8));
        CHECK(sum_over<double>(
                  Execution{}, size_of(x), [](float a, float b) { return a - 2.0f * b; }, x.data(), x.data()) ==
              Approx(-total).margin(1e-9));
    }
    const std::vector<Half> ones(5000, Half(1.0f));
    CHECK(sum(Execution{}, ones.data(), 5000) == 5000.0f);  // 1 + 2048 would be lost in half
}

TEST_CASE("reductions give the same bits for any thread count", "[kernels]") {
    const std::size_t rows = 1500, n = 100;
    const auto x = normal_data<float>(rows * n, 3);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(n + rows + 1);
        column_sums(execution, x.data(), out.data(), rows, n);
        row_sums(execution, x.data(), out.data() + n, rows, n);
        out.back() = sum(execution, x.data(), size_of(x));
        return out;
    }));
    const auto wide = normal_data<float>(3 * 60000, 4);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(60000);
        column_sums(execution, wide.data(), out.data(), 3, 60000);
        return out;
    }));
}
