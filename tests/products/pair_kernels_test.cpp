// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/pair_kernels.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

[[maybe_unused]] std::vector<PairKernel> available() {
    std::vector<PairKernel> all;
    if (has_avx512_bf16()) all.push_back(PairKernel::dot);
    if (has_amx_bf16()) all.push_back(PairKernel::matrix);
    return all;
}

/// Integers from -8 to 8: exact in e4m3, and sums of their products are exact in float.
template <class T>
[[maybe_unused]] std::vector<T> integers(std::ptrdiff_t count, std::uint64_t stream) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<T>(static_cast<float>(random_word({5, stream}, i) % 17) - 8.0f);
    return values;
}

}  // namespace

TEST_CASE("the chosen pair kernel is one that the processor has", "[kernels][matmul]") {
    const PairKernel kernel = active_pair_kernel();
    if (kernel == PairKernel::dot) REQUIRE(has_avx512_bf16());
    if (kernel == PairKernel::matrix) REQUIRE(has_amx_bf16());
    if (active_isa() != Isa::avx512) REQUIRE(kernel == PairKernel::none);
}

TEST_CASE("rows of one AMX tile are packed together where C leaves level 2 and B does not") {
    const BlockSizes sizes = block_sizes_for({{{{48 << 10, 1}, {2 << 20, 1}, {64 << 20, 1}}}}, Isa::avx512);
    const auto rows = [&](PairKernel kernel, std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k) {
        return pair_rows_together(kernel, m, n, k, sizes);
    };
    CHECK(rows(PairKernel::matrix, 2048, 1024, 256) == 32);    // C: 8 MB, B: 512 KB
    CHECK(rows(PairKernel::matrix, 2048, 256, 1024) == 128);   // C: 2 MB
    CHECK(rows(PairKernel::matrix, 2048, 1024, 1024) == 128);  // B: 2 MB
    CHECK(rows(PairKernel::dot, 2048, 1024, 256) == 120);
}

#if UNITSCALE_X86

TEST_CASE("a product whose C leaves level 2 is exact", "[kernels][matmul]") {
    const std::ptrdiff_t n = 256, k = 40, m = block_sizes().right_pairs / 2 / n + 13;
    REQUIRE(pair_rows_together(PairKernel::matrix, m, n, k, block_sizes()) == 32);
    const auto a = integers<float>(m * k, 1), b = integers<float>(k * n, 2);
    for (const PairKernel kernel : available()) {
        std::vector<float> c(static_cast<std::size_t>(m * n)), buffer(static_cast<std::size_t>(pair_buffer)),
            scratch(static_cast<std::size_t>(pair_scratch_size<float>(m, n, k)));
        std::vector<Pair> packed(static_cast<std::size_t>(packed_right_pairs_size(k, n)));
        BlockProduct<float> product;
        product.m = m;
        product.a = MatrixView<const float>{a.data(), k, 1};
        product.c = {c.data(), n, 1};
        multiply_block_pairs(
            kernel, product,
            pack_right_pairs(MatrixView<const float>{b.data(), n, 1}, k, n, nullptr, packed.data(), buffer.data()),
            scratch.data());
        std::size_t wrong = 0;
        for (std::ptrdiff_t i = 0; i < m; i += i < m - 32 ? 31 : 1)
            for (std::ptrdiff_t j = 0; j < n; ++j) {
                float sum = 0;
                for (std::ptrdiff_t p = 0; p < k; ++p)
                    sum += a[static_cast<std::size_t>(i * k + p)] * b[static_cast<std::size_t>(p * n + j)];
                wrong += c[static_cast<std::size_t>(i * n + j)] != sum;
            }
        CHECK(wrong == 0);
    }
}

