// SPDX-License-Identifier: MIT
#include <unitscale/io/answer_baseline.hpp>

#include "support/catch.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using io::Question;

namespace {
Question asked(const std::string& context, const std::string& answer) {
    return {.id = "x", .context = context, .answers = {{answer, context.find(answer)}}};
}
/// Paris twice, New York, London; the second word twice, of one word.
const std::vector<Question> training{asked("In Paris it rained.", "Paris"), asked("They saw Paris.", "Paris"),
                                     asked("In London too.", "London"), asked("We love New York.", "New York")};
}  // namespace

TEST_CASE("answer baseline: the most frequent training answer that occurs in the context, as whole words") {
    const io::AnswerBaseline baseline(training);
    CHECK(baseline.by_answer(asked("From London to Paris.", "London")) == "paris");
    CHECK(baseline.by_answer(asked("From London to Parisian cafes.", "London")) == "london");
    CHECK(baseline.by_answer(asked("To the new, York!", "York")) == "new york");
    CHECK(baseline.by_answer(asked("London or New York", "London")) == "london");  // one each: the smaller words
    CHECK(baseline.by_answer(asked("To new ideas in York.", "York")).empty());
}

TEST_CASE("answer baseline: the most frequent place, cut off at the end of the context") {
    const io::AnswerBaseline baseline(training);
    CHECK(baseline.by_position(asked("Then  Rome fell.", "Rome")) == "Rome");
    CHECK(baseline.by_position(asked("Rome.", "Rome")).empty());
    const io::AnswerBaseline two(std::vector<Question>{asked("It is New York.", "New York")});
    CHECK(two.by_position(asked("a b c d e", "a")) == "c d");
    CHECK(two.by_position(asked("a b c", "a")) == "c");
}

TEST_CASE("answer baseline: scores, and the best of the three") {
    const io::AnswerBaseline baseline(training);
    std::vector<Question> questions{asked("At Rome and Paris.", "Paris"),
                                    asked("By York, not London", "London"),
                                    asked("We were at Oslo.", "Oslo"),
                                    {.id = "n", .context = "Rome", .impossible = true}};
    const auto scores = baseline.scores(questions);
    CHECK(scores.answer == io::AnswerScore{0.75, 0.75});    // Paris, London, and nothing where no answer occurs
    CHECK(scores.position == io::AnswerScore{0.25, 0.25});  // the context of one word has no second one
    CHECK(scores.nothing == io::AnswerScore{0.25, 0.25});
    CHECK(scores.best() == io::AnswerScore{0.75, 0.75});
    CHECK_THROWS_WITH(io::AnswerBaseline({}), "AnswerBaseline: no training questions");
    CHECK(io::word_ranges(" ab  c") == std::vector<io::TextRange>{{1, 3}, {5, 6}});
}
