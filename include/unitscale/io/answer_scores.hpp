// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/question.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/unicode_words.hpp>

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The scores of predicted answers, as SQuAD's official evaluation computes them. Needs ICU (io/unicode_words.hpp).
namespace unitscale::io {

/// The words of an answer that are compared: lower case, then without the punctuation of ASCII, then without the
/// articles a, an and the, then split at white space.
/// Punctuation is deleted, so `U.S.` is the word `us`. Signs beyond ASCII are kept: `1914–18` is one word.
/// Error: text that is not UTF-8.
[[nodiscard]] inline std::vector<std::string> answer_words(std::string_view text) {
    icu::UnicodeString lower;
    for (const char32_t point : decode_utf8(text)) lower.append(static_cast<UChar32>(point));
    lower.toLower(icu::Locale::getRoot());
    std::vector<std::string> words;
    std::string word, part;  // a part consists of letters and digits, or of other signs
    bool is_letters = false;
    const auto end_part = [&] {
        // An article between signs beyond ASCII goes too, and leaves a space: `the–sea` is `–sea`.
        const bool article = is_letters && (part == "a" || part == "an" || part == "the");
        if (!article) word += part;
        else if (!word.empty()) words.push_back(std::move(word)), word.clear();
        part.clear();
    };
    const auto end_word = [&] {
        end_part();
        if (!word.empty()) words.push_back(std::move(word));
        word.clear();
    };
    for (std::int32_t i = 0; i < lower.length(); i = lower.moveIndex32(i, 1)) {
        const UChar32 point = lower.char32At(i);
        if (point < 0x80 && is_punctuation(static_cast<char32_t>(point))) continue;
        if (u_isUWhiteSpace(point) || (point >= 0x1C && point <= 0x1F)) {
            end_word();
            continue;
        }
        const bool letter = (U_GET_GC_MASK(point) & (U_GC_L_MASK | U_GC_N_MASK)) != 0;
        if (letter != is_letters) end_part();
        is_letters = letter;
        append_utf8(part, static_cast<char32_t>(point));
    }
    end_word();
    return words;
}

/// Agreement of a prediction with an answer, or its mean over questions: each from 0 to 1.
struct AnswerScore {
    double exact = 0.0;  ///< EM: equal words in equal order
    double f1 = 0.0;     ///< F1 of the words as multisets: 2 common / (predicted + expected)

    friend bool operator==(const AnswerScore&, const AnswerScore&) = default;
};

/// The scores of one prediction against one answer. If one of them has no words, F1 is EM.
[[nodiscard]] inline AnswerScore answer_score(std::string_view prediction, std::string_view answer) {
    const std::vector<std::string> predicted = answer_words(prediction), expected = answer_words(answer);
    AnswerScore score{.exact = predicted == expected ? 1.0 : 0.0};
    if (predicted.empty() || expected.empty()) return {score.exact, score.exact};
    std::map<std::string, std::size_t> left;
    for (const std::string& word : expected) ++left[word];
    std::size_t common = 0;
    for (const std::string& word : predicted) {
        const auto found = left.find(word);
        if (found == left.end() || found->second == 0) continue;
        --found->second;
        ++common;
    }
    score.f1 = 2.0 * static_cast<double>(common) / static_cast<double>(predicted.size() + expected.size());
    return score;
}

/// The scores of a prediction for a question: EM and F1 each by the answer that gives it the most. Answers without
/// words do not count. Where none is left, as for impossible questions, the right prediction has no words.
[[nodiscard]] inline AnswerScore question_score(std::string_view prediction, const Question& question) {
    AnswerScore best;
    bool any = false;
    for (const Answer& answer : question.answers) {
        if (answer_words(answer.text).empty()) continue;
        const AnswerScore score = answer_score(prediction, answer.text);
        best = {std::max(best.exact, score.exact), std::max(best.f1, score.f1)};
        any = true;
    }
    return any ? best : answer_score(prediction, "");
}

/// The mean scores of predictions, one for each question in order. An empty text stands for no answer.
///   const io::AnswerScore score = io::mean_score(questions, texts);    // score.exact, score.f1
/// Errors: no questions; other numbers of predictions than of questions.
/// Reference: the official evaluation of SQuAD 2.0, which gives SQuAD 1.1's scores too; Rajpurkar et al. 2016,
/// arXiv:1606.05250, section 6.1. Test: tests/io/answer_scores_test.cpp
[[nodiscard]] inline AnswerScore mean_score(std::span<const Question> questions, std::span<const std::string> texts) {
    check(!questions.empty(), "mean_score: no questions");
    check(questions.size() == texts.size(), "mean_score: ", texts.size(), " predictions for ", questions.size(),
          " questions");
    AnswerScore sum;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const AnswerScore score = question_score(texts[i], questions[i]);
        sum = {sum.exact + score.exact, sum.f1 + score.f1};
    }
    const auto count = static_cast<double>(questions.size());
    return {sum.exact / count, sum.f1 / count};
}

}  // namespace unitscale::io
