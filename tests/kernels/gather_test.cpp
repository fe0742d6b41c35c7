// SPDX-License-Identifier: MIT
#include <unitscale/kernels/gather.hpp>

#include "kernels/kernel_checks.hpp"

using namespace unitscale;
using namespace unitscale::kernels;

namespace {
const std::vector<std::int32_t> ids{2, 0, 2, 1, 2};  // of 4; no id is 3
}

TEST_CASE("gather picks rows along the middle axis and scatter_add adds them up there", "[kernels]") {
    const std::vector<float> x{1, 2, 3, 4, 10, 20, 30, 40};  // [2, 4, 1]
    std::vector<float> y(10), back(8, 9.0f);
    gather_rows(Execution{}, x.data(), ids.data(), y.data(), 2, 4, 5, 1, 1.0f);
    CHECK(y == std::vector<float>{3, 1, 3, 2, 3, 30, 10, 30, 20, 30});
    scatter_add_rows(Execution{}, y.data(), ids.data(), back.data(), 2, 4, 5, 1, 2.0f);
    CHECK(back == std::vector<float>{2, 4, 18, 0, 20, 40, 180, 0});
    gather_rows<float>(Execution{}, nullptr, nullptr, nullptr, 2, 4, 0, 3, 1.0f);
    scatter_add_rows<float>(Execution{}, nullptr, nullptr, back.data(), 2, 4, 0, 1, 1.0f);
    CHECK(back == std::vector<float>(8));
}

TEST_CASE("gather and scatter_add agree with the definition in every element type", "[kernels]") {
    const auto run = [](auto zero, std::size_t outer, double tolerance) {
        using T = decltype(zero);
        using A = Accum<T>;
        const std::size_t extent = 4, inner = 7, n = ids.size();
        const auto x = normal_data<T>(outer * extent * inner, 1), dy = normal_data<T>(outer * n * inner, 2);
        std::vector<T> y(dy.size()), dx(x.size(), T(9.0f));
        const auto rows = static_cast<std::ptrdiff_t>(outer);
        gather_rows(Execution{}, x.data(), ids.data(), y.data(), rows, 4, 5, 7, A(0.5));
        scatter_add_rows(Execution{}, dy.data(), ids.data(), dx.data(), rows, 4, 5, 7, A(0.25));
        Doubles picked(y.size()), sums(dx.size());
        for (std::size_t o = 0; o < outer; ++o)
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t j = 0; j < inner; ++j) {
                    const std::size_t there = (o * extent + static_cast<std::size_t>(ids[i])) * inner + j,
                                      here = (o * n + i) * inner + j;
                    picked[here] = 0.5 * static_cast<double>(x[there]);
                    sums[there] += 0.25 * static_cast<double>(dy[here]);
                }
        CHECK(largest_error(y, picked) < tolerance);
        CHECK(largest_error(dx, sums) < tolerance);
    };
    for (const std::size_t outer : {1u, 3u}) {
        run(0.0, outer, 1e-15);
        run(0.0f, outer, 1e-6);
        run(Half(0), outer, 6e-4);
        run(BFloat16(0), outer, 4e-3);
    }
}

TEST_CASE("gather and scatter_add give the same bits for any thread count", "[kernels]") {
    std::vector<std::int32_t> many(400);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int32_t>(random_word({3, 3}, i) % 60);
    const auto x = normal_data<float>(12 * 400 * 16, 2);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(12 * 60 * 16 + x.size());
        scatter_add_rows(execution, x.data(), many.data(), out.data(), 12, 60, 400, 16, 0.3f);
        gather_rows(execution, out.data(), many.data(), out.data() + 12 * 60 * 16, 12, 60, 400, 16, 0.7f);
        return out;
    }));
}
