// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/product.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <random>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

enum class Layout { rows, padded_rows, columns, both };

/// A batch of matrices in a buffer that is larger than the matrices.
template <class T>
struct Dense {
    std::vector<T> data;
    MatrixView<T> view;

    Dense(std::ptrdiff_t rows, std::ptrdiff_t cols, std::ptrdiff_t batch, Layout layout, bool shared,
          std::uint64_t stream) {
        if (layout == Layout::rows) view = {nullptr, cols, 1, rows * cols};
        else if (layout == Layout::padded_rows) view = {nullptr, cols + 3, 1, rows * (cols + 3) + 1};
        else if (layout == Layout::columns) view = {nullptr, 1, rows + 2, cols * (rows + 2)};
        else view = {nullptr, 2 * cols + 1, 2, rows * (2 * cols + 1)};
        data.resize(static_cast<std::size_t>((view.batch_stride + 1) * (shared ? 1 : batch) + 2));
        for (std::size_t i = 0; i < data.size(); ++i) data[i] = element_cast<T>(random_normal({11, stream}, i));
        view.data = data.data();
        if (shared) view.batch_stride = 0;
    }
    Dense(const Dense&) = delete;
};

/// `value`: every element of C's buffer by the definition in double. The bound says how far a sum of k products in
/// Accum<T> may be from it. For elements outside C the bound is 0.
struct Expected {
    std::vector<double> value, bound;
};
template <class T>
Expected expect(const MatmulArguments<T>& args, const std::vector<T>& before) {
    const double epsilon = double(std::numeric_limits<Accum<T>>::epsilon());
    const double last = std::is_same_v<T, Half> ? 0x1p-11 : std::is_same_v<T, BFloat16> ? 0x1p-8 : 0;
    const auto wide = [](T x, const std::optional<Quantiser>& round = {}) {
        const auto value = element_cast<double>(x);
        return round ? quantise(round->format, value) : value;
    };
    Expected result{std::vector<double>(before.size()), std::vector<double>(before.size(), 0.0)};
    std::transform(before.begin(), before.end(), result.value.begin(), [&](T x) { return wide(x); });
    const double alpha = double(args.alpha), gamma = double(args.gamma);
    std::vector<double> a(static_cast<std::size_t>(args.m * args.k)), b(static_cast<std::size_t>(args.k * args.n));
    for (std::ptrdiff_t item = 0; item < args.batch; ++item) {
        for (std::ptrdiff_t p = 0; p < args.k; ++p) {
            for (std::ptrdiff_t i = 0; i < args.m; ++i)
                a[std::size_t(i * args.k + p)] = wide(*args.a.view.item(item).at(i, p), args.a.quantiser);
            for (std::ptrdiff_t j = 0; j < args.n; ++j)
                b[std::size_t(j * args.k + p)] = wide(*args.b.view.item(item).at(p, j), args.b.quantiser);
        }
        for (std::ptrdiff_t i = 0; i < args.m; ++i)
            for (std::ptrdiff_t j = 0; j < args.n; ++j) {
                double sum = args.bias != nullptr ? wide(args.bias[j]) : 0, size = std::abs(sum);
                const double scale = (args.row_scale != nullptr ? double(args.row_scale[i]) : 1) *
                                     (args.col_scale != nullptr ? double(args.col_scale[j]) : 1);
                for (std::ptrdiff_t p = 0; p < args.k; ++p) {
                    const double term = scale * a[std::size_t(i * args.k + p)] * b[std::size_t(j * args.k + p)];
                    sum += term;
                    size += std::abs(term);
                }
                const auto at = static_cast<std::size_t>(args.c.item(item).at(i, j) - args.c.data);
                const double old = gamma != 0 ? gamma * wide(before[at]) : 0, expected = alpha * sum + old;
                result.value[at] = expected;
                result.bound[at] = epsilon * (double(args.k) / 2 + 4) * (std::abs(alpha) * size + std::abs(old)) +
                                   last * std::abs(expected) + 1e-7 * last;
            }
    }
    return result;
}
template <class T>
void check_within(const Expected& expected, const std::vector<T>& after) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < after.size(); ++i)
        wrong += !(std::abs(element_cast<double>(after[i]) - expected.value[i]) <= expected.bound[i]);
    REQUIRE(wrong == 0);
}

