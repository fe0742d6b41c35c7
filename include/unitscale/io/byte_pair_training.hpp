// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/byte_pair.hpp>
#include <unitscale/io/split_pattern.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace unitscale::io {

/// Words of symbols, and the counts of neighbouring pairs. A merge changes only the words that hold its pair, and the
/// counts go along. A heap holds the pairs by count. A count that has fallen since is corrected at the top.
class BytePairTrainer {
public:
    /// The tokens begin with the bytes, in the order of GPT-2's characters for them.
    BytePairTrainer(std::string_view text, std::string_view pattern) {
        std::vector<std::size_t> order(256);
        std::iota(order.begin(), order.end(), std::size_t{0});
        constexpr auto characters = byte_characters();
        std::sort(order.begin(), order.end(),
                  [&](std::size_t a, std::size_t b) { return characters[a] < characters[b]; });
        std::array<std::int32_t, 256> id_of_byte{};
        for (const std::size_t byte : order) {
            id_of_byte[byte] = static_cast<std::int32_t>(vocabulary_.tokens.size());
            vocabulary_.tokens.emplace_back(1, static_cast<char>(static_cast<unsigned char>(byte)));
        }
        for (const std::string& token : vocabulary_.tokens) ids_.emplace(token, static_cast<std::int32_t>(ids_.size()));

        std::unordered_map<std::string_view, std::size_t> numbers;
        for_each_pattern_word(text, SplitPattern(pattern), [&](std::string_view part) {
            const auto [found, is_new] = numbers.emplace(part, words_.size());
            if (is_new) {
                words_.emplace_back();
                for (const char byte : part)
                    words_.back().symbols.push_back(id_of_byte[static_cast<unsigned char>(byte)]);
            }
            ++words_[found->second].count;
        });
        for (std::size_t number = 0; number < words_.size(); ++number) {
            const Word& word = words_[number];
            for (std::size_t i = 0; i + 1 < word.symbols.size(); ++i)
                change(word.symbols[i], word.symbols[i + 1], static_cast<std::int64_t>(word.count), number);
        }
        offer_grown();
    }

    /// Merges until there are `size` tokens, or until no pair is left that occurs `least_count` times.
    void merge_until(std::size_t size, std::uint64_t least_count) {
        while (vocabulary_.tokens.size() < size && !heap_.empty()) {
            std::pop_heap(heap_.begin(), heap_.end(), is_worse);
            Candidate best = heap_.back();
            heap_.pop_back();
            const Pair& pair = pairs_[best.place];
            if (pair.count != best.count) {
                best.count = pair.count;
                if (pair.count > 0) push(best);
                continue;
            }
            if (best.count < static_cast<std::int64_t>(std::max<std::uint64_t>(least_count, 1))) return;
            merge(best);
        }
    }

    [[nodiscard]] BytePairVocabulary&& take() && { return std::move(vocabulary_); }

private:
    struct Word {
        std::vector<std::int32_t> symbols{};
        std::uint64_t count = 0;
    };
    struct Pair {
        std::int64_t count = 0;
        bool has_grown = false;
        std::vector<std::uint32_t> words{};  ///< that hold the pair or held it, some of them twice
    };
    struct Candidate {
        std::int64_t count;
        std::int32_t left, right;
        std::size_t place;  ///< in pairs_
    };
    /// A total order: the merges do not depend on the order of the pairs in memory.
    [[nodiscard]] static bool is_worse(const Candidate& a, const Candidate& b) noexcept {
        if (a.count != b.count) return a.count < b.count;
        return std::pair(a.left, a.right) > std::pair(b.left, b.right);
    }
    void push(const Candidate& candidate) {
        heap_.push_back(candidate);
        std::push_heap(heap_.begin(), heap_.end(), is_worse);
    }

    void change(std::int32_t left, std::int32_t right, std::int64_t by, std::size_t word) {
        const auto key = std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
        const std::size_t place = places_.emplace(key, pairs_.size()).first->second;
        if (place == pairs_.size()) pairs_.emplace_back();
        Pair& pair = pairs_[place];
        pair.count += by;
        if (by < 0) return;
        if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(static_cast<std::uint32_t>(word));
        if (!pair.has_grown) grown_.push_back({0, left, right, place});
        pair.has_grown = true;
    }
    void offer_grown() {
        for (Candidate& candidate : grown_) {
            Pair& pair = pairs_[candidate.place];
            pair.has_grown = false;
            candidate.count = pair.count;
            if (pair.count > 0) push(candidate);
        }
        grown_.clear();
    }

    void merge(const Candidate& best) {
        auto& tokens = vocabulary_.tokens;
        const std::string text =
            tokens[static_cast<std::size_t>(best.left)] + tokens[static_cast<std::size_t>(best.right)];
        // If ab + c and a + bc are ever both merged, they are one token.
        const std::int32_t made = ids_.emplace(text, static_cast<std::int32_t>(tokens.size())).first->second;
        if (static_cast<std::size_t>(made) == tokens.size()) tokens.push_back(text);
        vocabulary_.merges.emplace_back(best.left, best.right);
        const std::vector<std::uint32_t> numbers = std::exchange(pairs_[best.place].words, {});
        for (const std::uint32_t number : numbers) {
            auto& symbols = words_[number].symbols;
            const auto count = static_cast<std::int64_t>(words_[number].count);
            std::size_t kept = 0;
            for (std::size_t i = 0; i < symbols.size(); ++i, ++kept) {
                const bool merged = i + 1 < symbols.size() && symbols[i] == best.left && symbols[i + 1] == best.right;
                symbols[kept] = merged ? made : symbols[i];
                if (!merged) continue;
                change(best.left, best.right, -count, number);
                if (kept > 0) {
                    change(symbols[kept - 1], best.left, -count, number);
                    change(symbols[kept - 1], made, count, number);
                }
                if (i + 2 < symbols.size()) {
                    change(best.right, symbols[i + 2], -count, number);
                    change(made, symbols[i + 2], count, number);
                }
                ++i;
            }
            symbols.resize(kept);
        }
        offer_grown();
    }

    BytePairVocabulary vocabulary_{};
    TokenIds ids_{};
    std::vector<Word> words_{};
    std::vector<Pair> pairs_{};                                ///< all that ever occurred
    std::unordered_map<std::uint64_t, std::size_t> places_{};  ///< in pairs_
    std::vector<Candidate> heap_{}, grown_{};
};

/// Trains byte pairs on a text: the 256 bytes, then merged pairs, `size` tokens in all or fewer if the pairs run out.
///   the next merge is the pair that occurs most often, in the words of a pattern as they are split so far
/// Of equal counts the smaller id of the left token is first, then the smaller id of the right one. The tokenizers
/// package trains the same vocabulary from the alphabet of bytes. Equal texts give equal vocabularies.
/// A pair is merged only if it occurs `least_count` times. Cost: a merge visits the words that hold its pair.
/// Errors: `size` below 256; the errors of SplitPattern.
/// Reference: Sennrich, Haddow, Birch 2016, arXiv:1508.07909.   Test: tests/io/byte_pair_training_test.cpp
[[nodiscard]] inline BytePairVocabulary train_byte_pairs(std::string_view text, std::size_t size,
                                                         std::uint64_t least_count = 2,
                                                         std::string_view pattern = gpt2_pattern) {
    check(size >= 256, "byte pairs: a vocabulary of ", size, "; expected at least 256, one for each byte");
    BytePairTrainer trainer(text, pattern);
    trainer.merge_until(size, least_count);
    return std::move(trainer).take();
}

}  // namespace unitscale::io
