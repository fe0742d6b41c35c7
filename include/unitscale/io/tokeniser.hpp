// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::io {

/// Cuts text into tokens of a vocabulary, and joins tokens to text. All models of language read their ids.
///   io::CharacterVocabulary(text)                  characters of a text (io/vocabulary.hpp)
///   io::ByteTokeniser()                            bytes
///   io::BytePairTokeniser(train_byte_pairs(...))   GPT-2's byte pairs (io/byte_pair.hpp)
///   io::JsonTokeniser::load("tokenizer.json")      published byte pairs (io/json_tokeniser.hpp)
///   io::SentencePieces::load("tokenizer.model")    SentencePiece (io/sentencepiece.hpp)
/// Text is bytes, in UTF-8 where the tokeniser needs characters. A token may hold a part of a character, so that
/// decoded ids are bytes, too. Several threads may share one tokeniser.
/// Test: tests/io/tokeniser_test.cpp
class Tokeniser {
public:
    virtual ~Tokeniser() = default;

    /// The ids of a text. Error: the tokeniser has no token for a part of it.
    [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;

    /// The bytes that the ids stand for, special tokens by their names. Error: an id that is not in the vocabulary.
    [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

    /// Ids are 0 to size() - 1.
    [[nodiscard]] virtual std::size_t size() const noexcept = 0;

    /// The id of a token by its text, special tokens included; nothing if there is no such token.
    [[nodiscard]] virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;

    /// The tokens that stand before and after a whole text; nothing where the vocabulary has none.
    [[nodiscard]] virtual std::optional<std::int32_t> begin_of_text() const { return std::nullopt; }
    [[nodiscard]] virtual std::optional<std::int32_t> end_of_text() const { return std::nullopt; }

    /// A text in UTF-8 that describes the tokeniser whole: checkpoints keep it.
    [[nodiscard]] virtual std::string to_text() const = 0;

protected:
    Tokeniser() = default;
    Tokeniser(const Tokeniser&) = default;
    Tokeniser& operator=(const Tokeniser&) = default;
};

/// Error: an id outside [0, size). `tokeniser` begins the message.
inline void check_ids(std::string_view tokeniser, std::span<const std::int32_t> ids, std::size_t size) {
    for (std::size_t i = 0; i < ids.size(); ++i)
        check(ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < size, tokeniser, ": id ", ids[i], " at position ", i,
              "; expected 0 to ", size - 1);
}

/// Every byte is a token, and its value is the id.   Test: tests/io/tokeniser_test.cpp
class ByteTokeniser final : public Tokeniser {
public:
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
        std::vector<std::int32_t> ids(text.size());
        for (std::size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
        return ids;
    }
    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
        check_ids("bytes", ids, size());
        std::string text;
        for (const std::int32_t id : ids) text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
        return text;
    }
    [[nodiscard]] std::size_t size() const noexcept override { return 256; }
    [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
        if (token.size() != 1) return std::nullopt;
        return static_cast<unsigned char>(token.front());
    }
    [[nodiscard]] std::string to_text() const override { return "bytes"; }
};

}  // namespace unitscale::io
