// SPDX-License-Identifier: MIT
#include <unitscale/io/byte_pair_training.hpp>

#include <unitscale/base/random.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

using Words = std::vector<std::pair<std::vector<std::string>, std::uint64_t>>;

/// The merges by the rule, with all pairs counted anew for every merge. The text has spaces and letters only.
std::vector<std::pair<std::string, std::string>> merges_by_counting(const std::string& text, std::size_t count) {
    std::map<std::string, std::uint64_t> counts;
    io::for_each_pattern_word(text, io::SplitPattern(io::gpt2_pattern),
                              [&](std::string_view word) { ++counts[std::string(word)]; });
    Words words;
    std::map<std::string, std::size_t> order;  // the ids
    for (const auto& token : io::train_byte_pairs("", 256).tokens) order.emplace(token, order.size());
    for (const auto& [word, times] : counts) {
        words.emplace_back(std::vector<std::string>{}, times);
        for (const char byte : word) words.back().first.emplace_back(1, byte);
    }
    std::vector<std::pair<std::string, std::string>> merges;
    while (merges.size() < count) {
        std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> pairs;
        for (const auto& [symbols, times] : words)
            for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
                pairs[{order.at(symbols[i]), order.at(symbols[i + 1])}] += times;
        std::uint64_t most = 1;
        std::pair<std::size_t, std::size_t> best;
        for (const auto& [pair, times] : pairs)
            if (times > most) {
                most = times;
                best = pair;
            }
        if (most == 1) return merges;
        std::string left, right;
        for (const auto& [token, id] : order) {
            if (id == best.first) left = token;
            if (id == best.second) right = token;
        }
        merges.emplace_back(left, right);
        order.emplace(left + right, order.size());
        for (auto& [symbols, times] : words)
            for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
                if (symbols[i] != left || symbols[i + 1] != right) continue;
                symbols[i] += right;
                symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            }
    }
    return merges;
}

std::string token(const io::BytePairVocabulary& vocabulary, std::int32_t id) {
    return vocabulary.tokens[static_cast<std::size_t>(id)];
}

}  // namespace

TEST_CASE("the most frequent pair is merged first; of equal counts the smaller ids") {
    // The words are ab, " abc" three times, " de" twice: ab occurs 4 times. Then " ab" and abc occur 3 times each, and
    // the space has a smaller id than ab. Of de and " d" the letter d has a smaller id than the space.
    const auto vocabulary = io::train_byte_pairs("ab abc abc abc de de", 300);
    REQUIRE(std::vector<std::string>(vocabulary.tokens.begin() + 256, vocabulary.tokens.end()) ==
            std::vector<std::string>{"ab", " ab", " abc", "de", " de"});
    REQUIRE(vocabulary.merges.size() == 5);
}

TEST_CASE("the bytes come first, in the order of GPT-2's characters") {
    const auto vocabulary = io::train_byte_pairs("", 1000);
    REQUIRE(vocabulary.tokens.size() == 256);
    REQUIRE(vocabulary.merges.empty());
    REQUIRE(vocabulary.tokens[0] == "!");
    REQUIRE(vocabulary.tokens[255] == "\xad");
    REQUIRE(vocabulary.tokens[188] == std::string(1, '\0'));
}

TEST_CASE("training by changed counts makes the merges of counting anew") {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        std::string text;
        for (std::uint64_t i = 0; i < 400; ++i) text += "aab b\nc"[random_block({seed, 1}, i)[0] % 7];
        const auto vocabulary = io::train_byte_pairs(text, 256 + 40);
        std::vector<std::pair<std::string, std::string>> merges;
        for (const auto& [left, right] : vocabulary.merges)
            merges.emplace_back(token(vocabulary, left), token(vocabulary, right));
        // Two ways to one text make one token, so that there may be more merges than tokens.
        REQUIRE(merges == merges_by_counting(text, merges.size()));
        REQUIRE(vocabulary.tokens.size() <= 256 + 40);
    }
}

TEST_CASE("a pair that occurs once is merged only if it is asked for; equal texts give equal vocabularies") {
    REQUIRE(io::train_byte_pairs("abc", 300).merges.empty());
    const auto vocabulary = io::train_byte_pairs("abc", 300, 1);
    REQUIRE(vocabulary.tokens.size() == 258);
    REQUIRE(token(vocabulary, 257) == "abc");
    REQUIRE(io::train_byte_pairs("abc", 257, 1).tokens.size() == 257);
    REQUIRE(io::train_byte_pairs("so it goes, so", 300).tokens == io::train_byte_pairs("so it goes, so", 300).tokens);
}

TEST_CASE("merges stay within words, and bytes that are not UTF-8 are words") {
    const auto vocabulary = io::train_byte_pairs("a b a b \xff\xfe \xff\xfe", 300);
    for (const std::string& made : vocabulary.tokens) REQUIRE(made.find("a ") == std::string::npos);
    REQUIRE(io::BytePairTokeniser(vocabulary).id_of("\xff\xfe").has_value());
}

TEST_CASE("fewer tokens than bytes are an error") {
    REQUIRE_THROWS_WITH(io::train_byte_pairs("a", 255),
                        "byte pairs: a vocabulary of 255; expected at least 256, one for each byte");
}
