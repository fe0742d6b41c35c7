// SPDX-License-Identifier: MIT
#include <unitscale/record/conv1d_shape.hpp>

#include "support/catch.hpp"

using namespace unitscale;

TEST_CASE("conv1d_shape: lengths of outputs, counted by hand") {
    struct Case {
        std::size_t length, taps;
        ops::Conv1dOptions options;
        std::ptrdiff_t out, left;
    };
    for (const Case& c : {Case{10, 3, {}, 8, 0}, Case{10, 3, {.stride = 2}, 4, 0}, Case{10, 3, {.dilation = 4}, 2, 0},
                          Case{10, 3, {.padding_left = 1, .padding_right = 1}, 10, 1},
                          Case{10, 3, {.dilation = 2, .causal = true}, 10, 4}, Case{1, 1, {}, 1, 0}}) {
        const auto shape = ops::conv1d_shape({2, 4, c.length}, {6, 4, c.taps}, c.options);
        CHECK(shape.out_length == c.out);
        CHECK(shape.left == c.left);
        CHECK(shape.batch == 2);
        CHECK(shape.out_channels == 6);
    }
    CHECK_THROWS_WITH(ops::conv1d_shape({2, 4, 2}, {6, 4, 3}, {}),
                      "conv1d: x [2,4,2] with padding is 2 long; the kernel reaches over 3");
    CHECK_THROWS_WITH(ops::conv1d_shape({2, 4, 9}, {6, 3, 3}, {}),
                      "conv1d: x [2,4,9] and weight [6,3,3] do not fit in 1 group: 4 != 3");
}
