// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/few_rows.hpp>
#include <unitscale/products/product.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

std::vector<float> numbers(std::ptrdiff_t count, std::uint64_t stream) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random_normal({3, stream}, i));
    return values;
}

/// C = 0.5 (A B + bias) - C, with a column-major B. Columns are `gap` elements longer than k; rows of A and C have gaps
/// of 3 and 5. The gaps hold NaN, which must not reach a result.
struct Case {
    std::ptrdiff_t m, n, k, gap;
    std::vector<float> a, b, c, bias;

    Case(std::ptrdiff_t rows, std::ptrdiff_t cols, std::ptrdiff_t depth, std::ptrdiff_t between)
        : m(rows),
          n(cols),
          k(depth),
          gap(between),
          a(numbers(m * (k + 3), 1)),
          b(numbers(n * (k + gap), 2)),
          c(numbers(m * (n + 5), 3)),
          bias(numbers(n, 4)) {
        for (std::ptrdiff_t i = 0; i < m; ++i) std::fill_n(a.begin() + i * (k + 3) + k, 3, std::nanf(""));
        for (std::ptrdiff_t j = 0; j < n; ++j) std::fill_n(b.begin() + j * (k + gap) + k, gap, std::nanf(""));
    }
    [[nodiscard]] MatmulArguments<float> arguments() {
        return {.m = m,
                .n = n,
                .k = k,
                .a = {{a.data(), k + 3, 1}},
                .b = {{b.data(), 1, k + gap}},
                .c = {c.data(), n + 5, 1},
                .alpha = 0.5f,
                .gamma = -1.0f,
                .bias = bias.data()};
    }
};

bool same(const std::vector<float>& x, const std::vector<float>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
}

}  // namespace

TEST_CASE("few rows have the bits of a product with B packed, and leave everything beside C alone",
          "[kernels][matmul]") {
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::ptrdiff_t n : {1, 15, 16, 20, 37, 64})
            for (const std::ptrdiff_t k : {0, 1, 16, 23, 64, 511, 600, 1024, 1100})
                for (std::ptrdiff_t m = 1; m <= column_major_rows; ++m) {
                    Case few(m, n, k, n % 4), packed(m, n, k, n % 4);
                    matmul_with(isa, {}, few.arguments());
                    auto args = packed.arguments();
                    const auto right = pack_weights_with(isa, args);
                    args.b.packed = &right;
                    matmul_with(isa, {}, args);
                    CAPTURE(name(isa), m, n, k);
                    REQUIRE(same(few.c, packed.c));
                }
    }
}

TEMPLATE_TEST_CASE("few rows alone: the definition, to rounding, on every instruction set", "[kernels][matmul]", float,
                   double) {
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (std::ptrdiff_t m = 1; m <= column_major_rows; ++m) {
            Case few(m, 37, 70, 2), expected(m, 37, 70, 2);
            matmul_naive(expected.arguments());
            const std::vector<TestType> a(few.a.begin(), few.a.end()), b(few.b.begin(), few.b.end()),
                bias(few.bias.begin(), few.bias.end());
            std::vector<TestType> c(few.c.begin(), few.c.end());
            multiply_few_rows<TestType>({few.m, few.n, few.k, a.data(), few.k + 3, b.data(), few.k + 2, c.data(),
                                         few.n + 5, bias.data(), TestType(0.5), TestType(-1)},
                                        isa);
            double worst = 0.0;
            for (std::size_t i = 0; i < c.size(); ++i)
                worst = std::max(worst, std::abs(static_cast<double>(c[i]) - static_cast<double>(expected.c[i])));
            CHECK(worst < 1e-5);
            CHECK(c[0] != c[1]);
        }
    }
    CHECK_FALSE(has_few_rows_kernel<double>(Isa::avx512));
    CHECK_FALSE(has_few_rows_kernel<float>(Isa::avx2));
}

TEMPLATE_TEST_CASE("few rows, rounded and scaled, have the bits of the product that packs B", "[kernels][matmul]",
                   float, double) {
    const Quantiser e4{.format = e4m3}, b7{.format = bf16}, down{.format = e4m3, .rounding = Rounding::down};
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::ptrdiff_t n : {1, 16, 37, 70})
            for (const std::ptrdiff_t k : {1, 23, 600})
                for (std::ptrdiff_t m = 1; m <= column_major_rows + 1; ++m)
                    for (const std::optional<Quantiser>& round : {std::optional<Quantiser>(), {e4}, {b7}, {down}}) {
                        const auto a = numbers(m * k, 1), b = numbers(n * k, 2), before = numbers(m * n, 3),
                                   scales = numbers(m + n, 4);
                        const std::vector<TestType> left(a.begin(), a.end()), right(b.begin(), b.end()),
                            scale(scales.begin(), scales.end());
                        std::vector<TestType> c(before.begin(), before.end()), with = c, expected = c;
                        MatmulArguments<TestType> args{.m = m,
                                                       .n = n,
                                                       .k = k,
                                                       .a = {{left.data(), 1, m}, round},
                                                       .b = {{right.data(), 1, k}, round},
                                                       .c = {c.data(), 1, m},
                                                       .alpha = TestType(0.25),
                                                       .gamma = TestType(0.5),
                                                       .row_scale = scale.data(),
                                                       .col_scale = scale.data() + m};
                        matmul_with(isa, {}, args);
                        const auto packed = pack_weights_with(isa, args);
                        args.b.packed = &packed, args.c.data = with.data();
                        matmul_with(isa, {}, args);
                        CAPTURE(name(isa), m, n, k, round ? name(round->format) : "exact");
                        REQUIRE(std::equal(c.begin(), c.end(), with.begin()));
                        args.b.packed = nullptr, args.c.data = expected.data();
                        matmul_naive(args);
                        double worst = 0;
                        for (std::size_t i = 0; i < c.size(); ++i)
                            worst = std::max(worst, static_cast<double>(std::abs(c[i] - expected[i])));
                        REQUIRE(worst < 1e-3);
                    }
    }
}

TEST_CASE("few rows in threads and batches have the same bits", "[kernels][matmul]") {
    const std::ptrdiff_t m = 2, n = 700, k = 900, batch = 3;
    const auto a = numbers(batch * m * k, 1), b = numbers(batch * n * k, 2);
    const auto run = [&](int threads) {
        std::vector<float> c(static_cast<std::size_t>(batch * m * n));
        matmul<float>({threads, nullptr}, {.m = m,
                                           .n = n,
                                           .k = k,
                                           .batch = batch,
                                           .a = {{a.data(), k, 1, m * k}},
                                           .b = {{b.data(), 1, k, n * k}},
                                           .c = {c.data(), n, 1, m * n}});
        return c;
    };
    const auto one = run(1);
    for (const int threads : {2, 3, 5}) CHECK(same(one, run(threads)));
    CHECK(std::any_of(one.begin(), one.end(), [](float x) { return x > 1.0f; }));
}
