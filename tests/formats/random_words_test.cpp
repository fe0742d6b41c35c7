// SPDX-License-Identifier: MIT
#include <unitscale/formats/random_words.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <vector>

using namespace unitscale;

TEST_CASE("words by the vector are the words of the stream, for every instruction set") {
    const RandomKey key{0x0123456789ABCDEFu, 0xFEDCBA9876543210u};
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::uint64_t first :
             {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6}, std::uint64_t{0x3FFFFFFE7u}})
            for (const std::size_t count : {0u, 1u, 2u, 5u, 31u, 63u, 64u, 65u, 130u, 300u}) {
                std::vector<std::uint32_t> words(count + 1, 0xABCDu);
                random_words(isa, key, first, std::span(words).first(count));
                std::size_t wrong = words.back() != 0xABCDu ? 1u : 0u;
                for (std::size_t i = 0; i < count; ++i) wrong += words[i] != random_word(key, first + i) ? 1u : 0u;
                INFO(name(isa) << " first " << first << " count " << count);
                CHECK(wrong == 0);
            }
    }
}

TEST_CASE("pieces are words or half words from any place of the stream") {
    const RandomKey key{5, 6};
    const auto half = [key](std::uint64_t index) {
        return (random_word(key, index / 2) >> (16 * (index % 2))) & 0xFFFFu;
    };
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::uint64_t first : {0u, 1u, 3u, 8u, 0xFFFFFFFDu})
            for (const std::size_t count :
                 {std::size_t{1}, std::size_t{2}, std::size_t{63}, std::size_t{300}, random_chunk}) {
                RandomPieces pieces;
                std::size_t wrong = 0;
                const std::uint32_t* const words = pieces.words(isa, key, first, count);
                for (std::size_t i = 0; i < count; ++i) wrong += words[i] != random_word(key, first + i) ? 1u : 0u;
                const std::uint16_t* const halves = pieces.halves(isa, key, first, count);
                for (std::size_t i = 0; i < count; ++i) wrong += halves[i] != half(first + i) ? 1u : 0u;
                const std::uint32_t* const raised = pieces.halves_as_words(isa, key, first, count);
                for (std::size_t i = 0; i < count; ++i) wrong += raised[i] != half(first + i) << 16 ? 1u : 0u;
                INFO(name(isa) << " first " << first << " count " << count);
                CHECK(wrong == 0);
            }
    }
}

TEST_CASE("zeros are zeros after words") {
    RandomPieces pieces;
    static_cast<void>(pieces.words(Isa::baseline, {1, 2}, 3, 100));
    const std::uint32_t* const zeros = pieces.zeros(100);
    REQUIRE(std::count(zeros, zeros + 100, 0u) == 100);
}
