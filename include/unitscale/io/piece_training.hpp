// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/text.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// The training of a WordPiece vocabulary from words and their counts. io/wordpiece.hpp finds them in a text.
namespace unitscale::io {

/// Stands before a piece that continues a word.
inline constexpr std::string_view continuation_mark = "##";

/// A word that occurs more than once in a text is one element with its count.
using WordCounts = std::map<std::string, std::uint64_t>;

/// Words as rows of pieces, and the counts that the choice of the next merge needs. Merging a pair changes the words
/// that hold it alone, and the counts go along.
class PieceMerger {
public:
    explicit PieceMerger(const WordCounts& counts) {
        const auto for_each_letter = [&](const std::string& word, auto&& take) {
            for (std::size_t at = 0; at < word.size();) {
                const std::size_t length = decode_utf8_sequence(std::string_view(word).substr(at, 4)).length;
                check(length > 0, "WordPiece: word '", word, "' is not UTF-8");
                take((at == 0 ? std::string() : std::string(continuation_mark)).append(word, at, length));
                at += length;
            }
        };
        std::set<std::string> alphabet;
        for (const auto& [word, count] : counts) {
            check(!word.empty() && !word.starts_with(continuation_mark), "WordPiece: '", word,
                  "' as a word to train on; expected one that is not empty and does not start with ##");
            for_each_letter(word, [&](std::string letter) { alphabet.insert(std::move(letter)); });
        }
        pieces_.assign(alphabet.begin(), alphabet.end());
        for (std::size_t i = 0; i < pieces_.size(); ++i) ids_.emplace(pieces_[i], static_cast<std::int32_t>(i));
        counts_.resize(pieces_.size());
        for (const auto& [word, count] : counts) {
            Word row{{}, count};
            for_each_letter(word, [&](const std::string& letter) { row.pieces.push_back(ids_.at(letter)); });
            for (const std::int32_t piece : row.pieces) counts_[static_cast<std::size_t>(piece)] += count;
            words_.push_back(std::move(row));
            add_pairs(static_cast<std::uint32_t>(words_.size() - 1), [](std::int32_t, std::int32_t) { return true; });
        }
    }

    /// The characters of the words, sorted by bytes, then the merged pieces in the order of the merges.
    [[nodiscard]] const std::vector<std::string>& pieces() const noexcept { return pieces_; }

    /// Merges pairs that occur at least `least_count` times, until there are `size` pieces or no such pair is left.
    /// 0: the least count is the largest power of two at which there is a pair, then half of it, and so on down to 1.
    void merge_until(std::size_t size, std::uint64_t least_count) {
        if (least_count > 0) {
            list_candidates(least_count);
            while (pieces_.size() < size && merge_best()) {
            }
            return;
        }
        std::uint64_t most = 0;
        for (const Pair& pair : pairs_) most = std::max(most, pair.count);
        for (std::uint64_t least = std::bit_floor(most); least > 0 && pieces_.size() < size; least /= 2)
            merge_until(size, least);
    }

private:
    /// Neighbouring pieces. `count` is over all words. `words` lists the words that hold the pair or held it.
    struct Pair {
        std::int32_t left = 0, right = 0;
        std::uint64_t count = 0;
        bool is_candidate = false;
        std::vector<std::uint32_t> words{};
    };
    struct Word {
        std::vector<std::int32_t> pieces;
        std::uint64_t count;
    };

    void list_candidates(std::uint64_t least_count) {
        least_count_ = least_count;
        candidates_.clear();
        for (std::size_t i = 0; i < pairs_.size(); ++i) {
            pairs_[i].is_candidate = pairs_[i].count >= least_count;
            if (pairs_[i].is_candidate) candidates_.push_back(i);
        }
    }
    /// Merges the best pair into a piece. False: no pair is left that occurs often enough.
    bool merge_best() {
        std::size_t best = pairs_.size();
        for (std::size_t i = 0; i < candidates_.size();) {
            Pair& pair = pairs_[candidates_[i]];
            if (pair.count < least_count_) {
                pair.is_candidate = false;
                candidates_[i] = candidates_.back();
                candidates_.pop_back();
                continue;
            }
            if (best == pairs_.size() || is_better(pair, pairs_[best])) best = candidates_[i];
            ++i;
        }
        if (best == pairs_.size()) return false;
        merge(best);
        return true;
    }
    [[nodiscard]] static std::uint64_t key_of(std::int32_t left, std::int32_t right) noexcept {
        return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
    }
    [[nodiscard]] double score(const Pair& pair) const noexcept {
        const auto count = [&](std::int32_t id) { return static_cast<double>(counts_[static_cast<std::size_t>(id)]); };
        return static_cast<double>(pair.count) / (count(pair.left) * count(pair.right));
    }
    /// The order of the merges is total, so it does not depend on the order of the pairs in memory.
    [[nodiscard]] bool is_better(const Pair& a, const Pair& b) const noexcept {
        const double of_a = score(a), of_b = score(b);
        if (of_a != of_b) return of_a > of_b;
        if (a.count != b.count) return a.count > b.count;
        return std::pair(a.left, a.right) < std::pair(b.left, b.right);
    }

