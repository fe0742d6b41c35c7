// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace unitscale::io {

/// The sentences of plain text. A sentence ends after `.`, `!` or `?` before white space, and at a line feed.
/// White space at both of its ends is left out, and so are empty sentences. White space is that of ASCII.
/// This rule is simple: it also ends a sentence after an abbreviation, and at the end of each line of wrapped text.
/// The sentences are parts of `text`, which must outlive them.   Test: tests/io/sentences_test.cpp
[[nodiscard]] inline std::vector<std::string_view> split_sentences(std::string_view text) {
    constexpr std::string_view space = " \t\r\n\v\f", ends = ".!?";
    std::vector<std::string_view> sentences;
    for (std::size_t start = text.find_first_not_of(space); start < text.size();) {
        std::size_t end = start;
        while (end < text.size() && text[end] != '\n' &&
               !(end > start && space.find(text[end]) != space.npos && ends.find(text[end - 1]) != ends.npos))
            ++end;
        sentences.push_back(text.substr(start, text.find_last_not_of(space, end - 1) + 1 - start));
        start = text.find_first_not_of(space, end);
    }
    return sentences;
}

}  // namespace unitscale::io
