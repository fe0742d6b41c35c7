// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::experiments {

/// The words of at least three letters in a text, in order: runs of ASCII letters and of bytes of longer UTF-8
/// sequences.
/// ASCII letters become lower case. If `whole` is false, the text may have cut its first and last word; they are
/// omitted.
[[nodiscard]] std::vector<std::string> words(std::string_view text, bool whole = true);

/// The number of a sample's words that occur in a text.
struct WordCount {
    std::size_t known = 0;
    std::size_t total = 0;
    [[nodiscard]] double share() const noexcept;
};

/// Counts the words of `sample` that are words of `text`. The first and last word of the sample may be cut; they do not
/// count. Test: tests/experiments/words_test.cpp
[[nodiscard]] WordCount count_known_words(std::string_view sample, std::string_view text);

}  // namespace unitscale::experiments
