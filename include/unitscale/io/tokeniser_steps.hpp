// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/byte_pair.hpp>
#include <unitscale/io/split_pattern.hpp>
#include <unitscale/io/text.hpp>

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The steps around byte pairs in published tokenisers: they change text, cut it into words, and join tokens.
// io/json_tokeniser.hpp reads them from a tokenizer.json. They need ICU and PCRE2.
namespace unitscale::io {

/// Replaces every match of a pattern in a text.
[[nodiscard]] inline std::string replace_matches(std::string_view text, const SplitPattern& pattern,
                                                 std::string_view content) {
    std::string replaced;
    std::size_t at = 0;
    pattern.for_each_match(text, [&](std::size_t begin, std::size_t end) {
        replaced.append(text.substr(at, begin - at)).append(content);
        at = end;
    });
    return replaced.append(text.substr(at));
}

/// A change of text before it is cut into words.
struct NormaliserStep {
    enum class Kind { nfc, nfd, nfkc, nfkd, prepend, replace };

    Kind kind = Kind::nfc;
    std::optional<SplitPattern> pattern{};  ///< that `replace` looks for
    std::string content{};                  ///< of `prepend` and `replace`

    /// The text changed. It must be UTF-8. With `continues` it stands behind another part of the text, and nothing is
    /// put in front of it.
    [[nodiscard]] std::string apply(std::string text, bool continues) const {
        if (kind == Kind::prepend) return text.empty() || continues ? text : content + text;
        if (kind == Kind::replace) return replace_matches(text, *pattern, content);
        UErrorCode error = U_ZERO_ERROR;
        const icu::Normalizer2* const form = kind == Kind::nfc    ? icu::Normalizer2::getNFCInstance(error)
                                             : kind == Kind::nfd  ? icu::Normalizer2::getNFDInstance(error)
                                             : kind == Kind::nfkc ? icu::Normalizer2::getNFKCInstance(error)
                                                                  : icu::Normalizer2::getNFKDInstance(error);
        check(U_SUCCESS(error) && text.size() < (std::size_t{1} << 31), "normaliser: ICU: ", u_errorName(error),
              " for a text of ", text.size(), " bytes");
        const icu::StringPiece piece(text.data(), static_cast<std::int32_t>(text.size()));
        if (form->isNormalizedUTF8(piece, error)) return text;
        std::string normal;
        icu::StringByteSink<std::string> sink(&normal);
        form->normalizeUTF8(0, piece, sink, nullptr, error);
        check(U_SUCCESS(error), "normaliser: ICU: ", u_errorName(error));
        return normal;
    }
};

/// Cuts a text at the matches of a pattern, or changes its spaces first.
struct SplitStep {
    enum class Kind { pattern, metaspace, prefix_space };
    /// What becomes of a match: a part of its own, nothing, or a part with its neighbour or with neighbouring matches.
    enum class Behaviour { isolated, removed, merged_with_previous, merged_with_next, contiguous };
    /// When the metaspace is put in front of a text.
    enum class Prefix { always, first, never };

    Kind kind = Kind::pattern;
    std::optional<SplitPattern> pattern{};  ///< of the metaspace, the metaspace itself; empty: no cut
    Behaviour behaviour = Behaviour::isolated;
    bool invert = false;  ///< matches and what stands between them change places
    Prefix prefix = Prefix::never;
    std::string content{};  ///< the metaspace

    /// Calls take(part, begins, continues) for the parts of a text in UTF-8. Parts may die with the call.
    /// begins: the text begins the whole text. continues: it stands behind bytes that are not UTF-8, and no space is
    /// put in front of it. A part is a view of `text`, or of a copy that was changed.
    template <class Take>
    void apply(std::string_view text, bool begins, bool continues, Take&& take) const {
        std::string changed;
        if (kind == Kind::prefix_space && !continues && !text.starts_with(' ')) text = changed.append(" ").append(text);
        if (kind == Kind::metaspace) {
            for (const char byte : text)
                if (byte == ' ') changed += content;
                else changed += byte;
            const bool wanted = prefix == Prefix::always || (prefix == Prefix::first && begins);
            if (wanted && !continues && !changed.starts_with(content)) changed.insert(0, content);
            text = changed;
        }
        if (!pattern) return take(text, begins, continues);
        cut(text, [&](std::size_t begin, std::size_t end) {
            take(text.substr(begin, end - begin), begins && begin == 0, continues && begin == 0);
        });
    }

private:
    struct Part {
        std::size_t begin, end;
        bool match;
    };

