// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/choice_question.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/train/batches.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

// Multiple choice by a language model: the choice that it finds the most likely continuation of the question.
namespace unitscale::train {

/// ln P(choice | question) of each choice c, by a causal language model:
///   score = sum over t of ln p(c[t] | question, c[0], ..., c[t-1])
/// `model(tape, ids)` gives logits [B,T,V] of ids [B,T], as nn::Decoder does, for up to `length` positions. The logits
/// may have a scale: scores are ops::softmax_cross_entropy's sums in Accum<T>, before they are rounded to T.
/// All choices make one batch, padded on the right by each row's last token. A row's score does not depend on the
/// padding or on the other rows, unless the recipe measures the whole batch, as amax of a tensor does.
/// A question that does not fit is cut at its front, for all choices alike, so that the longest choice fits.
/// The step has no gradients and no dropout.
/// Errors: an empty question; no choices; an empty choice; a choice of more than `length` tokens.
/// Test: tests/train/choice_scores_test.cpp
template <class T, class Model>
[[nodiscard]] std::vector<double> choice_scores(Model& model, Tape<T>& tape, std::size_t length,
                                                std::span<const std::int32_t> question,
                                                std::span<const std::vector<std::int32_t>> choices) {
    check(!question.empty(), "choice_scores: the question is empty; expected at least one token");
    check(!choices.empty(), "choice_scores: no choices");
    std::size_t longest = 0;
    for (std::size_t i = 0; i < choices.size(); ++i) {
        check(!choices[i].empty() && choices[i].size() <= length, "choice_scores: choices[", i, "] has ",
              choices[i].size(), " tokens; expected 1 to ", length, ", the positions of the model");
        longest = std::max(longest, choices[i].size());
    }
    // The last token of a choice is predicted and never read.
    const auto seen = question.last(std::min(question.size(), length + 1 - longest));
    const std::size_t columns = seen.size() + longest - 1, first = seen.size() - 1;
    Tensor<std::int32_t> ids(Shape{choices.size(), columns});
    for (std::size_t row = 0; row < choices.size(); ++row) {
        std::int32_t* const out = std::copy(seen.begin(), seen.end(), ids.data() + row * columns);
        std::int32_t* const end = std::copy(choices[row].begin(), choices[row].end() - 1, out);
        std::fill(end, ids.data() + (row + 1) * columns, end[-1]);
    }
    tape.begin_step({.training = false, .gradients = false});
    const Variable<T> logits = model(tape, ids);
    std::vector<double> scores;
    for (std::size_t row = 0; row < choices.size(); ++row) {
        Tensor<std::int32_t> labels(ids.shape());
        std::fill_n(labels.data(), labels.size(), ignored_label);
        std::copy(choices[row].begin(), choices[row].end(), labels.data() + row * columns + first);
        scores.push_back(-ops::softmax_cross_entropy(logits, labels, {.reduction = ops::Reduction::sum}).item());
    }
    return scores;
}

/// The number of the largest score; of equal scores, the first. NaN is never the largest. Without any other score the
/// result is scores.size(), which is no choice.
[[nodiscard]] inline std::size_t best_choice(std::span<const double> scores) noexcept {
    std::size_t best = scores.size();
    for (std::size_t i = 0; i < scores.size(); ++i)
        if (!std::isnan(scores[i]) && (best == scores.size() || scores[i] > scores[best])) best = i;
    return best;
}

/// A model's answers to questions by two rules. The chosen one has the largest score, or the largest score divided by
/// its length (normalised). The length counts Unicode code points, a blank at the choice's begin too.
struct ChoiceAnswers {
    std::vector<double> right{}, right_normalised{};  ///< for each question 1 if the chosen one is its answer, else 0
    std::size_t unanswered = 0;                       ///< questions without any score but NaN: they count as wrong
};

/// Answers questions by `choice_scores`. `encode` gives the tokens of a text in code points, a std::u32string.
///   const auto answers = train::answer_choices(saved.model(), saved.tape(), saved.model().config().length, questions,
///                                              [&](const auto& text) { return saved.vocabulary().encode(text); });
/// `answered` is called after every question with the answers so far. The tape's state then holds the biases that were
/// measured for this question.
/// Errors: the errors of `check_choice_question` and `encode`; the errors of `choice_scores`, with the question in
/// front.
/// Reference: Perez et al. 2023, arXiv:2309.17224, tables 2 to 6, for the two rules and their use.
template <class T, class Model, class Encode>
[[nodiscard]] ChoiceAnswers answer_choices(Model& model, Tape<T>& tape, std::size_t length,
                                           std::span<const io::ChoiceQuestion> questions, const Encode& encode,
                                           const std::function<void(const ChoiceAnswers&)>& answered = {}) {
    ChoiceAnswers answers;
    for (std::size_t i = 0; i < questions.size(); ++i) {
        const io::ChoiceQuestion& question = questions[i];
        io::check_choice_question(question, concatenate("question ", i));
        std::vector<std::vector<std::int32_t>> choices;
        std::vector<double> lengths;
        for (const std::string& choice : question.choices) {
            const std::u32string text = io::decode_utf8(choice);
            choices.push_back(encode(text));
            lengths.push_back(static_cast<double>(text.size()));
        }
        const std::vector<std::int32_t> front = encode(io::decode_utf8(question.question));
        std::vector<double> scores;
        try {
            scores = choice_scores(model, tape, length, front, choices);
        } catch (const Error& error) {
            fail("question '", question.question.substr(0, 40), "': ", error.what());
        }
        const std::size_t largest = best_choice(scores);
        if (largest == scores.size()) ++answers.unanswered;
        answers.right.push_back(largest == question.answer ? 1.0 : 0.0);
        for (std::size_t k = 0; k < scores.size(); ++k) scores[k] /= lengths[k];
        answers.right_normalised.push_back(best_choice(scores) == question.answer ? 1.0 : 0.0);
        if (answered) answered(answers);
    }
    return answers;
}

}  // namespace unitscale::train
