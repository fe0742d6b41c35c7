// SPDX-License-Identifier: MIT
#include <unitscale/products/limited_matmul.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <unitscale/formats/code.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

constexpr std::ptrdiff_t m = 6, n = 19, k = 300, batch = 2;

/// Operands of a batch in T, rounded to e4m3 by the product.
template <class T>
struct Case {
    std::vector<T> a = test::numbers<T>(batch * m * k, 1), b = test::numbers<T>(batch * k * n, 2),
                   c = test::numbers<T>(batch * m * n, 3), bias = test::numbers<T>(n, 4);
    [[nodiscard]] MatmulArguments<T> arguments(std::vector<T>& out) const {
        const Quantiser e4{.format = e4m3};
        MatmulArguments<T> args{.m = m, .n = n, .k = k, .batch = batch};
        args.a = {{a.data(), 1, m, m * k}, e4};  // column-major
        args.b = {{b.data(), n, 1, k * n}, e4};
        args.c = {out.data(), n, 1, m * n};
        args.alpha = 0.5;
        args.gamma = 2;
        args.bias = bias.data();
        return args;
    }
};

/// The product by its definition: every sum by `limited_sum_naive`.
template <class T>
void naive(const Accumulate& accumulate, const MatmulArguments<T>& args, const FloatFormat& format) {
    for (std::ptrdiff_t item = 0; item < args.batch; ++item)
        for (std::ptrdiff_t i = 0; i < args.m; ++i)
            for (std::ptrdiff_t j = 0; j < args.n; ++j) {
                std::vector<float> left, right;
                for (std::ptrdiff_t p = 0; p < args.k; ++p) {
                    left.push_back(static_cast<float>(operand_number(args.a, item, i, p)));
                    right.push_back(static_cast<float>(operand_number(args.b, item, p, j)));
                }
                const float sum =
                    limited_sum_naive(accumulate, {left.data(), 1, format}, {right.data(), 1, format}, args.k);
                finish_sum(args, item, i, j, static_cast<Accum<T>>(sum));
            }
}

template <class T>
bool equal(const std::vector<T>& a, const std::vector<T>& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
        if (!(a[i] == b[i])) return false;
    return a.size() == b.size();
}

/// Elements of e4m3 with a scale for each run of 128.
struct Runs {
    std::vector<float> a = test::numbers<float>(m * k, 5), b = test::numbers<float>(k * n, 6);
    std::vector<float> scale_a, scale_b;  ///< [m,runs], [n,runs]
    static constexpr std::ptrdiff_t runs = 3;

    explicit Runs(bool powers_of_two) {
        for (auto* values : {&a, &b})
            for (float& v : *values) {
                v = quantise(e4m3, 16 * v);
                if (std::abs(v) < e4m3.min_normal()) v = 1;
            }
        const auto make = [&](std::ptrdiff_t lines, std::uint64_t stream) {
            std::vector<float> scales = test::numbers<float>(lines * runs, stream);
            for (float& s : scales) s = powers_of_two ? std::exp2(std::round(3 * s)) : std::abs(s) + 0.1f;
            return scales;
        };
        scale_a = make(m, 7);
        scale_b = make(n, 8);
    }
    [[nodiscard]] MatmulArguments<float> arguments(std::vector<float>& c) const {
        MatmulArguments<float> args{.m = m, .n = n, .k = k, .c = {c.data(), n, 1}};
        args.a.numbers = QuantisedNumbers<float>{
            .view = {a.data(), k, 1}, .format = e4m3, .run_scales = scale_a.data(), .run_stride = runs};
        args.b.numbers = QuantisedNumbers<float>{
            .view = {b.data(), n, 1}, .format = e4m3, .run_scales = scale_b.data(), .run_stride = runs};
        return args;
    }
};

}  // namespace

TEMPLATE_TEST_CASE("limited sums take bias, alpha and gamma as matmul does", "[kernels][matmul]", float, double,
                   BFloat16) {
    const Case<TestType> test;
    for (const Accumulate& accumulate : {hopper_sums, hopper_sums_promoted, mptorch_sums(fp16)}) {
        std::vector<TestType> have = test.c, want = test.c;
        matmul_limited<TestType>({.threads = 2}, accumulate, test.arguments(have));
        naive(accumulate, test.arguments(want), e4m3);
        CHECK(equal(have, want));
        CHECK_FALSE(equal(have, test.c));
    }
    // Codes are the same numbers.
    std::vector<std::uint8_t> codes(test.a.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
        const auto number = static_cast<float>(element_cast<Accum<TestType>>(test.a[i]));
        codes[i] = static_cast<std::uint8_t>(encode(e4m3, number));
    }
    std::vector<TestType> have = test.c, want = test.c;
    MatmulArguments<TestType> args = test.arguments(have);
    matmul_limited<TestType>({}, hopper_sums, args);
    args.c.data = want.data();
    args.a = {.codes = CodedMatrix{{codes.data(), 1, m, m * k}, e4m3}};
    matmul_limited<TestType>({}, hopper_sums, args);
    CHECK(equal(have, want));
}

