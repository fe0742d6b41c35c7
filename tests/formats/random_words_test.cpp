// SPDX-License-Identifier: MIT
#include <unitscale/formats/random_words.hpp>

#include "support/catch.hpp"

#include <vector>

using namespace unitscale;

TEST_CASE("words by the vector are the words of the stream, for every instruction set") {
    const RandomKey key{0x0123456789ABCDEFu, 0xFEDCBA9876543210u};
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6}, std::uint64_t{0x3FFFFFFE7u}})
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

namespace {

template <class Piece>
std::size_t count_wrong_pieces(Isa isa, RandomKey key, std::uint64_t first, std::size_t count) {
    RandomPieces<Piece, 300> pieces;
    const Piece* const found = pieces.fill(isa, key, first, count);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t index = first + i;
        const std::uint32_t half = (random_word(key, index / 2) >> (16 * (index % 2))) & 0xFFFFu;
        wrong += found[i] != (sizeof(Piece) == 2 ? half : random_word(key, index)) ? 1u : 0u;
    }
    return wrong;
}

}  // namespace

TEST_CASE("pieces are words or half words from any place of the stream") {
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::uint64_t first : {0u, 1u, 3u, 8u, 0xFFFFFFFDu})
            for (const std::size_t count : {1u, 2u, 63u, 299u, 300u}) {
                INFO(name(isa) << " first " << first << " count " << count);
                CHECK(count_wrong_pieces<std::uint16_t>(isa, {5, 6}, first, count) == 0);
                CHECK(count_wrong_pieces<std::uint32_t>(isa, {5, 6}, first, count) == 0);
            }
    }
}