/// One product of random shape and layout, on every instruction set.
template <class T>
void check_random_products(int count, unsigned seed) {
    std::mt19937 generator(seed);
    const auto pick = [&](auto... values) {
        const std::array all{values...};
        return all[generator() % all.size()];
    };
    const auto size = [&] {
        return static_cast<std::ptrdiff_t>(generator() % 3 != 0 ? 1 + int(generator() % 17)
                                                                : pick(31, 32, 33, 63, 64, 65, 100));
    };
    const auto layout = [&] { return pick(Layout::rows, Layout::padded_rows, Layout::columns, Layout::both); };
    const Quantiser e4{.format = e4m3}, e5{.format = e5m2};
    for (int trial = 0; trial < count; ++trial) {
        MatmulArguments<T> args;
        args.m = size(), args.n = size(), args.k = size(), args.batch = pick(1, 1, 2, 3);
        const Dense<T> a(args.m, args.k, args.batch, layout(), generator() % 4 == 0, 1);
        const Dense<T> b(args.k, args.n, args.batch, layout(), generator() % 4 == 0, 2);
        Dense<T> c(args.m, args.n, args.batch, layout(), false, 3);
        const Dense<T> bias(1, args.n, 1, Layout::rows, false, 4);
        args.a.view = a.view, args.b.view = b.view, args.c = c.view;
        args.alpha = pick(Accum<T>(1), Accum<T>(0.3));
        args.gamma = pick(Accum<T>(0), Accum<T>(1), Accum<T>(-0.7));
        if (generator() % 2 == 0) args.bias = bias.data.data();
        const Dense<Accum<T>> scales(1, args.m + args.n, 1, Layout::rows, false, 5);
        if (generator() % 3 == 0) args.row_scale = scales.data.data();
        if (generator() % 3 == 0) args.col_scale = scales.data.data() + args.m;
        args.a.quantiser = pick(std::optional<Quantiser>(), std::optional(e4), std::optional(e5));
        args.b.quantiser = pick(std::optional<Quantiser>(), std::optional(e4), std::optional(e5));
        const auto before = c.data;
        const Expected expected = expect(args, before);
        for (const test::MatmulPath& path : test::matmul_paths()) {
            std::copy(before.begin(), before.end(), c.data.begin());
            matmul_with(path.isa, {}, args, path.pairs);
            CAPTURE(args.m, args.n, args.k, args.batch, int(path.isa), int(path.pairs));
            check_within(expected, c.data);
        }
    }
}

/// C [m,n] = A B of dense random operands.
std::vector<float> product(const Execution& execution, std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k,
                           std::ptrdiff_t batch, bool shared = false, const std::optional<Quantiser>& round = {}) {
    const Dense<float> a(m, k, batch, Layout::rows, false, 1), b(k, n, batch, Layout::columns, shared, 2);
    std::vector<float> c(static_cast<std::size_t>(m * n * batch));
    MatmulArguments<float> args{.m = m,
                                .n = n,
                                .k = k,
                                .batch = batch,
                                .a = {a.view, round},
                                .b = {b.view, round},
                                .c = {c.data(), n, 1, m * n}};
    matmul(execution, args);
    return c;
}

}  // namespace

TEST_CASE("products of random shapes, layouts and factors agree with double", "[kernels][matmul]") {
    check_random_products<float>(150, 1);
    check_random_products<double>(60, 2);
}

TEST_CASE("products in 16-bit types round their float sum once", "[kernels][matmul]") {
    check_random_products<Half>(25, 3);
    check_random_products<BFloat16>(25, 4);
}