TEST_CASE("runs are summed without their scales, then scaled and added", "[kernels][matmul]") {
    for (const Accumulate& accumulate : {hopper_sums_promoted,
                                         Accumulate{.sums = fp16, .run_length = 128, .totals = fp32},
                                         Accumulate{.sums = bf16, .run_length = 128, .totals = bf16}}) {
        const Runs test(false);
        std::vector<float> have(static_cast<std::size_t>(m * n));
        matmul_limited<float>({}, accumulate, test.arguments(have));
        Accumulate one = accumulate;
        one.run_length = 0;
        for (std::ptrdiff_t i = 0; i < m; ++i)
            for (std::ptrdiff_t j = 0; j < n; ++j) {
                float total = 0;
                for (std::ptrdiff_t r = 0; r < Runs::runs; ++r) {
                    const std::ptrdiff_t first = 128 * r, count = std::min<std::ptrdiff_t>(128, k - first);
                    const float sum = limited_sum_naive(one, {test.a.data() + i * k + first, 1, e4m3},
                                                        {test.b.data() + first * n + j, n, e4m3}, count);
                    const float scale = test.scale_a[static_cast<std::size_t>(i * Runs::runs + r)] *
                                        test.scale_b[static_cast<std::size_t>(j * Runs::runs + r)];
                    total = round_sum(accumulate, accumulate.totals, Rounding::nearest_even,
                                      static_cast<float>(double{total} + double{scale} * double{sum}));
                }
                CHECK(have[static_cast<std::size_t>(i * n + j)] == total);
            }
    }
}

TEST_CASE("with scales that are powers of two it does not matter when runs are scaled", "[kernels][matmul]") {
    const Runs test(true);
    std::vector<float> have(static_cast<std::size_t>(m * n)), want(have.size());
    matmul_limited<float>({}, hopper_sums_promoted, test.arguments(have));
    Runs decoded = test;
    for (std::ptrdiff_t p = 0; p < k; ++p) {
        for (std::ptrdiff_t i = 0; i < m; ++i)
            decoded.a[static_cast<std::size_t>(i * k + p)] *=
                test.scale_a[static_cast<std::size_t>(i * Runs::runs + p / 128)];
        for (std::ptrdiff_t j = 0; j < n; ++j)
            decoded.b[static_cast<std::size_t>(p * n + j)] *=
                test.scale_b[static_cast<std::size_t>(j * Runs::runs + p / 128)];
    }
    MatmulArguments<float> args = decoded.arguments(want);
    for (Operand<float>* operand : {&args.a, &args.b}) {
        operand->numbers->run_scales = nullptr;
        operand->numbers->format = fp32;
    }
    matmul_limited<float>({}, hopper_sums_promoted, args);
    CHECK(equal(have, want));
}

TEST_CASE("the operands' factors and the scales of rows and columns follow the sums", "[kernels][matmul]") {
    const Runs test(false);
    std::vector<float> have(static_cast<std::size_t>(m * n)), plain(have.size());
    matmul_limited<float>({}, hopper_sums_promoted, test.arguments(plain));
    MatmulArguments<float> args = test.arguments(have);
    args.a.numbers->factor = 0.25f;
    args.b.numbers->factor = 8;
    const std::vector<float> rows(m, 4.0f), columns(n, 0.5f);
    args.row_scale = rows.data();
    args.col_scale = columns.data();
    matmul_limited<float>({}, hopper_sums_promoted, args);
    for (std::size_t i = 0; i < have.size(); ++i) CHECK(have[i] == 4 * plain[i]);
}

TEST_CASE("limited sums of operands that do not fit are errors", "[kernels][matmul]") {
    const Runs test(false);
    std::vector<float> c(static_cast<std::size_t>(m * n));
    MatmulArguments<float> args = test.arguments(c);
    CHECK_THROWS_WITH(matmul_limited<float>({}, hopper_sums, args),
                      "matmul_limited: scales of runs need a run_length, and both operands");
    args.b.numbers->run_scales = nullptr;
    CHECK_THROWS_WITH(matmul_limited<float>({}, hopper_sums_promoted, args),
                      "matmul_limited: scales of runs need a run_length, and both operands");
    const PackedRight<float> packed;
    args.b.packed = &packed;
    CHECK_THROWS_WITH(matmul_limited<float>({}, hopper_sums, args),
                      "matmul_limited: b is packed; expected elements, numbers or codes");
    args = test.arguments(c);
    args.batch = 2;
    CHECK_THROWS_WITH(matmul_limited<float>({}, hopper_sums_promoted, args),
                      "matmul_limited: scales of runs are those of one product, not of 2");
    CHECK_THROWS_WITH(matmul_limited<float>({}, {.run_length = -1}, args),
                      "matmul_limited: accumulate.run_length (-1) must be a number of products, or 0 for no promotion");
}
