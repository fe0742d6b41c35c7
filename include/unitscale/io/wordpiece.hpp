// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/bert_tokens.hpp>
#include <unitscale/io/piece_training.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/unicode_words.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale::io {

struct WordPieceOptions {
    WordOptions words{};             ///< case and accents
    std::size_t longest_word = 200;  ///< characters; a longer word is [UNK]

    friend bool operator==(const WordPieceOptions&, const WordPieceOptions&) = default;
};

/// The tokens of a text, and the place in it that each of them stands for.
struct EncodedText {
    std::vector<std::int32_t> ids{};
    std::vector<TextRange> ranges{};
};

/// BERT's tokeniser: words of a text (`for_each_word`), each cut into pieces of a vocabulary, the longest first.
///   const auto pieces = io::WordPiece::load("vocab.txt");  // or WordPiece::train(text, 4000)
///   pieces.encode("unaffable")                             // the ids of un ##aff ##able
///   pieces.decode(ids)                                     // "unaffable"
/// A token is a word or its start; after `##` it continues a word. Ids are the numbers of the file's lines, from 0.
/// The vocabulary holds [PAD], [UNK], [CLS], [SEP] and [MASK]; encode() makes no other of them than [UNK].
/// decode(encode(text)) is `normalise(text)`, unless a word is [UNK]; encode(normalise(text)) is encode(text).
/// Needs ICU (io/unicode_words.hpp).
/// Errors: an empty vocabulary; a token that is empty, has a line break, or is there twice; a special token missing.
/// Reference: Devlin et al. 2019, arXiv:1810.04805, the published tokeniser.   Test: tests/io/wordpiece_test.cpp
class WordPiece {
public:
    explicit WordPiece(std::vector<std::string> tokens, const WordPieceOptions& options = {})
        : WordPiece(std::move(tokens), options, "its tokens", "token ", 0) {}

    /// From a file with a token on each line, as BERT's vocab.txt. Further errors: missing, unreadable, not UTF-8.
    [[nodiscard]] static WordPiece load(const std::filesystem::path& path, const WordPieceOptions& options = {}) {
        return WordPiece(lines_of(path), options, path.string(), "line ", 1);
    }

    /// Trains a vocabulary on text in UTF-8, as `train_pieces` says: the special tokens, the text's characters, then
    /// merged pieces. It has `size` tokens, or fewer if the text's pairs run out. Equal texts give equal vocabularies.
    /// encode() writes every word of the text without [UNK], but for words over `longest_word`. These are left out of
    /// the training.
    /// Error: `size` is below the number of special tokens and characters.
    [[nodiscard]] static WordPiece train(std::string_view text, std::size_t size, const WordPieceOptions& options = {},
                                         std::uint64_t least_count = 0) {
        WordCounts counts;
        for_each_word(text, options.words, [&](std::string word) {
            if (length_of(word) <= options.longest_word) ++counts[std::move(word)];
        });
        std::vector<std::string> tokens(bert_token_names.begin(), bert_token_names.end());
        PieceMerger merger(counts);
        const std::size_t least = tokens.size() + merger.pieces().size();
        check(size >= least, "WordPiece: a vocabulary of ", size, "; expected at least ", least, ": ", tokens.size(),
              " special tokens and ", merger.pieces().size(), " characters, as starts and continuations of words");
        merger.merge_until(size - tokens.size(), least_count);
        tokens.insert(tokens.end(), merger.pieces().begin(), merger.pieces().end());
        return WordPiece(std::move(tokens), options);
    }

    /// Writes the tokens, one on each line. A file of an earlier vocabulary is replaced whole, or not at all.
    void save(const std::filesystem::path& path) const {
        std::string text;
        for (const std::string& token : tokens_) text.append(token).push_back('\n');
        write_atomically("WordPiece", path, text);
    }

    [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }
    /// Token `id` is element `id`.
    [[nodiscard]] const std::vector<std::string>& tokens() const noexcept { return tokens_; }
    [[nodiscard]] const WordPieceOptions& options() const noexcept { return options_; }
    [[nodiscard]] const BertTokens& special() const noexcept { return special_; }
    /// The id of a token as the file writes it, as `##able`; nothing if there is no such token.
    [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const {
        const auto found = ids_.find(token);
        return found == ids_.end() ? std::nullopt : std::optional(found->second);
    }

    /// The ids of a text in UTF-8, without [CLS] and [SEP]. Names of special tokens in the text are words like others.
    /// Error: the text is not UTF-8.
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const {
        std::vector<std::int32_t> ids;
        std::string rest;
        for_each_word(text, options_.words, [&](const std::string& word) { append_pieces(word, rest, ids); });
        return ids;
    }

    /// The ids that `encode` gives, and the place of each token in the text. [UNK] has the place of its word. Places do
    /// not decrease; tokens of one character of the text share its place.
    [[nodiscard]] EncodedText encode_with_ranges(std::string_view text) const {
        EncodedText encoded;
        std::string rest;
        for_each_word(text, options_.words, [&](const std::string& word, const std::vector<TextRange>& places) {
            std::size_t piece = encoded.ids.size(), at = 0;
            append_pieces(word, rest, encoded.ids);
            for (; piece < encoded.ids.size(); ++piece) {
                const std::int32_t id = encoded.ids[piece];
                std::string_view token = tokens_[static_cast<std::size_t>(id)];
                if (at > 0) token.remove_prefix(continuation_mark.size());
                const std::size_t end = id == special_.unknown ? places.size() : at + length_of(token);
                encoded.ranges.push_back({places[at].begin, places[end - 1].end});
                at = end;
            }
        });
        return encoded;
    }

    /// The tokens of a list of ids, with a space before every token but the first and continuations. Special tokens
    /// have their names. Error: an id outside the vocabulary.
    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const {
        std::string text;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            check(ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < size(), "WordPiece: id ", ids[i], " at position ",
                  i, "; expected 0 to ", size() - 1);
            std::string_view token = tokens_[static_cast<std::size_t>(ids[i])];
            if (is_continuation(token)) token.remove_prefix(continuation_mark.size());
            else if (i > 0) text.push_back(' ');
            text.append(token);
        }
        return text;
    }

