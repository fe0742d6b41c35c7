// SPDX-License-Identifier: MIT
#include <unitscale/io/byte_pair.hpp>

#include <unitscale/base/random.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using io::BytePairs;
using io::BytePairVocabulary;
using Ids = std::vector<std::int32_t>;

namespace {

/// All bytes, then these tokens, with merges of the given pairs.
BytePairVocabulary bytes_and(const std::vector<std::pair<std::string, std::string>>& merges) {
    BytePairVocabulary vocabulary;
    std::map<std::string, std::int32_t> ids;
    for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    for (const std::string& token : vocabulary.tokens) ids.emplace(token, static_cast<std::int32_t>(ids.size()));
    for (const auto& [left, right] : merges) {
        vocabulary.merges.emplace_back(ids.at(left), ids.at(right));
        if (ids.emplace(left + right, static_cast<std::int32_t>(ids.size())).second)
            vocabulary.tokens.push_back(left + right);
    }
    return vocabulary;
}

Ids encode(const BytePairs& pairs, std::string_view word) {
    BytePairs::Cache cache;
    Ids ids, again;
    pairs.encode_word(word, cache, ids);
    pairs.encode_word(word, cache, again);
    REQUIRE(again == ids);  // the kept word
    return ids;
}

/// The rule, word for word: the leftmost pair of the lowest rank is merged, until there is none.
Ids merged_by_search(const BytePairVocabulary& vocabulary, const std::string& word) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
    for (std::size_t i = 0; i < vocabulary.merges.size(); ++i) ranks[vocabulary.merges[i]] = i;
    Ids ids;
    for (const char byte : word) ids.push_back(static_cast<unsigned char>(byte));
    while (true) {
        std::size_t best = ranks.size(), place = 0;
        for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
            const auto found = ranks.find({ids[i], ids[i + 1]});
            if (found == ranks.end() || found->second >= best) continue;
            best = found->second;
            place = i;
        }
        if (best == ranks.size()) return ids;
        const std::string text = vocabulary.tokens[static_cast<std::size_t>(ids[place])] +
                                 vocabulary.tokens[static_cast<std::size_t>(ids[place + 1])];
        ids[place] = static_cast<std::int32_t>(std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), text) -
                                               vocabulary.tokens.begin());
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
}

/// Random merges of letters a to d.
BytePairVocabulary random_vocabulary(std::uint64_t seed, std::size_t merges) {
    std::vector<std::string> tokens = {"a", "b", "c", "d"};
    std::vector<std::pair<std::string, std::string>> pairs;
    std::set<std::pair<std::string, std::string>> known;
    for (std::uint64_t i = 0; pairs.size() < merges; ++i) {
        const auto block = random_block({seed, 1}, i);
        const std::string left = tokens[block[0] % tokens.size()], right = tokens[block[1] % tokens.size()];
        if (left.size() + right.size() > 6 || !known.emplace(left, right).second) continue;
        pairs.emplace_back(left, right);
        tokens.push_back(left + right);
    }
    return bytes_and(pairs);
}

}  // namespace

TEST_CASE("GPT-2's characters stand for the 256 bytes, each for one") {
    REQUIRE(io::to_byte_characters(std::string("a \n\0\xad\xff", 6)) == "a\u0120\u010a\u0100\u0143\u00ff");
    for (int byte = 0; byte < 256; ++byte) {
        const std::string text(1, static_cast<char>(byte));
        REQUIRE(io::from_byte_characters(io::to_byte_characters(text)) == text);
    }
    REQUIRE_FALSE(io::from_byte_characters("a b").has_value());
    REQUIRE_FALSE(io::from_byte_characters("\u0144").has_value());
    REQUIRE_FALSE(io::from_byte_characters("\xff").has_value());
}

TEST_CASE("the pair of the lowest rank is merged first, and of equal pairs the leftmost") {
    const auto vocabulary = bytes_and({{"b", "c"}, {"a", "b"}, {"ab", "ab"}, {"a", "a"}});
    const BytePairs pairs(vocabulary);
    REQUIRE(encode(pairs, "abc") == Ids{'a', 256});
    REQUIRE(encode(pairs, "ababab") == Ids{258, 257});
    REQUIRE(encode(pairs, "aaa") == Ids{259, 'a'});
    REQUIRE(encode(pairs, "").empty());
    REQUIRE(encode(pairs, "x") == Ids{'x'});
}

TEST_CASE("the heap's merges are those of the rule") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const auto vocabulary = random_vocabulary(seed, 30);
        const BytePairs pairs(vocabulary);
        for (std::uint64_t word_number = 0; word_number < 20; ++word_number) {
            std::string word;
            for (std::uint64_t i = 0; i < 5 * (word_number + 1); ++i)
                word.push_back(static_cast<char>('a' + random_block({seed, 2 + word_number}, i)[0] % 4));
            INFO(word);
            REQUIRE(encode(pairs, word) == merged_by_search(vocabulary, word));
        }
    }
}

