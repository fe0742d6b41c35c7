// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/split_pattern.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/tokeniser.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// Byte-pair encoding: a word is a row of symbols, and neighbours are merged, the pair of the lowest rank first.
// It needs PCRE2 (io/split_pattern.hpp) for the words.
namespace unitscale::io {

/// GPT-2's characters for bytes, element `byte`: printable characters of Latin-1 stand for themselves, and the 68 other
/// bytes are U+0100, U+0101, ... in their order. Files of tokenisers write bytes so.
[[nodiscard]] constexpr std::array<char32_t, 256> byte_characters() noexcept {
    std::array<char32_t, 256> characters{};
    char32_t other = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
        const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        characters[byte] = printable ? byte : other++;
    }
    return characters;
}

/// Bytes in GPT-2's characters.
[[nodiscard]] inline std::string to_byte_characters(std::string_view bytes) {
    static constexpr auto characters = byte_characters();
    std::string text;
    for (const char byte : bytes) append_utf8(text, characters[static_cast<unsigned char>(byte)]);
    return text;
}
/// The bytes of a text in GPT-2's characters; nothing if it has another character.
[[nodiscard]] inline std::optional<std::string> from_byte_characters(std::string_view text) {
    static constexpr auto bytes = [] {
        std::array<int, 0x144> table{};
        table.fill(-1);
        for (int byte = 0; byte < 256; ++byte) table[byte_characters()[static_cast<std::size_t>(byte)]] = byte;
        return table;
    }();
    std::string found;
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Sequence sequence = decode_utf8_sequence(text.substr(at, 4));
        if (sequence.length == 0 || sequence.code_point >= bytes.size() || bytes[sequence.code_point] < 0)
            return std::nullopt;
        found.push_back(static_cast<char>(static_cast<unsigned char>(bytes[sequence.code_point])));
        at += sequence.length;
    }
    return found;
}

/// The tokens and merges of byte-pair encoding.
struct BytePairVocabulary {
    std::vector<std::string> tokens{};  ///< token `id` is element `id`, as bytes; an empty one is no token
    std::vector<std::pair<std::int32_t, std::int32_t>> merges{};  ///< the first is merged first
};

struct BytePairOptions {
    bool of_bytes = true;                   ///< the symbols of a word are its bytes; else its characters
    bool whole_words = false;               ///< a word that is a token is not merged from symbols (`ignore_merges`)
    bool byte_fallback = false;             ///< a character that is no token is written as the tokens <0x00> to <0xFF>
    bool fuse_unknown = false;              ///< neighbouring unknown symbols are one token
    std::optional<std::int32_t> unknown{};  ///< the token of symbols that have none; empty: they are an error
};

/// Byte-pair encoding of single words.
///   a word of symbols; as long as a neighbouring pair is a merge, the pair of the lowest rank is replaced by its token
/// Of equal pairs the leftmost is first. A word of n symbols costs O(n log n).
/// Errors: a merge of tokens that are not there, or whose joined bytes are no token; two tokens of the same bytes.
/// Reference: Sennrich, Haddow, Birch 2016, arXiv:1508.07909.   Test: tests/io/byte_pair_test.cpp
class BytePairs {
public:
    /// Scratch of `encode_word`: a caller that keeps it saves allocations and encodes a repeated word once.
    class Cache {
        friend class BytePairs;
        struct Node {
            std::int32_t id;
            std::uint32_t previous, next;
        };
        struct Candidate {
            std::uint32_t rank, place;
            std::int32_t left, right, made;
        };
        struct Range {
            std::size_t begin, count;
        };
        std::vector<Node> nodes_{};
        std::vector<Candidate> heap_{};
        std::unordered_map<std::string, Range, TextHash, std::equal_to<>> words_{};
        std::vector<std::int32_t> ids_{};  ///< of all kept words
    };

