// SPDX-License-Identifier: MIT
#include <unitscale/kernels/strides.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

TEST_CASE("steps of a row-major array are products of the extents inside", "[kernels]") {
    CHECK(row_major_step(Shape{2, 3, 4}, 0) == 12);
    CHECK(row_major_step(Shape{2, 3, 4}, 1) == 4);
    CHECK(row_major_step(Shape{2, 3, 4}, 2) == 1);
}

TEST_CASE("the axes that a reduction folds: pieces of the kept elements, offsets of the others", "[kernels]") {
    const Shape shape{3, 100, 2};
    const FoldedAxes axes(shape, Shape{1, 100, 1});
    CHECK(axes.length() == 6);
    std::vector<std::ptrdiff_t> offsets, pieces;
    for (std::ptrdiff_t i = 0; i < 6; ++i) offsets.push_back(axes.offset(i));
    CHECK(offsets == std::vector<std::ptrdiff_t>{0, 1, 200, 201, 400, 401});
    std::vector<std::ptrdiff_t> in_order;
    axes.for_offsets([&](std::ptrdiff_t offset) { in_order.push_back(offset); });
    CHECK(in_order == offsets);
    axes.for_pieces(Execution{}, [&](auto first, auto count, auto step, auto place) {
        pieces.insert(pieces.end(), {first, count, step, place});
    });
    CHECK(pieces == std::vector<std::ptrdiff_t>{0, 64, 2, 0, 128, 36, 2, 64});
    CHECK(FoldedAxes(Shape{4, 0}, Shape{4, 1}).length() == 0);
    CHECK(FoldedAxes(Shape{4, 5}, Shape{4, 5}).length() == 1);
}
