// SPDX-License-Identifier: MIT
#include <unitscale/base/select.hpp>

#include "support/catch.hpp"

#include <bit>
#include <cstdint>
#include <limits>

using namespace unitscale;

TEST_CASE("select gives one of its arguments, with all its bits") {
    const float nan = std::bit_cast<float>(0x7FC12345u), infinity = std::numeric_limits<float>::infinity();
    for (const float a : {0.0f, -0.0f, 1.5f, nan, -infinity})
        for (const float b : {-0.0f, 0x1p-149f, infinity, nan}) {
            CHECK(std::bit_cast<std::uint32_t>(select(true, a, b)) == std::bit_cast<std::uint32_t>(a));
            CHECK(std::bit_cast<std::uint32_t>(select(false, a, b)) == std::bit_cast<std::uint32_t>(b));
        }
    CHECK(select(true, 0xFFFFFFFFu, 7u) == 0xFFFFFFFFu);
    CHECK(select(false, 0xFFFFFFFFu, 7u) == 7u);
}
