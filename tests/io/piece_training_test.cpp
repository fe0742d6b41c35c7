// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/io/piece_training.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using Pieces = std::vector<std::string>;

namespace {
/// The training as its doc comment states it: every count anew before every merge, scores compared as fractions.
Pieces trained_naively(const io::WordCounts& words, std::size_t size, std::uint64_t least_count) {
    std::vector<std::pair<Pieces, std::uint64_t>> rows;
    std::set<std::string> letters;
    for (const auto& [word, count] : words) {
        Pieces row;
        for (const char letter : word) row.push_back((row.empty() ? "" : "##") + std::string(1, letter));
        letters.insert(row.begin(), row.end());
        rows.emplace_back(row, count);
    }
    Pieces pieces(letters.begin(), letters.end());
    const auto number = [&](const std::string& piece) { return std::find(pieces.begin(), pieces.end(), piece); };
    while (pieces.size() < size) {
        std::map<std::string, std::uint64_t> counts;
        std::map<std::pair<std::string, std::string>, std::uint64_t> pairs;
        for (const auto& [row, count] : rows)
            for (std::size_t i = 0; i < row.size(); ++i) {
                counts[row[i]] += count;
                if (i > 0) pairs[{row[i - 1], row[i]}] += count;
            }
        const auto* best = static_cast<decltype(pairs)::value_type*>(nullptr);
        for (const auto& pair : pairs) {
            if (pair.second < least_count) continue;
            if (best == nullptr) best = &pair;
            const auto product = [&](const auto& a, const auto& b) {  // the score of a over that of b, without division
                return a.second * counts[b.first.first] * counts[b.first.second];
            };
            const std::uint64_t mine = product(pair, *best), theirs = product(*best, pair);
            const auto place = [&](const auto& p) { return std::pair(number(p.first.first), number(p.first.second)); };
            if (mine > theirs || (mine == theirs && (pair.second > best->second ||
                                                     (pair.second == best->second && place(pair) < place(*best)))))
                best = &pair;
        }
        if (best == nullptr) break;
        const auto [left, right] = best->first;
        const std::string made = left + right.substr(2);
        if (number(made) == pieces.end()) pieces.push_back(made);
        for (auto& [row, count] : rows) {
            Pieces merged;
            for (std::size_t i = 0; i < row.size(); ++i) {
                const bool both = i + 1 < row.size() && row[i] == left && row[i + 1] == right;
                merged.push_back(both ? made : row[i]);
                if (both) ++i;
            }
            row = merged;
        }
    }
    return pieces;
}

io::WordCounts random_words(std::uint64_t seed, std::size_t count, std::size_t letters) {
    io::WordCounts words;
    std::uint64_t index = 0;
    const auto below = [&](std::size_t n) { return random_word({seed, 1}, index++) % n; };
    for (std::size_t i = 0; i < count; ++i) {
        std::string word;
        for (std::size_t length = 1 + below(9); word.size() < length;)
            word.push_back(static_cast<char>('a' + below(letters)));
        words[word] += 1 + below(20);
    }
    return words;
}
}  // namespace

TEST_CASE("piece training: merges that were worked out by hand") {
    // First ##g ##s: 5 / (20 5). Then all pairs have the score 1/36, and p ##u occurs most, 17 times.
    const io::WordCounts words{{"hug", 10}, {"pug", 5}, {"pun", 12}, {"bun", 4}, {"hugs", 5}};
    const Pieces all{"##g", "##n", "##s", "##u",  "b",   "h",   "p",   "##gs",
                     "pu",  "hu",  "bu",  "hugs", "hug", "bun", "pun", "pug"};
    CHECK(io::train_pieces(words, 100, 1) == all);
    CHECK(io::train_pieces(words, 9, 1) == Pieces(all.begin(), all.begin() + 9));
    CHECK(io::train_pieces(words, 7, 1) == Pieces(all.begin(), all.begin() + 7));
    // With 10 at least, ##g ##s (5) is left out. All other pairs have the score 1/36, and ##u ##g occurs 20 times.
    CHECK(io::train_pieces(words, 8, 10).back() == "##ug");
}

TEST_CASE("piece training: of equal scores and counts the first pieces win") {
    CHECK(io::train_pieces({{"ab", 1}, {"cd", 1}}, 5, 1).back() == "ab");
    CHECK(io::train_pieces({{"ad", 1}, {"cb", 1}}, 5, 1).back() == "ad");
}

TEST_CASE("piece training: equal to counting everything anew before every merge") {
    for (std::uint64_t seed = 1; seed <= 12; ++seed)
        for (const std::size_t letters : {2u, 4u, 9u}) {
            const io::WordCounts words = random_words(seed, 40, letters);
            for (const std::uint64_t least : {1u, 7u})
                CHECK(io::train_pieces(words, 70, least) == trained_naively(words, 70, least));
        }
}

TEST_CASE("piece training: without a fixed least count, frequent pairs come first") {
    // By score alone q ##z, 1 / (1 1), is the first merge; t ##h occurs most often.
    const io::WordCounts words{{"the", 50}, {"than", 40}, {"he", 30}, {"qz", 1}};
    const std::size_t letters = io::train_pieces({{"the", 1}, {"than", 1}, {"he", 1}, {"qz", 1}}, 8, 1).size();
    REQUIRE(letters == 8);
    CHECK(io::train_pieces(words, letters + 1, 1).back() == "qz");
    CHECK(io::train_pieces(words, letters + 1).back() == "th");
    const Pieces all = io::train_pieces(words, 100);
    CHECK(std::find(all.begin(), all.end(), "qz") != all.end());
    CHECK(std::set<std::string>(all.begin(), all.end()).size() == all.size());
}

TEST_CASE("piece training: characters of several bytes are whole") {
    CHECK(io::train_pieces({{"\u00e9\u00e9\u6f22", 1}}, 3) == Pieces{"##\u00e9", "##\u6f22", "\u00e9"});
}

TEST_CASE("piece training: errors name the word and the sizes") {
    const auto message = [](const io::WordCounts& words, std::size_t size) {
        return test::error_of([&] { static_cast<void>(io::train_pieces(words, size)); });
    };
    CHECK(message({{"ab", 1}}, 1) ==
          "WordPiece: 1 pieces; expected at least 2, one for each character as a start and as a continuation of words");
    CHECK(message({{"", 1}}, 9) ==
          "WordPiece: '' as a word to train on; expected one that is not empty and does not start with ##");
    CHECK(message({{"##a", 1}}, 9) ==
          "WordPiece: '##a' as a word to train on; expected one that is not empty and does not start with ##");
    CHECK(message({{"a\xff", 1}}, 9) == "WordPiece: word 'a\xff' is not UTF-8");
    CHECK(io::train_pieces({}, 3).empty());
}
