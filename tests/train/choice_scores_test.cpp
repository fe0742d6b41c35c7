// SPDX-License-Identifier: MIT
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/choice_scores.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/test_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

using namespace unitscale;
using Ids = std::vector<std::int32_t>;

namespace {

const nn::DecoderConfig small{.vocabulary = 7, .width = 8, .depth = 1, .heads = 2, .length = 6};

/// ln P(choice | question) from the logits of a run over both alone, in double.
template <class T>
double by_hand(test::LanguageModel<T>& model, const Ids& question, const Ids& choice) {
    Ids ids = question;
    ids.insert(ids.end(), choice.begin(), choice.end() - 1);
    model.tape.begin_step({.training = false, .gradients = false});
    const auto logits = model.decoder(model.tape, Tensor<std::int32_t>({1, ids.size()}, ids));
    const double m = model.recipe.hyperparameters.alpha_loss_softmax * logits.scaled().scale();
    double sum = 0.0;
    for (std::size_t t = 0; t < choice.size(); ++t) {
        const auto logit = [&](std::size_t v) {
            return m * static_cast<double>(static_cast<Accum<T>>(
                           logits.scaled().data()[(question.size() - 1 + t) * small.vocabulary + v]));
        };
        double total = 0.0;
        for (std::size_t v = 0; v < small.vocabulary; ++v) total += std::exp(logit(v));
        sum += logit(static_cast<std::size_t>(choice[t])) - std::log(total);
    }
    return sum;
}

/// A causal model without attention: P(next | token) is a table. Each token is followed by its successor with
/// probability 0.7, and by the others alike.
Tensor<float> table_logits(std::size_t vocabulary, const Tensor<std::int32_t>& ids, double scale) {
    Tensor<float> logits({ids.dim(0), ids.dim(1), vocabulary});
    logits.set_scale(scale);
    for (std::size_t i = 0; i < ids.size(); ++i)
        for (std::size_t v = 0; v < vocabulary; ++v) {
            const bool next = v == (static_cast<std::size_t>(ids.data()[i]) + 1) % vocabulary;
            const double p = next ? 0.7 : 0.3 / static_cast<double>(vocabulary - 1);
            logits.data()[i * vocabulary + v] = static_cast<float>(std::log(p) / scale);
        }
    return logits;
}

}  // namespace

TEMPLATE_TEST_CASE("choice scores: sums of log-probabilities, whatever the other choices and the padding", "", float,
                   Half) {
    const Ids question = {1, 5, 2};
    const std::vector<Ids> choices = {{3}, {0, 6, 2, 4}, {4, 4}, {3, 1, 1}};
    for (const char* name : {"fp32", "unit-fp32", "us-fp32", "unit-fp8", "fp8-cscale", "scalify-fp16-1",
                             "scalify-fp8-4", "aligned-fp32"}) {
        INFO(name);
        Recipe recipe = find_recipe(name);
        recipe.hyperparameters.alpha_loss_softmax = 1.5;
        test::LanguageModel<TestType> model(recipe, small);
        const train::Batch batch = test::random_batch(2, 6, 7);
        if (recipe.propagate.measured) model.tape.plan([&] { return model.loss(batch); });
        else model.plan(batch);
        test::randomise(model.decoder.parameters(), 0.7);
        const std::uint64_t step = model.state.step();
        const auto scores = train::choice_scores(model.decoder, model.tape, 6, question, choices);
        REQUIRE(scores.size() == 4);
        for (std::size_t i = 0; i < choices.size(); ++i) {
            CHECK(scores[i] == Approx(by_hand(model, question, choices[i])).epsilon(1e-5));
            const std::vector<Ids> alone = {choices[i]};
            CHECK(train::choice_scores(model.decoder, model.tape, 6, question, alone).front() == scores[i]);
        }
        CHECK(model.state.step() == step);
        for (const Parameter<TestType>* parameter : model.decoder.parameters()) CHECK(!parameter->has_gradient());
    }
}

TEST_CASE("choice scores: any causal model, and logits with a scale") {
    ScalingState state;
    const Recipe recipe = recipe_in<float>(find_recipe("scalify-fp16-1"));
    Tape<float> tape(recipe, state);
    const auto model = [](Tape<float>& on, const Tensor<std::int32_t>& ids) {
        return on.input(table_logits(7, ids, 0.25));
    };
    const std::vector<Ids> choices = {{3, 4, 5}, {3, 3}, {0}};
    const auto scores = train::choice_scores(model, tape, 10, Ids{0, 2}, choices);
    CHECK(scores[0] == Approx(3 * std::log(0.7)));
    CHECK(scores[1] == Approx(std::log(0.7) + std::log(0.05)));
    CHECK(scores[2] == Approx(std::log(0.05)));
}

TEST_CASE("choice scores: a question that does not fit loses its front, for all choices alike") {
    test::LanguageModel<float> model(find_recipe("fp32"), small);
    test::randomise(model.decoder.parameters(), 0.7);
    const Ids question = {1, 5, 2, 0, 3, 6, 4, 4, 2};
    const std::vector<Ids> choices = {{3}, {0, 6, 2, 4}};
    // The longest choice has four tokens, of which three are read: three places of six are left for the question.
    const auto scores = train::choice_scores(model.decoder, model.tape, 6, question, choices);
    const Ids end(question.end() - 3, question.end());
    for (std::size_t i = 0; i < 2; ++i) CHECK(scores[i] == Approx(by_hand(model, end, choices[i])).epsilon(1e-5));
    const std::vector<Ids> full = {{0, 1, 2, 3, 4, 5}};
    CHECK(train::choice_scores(model.decoder, model.tape, 6, question, full).front() ==
          Approx(by_hand(model, Ids{2}, full.front())).epsilon(1e-5));
}

