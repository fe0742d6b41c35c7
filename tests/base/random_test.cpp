// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>

#include "support/catch.hpp"

#include <vector>

using namespace unitscale;

using Block = std::array<std::uint32_t, 4>;

// The authors' known answers: zeros, ones, and the digits of pi.
static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) == Block{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u});
static_assert(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
              Block{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu});
static_assert(philox4x32({0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}, {0xA4093822u, 0x299F31D0u}) ==
              Block{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u});

TEST_CASE("a word of a stream is a lane of the Philox block of its index") {
    const RandomKey key{0x2222222211111111u, 0x4444444433333333u};
    const Block block = philox4x32({7, 1, 0x33333333u, 0x44444444u}, {0x11111111u, 0x22222222u});
    REQUIRE(random_block(key, 0x100000007u) == block);
    for (std::uint64_t lane = 0; lane < 4; ++lane) REQUIRE(random_word(key, 4 * 0x100000007u + lane) == block[lane]);
}

TEST_CASE("filling gives the stream's words for any start and length") {
    const RandomKey key{1, 2};
    for (const std::uint64_t first : {0u, 1u, 2u, 3u, 4u, 1001u})
        for (const std::size_t count : {0u, 1u, 2u, 3u, 4u, 5u, 30u}) {
            std::vector<std::uint32_t> words(count + 1, 99);
            fill_random_words(key, first, std::span(words).first(count));
            bool same = words[count] == 99;
            for (std::size_t i = 0; i < count; ++i) same = same && words[i] == random_word(key, first + i);
            REQUIRE(same);
        }
}

TEST_CASE("seeds and streams give different words, and so do mixed numbers and names") {
    REQUIRE(random_word({1, 2}, 0) != random_word({1, 3}, 0));
    REQUIRE(random_word({1, 2}, 0) != random_word({2, 2}, 0));
    REQUIRE(random_word({1, 2}, 0) != random_word({2, 1}, 0));
    REQUIRE(mix(1, 2) != mix(2, 1));
    REQUIRE(mix(0, 0) != mix(0, 1));
    REQUIRE(hash_name("block.0.q") != hash_name("block.0.k"));
    REQUIRE(hash_name("") != hash_name(std::string_view("\0", 1)));
    STATIC_REQUIRE(hash_name("a") == hash_name("a"));
}

TEST_CASE("uniform numbers are multiples of 2^-24 in [0, 1) with the right mean") {
    REQUIRE(uniform(0) == 0.0f);
    REQUIRE(uniform(~0u) == 1.0f - 0x1p-24f);
    REQUIRE(uniform(0x80000000u) == 0.5f);
    double sum = 0;
    constexpr int n = 100000;
    for (std::uint64_t i = 0; i < n; ++i) sum += static_cast<double>(uniform(random_word({3, 4}, i)));
    REQUIRE(sum / n == Approx(0.5).margin(5 * 0.2887 / std::sqrt(n)));
}

TEST_CASE("normal numbers have the moments of a standard normal, and neighbours do not correlate") {
    constexpr int n = 200000;
    double sum = 0, squares = 0, cubes = 0, fourths = 0, products = 0;
    double previous = random_normal({5, 5}, n);
    int beyond_two = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
        const double z = random_normal({5, 5}, i);
        sum += z;
        squares += z * z;
        cubes += z * z * z;
        fourths += z * z * z * z;
        products += z * previous;
        beyond_two += std::abs(z) > 2 ? 1 : 0;
        previous = z;
    }
    const double root = std::sqrt(n);  // five standard errors each
    REQUIRE(std::abs(sum / n) < 5 / root);
    REQUIRE(std::abs(squares / n - 1) < 5 * std::sqrt(2.0) / root);
    REQUIRE(std::abs(cubes / n) < 5 * std::sqrt(15.0) / root);
    REQUIRE(std::abs(fourths / n - 3) < 5 * std::sqrt(96.0) / root);
    REQUIRE(std::abs(products / n) < 5 / root);
    REQUIRE(std::abs(beyond_two / static_cast<double>(n) - 0.0455003) < 5 * 0.2084 / root);
}

TEST_CASE("a normal number depends on key and index alone") {
    const double z = random_normal({6, 7}, 12345);
    REQUIRE(random_normal({6, 7}, 12345) == z);
    REQUIRE(random_normal({6, 8}, 12345) != z);
    REQUIRE(random_normal({6, 7}, 12344) != z);
}
