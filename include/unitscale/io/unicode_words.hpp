// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/text.hpp>

#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// Words of a text, by the classes and the cases of Unicode. They come from ICU: link with -licuuc, or in CMake with
// ICU::uc of find_package(ICU COMPONENTS uc). Beside this header only io/wordpiece.hpp, io/answer_scores.hpp and
// io/answer_baseline.hpp need ICU.
namespace unitscale::io {

/// How text is changed before it is split. Both together are BERT's uncased text, and neither is its cased text.
struct WordOptions {
    bool lower_case = true;
    bool strip_accents = true;  ///< é becomes e: canonical decomposition (NFD) without non-spacing marks

    friend bool operator==(const WordOptions&, const WordOptions&) = default;
};

/// White space: tab, line feed, carriage return, and the separators of Unicode (Zs, Zl, Zp).
[[nodiscard]] inline bool is_space(char32_t point) noexcept {
    constexpr std::uint32_t separators = U_GC_ZS_MASK | U_GC_ZL_MASK | U_GC_ZP_MASK;
    return point == U'\t' || point == U'\n' || point == U'\r' ||
           (U_GET_GC_MASK(static_cast<UChar32>(point)) & separators) != 0;
}

/// Characters that are no part of a text: control and format characters (Cc, Cf) that are not white space, and the sign
/// for unreadable characters, U+FFFD.
[[nodiscard]] inline bool is_removed(char32_t point) noexcept {
    constexpr std::uint32_t controls = U_GC_CC_MASK | U_GC_CF_MASK;
    return point == 0xFFFD || ((U_GET_GC_MASK(static_cast<UChar32>(point)) & controls) != 0 && !is_space(point));
}

/// Punctuation: Unicode's (P) and all other signs of ASCII, as $ and ^, which Unicode counts as symbols.
[[nodiscard]] inline bool is_punctuation(char32_t point) noexcept {
    if (point < 0x80) return u_isgraph(static_cast<UChar32>(point)) && !u_isalnum(static_cast<UChar32>(point));
    return u_ispunct(static_cast<UChar32>(point));
}

/// A character of a block of CJK ideographs: those that BERT's text has as words of their own. Hiragana, katakana and
/// hangul are not among them.
[[nodiscard]] inline bool is_ideograph(char32_t point) noexcept {
    switch (ublock_getCode(static_cast<UChar32>(point))) {
        case UBLOCK_CJK_UNIFIED_IDEOGRAPHS:
        case UBLOCK_CJK_UNIFIED_IDEOGRAPHS_EXTENSION_A:
        case UBLOCK_CJK_UNIFIED_IDEOGRAPHS_EXTENSION_B:
        case UBLOCK_CJK_UNIFIED_IDEOGRAPHS_EXTENSION_C:
        case UBLOCK_CJK_UNIFIED_IDEOGRAPHS_EXTENSION_D:
        case UBLOCK_CJK_UNIFIED_IDEOGRAPHS_EXTENSION_E:
        case UBLOCK_CJK_COMPATIBILITY_IDEOGRAPHS:
        case UBLOCK_CJK_COMPATIBILITY_IDEOGRAPHS_SUPPLEMENT:
            return true;
        default:
            return false;
    }
}

/// Text without accents: its canonical decomposition (NFD), without non-spacing marks (Mn).
[[nodiscard]] inline icu::UnicodeString strip_accents(const icu::UnicodeString& text) {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* const nfd = icu::Normalizer2::getNFDInstance(status);
    icu::UnicodeString decomposed;
    if (U_SUCCESS(status)) decomposed = nfd->normalize(text, status);
    check(U_SUCCESS(status) != 0, "words: ICU cannot decompose text: ", u_errorName(status));
    icu::UnicodeString bare;
    for (std::int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1))
        if (const UChar32 point = decomposed.char32At(i); u_charType(point) != U_NON_SPACING_MARK) bare.append(point);
    return bare;
}

/// Text as the options change it.
[[nodiscard]] inline icu::UnicodeString changed_text(icu::UnicodeString text, const WordOptions& options) {
    if (options.lower_case) text.toLower(icu::Locale::getRoot());
    if (options.strip_accents) text = strip_accents(text);
    return text;
}

/// The words of a text in UTF-8, as BERT's basic tokeniser finds them; `take(std::string word)` gets them in order.
///   control characters are removed; CJK ideographs are words of their own; the text is split at white space;
///   then case and accents go by the options; then every punctuation character becomes a word of its own
/// Cases are those of Unicode in full, without a language: a sigma at the end of a Greek word stays a final one.
/// `take(std::string word, const std::vector<TextRange>& places)` also gets the place in `text` of each character of
/// the word. Characters that come from one character of the text share its place. A character without a counterpart in
/// the word, such as a stripped accent, belongs to the place of the one before it.
/// Errors: text that is not UTF-8.   Reference: Devlin et al. 2019, arXiv:1810.04805, the published tokeniser.
/// Test: tests/io/unicode_words_test.cpp
template <class Take>
void for_each_word(std::string_view text, const WordOptions& options, Take&& take) {
    constexpr bool with_places = std::is_invocable_v<Take&, std::string, const std::vector<TextRange>&>;
    icu::UnicodeString run;  // what stands between white space
    std::string word;
    std::vector<TextRange> run_places, word_places;  // of the characters of the changed run, and of the word
    const auto end_word = [&] {
        if (word.empty()) return;
        if constexpr (with_places) take(std::exchange(word, {}), std::as_const(word_places));
        else take(std::exchange(word, {}));
        word_places.clear();
    };
    // How many characters one becomes does not depend on its neighbours: of the case mappings without a language only
    // the sigma's does, and that is one character either way.
    const auto add_places = [&](char32_t point, const TextRange& place) {
        std::int32_t count = 1;
        if (point >= 0x80) count = changed_text(icu::UnicodeString(static_cast<UChar32>(point)), options).countChar32();
        if (count == 0 && !run_places.empty()) run_places.back().end = place.end;
        run_places.insert(run_places.end(), static_cast<std::size_t>(count), place);
    };
    const auto end_run = [&] {
        run = changed_text(std::move(run), options);
        check(run.isBogus() == 0, "words: ICU cannot hold a text of this length without white space");
        std::size_t character = 0;
        for (std::int32_t i = 0; i < run.length(); i = run.moveIndex32(i, 1), ++character) {
            const auto point = static_cast<char32_t>(run.char32At(i));
            const bool alone = is_punctuation(point);
            if (alone) end_word();
            append_utf8(word, point);
            if constexpr (with_places) word_places.push_back(run_places[character]);
            if (alone) end_word();
        }
        end_word();
        run = icu::UnicodeString();
        run_places.clear();
    };
    std::size_t offset = 0;
    for (const char32_t point : decode_utf8(text)) {
        const TextRange place{offset, offset + utf8_length(point)};
        offset = place.end;
        if (is_removed(point)) continue;
        const bool space = is_space(point), alone = is_ideograph(point);
        if (space || alone) end_run();
        if (!space) {
            run.append(static_cast<UChar32>(point));
            if constexpr (with_places) add_places(point, place);
        }
        if (alone) end_run();
    }
    end_run();
}

/// The words that `for_each_word` finds.
[[nodiscard]] inline std::vector<std::string> split_words(std::string_view text, const WordOptions& options = {}) {
    std::vector<std::string> words;
    for_each_word(text, options, [&](std::string word) { words.push_back(std::move(word)); });
    return words;
}

}  // namespace unitscale::io
