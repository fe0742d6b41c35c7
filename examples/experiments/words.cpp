// SPDX-License-Identifier: MIT
#include "experiments/words.hpp"

#include <unordered_set>

namespace unitscale::experiments {

std::vector<std::string> words(std::string_view text, bool whole) {
    std::vector<std::string> found;
    std::string word;
    std::size_t start = 0;
    const auto end_word = [&](std::size_t end) {
        const bool cut = !whole && (start == 0 || end == text.size());
        if (word.size() >= 3 && !cut) found.push_back(word);
        word.clear();
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
        if (!letter) {
            end_word(i);
            continue;
        }
        if (word.empty()) start = i;
        word += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    end_word(text.size());
    return found;
}

double WordCount::share() const noexcept {
    return total == 0 ? 0.0 : static_cast<double>(known) / static_cast<double>(total);
}

WordCount count_known_words(std::string_view sample, std::string_view text) {
    const std::vector<std::string> all = words(text);
    const std::unordered_set<std::string> vocabulary(all.begin(), all.end());
    WordCount count{};
    for (const std::string& word : words(sample, false)) {
        ++count.total;
        if (vocabulary.contains(word)) ++count.known;
    }
    return count;
}

}  // namespace unitscale::experiments
