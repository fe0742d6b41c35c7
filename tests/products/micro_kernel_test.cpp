// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/micro_kernel.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {}  // namespace

TEMPLATE_TEST_CASE("every micro-kernel computes its tile in both orders of A and touches nothing else",
                   "[kernels][matmul]", float, double) {
    using T = TestType;
    for (const Isa isa : test::available_isas()) {
        const TileShape shape = tile_shape(isa);
        const std::ptrdiff_t lanes = shape.lanes<T>();
        REQUIRE(shape.rows <= max_tile_rows);
        REQUIRE(shape.columns<T>() <= max_tile_columns<T>);
        for (int fours = 1; fours <= shape.rows / 4; ++fours)
            for (int vectors = 1; vectors <= shape.vectors; ++vectors)
                for (const std::ptrdiff_t k : {0, 1, 2, 19})
                    for (const int variant : {0, 1, 2}) {
                        const std::ptrdiff_t rows = 4 * fours, cols = vectors * lanes, b_step = cols + 3,
                                             c_row = cols + 5;
                        const auto a = test::numbers<T>(rows * (k + 1) + 8, 1),
                                   b = test::numbers<T>((k + 1) * b_step, 2), bias = test::numbers<T>(cols, 3);
                        auto c = test::numbers<T>(rows * c_row, 4);
                        const auto before = c;
                        TileProduct<T> tile;
                        tile.k = k;
                        tile.a = a.data();
                        tile.a_row = variant == 0 ? 1 : k + 1;
                        tile.a_step = variant == 0 ? rows : 1;
                        tile.b = b.data();
                        tile.b_step = b_step;
                        tile.c = c.data();
                        tile.c_row = c_row;
                        tile.bias = variant == 1 ? nullptr : bias.data();
                        tile.alpha = T(0.75);
                        tile.gamma = variant == 2 ? T(0) : T(-1.5);
                        tile_product(isa, fours, vectors, tile);
                        for (std::ptrdiff_t i = 0; i < rows; ++i)
                            for (std::ptrdiff_t j = 0; j < c_row; ++j) {
                                const auto at = static_cast<std::size_t>(i * c_row + j);
                                if (j >= cols) {
                                    REQUIRE(c[at] == before[at]);
                                    continue;
                                }
                                double sum = tile.bias != nullptr ? double(bias[static_cast<std::size_t>(j)]) : 0.0;
                                for (std::ptrdiff_t p = 0; p < k; ++p)
                                    sum += double(tile.a[i * tile.a_row + p * tile.a_step]) *
                                           double(tile.b[p * b_step + j]);
                                const double expected =
                                    double(tile.alpha) * sum + double(tile.gamma) * double(before[at]);
                                REQUIRE(std::abs(double(c[at]) - expected) <=
                                        40 * double(std::numeric_limits<T>::epsilon()));
                            }
                    }
    }
}

TEST_CASE("a micro-kernel does not read C when gamma is 0", "[kernels][matmul]") {
    for (const Isa isa : test::available_isas()) {
        const TileShape shape = tile_shape(isa);
        const std::ptrdiff_t cols = shape.columns<float>();
        std::vector<float> a(static_cast<std::size_t>(shape.rows), 2.0f), b(static_cast<std::size_t>(cols), 3.0f);
        std::vector<float> c(static_cast<std::size_t>(shape.rows * cols), std::numeric_limits<float>::quiet_NaN());
        TileProduct<float> tile;
        tile.k = 1;
        tile.a = a.data();
        tile.a_row = 1;
        tile.b = b.data();
        tile.b_step = cols;
        tile.c = c.data();
        tile.c_row = cols;
        tile_product(isa, shape.rows / 4, shape.vectors, tile);
        for (const float x : c) REQUIRE(x == 6.0f);
    }
}
