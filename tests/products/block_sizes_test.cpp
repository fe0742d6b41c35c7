// SPDX-License-Identifier: MIT
#include <unitscale/products/block_sizes.hpp>

#include <unitscale/products/product.hpp>

#include "support/catch.hpp"

#include <cstddef>

using namespace unitscale;
using namespace unitscale::products;

namespace {

constexpr BlockSizes sizes_of(std::size_t level2, std::size_t cores = 1, std::size_t level3 = 0,
                              Isa isa = Isa::avx512) {
    return block_sizes_for({{{{32 << 10, 1}, {level2, cores}, {level3, 4}}}}, isa);
}

}  // namespace

TEST_CASE("blocks fit a core's share of level 2") {
    for (const std::size_t level2 : {std::size_t{4} << 10, std::size_t{256} << 10, std::size_t{1} << 20,
                                     std::size_t{2} << 20, std::size_t{64} << 20}) {
        CAPTURE(level2);
        const BlockSizes sizes = sizes_of(level2);
        CHECK(sizes.rows >= 12);
        CHECK(sizes.rows <= block_rows);
        CHECK(sizes.rows % 12 == 0);
        CHECK(static_cast<std::size_t>(sizes.right) * sizeof(float) <= level2);
        CHECK(static_cast<std::size_t>(sizes.right_pairs) * sizeof(float) / 2 <= level2);
        CHECK(static_cast<std::size_t>(sizes.right_of_one_block) * sizeof(float) <= level2);
        CHECK(static_cast<std::size_t>(sizes.right_of_few_rows) * sizeof(float) <= level2);
        CHECK(sizes_of(4 * level2, 4) == sizes);
    }
}

TEST_CASE("larger caches have larger blocks") {
    const BlockSizes small = sizes_of(256 << 10), large = sizes_of(2 << 20);
    CHECK(small.rows < large.rows);
    CHECK(small.right < large.right);
    CHECK(small.right_pairs < large.right_pairs);
}

TEST_CASE("packed B may take a quarter of a core's share of level 3, and at most 1 or 2 MB of floats") {
    const auto bytes = [](std::size_t level3, Isa isa = Isa::avx512) {
        return static_cast<std::size_t>(sizes_of(256 << 10, 1, level3, isa).right) * sizeof(float);
    };
    CHECK(bytes(0) == 256 << 10);
    CHECK(bytes(2 << 20) == 256 << 10);  // a quarter of a fourth is less than level 2
    CHECK(bytes(8 << 20) == 512 << 10);
    CHECK(bytes(64 << 20) == 1 << 20);
    for (const Isa isa : {Isa::baseline, Isa::avx2}) {
        CHECK(bytes(16 << 20, isa) == 1 << 20);
        CHECK(bytes(64 << 20, isa) == 2 << 20);
        CHECK(sizes_of(2 << 20, 1, 0, isa) == sizes_of(2 << 20));
    }
    const BlockSizes without = sizes_of(256 << 10), with = sizes_of(256 << 10, 1, 64 << 20);
    CHECK(with.right_of_one_block == without.right_of_one_block);
    CHECK(with.right_pairs == without.right_pairs);
}

TEST_CASE("products use the blocks of the active caches and instruction set") {
    CHECK(block_sizes() == block_sizes_for(active_caches(), active_isa()));
}

TEST_CASE("lines are whole pages apart by their elements' size") {
    STATIC_REQUIRE(whole_pages_apart<float>(1024));
    STATIC_REQUIRE(whole_pages_apart<float>(3072));
    STATIC_REQUIRE(whole_pages_apart<double>(512));
    STATIC_REQUIRE_FALSE(whole_pages_apart<float>(512));
    STATIC_REQUIRE_FALSE(whole_pages_apart<float>(1040));
}
