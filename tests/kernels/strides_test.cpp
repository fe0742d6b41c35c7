// SPDX-License-Identifier: MIT
#include <unitscale/kernels/strides.hpp>

#include "support/catch.hpp"

using namespace unitscale;
using namespace unitscale::kernels;

TEST_CASE("steps of a row-major array are products of the extents inside", "[kernels]") {
    CHECK(row_major_step(Shape{2, 3, 4}, 0) == 12);
    CHECK(row_major_step(Shape{2, 3, 4}, 1) == 4);
    CHECK(row_major_step(Shape{2, 3, 4}, 2) == 1);
}