    /// Counts the pairs of a word, and notes the word for those of which `is_new(left, right)`.
    template <class IsNew>
    void add_pairs(std::uint32_t number, IsNew&& is_new) {
        const Word& word = words_[number];
        for (std::size_t i = 0; i + 1 < word.pieces.size(); ++i) {
            const std::int32_t left = word.pieces[i], right = word.pieces[i + 1];
            const std::size_t place = places_.emplace(key_of(left, right), pairs_.size()).first->second;
            if (place == pairs_.size()) pairs_.push_back({left, right});
            Pair& pair = pairs_[place];
            pair.count += word.count;
            if (is_new(left, right) && (pair.words.empty() || pair.words.back() != number))
                pair.words.push_back(number);
            if (pair.is_candidate || pair.count < least_count_) continue;
            pair.is_candidate = true;
            candidates_.push_back(place);
        }
    }
    void remove_pairs(const Word& word) {
        for (std::size_t i = 0; i + 1 < word.pieces.size(); ++i)
            pairs_[places_.at(key_of(word.pieces[i], word.pieces[i + 1]))].count -= word.count;
    }

    void merge(std::size_t place) {
        const std::int32_t left = pairs_[place].left, right = pairs_[place].right;
        const auto index = [](std::int32_t id) { return static_cast<std::size_t>(id); };
        const std::string text = pieces_[index(left)] + pieces_[index(right)].substr(continuation_mark.size());
        // If ab + c and a + bc are ever both merged, they are one piece.
        const std::int32_t made = ids_.emplace(text, static_cast<std::int32_t>(pieces_.size())).first->second;
        if (index(made) == pieces_.size()) {
            pieces_.push_back(text);
            counts_.push_back(0);
        }
        const std::vector<std::uint32_t> numbers = std::exchange(pairs_[place].words, {});
        for (const std::uint32_t number : numbers) {
            Word& word = words_[number];
            remove_pairs(word);
            std::size_t kept = 0;
            for (std::size_t i = 0; i < word.pieces.size(); ++i, ++kept) {
                const bool merged = i + 1 < word.pieces.size() && word.pieces[i] == left && word.pieces[i + 1] == right;
                word.pieces[kept] = merged ? made : word.pieces[i];
                if (!merged) continue;
                ++i;
                counts_[index(left)] -= word.count;
                counts_[index(right)] -= word.count;
                counts_[index(made)] += word.count;
            }
            word.pieces.resize(kept);
            add_pairs(number, [&](std::int32_t a, std::int32_t b) { return a == made || b == made; });
        }
    }

    std::uint64_t least_count_ = 1;
    std::vector<std::string> pieces_;
    std::vector<std::uint64_t> counts_;  ///< of each piece, over all words
    std::vector<Word> words_;
    std::unordered_map<std::string, std::int32_t> ids_;  ///< of pieces
    std::vector<Pair> pairs_;                            ///< all that ever occurred
    std::vector<std::size_t> candidates_;  ///< in pairs_: the pairs that occur often enough, and perhaps others
    std::unordered_map<std::uint64_t, std::size_t> places_;  ///< in pairs_, by key_of
};

/// Trains pieces of words: first every character, as the start of a word and after `##` as its continuation, if it
/// occurs so; then merged pieces until there are `size`, or until no pair is left that occurs `least_count` times.
///   the next merge is the pair (a, b) with the largest count(ab) / (count(a) count(b))
/// count(ab) is how often b follows a in the words as they are split so far, and count(a) how often a occurs in them.
/// Scores are compared in double. Of equal scores the larger count(ab) is first, then the smaller number of a in the
/// list of pieces, then the smaller number of b. A merge goes through a word from left to right. It adds no piece if
/// its text is one already.
/// The score favours pairs of rare characters, so that with least_count = 1 a vocabulary fills with rare words. With
/// least_count = 0 the least count begins at the largest power of two at which there is a pair, and is halved whenever
/// no pair is left that occurs so often.
/// Cost: a merge visits the words that hold its pair, and the list of all pairs that occur often enough.
/// Errors: a word that is empty, is not UTF-8 or starts with ##; `size` below the number of characters.
/// Reference: Schuster, Nakajima, Japanese and Korean voice search, 2012, for the likelihood; the score is the gain in
/// likelihood by a merge as it is commonly written.   Test: tests/io/piece_training_test.cpp
[[nodiscard]] inline std::vector<std::string> train_pieces(const WordCounts& words, std::size_t size,
                                                           std::uint64_t least_count = 0) {
    PieceMerger merger(words);
    const std::size_t characters = merger.pieces().size();
    check(size >= characters, "WordPiece: ", size, " pieces; expected at least ", characters,
          ", one for each character as a start and as a continuation of words");
    merger.merge_until(size, least_count);
    return merger.pieces();
}

}  // namespace unitscale::io
