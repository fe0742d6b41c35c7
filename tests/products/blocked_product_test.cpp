// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/blocked_product.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

/// C of `matmul` and of blocks of `rows` rows. From `first_k(i)` on, the rows of A that begin with i are not zero.
template <class T>
void check_blocks(std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k, std::ptrdiff_t rows,
                  const std::optional<Quantiser>& quantiser, bool transposed, bool skips) {
    INFO("m " << m << ", n " << n << ", k " << k << ", rows " << rows << ", rounds " << quantiser.has_value()
              << ", transposed " << transposed << ", skips " << skips);
    std::vector<T> a = test::numbers<T>(m * k, 1, 9), b = test::numbers<T>(k * n, 2, 9);
    const auto first_of = [&](std::ptrdiff_t i) { return skips ? std::min(k, i / 32 * 32) : 0; };
    const auto end_of = [&](std::ptrdiff_t i) { return skips ? std::max<std::ptrdiff_t>(k - i / 2, 0) : k; };
    MatmulArguments<T> args;
    args.m = m, args.n = n, args.k = k;
    args.a = {transposed ? MatrixView<const T>{a.data(), 1, m} : MatrixView<const T>{a.data(), k, 1}, quantiser};
    args.b = {transposed ? MatrixView<const T>{b.data(), 1, k} : MatrixView<const T>{b.data(), n, 1}, quantiser};
    args.alpha = Accum<T>(0.75);
    for (std::ptrdiff_t i = 0; i < m; ++i)
        for (std::ptrdiff_t p = 0; p < k; ++p)
            if (p < first_of(i / rows * rows) || p >= end_of(i / rows * rows))
                a[static_cast<std::size_t>(transposed ? p * m + i : i * k + p)] = T(0);
    for (const auto& [isa, pairs] : test::matmul_paths()) {
        std::vector<T> want(static_cast<std::size_t>(m * n), T(-3)), c(want);
        args.c = {want.data(), n, 1};
        matmul_with(isa, {}, args, pairs);
        std::vector<Accum<T>> memory(static_cast<std::size_t>(BlockedProduct<T>::right_size(isa, k, n))),
            scratch(static_cast<std::size_t>(BlockedProduct<T>::scratch_size(isa, rows, k, n)));
        const BlockedProduct<T> product({}, isa, pairs, args.a, args.b, m, n, k, memory.data());
        for (std::ptrdiff_t i = 0; i < m; i += rows)
            product.rows({i, std::min(rows, m - i), n, first_of(i), end_of(i)}, {c.data() + i * n, n, 1}, args.alpha,
                         scratch.data());
        CHECK(test::same_bits(c, want));
        // Fewer columns, which may be those of whole panels.
        std::vector<T> left(c.size(), T(-3));
        product.rows({0, std::min(rows, m), n / 3, first_of(0), end_of(0)}, {left.data(), n, 1}, args.alpha,
                     scratch.data());
        for (std::ptrdiff_t i = 0; i < std::min(rows, m); ++i)
            CHECK(std::equal(left.data() + i * n, left.data() + i * n + n / 3, want.data() + i * n));
    }
}

/// Compares C of `matmul` with C of products in ranges of k. A range has `range` columns of A. The columns before
/// `first_k` are 0.
template <class T>
void check_ranges(std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k, std::ptrdiff_t range, std::ptrdiff_t first_k) {
    INFO("m " << m << ", n " << n << ", k " << k << ", range " << range << ", first " << first_k);
    std::vector<T> a = test::numbers<T>(m * k, 1, 9), b = test::numbers<T>(k * n, 2, 9);
    MatmulArguments<T> args;
    args.m = m, args.n = n, args.k = k;
    args.a = {{a.data(), 1, m}, Quantiser{.format = e5m2}};
    args.b = {{b.data(), n, 1}, Quantiser{.format = e4m3}};
    args.alpha = Accum<T>(0.75);
    std::fill_n(a.data(), first_k * m, T(0));
    for (const auto& [isa, pairs] : test::matmul_paths()) {
        if (!BlockedProduct<T>::can_carry(pairs, args.a, args.b, k)) continue;
        const std::ptrdiff_t rows = pair_tile_rows(pairs) * 2;
        std::vector<T> want(static_cast<std::size_t>(m * n), T(-3)), c(want);
        args.c = {want.data(), n, 1};
        matmul_with(isa, {}, args, pairs);
        std::vector<Accum<T>> memory(static_cast<std::size_t>(BlockedProduct<T>::right_size(isa, range, n))),
            scratch(static_cast<std::size_t>(BlockedProduct<T>::scratch_size(isa, rows, range, n))),
            sums(static_cast<std::size_t>(BlockedProduct<T>::sums_size(pairs, m, n)), Accum<T>(-5));
        for (std::ptrdiff_t begin = first_k / range * range; begin < k; begin += range) {
            const std::ptrdiff_t count = std::min(range, k - begin);
            Operand<T> left = args.a, right = args.b;
            left.view = left.view.block(0, begin);
            right.view = right.view.block(begin, 0);
            const BlockedProduct<T> product({}, isa, pairs, left, right, m, n, count, memory.data());
            for (std::ptrdiff_t i = 0; i < m; i += rows)
                product.rows({i, std::min(rows, m - i), n, first_k, count, {sums.data(), begin, begin + count == k}},
                             {c.data() + i * n, n, 1}, args.alpha, scratch.data());
        }
        CHECK(test::same_bits(c, want));
    }
}

}  // namespace

