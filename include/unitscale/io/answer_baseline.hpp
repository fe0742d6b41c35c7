// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/answer_scores.hpp>
#include <unitscale/io/question.hpp>
#include <unitscale/io/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// What majorities alone can answer: the baseline that a model for spans has to beat. Needs ICU (io/unicode_words.hpp).
namespace unitscale::io {

/// The words of a text between white space of ASCII.
[[nodiscard]] inline std::vector<TextRange> word_ranges(std::string_view text) {
    constexpr std::string_view space = " \t\r\n\v\f";
    std::vector<TextRange> words;
    for (std::size_t at = text.find_first_not_of(space); at < text.size();) {
        const std::size_t end = std::min(text.find_first_of(space, at), text.size());
        words.push_back({at, end});
        at = text.find_first_not_of(space, end);
    }
    return words;
}

/// The scores of three predictors that never read the question, and learn majorities from a training set:
///   answer:   the most frequent training answer of those that occur in the context, by its words (`answer_words`)
///   position: the most frequent pair of the answer's first word and its number of words, cut off at the context's end
///   nothing:  the empty text, which is right for impossible questions
/// An equal count goes to the smaller words or numbers. `best` takes the highest EM and the highest F1 of the three.
/// Errors: no training questions; the errors of `mean_score`. Test: tests/io/answer_baseline_test.cpp
class AnswerBaseline {
public:
    explicit AnswerBaseline(std::span<const Question> training) {
        check(!training.empty(), "AnswerBaseline: no training questions");
        std::map<std::string, std::size_t> answers;
        std::map<std::pair<std::size_t, std::size_t>, std::size_t> places;
        for (const Question& question : training) {
            if (question.answers.empty()) continue;
            const Answer& answer = question.answers.front();
            const std::vector<std::string> words = answer_words(answer.text);
            if (!words.empty()) ++answers[joined(words, 0, words.size())];
            longest_ = std::max(longest_, words.size());
            const std::string_view context = question.context;
            const std::size_t first = word_ranges(context.substr(0, answer.begin + 1)).size() - 1;
            ++places[{first, std::max<std::size_t>(word_ranges(answer.text).size(), 1)}];
        }
        std::vector<std::pair<std::size_t, std::string>> ordered;
        for (const auto& [words, count] : answers) ordered.emplace_back(count, words);
        std::stable_sort(ordered.begin(), ordered.end(),
                         [](const auto& a, const auto& b) { return a.first > b.first; });
        for (std::size_t i = 0; i < ordered.size(); ++i) ranks_.emplace(ordered[i].second, i);
        std::size_t most = 0;
        for (const auto& [place, count] : places)
            if (count > most) most = count, place_ = place;
    }

    /// The prediction by answers; an empty text if no training answer occurs in the context.
    [[nodiscard]] std::string by_answer(const Question& question) const {
        const std::vector<std::string> words = answer_words(question.context);
        std::size_t best = ranks_.size();
        std::string text;
        for (std::size_t first = 0; first < words.size(); ++first)
            for (std::size_t count = 1; count <= std::min(longest_, words.size() - first); ++count) {
                const std::string part = joined(words, first, count);
                const auto found = ranks_.find(part);
                if (found == ranks_.end() || found->second >= best) continue;
                best = found->second;
                text = part;
            }
        return text;
    }
    /// The prediction by position; an empty text if the context ends before it.
    [[nodiscard]] std::string by_position(const Question& question) const {
        const std::vector<TextRange> words = word_ranges(question.context);
        const auto [first, count] = place_;
        if (first >= words.size() || count == 0) return "";
        const std::size_t begin = words[first].begin, end = words[std::min(first + count, words.size()) - 1].end;
        return question.context.substr(begin, end - begin);
    }

    struct Scores {
        AnswerScore answer{}, position{}, nothing{};

        [[nodiscard]] AnswerScore best() const {
            return {std::max({answer.exact, position.exact, nothing.exact}),
                    std::max({answer.f1, position.f1, nothing.f1})};
        }
    };
    [[nodiscard]] Scores scores(std::span<const Question> questions) const {
        std::vector<std::string> answers, positions;
        for (const Question& question : questions) {
            answers.push_back(by_answer(question));
            positions.push_back(by_position(question));
        }
        return {mean_score(questions, answers), mean_score(questions, positions),
                mean_score(questions, std::vector<std::string>(questions.size()))};
    }

private:
    [[nodiscard]] static std::string joined(const std::vector<std::string>& words, std::size_t first,
                                            std::size_t count) {
        std::string text;
        for (std::size_t i = first; i < first + count; ++i) (text += i == first ? "" : " ") += words[i];
        return text;
    }

    std::unordered_map<std::string, std::size_t> ranks_{};  ///< of the training answers, the most frequent first
    std::size_t longest_ = 0;                               ///< in words
    std::pair<std::size_t, std::size_t> place_{0, 0};       ///< first word, number of words
};

}  // namespace unitscale::io