    template <class Take>
    void cut(std::string_view text, Take&& take) const {
        std::size_t at = 0;
        const auto for_each_part = [&](auto&& part) {
            const auto upto = [&](std::size_t end, bool match) {
                if (end > at) part(Part{at, end, match != invert});
                at = end;
            };
            pattern->for_each_match(text, [&](std::size_t begin, std::size_t end) {
                upto(begin, false);
                upto(end, true);
            });
            upto(text.size(), false);
        };
        if (behaviour == Behaviour::isolated || behaviour == Behaviour::removed) {
            for_each_part([&](const Part& part) {
                if (behaviour == Behaviour::isolated || !part.match) take(part.begin, part.end);
            });
            return;
        }
        std::vector<Part> parts;
        for_each_part([&](const Part& part) { parts.push_back(part); });
        std::vector<Part> joined;
        const bool backwards = behaviour == Behaviour::merged_with_next;
        if (backwards) std::reverse(parts.begin(), parts.end());
        bool after_match = false;
        for (const Part& part : parts) {
            const bool joins = !joined.empty() && (behaviour == Behaviour::contiguous ? part.match == after_match
                                                                                      : part.match && !after_match);
            if (!joins) joined.push_back(part);
            else if (backwards) joined.back().begin = part.begin;
            else joined.back().end = part.end;
            after_match = part.match;
        }
        if (backwards) std::reverse(joined.begin(), joined.end());
        for (const Part& part : joined) take(part.begin, part.end);
    }
};

/// A step from tokens to text. Tokens are joined after the last one.
struct DecoderStep {
    enum class Kind { byte_level, replace, byte_fallback, fuse, strip, metaspace, spaces };

    Kind kind = Kind::fuse;
    std::optional<SplitPattern> pattern{};  ///< that `replace` looks for
    std::string content{};                  ///< of `replace`; the character that `strip` takes away; the metaspace
    std::size_t start = 0, stop = 0;        ///< the most characters that `strip` takes from the two ends
    bool strips_first = false;              ///< the metaspace at the start of the first token is no space

    void apply(std::vector<std::string>& tokens) const {
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            std::string& token = tokens[i];
            switch (kind) {
                case Kind::byte_level:
                    token = from_byte_characters(token).value_or(token);
                    break;
                case Kind::replace:
                    token = replace_in(token);
                    break;
                case Kind::byte_fallback:
                    if (const auto byte = fallback_byte(token)) token.assign(1, *byte);
                    break;
                case Kind::strip:
                    strip(token);
                    break;
                case Kind::metaspace:
                    if (i == 0 && strips_first && token.starts_with(content)) token.erase(0, content.size());
                    token = replace_in(token);
                    break;
                case Kind::spaces:
                    if (i > 0) token.insert(0, " ");
                    break;
                case Kind::fuse:
                    if (i == 0) continue;
                    tokens.front() += token;
                    break;
            }
        }
        if (kind == Kind::fuse && !tokens.empty()) tokens.resize(1);
    }

private:
    /// Matches in the parts of a token that are UTF-8: after `byte_fallback` it may be a part of a character.
    [[nodiscard]] std::string replace_in(std::string_view token) const {
        std::string replaced;
        for_each_utf8_run(token, [&](std::string_view run, bool valid) {
            if (valid) replaced += replace_matches(run, *pattern, kind == Kind::metaspace ? " " : content);
            else replaced += run;
        });
        return replaced;
    }
    void strip(std::string& token) const {
        std::size_t begin = 0, end = token.size();
        for (std::size_t i = 0; i < start && std::string_view(token).substr(begin).starts_with(content); ++i)
            begin += content.size();
        for (std::size_t i = 0; i < stop && std::string_view(token).substr(begin, end - begin).ends_with(content); ++i)
            end -= content.size();
        token = token.substr(begin, end - begin);
    }
    /// The byte of a token <0x00> to <0xFF>.
    [[nodiscard]] static std::optional<char> fallback_byte(std::string_view token) {
        if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
        unsigned value = 0;
        for (const char digit : token.substr(3, 2)) {
            const bool decimal = digit >= '0' && digit <= '9', upper = digit >= 'A' && digit <= 'F';
            if (!decimal && !upper) return std::nullopt;
            value = value * 16 + static_cast<unsigned>(decimal ? digit - '0' : digit - 'A' + 10);
        }
        return static_cast<char>(static_cast<unsigned char>(value));
    }
};

