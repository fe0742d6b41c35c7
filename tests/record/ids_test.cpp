// SPDX-License-Identifier: MIT
#include <unitscale/record/ids.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <limits>

using namespace unitscale;

TEST_CASE("ids of other integer types become int32", "[record]") {
    const auto of_64 = ops::narrow_ids("op", "ids", Tensor<std::int64_t>({2, 2}, {0, -7, 5, 2147483647}), nullptr);
    CHECK(of_64.shape() == Shape{2, 2});
    CHECK(of_64(0, 1) == -7);
    CHECK(of_64(1, 1) == std::numeric_limits<std::int32_t>::max());
    CHECK(ops::narrow_ids("op", "ids", Tensor<std::uint8_t>({1}, {255}), nullptr)(0) == 255);
    CHECK(ops::narrow_ids("op", "ids", Tensor<std::int64_t>(Shape{0}), nullptr).empty());
    STATIC_REQUIRE_FALSE(ops::OtherId<bool>);
    STATIC_REQUIRE_FALSE(ops::OtherId<std::int32_t>);
}

TEST_CASE("an id that int32 does not hold is an error", "[record]") {
    CHECK_THROWS_WITH(ops::narrow_ids("embedding", "ids", Tensor<std::int64_t>({2}, {1, 5000000000}), nullptr),
                      "embedding: ids[1] is 5000000000; expected a number that int32 holds");
    CHECK_THROWS_WITH(ops::narrow_ids("op", "labels", Tensor<std::uint32_t>({1}, {3000000000u}), nullptr),
                      "op: labels[0] is 3000000000; expected a number that int32 holds");
}