TEST_CASE("the naive product is the definition", "[kernels][matmul]") {
    const std::vector<double> a{1, 2, 3, 4, 5, 6}, b{1, 0, -1, 2, 10, 1}, bias{0.5, -1};
    std::vector<double> c{100, 200, 300, 400};
    const MatmulArguments<double> args{.m = 2,
                                       .n = 2,
                                       .k = 3,
                                       .a = {{a.data(), 3, 1}},
                                       .b = {{b.data(), 2, 1}},
                                       .c = {c.data(), 2, 1},
                                       .alpha = 2,
                                       .gamma = 0.5,
                                       .bias = bias.data()};
    matmul_naive(args);
    // A B = [[29, 7], [59, 16]]
    REQUIRE(c == std::vector<double>{2 * 29.5 + 50, 2 * 6.0 + 100, 2 * 59.5 + 150, 2 * 15.0 + 200});
    c = {100, 200, 300, 400};
    matmul({}, args);
    REQUIRE(c == std::vector<double>{2 * 29.5 + 50, 2 * 6.0 + 100, 2 * 59.5 + 150, 2 * 15.0 + 200});

    const std::vector<double> rows{2, 4}, cols{0.5, -1};  // C = 2 (row col (A B) + bias) + C / 2
    MatmulArguments<double> scaled = args;
    scaled.row_scale = rows.data(), scaled.col_scale = cols.data();
    for (const bool naive : {true, false}) {
        c = {100, 200, 300, 400};
        if (naive) matmul_naive(scaled);
        else matmul({}, scaled);
        REQUIRE(c == std::vector<double>{2 * 29.5 + 50, 2 * -15.0 + 100, 2 * 118.5 + 150, 2 * -65.0 + 200});
    }
}

TEST_CASE("large products agree with double beyond the block sizes", "[kernels][matmul]") {
    for (const auto& [m, n, k] :
         {std::array<std::ptrdiff_t, 3>{257, 100, 33}, {33, 257, 100}, {31, 65, 2 * block_depth + 1}}) {
        const Dense<float> a(m, k, 1, Layout::columns, false, 1), b(k, n, 1, Layout::rows, false, 2);
        Dense<float> c(m, n, 1, Layout::padded_rows, false, 3);
        const Quantiser e4{.format = e4m3};
        MatmulArguments<float> args{
            .m = m, .n = n, .k = k, .a = {a.view, e4}, .b = {b.view}, .c = c.view, .alpha = 0.5f, .gamma = 2};
        const auto before = c.data;
        for (const auto& round_b : {std::optional<Quantiser>(), {e4}}) {
            args.b.quantiser = round_b;
            const Expected expected = expect(args, before);
            for (const test::MatmulPath& path : test::matmul_paths()) {
                std::copy(before.begin(), before.end(), c.data.begin());
                matmul_with(path.isa, {}, args, path.pairs);
                CAPTURE(m, n, k, int(path.isa), int(path.pairs));
                check_within(expected, c.data);
            }
        }
    }
}

TEST_CASE("rounding inside the product gives the bits of rounding before it", "[kernels][matmul]") {
    const std::ptrdiff_t m = 29, n = 70, k = 83;
    const Quantiser e4{.format = e4m3}, e5{.format = e5m2};
    for (const Layout layout : {Layout::rows, Layout::columns, Layout::both})
        for (const Isa isa : test::available_isas()) {
            const Dense<float> a(m, k, 1, layout, false, 1), b(k, n, 1, layout, false, 2);
            Dense<float> rounded_a(m, k, 1, layout, false, 1), rounded_b(k, n, 1, layout, false, 2);
            for (float& x : rounded_a.data) x = quantise(e4m3, x);
            for (float& x : rounded_b.data) x = quantise(e5m2, x);
            std::vector<float> inside(m * n), before(m * n), plain(m * n);
            MatmulArguments<float> args{
                .m = m, .n = n, .k = k, .a = {a.view, e4}, .b = {b.view, e5}, .c = {inside.data(), n, 1}};
            matmul_with(isa, {}, args);
            args.a = {rounded_a.view}, args.b = {rounded_b.view}, args.c.data = before.data();
            matmul_with(isa, {}, args);
            REQUIRE(test::same_bits(inside, before));
            args.a = {a.view}, args.b = {b.view}, args.c.data = plain.data();
            matmul_with(isa, {}, args);
            REQUIRE_FALSE(test::same_bits(inside, plain));
        }
}

