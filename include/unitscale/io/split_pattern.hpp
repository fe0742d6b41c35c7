// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 0  // the names with the suffix _8 serve every width that a program may choose
#endif
#include <pcre2.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

// Regular expressions with the classes of Unicode. They come from PCRE2: link with -lpcre2-8.
namespace unitscale::io {

/// GPT-2's words: contractions, then letters, digits or other signs with a space in front, then white space.
/// The last space before a word is a part of the word. Reference: Radford et al. 2019, its published encoder.
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The matches of a regular expression in UTF-8 text, as the tokenizers package finds them: `\s` is Unicode's
/// White_Space, and `\d` is Nd.
///   SplitPattern words(gpt2_pattern);
///   words.for_each_match(text, [&](std::size_t begin, std::size_t end) {...});   // bytes of `text`
/// A `literal` pattern is a text, not an expression. Several threads may share one pattern.
/// The classes are of the Unicode version that PCRE2 has: 14 for Debian 12's.
/// Errors: a pattern that PCRE2 refuses, with its reason and offset; a part that libraries read in several ways: ^ and
/// $, [ and && in a class, and \ before a letter or digit other than s S d D p P n r t f a e x.
/// Test: tests/io/split_pattern_test.cpp
class SplitPattern {
public:
    explicit SplitPattern(std::string_view pattern, bool literal = false) {
        check(!pattern.empty(), "pattern: is empty");
        const std::string translated = literal ? std::string(pattern) : translate(pattern);
        const std::uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP;
        int error = 0;
        PCRE2_SIZE offset = 0;
        code_.reset(pcre2_compile_8(bytes_of(translated), translated.size(), options, &error, &offset, nullptr),
                    [](pcre2_code_8* code) { pcre2_code_free_8(code); });
        check(code_ != nullptr, "pattern: '", pattern, "': ", message_of(error), " at offset ", offset);
        // Without a compiler for this processor PCRE2 interprets the pattern.
        static_cast<void>(pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE));
    }

    /// Calls take(begin, end) for the matches in their order; empty ones are left out. `text` must be UTF-8, which is
    /// not checked again. Error: the expression needs more memory for this text than PCRE2 may take.
    template <class Take>
    void for_each_match(std::string_view text, Take&& take) const {
        if (text.empty()) return;
        Search search(*code_);
        for (std::size_t at = 0; at < text.size();) {
            const int found = search.next(*code_, text, at);
            if (found == PCRE2_ERROR_NOMATCH) return;
            check(found >= 0, "pattern: at byte ", at, " of a text: ", message_of(found));
            const auto [begin, end] = search.range();
            if (end > begin) take(begin, end);
            at = end;
            if (end > begin) continue;
            do ++at;
            while (at < text.size() && (text[at] & 0xC0) == 0x80);
        }
    }

private:
    /// What a search writes to.
    class Search {
    public:
        explicit Search(const pcre2_code_8& code)
            : data_(pcre2_match_data_create_from_pattern_8(&code, nullptr), &pcre2_match_data_free_8) {
            check(data_ != nullptr, "pattern: no memory for a search");
        }
        [[nodiscard]] int next(const pcre2_code_8& code, std::string_view text, std::size_t at) {
            const auto match = [&] {
                return pcre2_match_8(&code, bytes_of(text), text.size(), at, PCRE2_NO_UTF_CHECK, data_.get(),
                                     context_.get());
            };
            const int found = match();
            if (found != PCRE2_ERROR_JIT_STACKLIMIT || stack_ != nullptr) return found;
            // Few expressions need more than the processor's stack: the own one takes long to make.
            context_.reset(pcre2_match_context_create_8(nullptr));
            stack_.reset(pcre2_jit_stack_create_8(1 << 15, 1 << 26, nullptr));
            if (context_ == nullptr || stack_ == nullptr) return found;
            pcre2_jit_stack_assign_8(context_.get(), nullptr, stack_.get());
            return match();
        }
        [[nodiscard]] std::pair<std::size_t, std::size_t> range() const noexcept {
            const PCRE2_SIZE* const range = pcre2_get_ovector_pointer_8(data_.get());
            return {range[0], range[1]};
        }

    private:
        std::unique_ptr<pcre2_match_data_8, decltype(&pcre2_match_data_free_8)> data_;
        std::unique_ptr<pcre2_match_context_8, decltype(&pcre2_match_context_free_8)> context_{
            nullptr, &pcre2_match_context_free_8};
        std::unique_ptr<pcre2_jit_stack_8, decltype(&pcre2_jit_stack_free_8)> stack_{nullptr, &pcre2_jit_stack_free_8};
    };

    [[nodiscard]] static PCRE2_SPTR8 bytes_of(std::string_view text) noexcept {
        return reinterpret_cast<PCRE2_SPTR8>(text.data());
    }
    [[nodiscard]] static std::string message_of(int error) {
        PCRE2_UCHAR8 text[256] = {};
        pcre2_get_error_message_8(error, text, sizeof text);
        return reinterpret_cast<const char*>(text);
    }

    /// The expression in PCRE2's words.
    [[nodiscard]] static std::string translate(std::string_view pattern) {
        std::string translated;
        bool in_class = false;
        const auto refuse = [&](auto... part) {
            fail("pattern: '", pattern, "' has ", part..., ", which libraries read in several ways");
        };
        for (std::size_t i = 0; i < pattern.size(); ++i) {
            const char sign = pattern[i], next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
            if (sign == '\\') {
                const bool letter = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') ||
                                    (next >= '0' && next <= '9') || next == '\0';
                constexpr std::string_view known = "sSdDpPnrtfaex";
                if (letter && known.find(next) == known.npos) refuse('\\', next);
                if (next == 's') translated += R"(\p{White_Space})";
                else if (next == 'S') translated += R"(\P{White_Space})";
                else (translated += sign) += next;
                ++i;
                continue;
            }
            translated += sign;
            if (in_class) {
                if (sign == '[' || (sign == '&' && next == '&')) refuse("an unescaped ", sign, " in a class");
                if (sign == ']') in_class = false;
            } else if (sign == '[') {
                in_class = true;
                if (next == '^') translated += pattern[++i];
                if (i + 1 < pattern.size() && pattern[i + 1] == ']') refuse("] at the start of a class");
            } else if (sign == '^' || sign == '$') {
                refuse("an unescaped ", sign);
            }
        }
        return translated;
    }

    std::shared_ptr<pcre2_code_8> code_;
};

}  // namespace unitscale::io