TEMPLATE_TEST_CASE("rows of a blocked product have the bits of matmul", "[kernels][matmul]", float, double, Half) {
    const Quantiser e4{.format = e4m3};
    for (const bool transposed : {false, true})
        for (const bool skips : {false, true}) {
            for (const auto& quantiser : {std::optional<Quantiser>(), std::optional<Quantiser>(e4)}) {
                check_blocks<TestType>(70, 50, 96, 32, quantiser, transposed, skips);
                check_blocks<TestType>(5, 33, 31, 36, quantiser, transposed, skips);
            }
            check_blocks<TestType>(40, 20, 1500, 24, e4, transposed, skips);  // deeper than a block of the kernels
            check_blocks<TestType>(300, 20, 96, 150, e4, transposed, skips);  // higher; the last rows have no columns
        }
    check_blocks<TestType>(3, 4, 0, 2, e4, false, false);
    check_blocks<TestType>(300, 4, 0, 300, e4, false, false);
}

TEMPLATE_TEST_CASE("sums carried from range to range of k have the bits of matmul", "[kernels][matmul]", float, Half) {
    for (const std::ptrdiff_t range : {32, 96, 512})
        for (const std::ptrdiff_t first_k : {0, 64, 128}) {
            check_ranges<TestType>(70, 50, 300, range, first_k);
            check_ranges<TestType>(5, 33, 1024, range, first_k);
        }
    for (const std::ptrdiff_t first_k : {0, 96, 1056})  // deeper than a block of the kernels, which C keeps
        for (const std::ptrdiff_t range : {96, 512, 1088}) check_ranges<float>(40, 20, 2200, range, first_k);
    const Operand<TestType> exact{{}, Quantiser{.format = e4m3}}, plain;
    for (const auto& [isa, pairs] : test::matmul_paths()) {
        CHECK_FALSE(BlockedProduct<TestType>::can_carry(pairs, exact, plain, 64));
        CHECK(BlockedProduct<TestType>::can_carry(pairs, exact, exact, 64) == (pairs != PairKernel::none));
        CHECK_FALSE(BlockedProduct<Half>::can_carry(pairs, {{}, Quantiser{.format = e4m3}},
                                                    {{}, Quantiser{.format = e4m3}}, 1025));
    }
    CHECK_FALSE(BlockedProduct<double>::can_carry(active_pair_kernel(), {{}, Quantiser{.format = e4m3}},
                                                  {{}, Quantiser{.format = e4m3}}, 64));
}

TEST_CASE("a blocked product multiplies by the factor of its operands", "[kernels][matmul]") {
    constexpr std::ptrdiff_t n = 17;
    const std::vector<float> a = test::numbers<float>(n * n, 1, 9), b = test::numbers<float>(n * n, 2, 9);
    Operand<float> left, right;
    left.numbers = QuantisedNumbers<float>{{a.data(), n, 1}, false, 0.5f};
    right.numbers = QuantisedNumbers<float>{{b.data(), n, 1}, false, 3.0f};
    MatmulArguments<float> args;
    args.m = args.n = args.k = n;
    args.a = left, args.b = right;
    std::vector<float> want(a.size()), c(want);
    args.c = {want.data(), n, 1};
    matmul<float>({}, args);
    const Isa isa = active_isa();
    std::vector<float> memory(static_cast<std::size_t>(BlockedProduct<float>::right_size(isa, n, n))),
        scratch(static_cast<std::size_t>(BlockedProduct<float>::scratch_size(isa, n, n, n)));
    const BlockedProduct<float> product({}, isa, active_pair_kernel(), left, right, n, n, n, memory.data());
    product.rows({0, n, n, 0, n}, {c.data(), n, 1}, 1.0f, scratch.data());
    CHECK(test::same_bits(c, want));
}

TEST_CASE("a blocked product checks its operands", "[kernels][matmul]") {
    std::vector<float> x(16, 1.0f), memory(4096);
    x[6] = std::numeric_limits<float>::quiet_NaN();
    const Operand<float> plain{{x.data(), 4, 1}}, rounded{{x.data(), 4, 1}, Quantiser{.format = e2m1}};
    const auto make = [&](const Operand<float>& a, const Operand<float>& b) {
        const BlockedProduct<float> product({}, Isa::baseline, PairKernel::none, a, b, 4, 4, 4, memory.data());
    };
    CHECK_THROWS_WITH(make(rounded, plain), "matmul: a: e2m1 has no NaN: element [1,2] is NaN");
    CHECK_THROWS_WITH(make(plain, rounded), "matmul: b: e2m1 has no NaN: element [1,2] is NaN");
}
