// SPDX-License-Identifier: MIT
#include <unitscale/io/answer_scores.hpp>

#include "support/catch.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using io::answer_score;
using io::answer_words;
using io::AnswerScore;
using Words = std::vector<std::string>;

TEST_CASE("answer words: lower case, no punctuation, no articles, no white space") {
    CHECK(answer_words("The  U.S. Army,\n in a Tent!") == Words{"us", "army", "in", "tent"});
    CHECK(answer_words("an Anthem, a theory") == Words{"anthem", "theory"});
    CHECK(answer_words("the a AN The.").empty());
    CHECK(answer_words("").empty());
    CHECK(answer_words("don't well-known $5_000") == Words{"dont", "wellknown", "5000"});
    // Beyond ASCII: cases are Unicode's, and punctuation stays, but bounds an article.
    CHECK(answer_words("\u00c9COLE 1914\u201318") == Words{"\u00e9cole", "1914\u201318"});
    CHECK(answer_words("the\u2013sea x\u2013a\u2013y th\u00e9") ==
          Words{"\u2013sea", "x\u2013", "\u2013y", "th\u00e9"});
    CHECK(answer_words("a\u00e9 a\u00a0b\u3000c a\u00b2") == Words{"a\u00e9", "b", "c", "a\u00b2"});
}

TEST_CASE("answer scores: calculated by hand") {
    CHECK(answer_score("the Mill", "mill.") == AnswerScore{1.0, 1.0});
    CHECK(answer_score("old mill", "mill") == AnswerScore{0.0, 2.0 / 3.0});        // precision 1/2, recall 1
    CHECK(answer_score("mill wheel", "old mill wheel") == AnswerScore{0.0, 0.8});  // precision 1, recall 2/3
    CHECK(answer_score("wheel mill", "mill wheel") == AnswerScore{0.0, 1.0});      // another order
    CHECK(answer_score("b b b", "b b c") == AnswerScore{0.0, 2.0 / 3.0});  // words count as often as both have them
    CHECK(answer_score("rain", "sun") == AnswerScore{0.0, 0.0});
    CHECK(answer_score("", "sun") == AnswerScore{0.0, 0.0});
    CHECK(answer_score("sun", "") == AnswerScore{0.0, 0.0});
    CHECK(answer_score("the", "") == AnswerScore{1.0, 1.0});
}

TEST_CASE("answer scores: the best answer counts, for EM and F1 each; no answer is right where there is none") {
    const io::Question question{.answers = {{"mill", 0}, {"old mill wheel", 0}, {"the", 0}}};
    CHECK(io::question_score("mill", question) == AnswerScore{1.0, 1.0});
    CHECK(io::question_score("old mill", question) == AnswerScore{0.0, 0.8});
    CHECK(io::question_score("", question) == AnswerScore{0.0, 0.0});  // `the` has no words, so it does not count
    const io::Question impossible{.impossible = true};
    CHECK(io::question_score("", impossible) == AnswerScore{1.0, 1.0});
    CHECK(io::question_score("mill", impossible) == AnswerScore{0.0, 0.0});
    CHECK(io::question_score("", {.answers = {{"The", 0}}}) == AnswerScore{1.0, 1.0});
}

TEST_CASE("answer scores: the mean over questions") {
    const std::vector<io::Question> questions{
        {.answers = {{"mill", 0}}}, {.answers = {{"wheel", 0}}}, {.impossible = true}};
    const AnswerScore mean = io::mean_score(questions, Words{"Mill", "old wheel", "x"});
    CHECK(mean.exact == Approx(1.0 / 3.0));
    CHECK(mean.f1 == Approx((1.0 + 2.0 / 3.0) / 3.0));
    CHECK_THROWS_WITH(io::mean_score({}, {}), "mean_score: no questions");
    CHECK_THROWS_WITH(io::mean_score(questions, Words{"x"}), "mean_score: 1 predictions for 3 questions");
}