    explicit BytePairs(BytePairVocabulary vocabulary, const BytePairOptions& options = {})
        : vocabulary_(std::move(vocabulary)), options_(options) {
        const auto& tokens = vocabulary_.tokens;
        check(tokens.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
              "byte pairs: ", tokens.size(), " tokens are more than int32 counts");
        byte_ids_.fill(none);
        ids_.reserve(tokens.size());
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            if (tokens[i].empty()) continue;
            const auto [known, is_new] = ids_.emplace(tokens[i], static_cast<std::int32_t>(i));
            check(is_new, "byte pairs: token ", i, " has the bytes of token ", known->second);
        }
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const auto value = static_cast<unsigned char>(byte);
            const auto id = id_of(options_.of_bytes ? std::string(1, static_cast<char>(value)) : fallback_name(value));
            if (id && (options_.of_bytes || options_.byte_fallback)) byte_ids_[byte] = *id;
        }
        merges_.reserve(vocabulary_.merges.size());
        for (std::size_t rank = 0; rank < vocabulary_.merges.size(); ++rank) {
            const auto [left, right] = vocabulary_.merges[rank];
            for (const std::int32_t id : {left, right})
                check(id >= 0 && static_cast<std::size_t>(id) < tokens.size() && !tokens[index(id)].empty(),
                      "byte pairs: merge ", rank, " names id ", id, ", which is no token");
            const auto made = id_of(tokens[index(left)] + tokens[index(right)]);
            check(made.has_value(), "byte pairs: merge ", rank, " of '", tokens[index(left)], "' and '",
                  tokens[index(right)], "' makes a text that is no token");
            merges_.insert_or_assign(key_of(left, right), Merge{static_cast<std::uint32_t>(rank), *made});
            const std::string& text = tokens[index(*made)];
            cuts_spaces_ = cuts_spaces_ && end_of_spaced_word(text) == text.size();
        }
    }

    [[nodiscard]] const BytePairVocabulary& vocabulary() const noexcept { return vocabulary_; }
    [[nodiscard]] std::size_t size() const noexcept { return vocabulary_.tokens.size(); }
    [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const {
        const auto found = ids_.find(token);
        return found == ids_.end() ? std::nullopt : std::optional(found->second);
    }

    /// Appends the ids of one word. Bytes that are not UTF-8 are symbols of their own.
    /// Error: a symbol without a token, where `unknown` is empty.
    void encode_word(std::string_view word, Cache& cache, std::vector<std::int32_t>& ids) const {
        if (const auto found = cache.words_.find(word); found != cache.words_.end()) {
            const auto begin = cache.ids_.begin() + static_cast<std::ptrdiff_t>(found->second.begin);
            ids.insert(ids.end(), begin, begin + static_cast<std::ptrdiff_t>(found->second.count));
            return;
        }
        if (cuts_spaces_ && !options_.whole_words) {
            const std::size_t end = end_of_spaced_word(word);
            if (end < word.size()) {
                for (; !word.empty(); word.remove_prefix(std::min(end_of_spaced_word(word), word.size())))
                    encode_word(word.substr(0, end_of_spaced_word(word)), cache, ids);
                return;
            }
        }
        const std::size_t before = ids.size();
        const auto whole = options_.whole_words ? id_of(word) : std::nullopt;
        if (whole) {
            ids.push_back(*whole);
        } else {
            append_symbols(word, ids);
            merge(ids, before, cache);
        }
        constexpr std::size_t longest_kept = 64, most_kept = 1 << 18;
        if (word.size() > longest_kept || cache.words_.size() >= most_kept) return;
        cache.words_.emplace(word, Cache::Range{cache.ids_.size(), ids.size() - before});
        cache.ids_.insert(cache.ids_.end(), ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
    }

private:
    struct Merge {
        std::uint32_t rank;
        std::int32_t made;
    };
    static constexpr std::int32_t none = -1;
    static constexpr std::string_view metaspace = "\xE2\x96\x81";  // U+2581
    static constexpr std::uint32_t nowhere = std::numeric_limits<std::uint32_t>::max();

    [[nodiscard]] static std::size_t index(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }
    [[nodiscard]] static std::uint64_t key_of(std::int32_t left, std::int32_t right) noexcept {
        return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
    }
    [[nodiscard]] static std::string fallback_name(unsigned char byte) {
        constexpr std::string_view digits = "0123456789ABCDEF";
        return {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
    }

    /// The length of a word up to a metaspace after another character.
    [[nodiscard]] static std::size_t end_of_spaced_word(std::string_view word) noexcept {
        std::size_t at = 0;
        while (word.substr(at).starts_with(metaspace)) at += metaspace.size();
        return std::min(word.find(metaspace, at), word.size());
    }

    void append_symbols(std::string_view word, std::vector<std::int32_t>& ids) const {
        bool after_unknown = false;
        const auto append = [&](std::string_view symbol, std::int32_t id) {
            check(id != none || options_.unknown.has_value(), "byte pairs: no token for ",
                  symbol.size() == 1 ? "byte " + byte_name(static_cast<unsigned char>(symbol[0]))
                                     : concatenate('\'', symbol, '\''),
                  ", and no token for what is unknown");
            if (id != none || !after_unknown || !options_.fuse_unknown)
                ids.push_back(id == none ? *options_.unknown : id);
            after_unknown = id == none;
        };
        for (std::size_t at = 0; at < word.size();) {
            const std::size_t length =
                options_.of_bytes ? 1 : std::max<std::size_t>(decode_utf8_sequence(word.substr(at, 4)).length, 1);
            const std::string_view symbol = word.substr(at, length);
            const auto id_of_byte = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
            at += length;
            const auto known = options_.of_bytes ? std::optional(id_of_byte(symbol[0])) : id_of(symbol);
            const bool by_bytes = !known && std::all_of(symbol.begin(), symbol.end(),
                                                        [&](char byte) { return id_of_byte(byte) != none; });
            if (!by_bytes) append(symbol, known.value_or(none));
            else
                for (const char& byte : symbol) append({&byte, 1}, id_of_byte(byte));
        }
    }

    /// Merges the symbols from `first` on. A heap holds the pairs that could be merged. Entries go stale when one of
    /// their symbols changes, and are then skipped.
    void merge(std::vector<std::int32_t>& ids, std::size_t first, Cache& cache) const {
        const std::size_t count = ids.size() - first;
        if (count < 2) return;
        auto& nodes = cache.nodes_;
        auto& heap = cache.heap_;
        nodes.clear();
        heap.clear();
        check(count < nowhere, "byte pairs: a word of ", count, " symbols is too long");
        for (std::uint32_t i = 0; i < count; ++i)
            nodes.push_back({ids[first + i], i == 0 ? nowhere : i - 1, i + 1 == count ? nowhere : i + 1});
        const auto later = [](const Cache::Candidate& a, const Cache::Candidate& b) {
            return a.rank != b.rank ? a.rank > b.rank : a.place > b.place;
        };
        const auto candidate = [&](std::uint32_t place) -> std::optional<Cache::Candidate> {
            if (place == nowhere || nodes[place].next == nowhere) return std::nullopt;
            const std::int32_t left = nodes[place].id, right = nodes[nodes[place].next].id;
            const auto found = merges_.find(key_of(left, right));
            if (found == merges_.end()) return std::nullopt;
            return Cache::Candidate{found->second.rank, place, left, right, found->second.made};
        };
        const auto offer = [&](std::uint32_t place) {
            const auto entry = candidate(place);
            if (!entry) return;
            heap.push_back(*entry);
            std::push_heap(heap.begin(), heap.end(), later);
        };
        for (std::uint32_t i = 0; i + 1 < count; ++i)
            if (const auto entry = candidate(i)) heap.push_back(*entry);
        std::make_heap(heap.begin(), heap.end(), later);
        while (!heap.empty()) {
            std::pop_heap(heap.begin(), heap.end(), later);
            const Cache::Candidate best = heap.back();
            heap.pop_back();
            auto& node = nodes[best.place];
            if (node.id != best.left || node.next == nowhere || nodes[node.next].id != best.right) continue;
            auto& merged = nodes[node.next];
            node.id = best.made;
            node.next = merged.next;
            merged.id = none;
            if (node.next != nowhere) nodes[node.next].previous = best.place;
            offer(node.previous);
            offer(best.place);
        }
        ids.resize(first);
        for (std::uint32_t at = 0; at != nowhere; at = nodes[at].next) ids.push_back(nodes[at].id);
    }

    BytePairVocabulary vocabulary_;
    BytePairOptions options_;
    bool cuts_spaces_ = true;  ///< no merge joins a character with a metaspace after it, so that words end there
    TokenIds ids_{};
    std::array<std::int32_t, 256> byte_ids_{};  ///< of single bytes, or of the fallback's tokens
    std::unordered_map<std::uint64_t, Merge> merges_{};
};

/// Calls word(part) for the words of a text, each a part of it: the matches of a pattern, and what stands between them.
/// A run of bytes that are not UTF-8 is a word of its own.
template <class Word>
void for_each_pattern_word(std::string_view text, const SplitPattern& pattern, Word&& word) {
    for_each_utf8_run(text, [&](std::string_view run, bool valid) {
        std::size_t at = 0;
        const auto upto = [&](std::size_t end) {
            if (end > at) word(run.substr(at, end - at));
            at = end;
        };
        if (valid)
            pattern.for_each_match(run, [&](std::size_t begin, std::size_t end) {
                upto(begin);
                upto(end);
            });
        upto(run.size());
    });
}

/// GPT-2's tokeniser: the words of a pattern, each by byte pairs from its bytes.
///   const io::BytePairTokeniser tokens(io::train_byte_pairs(text, 4096));   // io/byte_pair_training.hpp
///   tokens.decode(tokens.encode(bytes)) == bytes                            // any bytes, where every byte is a token
///   tokens.to_text()                                        // a tokenizer.json, which io/json_tokeniser.hpp reads
/// Reference: Radford et al. 2019, section 2.2.   Test: tests/io/byte_pair_test.cpp
class BytePairTokeniser final : public Tokeniser {
public:
    explicit BytePairTokeniser(BytePairVocabulary vocabulary) : pairs_(std::move(vocabulary)), pattern_(gpt2_pattern) {}

    [[nodiscard]] const BytePairVocabulary& vocabulary() const noexcept { return pairs_.vocabulary(); }

    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
        std::vector<std::int32_t> ids;
        BytePairs::Cache cache;
        for_each_pattern_word(text, pattern_, [&](std::string_view word) { pairs_.encode_word(word, cache, ids); });
        return ids;
    }
    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
        check_ids("byte pairs", ids, size());
        std::string text;
        for (const std::int32_t id : ids) text += vocabulary().tokens[static_cast<std::size_t>(id)];
        return text;
    }
    [[nodiscard]] std::size_t size() const noexcept override { return pairs_.size(); }
    [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
        return pairs_.id_of(token);
    }

    /// The tokeniser as the text of a tokenizer.json, in the layout of GPT-2's.
    [[nodiscard]] std::string to_text() const override {
        // Of GPT-2's characters JSON escapes these two alone.
        const auto quoted = [](std::string_view bytes) {
            std::string text = "\"";
            for (const char sign : to_byte_characters(bytes)) {
                if (sign == '"' || sign == '\\') text += '\\';
                text += sign;
            }
            return text += '"';
        };
        constexpr std::string_view level =
            R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
        std::string text = concatenate(
            R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)",
            R"("pre_tokenizer":)", level, R"(,"post_processor":null,"decoder":)", level,
            R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)",
            R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)");
        const auto& [tokens, merges] = vocabulary();
        for (std::size_t id = 0; id < tokens.size(); ++id)
            text += concatenate(id == 0 ? "" : ",", quoted(tokens[id]), ':', id);
        text += R"(},"merges":[)";
        const auto token = [&](std::int32_t id) { return quoted(vocabulary().tokens[static_cast<std::size_t>(id)]); };
        for (std::size_t rank = 0; rank < merges.size(); ++rank) {
            const auto [left, right] = merges[rank];
            text += concatenate(rank == 0 ? "[" : ",[", token(left), ',', token(right), ']');
        }
        return text += "]}}\n";
    }

private:
    BytePairs pairs_;
    SplitPattern pattern_;
};

}  // namespace unitscale::io