TEST_CASE("choice scores: empty questions and choices, and choices that do not fit, are errors") {
    test::LanguageModel<float> model(find_recipe("fp32"), small);
    const auto score = [&](const Ids& question, const std::vector<Ids>& choices) {
        return train::choice_scores(model.decoder, model.tape, 6, question, choices);
    };
    CHECK_THROWS_WITH(score({}, {{1}}), "choice_scores: the question is empty; expected at least one token");
    CHECK_THROWS_WITH(score({1}, {}), "choice_scores: no choices");
    CHECK_THROWS_WITH(score({1}, {{1}, {}}),
                      "choice_scores: choices[1] has 0 tokens; expected 1 to 6, the positions of the model");
    CHECK_THROWS_WITH(score({1}, {Ids(7, 1)}),
                      "choice_scores: choices[0] has 7 tokens; expected 1 to 6, the positions of the model");
}

TEST_CASE("choice scores: the largest number wins, the first of equal ones, NaN never") {
    const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
    const auto best = [](const std::vector<double>& scores) { return train::best_choice(scores); };
    CHECK(best({-3.0, -1.0, -2.0}) == 1);
    CHECK(best({-1.0, -1.0}) == 0);
    CHECK(best({nan, -5.0, nan, -4.0}) == 3);
    CHECK(best({nan, -infinity}) == 1);
    CHECK(best({nan, nan}) == 2);
}

TEST_CASE("choice scores: answers by the sum and by the sum over the length in characters") {
    ScalingState state;
    const Recipe recipe = find_recipe("fp32");
    Tape<float> tape(recipe, state);
    const io::CharacterVocabulary vocabulary(U"abcdefg\u00e9");  // each is followed by the next, the last by the first
    bool broken = false;
    const auto model = [&](Tape<float>& on, const Tensor<std::int32_t>& ids) {
        Tensor<float> logits = table_logits(8, ids, 1.0);
        if (broken) std::fill_n(logits.data(), logits.size(), std::numeric_limits<float>::quiet_NaN());
        return on.input(std::move(logits));
    };
    const auto encode = [&](const std::u32string& text) { return vocabulary.encode(text); };
    const std::vector<io::ChoiceQuestion> questions = {
        // ln 0.7 = -0.36 for a letter that follows, ln(0.3 / 7) = -3.15 for any other.
        {.question = "a", .choices = {"bcdefgf", "cd"}, .answer = 1},  // -5.29 and -3.51; -0.76 and -1.75 a letter
        {.question = "a", .choices = {"c", "bcc"}, .answer = 1},       // -3.15 and -3.86; -3.15 and -1.29 a letter
        {.question = "a", .choices = {"f", "bc"}, .answer = 1},        // -3.15 and -0.71
        {.question = "g", .choices = {"\u00e9a", "\u00e9ac"}, .answer = 0},  // -0.71 and -3.86
        // -3.15 and -3.51 a choice; -3.15 and -1.75 a letter, but -1.58 a byte of the first
        {.question = "a", .choices = {"\u00e9", "fg"}, .answer = 1},
        {.question = "a", .choices = {"\u00e9", "c"}, .answer = 1}};  // equal, so that the first is chosen
    std::vector<std::vector<double>> so_far;
    const auto answers = train::answer_choices(
        model, tape, 10, questions, encode, [&](const train::ChoiceAnswers& known) { so_far.push_back(known.right); });
    REQUIRE(so_far.size() == 6);  // after every question, with the answers up to it
    for (std::size_t i = 0; i < 6; ++i)
        CHECK(so_far[i] ==
              std::vector<double>(answers.right.begin(), answers.right.begin() + static_cast<std::ptrdiff_t>(i + 1)));
    CHECK(answers.right == std::vector<double>{1.0, 0.0, 1.0, 1.0, 0.0, 0.0});
    CHECK(answers.right_normalised == std::vector<double>{0.0, 1.0, 1.0, 1.0, 1.0, 0.0});
    CHECK(answers.unanswered == 0);
    broken = true;
    const auto none = train::answer_choices(model, tape, 10, questions, encode);
    CHECK(none.right == std::vector<double>(6, 0.0));
    CHECK(none.right_normalised == std::vector<double>(6, 0.0));
    CHECK(none.unanswered == 6);

    std::vector<io::ChoiceQuestion> bad = {questions[0]};
    CHECK_THROWS_WITH(train::answer_choices(model, tape, 5, bad, encode),
                      "question 'a': choice_scores: choices[0] has 7 tokens; expected 1 to 5, the positions of the "
                      "model");
    bad[0].answer = 2;
    CHECK_THROWS_WITH(train::answer_choices(model, tape, 10, bad, encode),
                      Catch::StartsWith("data: question 0: answer"));
    bad[0] = {.question = "x", .choices = {"a", "b"}, .answer = 0};
    CHECK_THROWS_WITH(train::answer_choices(model, tape, 10, bad, encode),
                      Catch::StartsWith("vocabulary: character 'x'"));
}