TEMPLATE_TEST_CASE(
    "products of pairs are exact where float is, for every "
    "size, order of A and instruction",
    "[kernels][matmul]", float, Half) {
    using T = TestType;
    const Quantiser e4{.format = e4m3};
    for (const PairKernel kernel : available())
        for (const std::ptrdiff_t m : {1, 4, 13, 32, 49, 150})
            for (const std::ptrdiff_t n : {1, 16, 33, 64})
                for (const std::ptrdiff_t k :
                     {std::ptrdiff_t{1}, std::ptrdiff_t{32}, std::ptrdiff_t{131}, pair_block_depth + 33}) {
                    if (m * k > 20000 && n > 33) continue;
                    const bool transposed = (m + n) % 2 == 0, padded = k % 2 == 1;
                    const auto a = integers<T>(m * k, 1), b = integers<T>(k * n, 2);
                    const std::ptrdiff_t c_col = padded ? 1 : 2, c_row = c_col * n + 3;
                    auto c = integers<T>(m * c_row, 3);
                    const auto before = c;
                    const auto bias = integers<float>(round_up(n, pair_columns), 4);

                    BlockProduct<T> product;
                    product.m = m;
                    const MatrixView<const T> left{a.data(), transposed ? 1 : k, transposed ? m : 1};
                    product.a = left;
                    product.round_a = &e4;
                    product.c = {c.data(), c_row, c_col};
                    product.alpha = 0.5f;
                    product.gamma = padded ? -2.0f : 0.0f;
                    product.bias = bias.data();
                    std::vector<Pair> packed(static_cast<std::size_t>(packed_right_pairs_size(k, n)) + 1, 77u);
                    std::vector<float> buffer(static_cast<std::size_t>(pair_buffer));
                    std::vector<float> scratch(static_cast<std::size_t>(pair_scratch_size<T>(m, n, k)) + 1, -77.0f);
                    const auto panels =
                        pack_right_pairs(MatrixView<const T>{b.data(), n, 1}, k, n, &e4, packed.data(), buffer.data());
                    multiply_block_pairs(kernel, product, panels, scratch.data());
                    REQUIRE(packed.back() == 77u);
                    REQUIRE(scratch.back() == -77.0f);

                    std::size_t wrong = 0;
                    for (std::ptrdiff_t i = 0; i < m; ++i)
                        for (std::ptrdiff_t j = 0; j < c_row; ++j) {
                            const auto at = static_cast<std::size_t>(i * c_row + j);
                            float expected = static_cast<float>(before[at]);
                            if (j % c_col == 0 && j / c_col < n) {
                                float sum = bias[static_cast<std::size_t>(j / c_col)];
                                for (std::ptrdiff_t p = 0; p < k; ++p)
                                    sum += static_cast<float>(*left.at(i, p)) *
                                           static_cast<float>(b[static_cast<std::size_t>(p * n + j / c_col)]);
                                expected = static_cast<float>(static_cast<T>(0.5f * sum + product.gamma * expected));
                            }
                            wrong += static_cast<float>(c[at]) != expected;
                        }
                    CAPTURE(m, n, k);
                    REQUIRE(wrong == 0);
                }
}

TEST_CASE("products of pairs round to the nearest e4m3 and pass NaN and infinity on", "[kernels][matmul]") {
    const Quantiser e4{.format = e4m3}, e5{.format = e5m2, .overflow = Overflow::to_infinity};
    const float infinity = std::numeric_limits<float>::infinity();
    for (const PairKernel kernel : available()) {
        const std::vector<float> a{1.07f, 0.0f, std::numeric_limits<float>::quiet_NaN(), 0.0f, 1000.0f, 1.0f},
            b{1.2f, 3.0f, 1e6f, 3.0f};
        std::vector<float> c(6), buffer(static_cast<std::size_t>(pair_buffer)),
            scratch(static_cast<std::size_t>(pair_scratch_size<float>(3, 2, 2)));
        std::vector<Pair> packed(static_cast<std::size_t>(packed_right_pairs_size(2, 2)));
        BlockProduct<float> product;
        product.m = 3;
        product.a = MatrixView<const float>{a.data(), 2, 1};
        product.round_a = &e4;
        product.c = {c.data(), 2, 1};
        multiply_block_pairs(
            kernel, product,
            pack_right_pairs(MatrixView<const float>{b.data(), 1, 2}, 2, 2, &e5, packed.data(), buffer.data()),
            scratch.data());
        // A = [[1.125, 0], [NaN, 0], [448, 1]], B = [[1.25, infinity], [3, 3]]
        REQUIRE(c[0] == 1.125f * 1.25f);
        REQUIRE(c[1] == infinity);
        REQUIRE((std::isnan(c[2]) && std::isnan(c[3])));
        REQUIRE(c[4] == 448.0f * 1.25f + 3.0f);
        REQUIRE(c[5] == infinity);
    }
}

#endif
