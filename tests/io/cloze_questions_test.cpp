// SPDX-License-Identifier: MIT
#include <unitscale/io/cloze_questions.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;

namespace {
std::vector<std::string> answers_of(std::string_view sentence, std::size_t name_words = 4) {
    const auto words = io::cloze_words(sentence);
    std::vector<std::string> texts;
    for (const io::ClozeAnswer& answer : io::cloze_answers(sentence, words, name_words)) {
        const std::size_t begin = words[answer.first].bare.begin;
        texts.push_back((answer.is_number ? "#" : "") +
                        std::string(sentence.substr(begin, words[answer.last - 1].bare.end - begin)));
    }
    return texts;
}
using Texts = std::vector<std::string>;

/// Lines of three sentences, each with a name and a number.
std::string some_text(std::size_t lines) {
    std::string text;
    for (std::size_t i = 0; i < lines; ++i) {
        const std::string name = "Captain N" + std::to_string(i);
        text += "In the year " + std::to_string(1500 + i) + " the old ship sailed. The crew of " + name +
                " was small and slow. It rained on all of the days.\n";
    }
    return text;
}
}  // namespace

TEST_CASE("cloze answers: names inside a sentence, and numbers") {
    CHECK(answers_of("The crew of Captain Cook (1728) saw Mount Egmont, Wellington and 3,000 birds.") ==
          Texts{"Captain Cook", "#1728", "Mount Egmont", "Wellington", "#3,000"});
    CHECK(answers_of("Captain Cook and I saw the \"Endeavour\" in The Hague.") == Texts{"Endeavour", "Hague"});
    CHECK(answers_of("In May of 1914 and May of 1915.") == Texts{"#1914", "#1915"});  // May is there twice
    CHECK(answers_of("he met A B C D E there") == Texts{"B C D E"});                  // A may be an article
    CHECK(answers_of("he met Bo C D E there", 3) == Texts{});
    CHECK(answers_of("he met Bo C D E there", 4) == Texts{"Bo C D E"});
    CHECK(answers_of("in \u00c5rhus and J\u00f6nk\u00f6ping \u2013 1914th 3a") == Texts{"J\u00f6nk\u00f6ping"});
    CHECK(answers_of("").empty());
}

TEST_CASE("cloze questions: the blank, the punctuation behind the answer, the question mark, words left out") {
    const std::string_view sentence = "The crew of Captain Cook, in 1769, saw birds.";
    const auto words = io::cloze_words(sentence);
    const auto answers = io::cloze_answers(sentence, words);
    REQUIRE(answers.size() == 2);
    io::ClozeOptions options{.left_out = 0.0};
    CHECK(io::cloze_text(sentence, words, answers[0], options, {}) == "The crew of what, in 1769, saw birds?");
    CHECK(io::cloze_text(sentence, words, answers[1], options, {}) ==
          "The crew of Captain Cook, in which number, saw birds?");
    options.left_out = 1.0;
    CHECK(io::cloze_text(sentence, words, answers[0], options, {}) == "what,?");
    options.left_out = 0.2;
    std::size_t kept = 0;
    for (std::uint64_t stream = 0; stream < 1000; ++stream)
        kept += io::cloze_words(io::cloze_text(sentence, words, answers[0], options, {1, stream})).size() - 1;
    CHECK(static_cast<double>(kept) / 7000.0 == Approx(0.8).margin(0.02));  // 7 other words; four deviations
}

TEST_CASE("cloze questions: sets of a text share no passage, answers stand at their places, seeds draw") {
    const std::string text = some_text(100);
    const io::ClozeQuestions made = io::cloze_questions(text, {.passage_words = 100});
    // The sentence about the days has neither name nor number. The line at the border is for training.
    CHECK(made.training.size() == 2 * 91);
    CHECK(made.validation.size() == 2 * 9);
    std::set<std::string> contexts, ids;
    for (const io::Question& question : made.training) contexts.insert(question.context);
    CHECK(contexts.size() == 91);
    for (const io::Question& question : made.validation) CHECK(contexts.count(question.context) == 0);
    for (const auto* set : {&made.training, &made.validation})
        for (const io::Question& question : *set) {
            CHECK_NOTHROW(io::check_question(question, "made"));
            CHECK(ids.insert(question.id).second);
            CHECK(question.question.find(question.answers[0].text) == std::string::npos);
        }
    CHECK(made.training[0].title == "line 1");
    CHECK(made.training[0].answers[0] == io::Answer{"1500", 12});
    CHECK(made.training[1].answers[0] == io::Answer{"Captain N0", 50});
    CHECK(made.validation[0].id == "dev-0");

    const io::ClozeQuestions again = io::cloze_questions(text, {.passage_words = 100});
    CHECK(again.training == made.training);
    CHECK(again.validation == made.validation);
    CHECK_FALSE(io::cloze_questions(text, {.seed = 2, .passage_words = 100}).training == made.training);
}

TEST_CASE("cloze questions: passages end with the sentence that reaches their words, and come once") {
    // 8 + 9 words reach 15; the third sentence would be a passage of its own, so it is left out.
    const io::ClozeQuestions made = io::cloze_questions(some_text(20), {.passage_words = 15});
    CHECK(made.training[0].context ==
          "In the year 1500 the old ship sailed. The crew of Captain N0 was small and slow.");
    std::string twice;
    for (std::size_t i = 0; i < 10; ++i) twice += some_text(1);
    twice += "A new line of text about the town of Rome. It has two sentences with Paris too.\n";
    const io::ClozeQuestions once = io::cloze_questions(twice);
    CHECK(once.training.size() == 2);
    CHECK(once.validation.size() == 2);
}

TEST_CASE("cloze questions: errors") {
    CHECK_THROWS_WITH(io::cloze_questions("", {.validation_share = 1.0}),
                      "cloze questions: validation_share is 1; expected a number between 0 and 1");
    CHECK_THROWS_WITH(io::cloze_questions("", {.left_out = 1.5}),
                      "cloze questions: left_out is 1.5; expected a number in [0,1]");
    CHECK_THROWS_WITH(io::cloze_questions(some_text(1)),
                      Catch::StartsWith("cloze questions: 2 for training and 0 for validation; expected a text with"));
    CHECK_THROWS_WITH(io::cloze_questions("\xff"), "data: text is not UTF-8: byte 0xff at offset 0");
}