TEMPLATE_TEST_CASE("stochastic rounding draws an element's word by its place in memory", "[kernels][matmul]", float,
                   Half) {
    using P = Accum<TestType>;
    const std::ptrdiff_t m = 5, n = 6, k = 40, batch = 2;
    const Quantiser stochastic{.format = e4m3, .rounding = Rounding::stochastic}, e5{.format = e5m2};
    for (const Layout layout : {Layout::padded_rows, Layout::columns, Layout::both})
        for (const bool both : {false, true}) {
            const Dense<TestType> a(m, k, batch, layout, false, 1), b(k, n, batch, layout, both, 2);
            std::vector<TestType> c(m * n * batch), expected(m * n * batch);
            MatmulArguments<TestType> args{.m = m,
                                           .n = n,
                                           .k = k,
                                           .batch = batch,
                                           .a = {a.view, stochastic, {1, 2}},
                                           .b = {b.view, both ? stochastic : e5, {3, 4}},
                                           .c = {c.data(), n, 1, m * n}};
            matmul({}, args);
            args.c.data = expected.data();
            matmul_naive(args);
            for (std::size_t i = 0; i < c.size(); ++i)
                REQUIRE(
                    double(P(c[i])) ==
                    Approx(double(P(expected[i]))).epsilon(std::is_same_v<TestType, Half> ? 2e-3 : 1e-5).margin(1e-5));
            args.a.key = {1, 3};
            matmul_naive(args);
            REQUIRE_FALSE(test::same_bits(c, expected));
        }
}

TEST_CASE("a product's bits are the same for every number of threads", "[kernels][matmul]") {
    MemoryPool pool;
    for (const auto& sizes : {std::array<std::ptrdiff_t, 4>{200, 130, 150, 1},
                              {3, 700, 600, 1},
                              {400, 70, 1300, 1},
                              {130, 40, 300, 3},
                              {64, 64, 64, 17}})
        for (const bool shared : {false, true}) {
            const Quantiser e4{.format = e4m3};
            const auto run = [&](const Execution& execution) {
                return product(execution, sizes[0], sizes[1], sizes[2], sizes[3], shared,
                               shared ? std::optional(e4) : std::nullopt);
            };
            const auto one = run({});
            for (const int threads : {2, 3, 4}) REQUIRE(test::same_bits(one, run({threads, &pool})));
            std::vector<float> nested;
            parallel_for(2, 2, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t) {
                if (begin == 0) nested = run({4, &pool});
            });
            REQUIRE(test::same_bits(one, nested));
        }
}

TEST_CASE("a product takes its scratch from the pool and a second one asks the system for nothing",
          "[kernels][matmul]") {
    MemoryPool pool;
    const auto run = [&] { return product({2, &pool}, 150, 90, 130, 2); };
    run();
    const auto allocations = pool.system_allocations();
    REQUIRE(allocations > 0);
    run();
    REQUIRE(pool.system_allocations() == allocations);
    REQUIRE(pool.live_bytes() == 0);
}

TEST_CASE("an empty sum leaves alpha times bias and gamma C, an empty product nothing", "[kernels][matmul]") {
    const std::vector<float> bias{1, 2, 3};
    std::vector<float> c{10, 20, 30, 40, 50, 60};
    MatmulArguments<float> args{
        .m = 2, .n = 3, .k = 0, .c = {c.data(), 3, 1}, .alpha = 2, .gamma = 0.5f, .bias = bias.data()};
    matmul({}, args);
    REQUIRE(c == std::vector<float>{7, 14, 21, 22, 29, 36});
    args.m = 0;
    matmul({}, args);
    args.m = 2, args.n = 0;
    matmul({}, args);
    args.n = 3, args.batch = 0;
    matmul({}, args);
    REQUIRE(c == std::vector<float>{7, 14, 21, 22, 29, 36});
}

