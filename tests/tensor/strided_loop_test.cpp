// SPDX-License-Identifier: MIT
#include <unitscale/tensor/strided_loop.hpp>

#include "support/catch.hpp"

#include <array>
#include <cstddef>
#include <vector>

using namespace unitscale;

TEST_CASE("a strided loop drops axes of extent 1 and joins axes that every operand walks evenly", "[tensor]") {
    StridedLoop<2> loop;  // [2,3,1,4] against [2,3,1,4] with the first axis broadcast
    loop.add_axis(2, {12, 0});
    loop.add_axis(3, {4, 4});
    loop.add_axis(1, {4, 4});
    loop.add_axis(4, {1, 1});
    CHECK(loop.rank() == 2);
    CHECK(loop.inner_extent() == 12);
    CHECK(loop.inner_steps() == std::array<std::ptrdiff_t, 2>{1, 1});
    CHECK(loop.rows() == 2);
    CHECK(loop.row_offsets(1) == std::array<std::ptrdiff_t, 2>{12, 0});

    StridedLoop<1> none;
    CHECK(none.rows() * none.inner_extent() == 1);
    CHECK(none.row_offsets(0)[0] == 0);
}

TEST_CASE("a strided loop's rows run in row-major order", "[tensor]") {
    StridedLoop<1> loop;
    loop.add_axis(2, {5});
    loop.add_axis(3, {100});
    loop.add_axis(4, {1});
    const std::vector<std::ptrdiff_t> expected{0, 100, 200, 5, 105, 205};
    REQUIRE(loop.rows() == 6);
    for (std::ptrdiff_t row = 0; row < 6; ++row)
        CHECK(loop.row_offsets(row)[0] == expected[static_cast<std::size_t>(row)]);
}

TEST_CASE("a strided loop refuses more axes than it has room for", "[tensor]") {
    StridedLoop<1> loop;
    for (std::ptrdiff_t axis = 0; axis < 8; ++axis) loop.add_axis(2, {1000 - axis});
    REQUIRE_THROWS_WITH(loop.add_axis(2, {1}), "strided loop: more than 8 axes");
}
