// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/tokeniser.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::io {

/// A code point as text in error messages: `'é' (U+00E9)`; control characters by number alone.
[[nodiscard]] inline std::string code_point_name(char32_t point) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    std::string number;
    for (int shift = 20; shift >= 0; shift -= 4)
        if (!number.empty() || shift <= 12 || point >> shift != 0) number += digits[point >> shift & 15];
    if (point < 0x20 || (point >= 0x7F && point < 0xA0)) return "U+" + number;
    std::string text = "'";
    append_utf8(text, point);
    return text + "' (U+" + number + ")";
}

/// The characters of a text, numbered 0, 1, ... in order of their code points: the tokens of a character model.
/// Test: tests/io/vocabulary_test.cpp
class CharacterVocabulary final : public Tokeniser {
public:
    /// The distinct code points of `text`. Error: the text is empty.
    explicit CharacterVocabulary(std::u32string_view text) : characters_(distinct(text)) {
        check(!characters_.empty(), "vocabulary: the text is empty");
    }

    [[nodiscard]] std::size_t size() const noexcept override { return characters_.size(); }

    /// Character `id` is element `id`.
    [[nodiscard]] const std::u32string& characters() const noexcept { return characters_; }

    /// The ids of a text. Error: a character that is not in the vocabulary, named with its position.
    [[nodiscard]] std::vector<std::int32_t> encode(std::u32string_view text) const {
        std::vector<std::int32_t> ids(text.size());
        for (std::size_t i = 0; i < text.size(); ++i) {
            const auto found = std::lower_bound(characters_.begin(), characters_.end(), text[i]);
            check(found != characters_.end() && *found == text[i], "vocabulary: character ", code_point_name(text[i]),
                  " at position ", i, " is not among the ", size(), " known ones");
            ids[i] = static_cast<std::int32_t>(found - characters_.begin());
        }
        return ids;
    }
    /// The ids of a text in UTF-8. Further error: the text is not UTF-8.
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
        return encode(decode_utf8(text));
    }

    /// The text of a list of ids, in UTF-8. Error: an id outside the vocabulary.
    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
        check_ids("vocabulary", ids, size());
        std::string text;
        for (const std::int32_t id : ids) append_utf8(text, characters_[static_cast<std::size_t>(id)]);
        return text;
    }

    /// The id of one character in UTF-8.
    [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
        const Utf8Sequence sequence = decode_utf8_sequence(token);
        if (sequence.length == 0 || sequence.length != token.size()) return std::nullopt;
        const auto found = std::lower_bound(characters_.begin(), characters_.end(), sequence.code_point);
        if (found == characters_.end() || *found != sequence.code_point) return std::nullopt;
        return static_cast<std::int32_t>(found - characters_.begin());
    }

    /// The characters: the vocabulary of this text is the vocabulary.
    [[nodiscard]] std::string to_text() const override { return encode_utf8(characters_); }

private:
    [[nodiscard]] static std::u32string distinct(std::u32string_view text) {
        std::vector<bool> met(0x110000);
        std::u32string characters;
        for (const char32_t point : text) {
            check(point < met.size(), "vocabulary: ", static_cast<std::uint32_t>(point), " is not a code point");
            if (met[point]) continue;
            met[point] = true;
            characters.push_back(point);
        }
        std::sort(characters.begin(), characters.end());
        return characters;
    }

    std::u32string characters_;
};

}  // namespace unitscale::io