/// A token that is found in text as a whole, before the text is cut into words.
struct AddedToken {
    std::int32_t id = 0;
    std::string content{};
    bool takes_left = false, takes_right = false;  ///< white space at this side belongs to it (`lstrip`, `rstrip`)
    bool normalised = false;                       ///< it is looked for in the changed text
    bool special = false;
};

/// Finds added tokens in text: the leftmost, and of several at one place the longest.
/// Test: tests/io/tokeniser_steps_test.cpp
class AddedTokens {
public:
    void add(AddedToken token) {
        check(!token.content.empty(), "added token ", token.id, ": is empty");
        auto& of_byte = tokens_[static_cast<unsigned char>(token.content.front())];
        const auto place = std::find_if(of_byte.begin(), of_byte.end(), [&](const AddedToken& other) {
            return other.content.size() < token.content.size();
        });
        of_byte.insert(place, std::move(token));
        any_ = true;
    }

    /// Calls plain(part, offset) and found(token) for the parts of a text in their order. Plain parts are not empty.
    template <class Plain, class Found>
    void split(std::string_view text, Plain&& plain, Found&& found) const {
        std::size_t begin = 0, at = any_ ? 0 : text.size();
        while (at < text.size()) {
            const AddedToken* const token = at_start(text.substr(at));
            if (token == nullptr) {
                ++at;
                continue;
            }
            std::size_t start = at, stop = at + token->content.size();
            if (token->takes_left) start = begin + without_space_at_end(text.substr(begin, start - begin));
            if (token->takes_right) stop += space_at_start(text.substr(stop));
            if (start > begin) plain(text.substr(begin, start - begin), begin);
            found(*token);
            begin = at = stop;
        }
        if (begin < text.size()) plain(text.substr(begin), begin);
    }

private:
    [[nodiscard]] const AddedToken* at_start(std::string_view text) const {
        for (const AddedToken& token : tokens_[static_cast<unsigned char>(text.front())])
            if (text.starts_with(token.content)) return &token;
        return nullptr;
    }
    /// The length of the white space at the start of a text.
    [[nodiscard]] static std::size_t space_at_start(std::string_view text) {
        std::size_t at = 0;
        while (at < text.size()) {
            const Utf8Sequence sequence = decode_utf8_sequence(text.substr(at, 4));
            if (sequence.length == 0 || !u_isUWhiteSpace(static_cast<UChar32>(sequence.code_point))) break;
            at += sequence.length;
        }
        return at;
    }
    /// The length of a text without the white space at its end.
    [[nodiscard]] static std::size_t without_space_at_end(std::string_view text) {
        std::size_t end = text.size();
        for (std::size_t at = end; at > 0;) {
            do --at;
            while (at > 0 && (text[at] & 0xC0) == 0x80);
            if (space_at_start(text.substr(at, end - at)) != end - at) break;
            end = at;
        }
        return end;
    }

    std::array<std::vector<AddedToken>, 256> tokens_{};  ///< by the first byte, the longest first
    bool any_ = false;
};

}  // namespace unitscale::io