    /// The words of a text, joined by spaces: what encode() reads.
    [[nodiscard]] std::string normalise(std::string_view text) const {
        std::string words;
        for_each_word(text, options_.words, [&](const std::string& word) {
            if (!words.empty()) words.push_back(' ');
            words.append(word);
        });
        return words;
    }

    /// Equal tokens and options.
    friend bool operator==(const WordPiece& a, const WordPiece& b) {
        return a.tokens_ == b.tokens_ && a.options_ == b.options_;
    }

private:
    /// For errors: where the tokens are from, and the name and number of the first one's place there.
    WordPiece(std::vector<std::string> tokens, const WordPieceOptions& options, std::string_view origin,
              std::string_view unit, std::size_t first)
        : tokens_(std::move(tokens)), options_(options) {
        check(!tokens_.empty(), "WordPiece: the vocabulary of ", origin, " is empty");
        check(tokens_.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
              "WordPiece: ", tokens_.size(), " tokens are more than int32 counts");
        for (std::size_t i = 0; i < tokens_.size(); ++i) {
            const std::string& token = tokens_[i];
            check(!token.empty(), "WordPiece: ", unit, i + first, " of ", origin, " is empty");
            check(token.find_first_of("\r\n") == std::string::npos, "WordPiece: ", unit, i + first, " of ", origin,
                  " has a line break");
            static_cast<void>(decode_utf8(token, origin));
            const auto [known, is_new] = ids_.emplace(token, static_cast<std::int32_t>(i));
            check(is_new, "WordPiece: ", unit, i + first, " of ", origin, " is '", token, "', as is ", unit,
                  static_cast<std::size_t>(known->second) + first);
            longest_token_ = std::max(longest_token_, token.size());
        }
        const auto special = [&](std::size_t name) {
            const auto id = id_of(bert_token_names[name]);
            check(id.has_value(), "WordPiece: ", origin, " without ", bert_token_names[name], "; expected the tokens ",
                  "[PAD], [UNK], [CLS], [SEP], [MASK]");
            return *id;
        };
        special_ = {special(0), special(1), special(2), special(3), special(4), static_cast<std::int32_t>(size())};
    }

    [[nodiscard]] static std::vector<std::string> lines_of(const std::filesystem::path& path) {
        const std::string bytes = read_bytes(path);
        static_cast<void>(decode_utf8(bytes, path.string()));  // here, so that an error names the offset in the file
        std::vector<std::string> lines;
        for (std::size_t start = 0; start < bytes.size();) {
            const std::size_t end = std::min(bytes.find('\n', start), bytes.size());
            const bool returns = end > start && bytes[end - 1] == '\r';  // a file with line ends of Windows
            lines.push_back(bytes.substr(start, end - start - (returns ? 1 : 0)));
            start = end + 1;
        }
        return lines;
    }

    [[nodiscard]] static bool is_continuation(std::string_view token) noexcept {
        return token.size() > continuation_mark.size() && token.starts_with(continuation_mark);
    }
    /// The number of characters: bytes that start a UTF-8 sequence.
    [[nodiscard]] static std::size_t length_of(std::string_view word) noexcept {
        return static_cast<std::size_t>(
            std::count_if(word.begin(), word.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
    }

    /// Appends the pieces of one word: at each place the longest token that continues the word, or [UNK] for the whole
    /// word if there is none. Tokens and words are whole characters, so that bytes may be compared. `rest` is scratch.
    void append_pieces(const std::string& word, std::string& rest, std::vector<std::int32_t>& ids) const {
        const std::size_t before = ids.size();
        bool known = length_of(word) <= options_.longest_word;
        for (std::size_t at = 0; known && at < word.size();) {
            rest.assign(at == 0 ? std::string_view() : continuation_mark).append(word, at);
            const std::size_t mark = at == 0 ? 0 : continuation_mark.size();
            std::size_t length = std::min(rest.size(), longest_token_);
            std::optional<std::int32_t> id;
            for (; length > mark; --length)
                if ((id = id_of(std::string_view(rest).substr(0, length)))) break;
            known = id.has_value();
            if (known) ids.push_back(*id);
            at += length - mark;
        }
        if (known) return;
        ids.resize(before);
        ids.push_back(special_.unknown);
    }

    std::vector<std::string> tokens_;
    WordPieceOptions options_;
    TokenIds ids_;
    std::size_t longest_token_ = 0;  ///< in bytes
    BertTokens special_{};
};

}  // namespace unitscale::io
