// SPDX-License-Identifier: MIT
#include <unitscale/record/windows.hpp>

#include "support/catch.hpp"

using namespace unitscale;

TEST_CASE("windows_of: counts windows along both axes") {
    const kernels::Windows w =
        ops::windows_of("conv2d", {2, 3, 7, 9}, {3, 2}, {.stride = {2, 3}, .padding = {2, 0}, .dilation = {2, 1}});
    CHECK(w.batch == 2);
    CHECK(w.channels == 3);
    CHECK(w.count == kernels::Windows::Pair{4, 3});
    CHECK(w.taps() == 6);
    CHECK(ops::window_shape(w) == Shape{2, 3, 4, 3});
    CHECK(ops::windows_per_pixel(w) == 1.0);
}

TEST_CASE("windows_of: errors name the op and the axis") {
    CHECK_THROWS_WITH(ops::windows_of("pool", {3, 7, 9}, {2, 2}, {}), "pool: x [3,7,9] is not [B,C,H,W]");
    CHECK_THROWS_WITH(ops::windows_of("pool", {1, 3, 7, 9}, {2, 0}, {}),
                      "pool: kernel 0, stride 1 and dilation 1 along axis 3; expected at least 1");
    CHECK_THROWS_WITH(ops::windows_of("pool", {1, 3, 7, 9}, {2, 2}, {.stride = {0, 1}}),
                      "pool: kernel 2, stride 0 and dilation 1 along axis 2; expected at least 1");
    CHECK_THROWS_WITH(ops::windows_of("pool", {1, 3, 2, 9}, {3, 2}, {.dilation = {2, 1}}),
                      "pool: axis 2 of x [1,3,2,9] with padding is 2 long; the kernel reaches over 5");
}
