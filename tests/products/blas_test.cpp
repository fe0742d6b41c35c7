// SPDX-License-Identifier: MIT
// Which products go to a BLAS and how they are cut. The products themselves are tested by tests/consumers/blas, a
// program that is linked with a BLAS.
#include <unitscale/products/blas.hpp>
#include <unitscale/products/product.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

using namespace unitscale;
using namespace unitscale::products;

namespace {

/// A product that a BLAS can compute. Only addresses and strides are examined.
template <class T>
MatmulArguments<T> plain(std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k) {
    static T element{};
    return {.m = m, .n = n, .k = k, .a = {{&element, k, 1}}, .b = {{&element, n, 1}}, .c = {&element, n, 1}};
}

}  // namespace

TEST_CASE("a BLAS reads columns as they lie, rows transposed, and nothing else", "[kernels][blas]") {
    const double element = 0;
    const auto matrix = [&](std::ptrdiff_t row_stride, std::ptrdiff_t col_stride, std::ptrdiff_t rows,
                            std::ptrdiff_t cols) {
        return blas_matrix(MatrixView<const double>{&element, row_stride, col_stride}, rows, cols);
    };
    REQUIRE(matrix(1, 5, 5, 3) == BlasMatrix{'N', 5});
    REQUIRE(matrix(1, 9, 5, 3) == BlasMatrix{'N', 9});
    REQUIRE(matrix(3, 1, 5, 3) == BlasMatrix{'T', 3});
    REQUIRE(matrix(7, 1, 5, 3) == BlasMatrix{'T', 7});
    REQUIRE(matrix(1, 1, 5, 1) == BlasMatrix{'T', 1});  // one column, contiguous
    REQUIRE(matrix(1, 1, 1, 5) == BlasMatrix{'N', 1});
    for (const auto& [row_stride, col_stride] : {std::pair{0, 1},
                                                 {1, 0},
                                                 {2, 1},
                                                 {1, 4},
                                                 {6, 2},
                                                 {-3, 1},
                                                 {1, -5},
                                                 {0, 0}})  // shared rows, overlaps, both strided, backwards
        REQUIRE_FALSE(matrix(row_stride, col_stride, 5, 3));
    const std::ptrdiff_t large = std::ptrdiff_t{1} << 31;  // beyond the integers of a BLAS
    REQUIRE(matrix(large - 1, 1, 5, 3) == BlasMatrix{'T', static_cast<int>(large - 1)});
    REQUIRE_FALSE(matrix(large, 1, 5, 3));
    REQUIRE_FALSE(matrix(3, 1, large, 3));
}

TEMPLATE_TEST_CASE("a BLAS can compute products that are neither rounded, packed nor scaled by row or column",
                   "[kernels][blas]", float, double) {
    using Arguments = MatmulArguments<TestType>;
    const Arguments good = plain<TestType>(5, 6, 7);
    REQUIRE(blas_can(good));
    const Quantiser round{.format = e4m3};
    const PackedRight<TestType> packed{};
    const TestType scale = 1;
    const auto with = [&](auto change) {
        Arguments args = good;
        change(args);
        return blas_can(args);
    };
    REQUIRE(with([&](Arguments& args) { args.bias = &scale, args.gamma = 2, args.alpha = -1, args.batch = 3; }));
    REQUIRE(with([&](Arguments& args) { args.a.view = args.a.view.transposed(), args.a.view.col_stride = 5; }));
    REQUIRE(with([&](Arguments& args) { args.c = args.c.transposed(), args.c.col_stride = 5; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.a.quantiser = round; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.b.quantiser = round; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.b.packed = &packed; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.row_scale = &scale; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.col_scale = &scale; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.alpha = 0; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.k = 0; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.a.view.col_stride = 2; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.b.view.row_stride = 0; }));
    REQUIRE_FALSE(with([&](Arguments& args) { args.c.col_stride = 2; }));
}

TEST_CASE("a BLAS has no 16-bit types", "[kernels][blas]") {
    REQUIRE_FALSE(blas_can(plain<Half>(5, 6, 7)));
    REQUIRE_FALSE(blas_can(plain<BFloat16>(5, 6, 7)));
}

TEST_CASE("large products without a short side pay", "[kernels][blas]") {
    REQUIRE(blas_pays(1024, 1024, 256));
    REQUIRE_FALSE(blas_pays(1024, 1024, 255));
    REQUIRE(blas_pays(128, 1 << 14, 128));
    for (const auto& [m, n, k] :
         {std::array<std::ptrdiff_t, 3>{127, 4096, 4096}, {4096, 127, 4096}, {4096, 4096, 127}, {0, 0, 0}})
        REQUIRE_FALSE(blas_pays(m, n, k));
}

TEST_CASE("cells cover C once, begin at whole vectors and are of similar size", "[kernels][blas]") {
    for (const std::ptrdiff_t most : {blas_cell_rows, blas_cell_cols})
        for (const std::ptrdiff_t size :
             {1, 15, 16, 17, 511, 512, 513, 1023, 1024, 1025, 1600, 2047, 2048, 2049, 5000, 100001}) {
            const std::ptrdiff_t parts = blas_parts(size, most);
            CAPTURE(size, most, parts);
            REQUIRE(parts == (size + most - 1) / most);
            REQUIRE(blas_part_begin(size, most, 0) == 0);
            REQUIRE(blas_part_begin(size, most, parts) == size);
            std::ptrdiff_t smallest = size, largest = 0;
            for (std::ptrdiff_t p = 0; p < parts; ++p) {
                const std::ptrdiff_t begin = blas_part_begin(size, most, p), end = blas_part_begin(size, most, p + 1);
                REQUIRE(begin % 16 == 0);
                smallest = std::min(smallest, end - begin), largest = std::max(largest, end - begin);
            }
            REQUIRE(smallest > 0);
            REQUIRE(largest <= most);
            REQUIRE(largest - smallest < 32);
        }
}

TEST_CASE("the default asks a BLAS only in a build that chose one", "[kernels][blas]") {
#if defined(UNITSCALE_USE_BLAS)
    REQUIRE(uses_blas);
#else
    REQUIRE_FALSE(uses_blas);
#endif
}
