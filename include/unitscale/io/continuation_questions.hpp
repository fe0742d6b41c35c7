// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/io/choice_question.hpp>
#include <unitscale/io/cloze_questions.hpp>
#include <unitscale/io/sentences.hpp>
#include <unitscale/io/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Multiple-choice questions that are made from a text by rules, for models without a marked data set.
namespace unitscale::io {

struct ContinuationOptions {
    std::uint64_t seed = 1;
    std::size_t questions = 500;                   ///< the most; 0: all that the text gives
    std::size_t choices = 4;                       ///< of each question, at least 2
    std::size_t context = 2;                       ///< sentences in front of the cut one, as far as there are any
    std::size_t least_words = 6, most_words = 40;  ///< of a sentence that is cut; least_words is at least 2
    std::size_t most_bytes = 80;                   ///< of a rest
    std::size_t nearest = 32;                      ///< rests of nearest length, of which wrong choices are drawn
};

/// Questions about how a sentence goes on, by these rules:
///   1. Sentences (`split_sentences`) of some words are cut behind the first half of their words, rounded down. The
///      rest begins with its white space. Of sentences with equal rests the first counts; longer rests are left out.
///   2. The question is the context and the first half, as the text has them. The right choice is the rest.
///   3. The wrong choices are rests of other sentences, drawn among the rests of nearest length in bytes. So the length
///      of a choice says little.
///   4. The right choice has each place with equal probability.
/// Of more sentences than `questions`, some are drawn. The order is the text's order.
/// Equal texts and options give equal questions. Other seeds give other draws.
/// The text should be one that the model was not trained on.
/// Errors: a text that is not UTF-8; fewer than 2 choices; least_words below 2; fewer rests than choices.
/// Test: tests/io/continuation_questions_test.cpp
[[nodiscard]] inline std::vector<ChoiceQuestion> continuation_questions(std::string_view text,
                                                                        const ContinuationOptions& options = {}) {
    check(options.choices >= 2, "continuation questions: ", options.choices, " choices; expected at least 2");
    check(options.least_words >= 2, "continuation questions: least_words is ", options.least_words,
          "; expected at least 2");
    static_cast<void>(decode_utf8(text));  // here, so that an error names the offset in the text
    struct Cut {
        std::string_view question, rest;
        RandomKey stream;
    };
    const std::vector<std::string_view> sentences = split_sentences(text);
    std::vector<Cut> cuts;
    std::set<std::string_view> rests;
    for (std::size_t i = 0; i < sentences.size(); ++i) {
        const std::vector<ClozeWord> words = cloze_words(sentences[i]);
        if (words.size() < options.least_words || words.size() > options.most_words) continue;
        const std::size_t half = words[words.size() / 2 - 1].whole.end;
        const std::string_view rest = sentences[i].substr(half);
        if (rest.size() > options.most_bytes || !rests.insert(rest).second) continue;
        const auto begin = static_cast<std::size_t>(sentences[i - std::min(i, options.context)].data() - text.data());
        const auto place = static_cast<std::size_t>(sentences[i].data() - text.data());
        cuts.push_back({text.substr(begin, place + half - begin),
                        rest,
                        {options.seed, mix(hash_name("continuation questions"), place)}});
    }
    check(cuts.size() >= options.choices, "continuation questions: the text has ", cuts.size(), " sentences of ",
          options.least_words, " to ", options.most_words, " words with different ends of at most ", options.most_bytes,
          " bytes; expected at least ", options.choices);

    // Of a stream word 0 draws the sentence, word 1 the right choice's place, and the others the wrong choices.
    std::vector<std::size_t> drawn(cuts.size()), by_length(cuts.size()), rank(cuts.size());
    for (std::size_t i = 0; i < cuts.size(); ++i) drawn[i] = by_length[i] = i;
    if (options.questions > 0 && options.questions < cuts.size()) {
        const auto key = [&](std::size_t i) { return std::pair(random_word(cuts[i].stream, 0), i); };
        std::sort(drawn.begin(), drawn.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
        drawn.resize(options.questions);
        std::sort(drawn.begin(), drawn.end());
    }
    std::stable_sort(by_length.begin(), by_length.end(),
                     [&](std::size_t a, std::size_t b) { return cuts[a].rest.size() < cuts[b].rest.size(); });
    for (std::size_t i = 0; i < cuts.size(); ++i) rank[by_length[i]] = i;

    const std::size_t near = std::min(std::max(options.nearest, options.choices - 1), cuts.size() - 1);
    std::vector<ChoiceQuestion> questions;
    for (const std::size_t i : drawn) {
        const std::size_t first = std::min(rank[i] - std::min(rank[i], near / 2), cuts.size() - 1 - near);
        std::vector<std::size_t> others;
        for (std::size_t k = first; k <= first + near; ++k)
            if (k != rank[i]) others.push_back(by_length[k]);
        ChoiceQuestion question{.question = std::string(cuts[i].question),
                                .answer = random_word(cuts[i].stream, 1) % options.choices};
        for (std::size_t k = 0; k < options.choices; ++k) {
            if (k == question.answer) {
                question.choices.emplace_back(cuts[i].rest);
                continue;
            }
            const std::size_t place = random_word(cuts[i].stream, 2 + k) % others.size();
            question.choices.emplace_back(cuts[others[place]].rest);
            others.erase(others.begin() + static_cast<std::ptrdiff_t>(place));
        }
        questions.push_back(std::move(question));
    }
    return questions;
}

}  // namespace unitscale::io