TEST_CASE("NaN and infinity reach the elements that they are part of, and only those", "[kernels][matmul]") {
    const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const std::ptrdiff_t m = 20, n = 40, k = 10;
    for (const Isa isa : test::available_isas()) {
        Dense<float> a(m, k, 1, Layout::rows, false, 1), b(k, n, 1, Layout::rows, false, 2);
        for (float& x : b.data) x = 1;
        *a.view.at(3, 4) = nan;
        *a.view.at(5, 6) = infinity;
        std::vector<float> c(m * n, nan);  // gamma is 0: not read
        MatmulArguments<float> args{.m = m, .n = n, .k = k, .a = {a.view}, .b = {b.view}, .c = {c.data(), n, 1}};
        const Quantiser e4{.format = e4m3};
        for (const auto& round : {std::optional<Quantiser>(), {e4}}) {
            args.a.quantiser = round;
            matmul_with(isa, {}, args);
            for (std::ptrdiff_t i = 0; i < m; ++i)
                for (std::ptrdiff_t j = 0; j < n; ++j) {
                    const float x = c[std::size_t(i * n + j)];
                    if (i == 3) REQUIRE(std::isnan(x));
                    else if (i == 5 && !round) REQUIRE(x == infinity);
                    else REQUIRE(std::isfinite(x));  // saturated when rounded
                }
        }
    }
}

TEST_CASE("a quantiser that cannot round the operand is an error that names it", "[kernels][matmul]") {
    std::vector<float> a{1, 2, 3, std::numeric_limits<float>::quiet_NaN()}, b{1, 2, 3, 4}, c(4);
    Quantiser fp4{.format = e2m1};
    MatmulArguments<float> args{
        .m = 2, .n = 2, .k = 2, .a = {{a.data(), 2, 1}, fp4}, .b = {{b.data(), 2, 1}}, .c = {c.data(), 2, 1}};
    REQUIRE_THROWS_WITH(matmul({}, args), "matmul: a: e2m1 has no NaN: element [1,1] is NaN");
    fp4.rounding = Rounding::stochastic, fp4.bits = 40;
    args.a.quantiser.reset(), args.b.quantiser = fp4;
    REQUIRE_THROWS_WITH(matmul({}, args), "matmul: b: bits is 40; expected 1 to 24");
}

TEMPLATE_TEST_CASE("a NaN for a format without one is found wherever it lies", "[kernels][matmul]", float, double,
                   Half) {
    const std::ptrdiff_t m = 3, n = 70, k = 90, batch = 2;
    const Quantiser fp4{.format = e2m1};
    for (const Layout layout : {Layout::rows, Layout::padded_rows, Layout::columns, Layout::both})
        for (const bool shared : {false, true}) {
            const Dense<TestType> a(m, k, batch, layout, false, 1);
            Dense<TestType> b(k, n, batch, layout, shared, 2);
            std::vector<TestType> c(static_cast<std::size_t>(m * n * batch));
            const MatmulArguments<TestType> args{.m = m,
                                                 .n = n,
                                                 .k = k,
                                                 .batch = batch,
                                                 .a = {a.view, fp4},
                                                 .b = {b.view, fp4},
                                                 .c = {c.data(), n, 1, m * n}};
            REQUIRE_NOTHROW(matmul({}, args));
            *b.view.item(1).at(85, 67) = element_cast<TestType>(std::numeric_limits<float>::quiet_NaN());
            REQUIRE_THROWS_WITH(matmul({}, args), "matmul: b: e2m1 has no NaN: element [85,67] is NaN");
            *b.view.item(1).at(85, 66) = element_cast<TestType>(-std::numeric_limits<float>::quiet_NaN());
            *b.view.item(1).at(86, 0) = *b.view.item(1).at(85, 67);
            REQUIRE_THROWS_WITH(matmul({}, args), "matmul: b: e2m1 has no NaN: element [85,66] is NaN");
        }
}
