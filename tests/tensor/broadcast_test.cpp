// SPDX-License-Identifier: MIT
#include <unitscale/tensor/broadcast.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <vector>

using namespace unitscale;

TEST_CASE("shapes broadcast as in NumPy", "[tensor]") {
    CHECK(broadcast_shape("add", {2, 1, 5}, {3, 1}) == Shape{2, 3, 5});
    CHECK(broadcast_shape("add", {}, {3}) == Shape{3});
    CHECK(broadcast_shape("add", {0, 1}, {1, 4}) == Shape{0, 4});
    REQUIRE_THROWS_WITH(broadcast_shape("add", {2, 3}, {4, 3}), "add: shapes [2,3] and [4,3] do not broadcast: 2 != 4");
    REQUIRE_THROWS_WITH(broadcast_shape("mul", {2, 0}, {2}), "mul: shapes [2,0] and [2] do not broadcast: 0 != 2");
}

TEST_CASE("a tensor is repeated to a shape", "[tensor]") {
    Tensor<float> column({2, 1}, {1, 2});
    column.set_scale(0.5);
    const auto y = broadcast_to(column, {3, 2, 2});
    CHECK(y.shape() == Shape{3, 2, 2});
    CHECK(y.scale() == 0.5);
    CHECK(std::vector<float>(y.span().begin(), y.span().end()) ==
          std::vector<float>{1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2});
    const auto row = broadcast_to(Tensor<std::int32_t>({3}, {4, 5, 6}), {2, 3});
    CHECK((row(0, 2) == 6 && row(1, 0) == 4));
    CHECK(broadcast_to(Tensor<float>(Shape{}, {7.0f}), {2})(1) == 7.0f);
    CHECK(broadcast_to(Tensor<float>(Shape{1, 3}), {0, 3}).shape() == Shape{0, 3});
    CHECK(broadcast_to(column, {2, 1})(1, 0) == 2.0f);
}

TEST_CASE("shapes that do not broadcast are an error with both shapes", "[tensor]") {
    REQUIRE_THROWS_WITH(broadcast_to(Tensor<float>(Shape{2, 3}), {4, 3}),
                        "broadcast_to: shape [2,3] does not broadcast to [4,3]: 2 != 4");
    REQUIRE_THROWS_WITH(broadcast_to(Tensor<float>(Shape{2, 3}), {2, 1}),
                        "broadcast_to: shape [2,3] does not broadcast to [2,1]: 3 != 1");
    REQUIRE_THROWS_WITH(broadcast_to(Tensor<float>(Shape{1, 3}), {3}),
                        "broadcast_to: shape [1,3] has more axes than [3]");
}