TEST_CASE("a word of a million symbols is quick") {
    const BytePairs pairs(bytes_and({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}}));
    REQUIRE(encode(pairs, std::string(1 << 20, 'a')) == Ids(1 << 17, 258));
}

TEST_CASE("a whole word may stand before its merges") {
    const auto vocabulary = bytes_and({{"a", "b"}, {"b", "c"}, {"a", "bc"}});
    REQUIRE(encode(BytePairs(vocabulary), "abc") == Ids{256, 'c'});
    REQUIRE(encode(BytePairs(vocabulary, {.whole_words = true}), "abc") == Ids{258});
}

TEST_CASE("words of characters: unknown ones are bytes, one token each, one token together, or an error") {
    BytePairVocabulary vocabulary{{"<unk>", "a", "\u00e9", "a\u00e9", "\u2581", "\u2581a"}, {{1, 2}, {4, 1}}};
    const io::BytePairOptions characters{.of_bytes = false};
    REQUIRE(encode(BytePairs(vocabulary, characters), "a\u00e9a") == Ids{3, 1});
    REQUIRE_THROWS_WITH(encode(BytePairs(vocabulary, characters), "a\u65e5"),
                        "byte pairs: no token for '\u65e5', and no token for what is unknown");
    REQUIRE_THROWS_WITH(encode(BytePairs(vocabulary, characters), "a\xff"),
                        "byte pairs: no token for byte 0xff, and no token for what is unknown");
    io::BytePairOptions unknown = characters;
    unknown.unknown = 0;
    REQUIRE(encode(BytePairs(vocabulary, unknown),
                   "\u65e5\u672c\xff"
                   "a") == Ids{0, 0, 0, 1});
    unknown.fuse_unknown = true;
    REQUIRE(encode(BytePairs(vocabulary, unknown),
                   "\u65e5\u672c\xff"
                   "a\u65e5") == Ids{0, 1, 0});
    for (int byte = 0; byte < 256; ++byte) {
        constexpr std::string_view digits = "0123456789ABCDEF";
        vocabulary.tokens.push_back({'<', '0', 'x', digits[static_cast<std::size_t>(byte / 16)],
                                     digits[static_cast<std::size_t>(byte % 16)], '>'});
    }
    unknown.byte_fallback = true;
    REQUIRE(encode(BytePairs(vocabulary, unknown),
                   "\u65e5\xff\u2581"
                   "a") == Ids{6 + 0xe6, 6 + 0x97, 6 + 0xa5, 6 + 0xff, 5});
}

TEST_CASE("a text of words with metaspaces has the ids of one word") {
    // The last merge joins a character with a metaspace behind it: words may not be cut there.
    BytePairVocabulary vocabulary{{"a", "\u2581", "\u2581\u2581", "\u2581a", "a\u2581"}, {{1, 1}, {1, 0}}};
    const std::string text =
        "a\u2581\u2581\u2581"
        "aa\u2581"
        "a";
    REQUIRE(encode(BytePairs(vocabulary, {.of_bytes = false}), text) == Ids{0, 2, 3, 0, 3});
    vocabulary.merges.insert(vocabulary.merges.begin(), {0, 1});
    REQUIRE(encode(BytePairs(vocabulary, {.of_bytes = false}), text) == Ids{4, 2, 0, 4, 0});
}

TEST_CASE("merges that make no token and double tokens are errors") {
    REQUIRE_THROWS_WITH(BytePairs({{"a", "b"}, {{0, 1}}}),
                        "byte pairs: merge 0 of 'a' and 'b' makes a text that is no token");
    REQUIRE_THROWS_WITH(BytePairs({{"a", "b"}, {{0, 2}}}), "byte pairs: merge 0 names id 2, which is no token");
    REQUIRE_THROWS_WITH(BytePairs({{"a", ""}, {{0, 1}}}), "byte pairs: merge 0 names id 1, which is no token");
    REQUIRE_THROWS_WITH(BytePairs({{"a", "b", "a"}, {}}), "byte pairs: token 2 has the bytes of token 0");
}

TEST_CASE("GPT-2's tokeniser merges within words, and any bytes come back") {
    const io::BytePairTokeniser tokens(bytes_and({{" ", "a"}, {"a", "\n"}, {"a", "b"}}));
    REQUIRE(tokens.encode("a a\nab") == Ids{'a', 256, '\n', 258});
    REQUIRE(tokens.size() == 259);
    REQUIRE(tokens.id_of("ab") == 258);
    REQUIRE_FALSE(tokens.id_of("ba").has_value());
    std::string bytes;
    for (std::uint64_t i = 0; i < 20'000; ++i) bytes.push_back(static_cast<char>(random_block({7, 1}, i)[0]));
    REQUIRE(tokens.decode(tokens.encode(bytes)) == bytes);
    REQUIRE_THROWS_WITH(tokens.decode(Ids{259}), "byte pairs: id 259 at position 0; expected 0 to 258");
}
