// SPDX-License-Identifier: MIT
#include <unitscale/kernels/embedding.hpp>

#include "kernels/kernel_checks.hpp"

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

std::vector<std::int32_t> some_ids(std::size_t n, std::size_t vocabulary) {
    std::vector<std::int32_t> ids(n);
    for (std::size_t i = 0; i < n; ++i) ids[i] = static_cast<std::int32_t>(random_word({3, 3}, i) % vocabulary);
    return ids;
}

}  // namespace

TEST_CASE("embedding gathers rows of the table, times alpha", "[kernels]") {
    const std::vector<float> table{1, 2, 3, 4, 5, 6};
    const std::vector<std::int32_t> ids{2, 0, 2};
    std::vector<float> y(6);
    embedding_forward(Execution{}, table.data(), ids.data(), y.data(), 3, 2, 1.0f);
    CHECK(y == std::vector<float>{5, 6, 1, 2, 5, 6});
    embedding_forward(Execution{}, table.data(), ids.data(), y.data(), 3, 2, 0.5f);
    CHECK(y == std::vector<float>{2.5f, 3, 0.5f, 1, 2.5f, 3});
    embedding_forward<float>(Execution{}, nullptr, nullptr, nullptr, 0, 2, 1.0f);
}

TEST_CASE("embedding backward sums the rows of each id and overwrites the rest with zeros", "[kernels]") {
    const auto run = [](auto zero, std::size_t d, double tolerance) {
        using T = decltype(zero);
        const std::size_t n = 100, vocabulary = 30;
        auto ids = some_ids(n, vocabulary);
        for (auto& id : ids) id = id == 7 ? 8 : id;
        const auto dy = normal_data<T>(n * d, 1);
        std::vector<T> dtable(vocabulary * d, T(9.0f));
        embedding_backward(Execution{}, dy.data(), ids.data(), dtable.data(), 100, 30, static_cast<std::ptrdiff_t>(d),
                           Accum<T>(0.5));
        Doubles expected(vocabulary * d);
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = 0; j < d; ++j)
                expected[static_cast<std::size_t>(ids[i]) * d + j] += 0.5 * static_cast<double>(dy[i * d + j]);
        CHECK(largest_error(dtable, expected) < tolerance);
        for (std::size_t j = 0; j < d; ++j) CHECK(static_cast<float>(dtable[7 * d + j]) == 0.0f);
    };
    run(0.0, 5, 1e-14);
    run(0.0f, 70, 1e-6);
    run(Half(0), 70, 6e-4);
    run(BFloat16(0), 70, 4e-3);
}

TEST_CASE("embedding gives the same bits for any thread count", "[kernels]") {
    const std::size_t n = 3000, d = 96, vocabulary = 50;
    const auto ids = some_ids(n, vocabulary);
    const auto dy = normal_data<float>(n * d, 2);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(n * d + vocabulary * d);
        embedding_forward(execution, dy.data(), ids.data(), out.data(), n, d, 0.3f);
        embedding_backward(execution, dy.data(), ids.data(), out.data() + n * d, n, vocabulary, d, 0.3f);
        return out;
    }));
}

TEST_CASE("the first id outside a table is found", "[kernels]") {
    const std::vector<std::int32_t> ids{0, 4, -1, 5};
    const std::int32_t allowed = -1;
    CHECK(first_outside(ids.data(), 4, 5) == 2);
    CHECK(first_outside(ids.data(), 4, 5, &allowed) == 3);
    CHECK(first_outside(ids.data(), 4, 6, &allowed) == 4);
    CHECK(first_outside(ids.data(), 4, 0) == 0);
    CHECK(first_outside(nullptr, 0, 5) == 0);
}
