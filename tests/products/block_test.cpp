// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/block.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

/// C = 0.5 (A B + bias) - C with B packed once and used for row ranges that are cut at `cuts`.
template <class T>
std::vector<T> multiply_in_parts(Isa isa, std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k,
                                 const std::vector<std::ptrdiff_t>& cuts) {
    using P = Accum<T>;
    const auto a = test::numbers<T>(m * k, 1, 3), b = test::numbers<T>(k * n, 2, 3);
    auto c = test::numbers<T>(m * n, 3, 3);
    std::vector<P> packed(static_cast<std::size_t>(packed_right_size<P>(isa, k, n)));
    const auto bias = test::numbers<P>(round_up(n, tile_shape(isa).columns<P>()), 4, 3);
    const auto panels = pack_right(isa, MatrixView<const T>{b.data(), n, 1}, k, n, nullptr, packed.data());
    for (std::size_t part = 0; part + 1 < cuts.size(); ++part) {
        BlockProduct<T> product;
        product.m = cuts[part + 1] - cuts[part];
        product.a = MatrixView<const T>{a.data() + cuts[part] * k, k, 1};
        product.b = panels;
        product.c = {c.data() + cuts[part] * n, n, 1};
        product.alpha = P(0.5);
        product.gamma = P(-1);
        product.bias = bias.data();
        const auto size = static_cast<std::size_t>(block_scratch_size<T>(isa, product.m, n, k));
        std::vector<P> scratch(size + 1, P(-77));
        multiply_block(isa, product, scratch.data());
        REQUIRE(scratch.back() == P(-77));
    }
    return c;
}

}  // namespace

TEMPLATE_TEST_CASE("a block product is right beyond its block sizes and its bits do not depend on where rows are cut",
                   "[kernels][matmul]", float, BFloat16) {
    const std::ptrdiff_t m = block_rows + 17, n = 37;
    for (const std::ptrdiff_t k : {std::ptrdiff_t{30}, 2 * block_depth + 5})
        for (const Isa isa : {Isa::baseline, active_isa()}) {
            const auto whole = multiply_in_parts<TestType>(isa, m, n, k, {0, m});
            const auto cut = multiply_in_parts<TestType>(isa, m, n, k, {0, 1, 6, 64, m});
            REQUIRE(std::equal(whole.begin(), whole.end(), cut.begin()));
            const auto a = test::numbers<TestType>(m * k, 1, 3), b = test::numbers<TestType>(k * n, 2, 3),
                       c = test::numbers<TestType>(m * n, 3, 3);
            const auto bias = test::numbers<float>(n, 4, 3);
            double worst = 0;
            for (std::ptrdiff_t i = 0; i < m; ++i)
                for (std::ptrdiff_t j = 0; j < n; ++j) {
                    double sum = double(bias[std::size_t(j)]);
                    for (std::ptrdiff_t p = 0; p < k; ++p)
                        sum += double(float(a[std::size_t(i * k + p)])) * double(float(b[std::size_t(p * n + j)]));
                    const double expected = 0.5 * sum - double(float(c[std::size_t(i * n + j)]));
                    worst = std::max(worst, std::abs(double(float(whole[std::size_t(i * n + j)])) - expected) /
                                                (1 + std::abs(expected)));
                }
            // C is rounded once: half a unit in the last place of the element type, plus the error of the float sums.
            REQUIRE(worst < (std::is_same_v<TestType, float> ? 2e-5 : 0x1p-8 + 2e-5));
        }
}

TEMPLATE_TEST_CASE("A by columns far apart gives the bits of A by rows", "[kernels][matmul]", float, BFloat16, double) {
    using P = Accum<TestType>;
    // Columns are packed some lines at a time, read in place, or packed by tiles.
    const std::ptrdiff_t m = block_rows + 7, n = 29, apart = GENERATE(2048, 2060, 130);
    for (const std::ptrdiff_t k :
         {std::ptrdiff_t{0}, std::ptrdiff_t{5}, short_depth, short_depth + 1, block_depth + 37})
        for (const Isa isa : test::available_isas()) {
            CAPTURE(k, apart, static_cast<int>(isa));
            const auto across = test::numbers<TestType>(k * apart, 1, 3), b = test::numbers<TestType>(k * n, 2, 3);
            std::vector<TestType> along(static_cast<std::size_t>(m * k));
            for (std::ptrdiff_t i = 0; i < m; ++i)
                for (std::ptrdiff_t p = 0; p < k; ++p)
                    along[static_cast<std::size_t>(i * k + p)] = across[static_cast<std::size_t>(p * apart + i)];
            std::vector<P> packed(static_cast<std::size_t>(packed_right_size<P>(isa, k, n)));
            const auto panels =
                pack_right(isa, MatrixView<const TestType>{b.data(), n, 1}, k, n, nullptr, packed.data());
            const auto product_of = [&](const MatrixView<const TestType>& a) {
                std::vector<TestType> c(static_cast<std::size_t>(m * n), TestType(7));
                BlockProduct<TestType> product;
                product.m = m;
                product.a = a;
                product.b = panels;
                product.c = {c.data(), n, 1};
                const auto size = static_cast<std::size_t>(block_scratch_size<TestType>(isa, m, n, k));
                std::vector<P> scratch(size + 1, P(-77));
                multiply_block(isa, product, scratch.data());
                REQUIRE(scratch.back() == P(-77));
                return c;
            };
            REQUIRE(product_of({across.data(), 1, apart}) == product_of({along.data(), k, 1}));
        }
}
