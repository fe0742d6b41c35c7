// SPDX-License-Identifier: MIT
#include <unitscale/io/continuation_questions.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;

namespace {
/// Sentences of 8 words. Their ends differ, and become slowly longer.
std::string some_text(std::size_t sentences) {
    std::string text;
    for (std::size_t i = 0; i < sentences; ++i)
        text += "The old ship went to port " + std::to_string(i) + std::string(i / 10, 'x') + " \u00e9t\u00e9.\n";
    return text;
}
}  // namespace

TEST_CASE("continuation questions: context, first half of the words, the rest with its blank") {
    const std::string text =
        "He left. Rain  fell\non it. The grey old mill stood there quietly still. So it went. "
        "The crew of the ship was small. Nobody ever saw the two again.";
    const auto made = io::continuation_questions(text, {.choices = 3});
    REQUIRE(made.size() == 3);
    // A line feed ends a sentence: two sentences stand between `left.` and `The`.
    const std::string fronts[] = {"Rain  fell\non it. The grey old mill",
                                  "The grey old mill stood there quietly still. So it went. The crew of",
                                  "So it went. The crew of the ship was small. Nobody ever saw"};
    const std::string rests[] = {" stood there quietly still.", " the ship was small.", " the two again."};
    for (std::size_t i = 0; i < 3; ++i) {
        INFO(i);
        CHECK(made[i].question == fronts[i]);
        CHECK(made[i].choices[made[i].answer] == rests[i]);
        CHECK(std::set<std::string>(made[i].choices.begin(), made[i].choices.end()) ==
              std::set<std::string>(std::begin(rests), std::end(rests)));
    }
    CHECK(io::continuation_questions(text, {.choices = 3, .context = 0})[1].question == "The crew of");
}

TEST_CASE("continuation questions: each is the text's own continuation among different rests of near lengths") {
    const std::string text = some_text(200);
    const auto made = io::continuation_questions(text, {.questions = 0, .nearest = 20});
    REQUIRE(made.size() == 200);
    for (const io::ChoiceQuestion& question : made) {
        io::check_choice_question(question, "a question");
        REQUIRE(question.choices.size() == 4);
        CHECK(text.find(question.question + question.choices[question.answer] + "\n") != std::string::npos);
        CHECK(std::set<std::string>(question.choices.begin(), question.choices.end()).size() == 4);
        for (const std::string& choice : question.choices) {
            const auto length = [](const std::string& rest) { return static_cast<double>(rest.size()); };
            CHECK(std::abs(length(choice) - length(question.choices[question.answer])) <= 3.0);
        }
    }
}

TEST_CASE("continuation questions: places of answers are drawn evenly, by a seed") {
    const std::string text = some_text(1200);
    io::ContinuationOptions options{.questions = 800, .most_bytes = 300};
    const auto made = io::continuation_questions(text, options);
    REQUIRE(made.size() == 800);
    std::vector<std::size_t> counts(4, 0);
    for (const io::ChoiceQuestion& question : made) ++counts[question.answer];
    for (const std::size_t count : counts) CHECK(std::abs(static_cast<double>(count) - 200.0) < 5.0 * 12.3);
    CHECK(io::continuation_questions(text, options) == made);
    options.seed = 2;
    const auto other = io::continuation_questions(text, options);
    std::size_t common = 0;
    for (const io::ChoiceQuestion& question : other)
        common += static_cast<std::size_t>(std::count_if(
            made.begin(), made.end(), [&](const auto& first) { return first.question == question.question; }));
    CHECK(common > 450);  // two thirds of two thirds: 533 of 800 are expected
    CHECK(common < 620);
    // The questions are in the text's order.
    const auto places = [&](const auto& questions) {
        std::vector<std::size_t> found;
        for (const auto& question : questions) found.push_back(text.find(question.question));
        return found;
    };
    const std::vector<std::size_t> found = places(made);
    CHECK(std::is_sorted(found.begin(), found.end()));
}

TEST_CASE("continuation questions: sentences that are too short, too long or repeated are left out") {
    std::string text = some_text(6) + some_text(6) + "Too short a sentence.\n";
    text += "This one has a very long rest: " + std::string(81, 'y') + ".\n";
    for (int i = 0; i < 41; ++i) text += "word ";
    const auto made = io::continuation_questions(text + "end.\n", {.choices = 2});
    CHECK(made.size() == 6);
}

TEST_CASE("continuation questions: options and texts that give none are errors") {
    CHECK_THROWS_WITH(io::continuation_questions(some_text(9), {.choices = 1}),
                      "continuation questions: 1 choices; expected at least 2");
    CHECK_THROWS_WITH(io::continuation_questions(some_text(9), {.least_words = 1}),
                      "continuation questions: least_words is 1; expected at least 2");
    CHECK_THROWS_WITH(io::continuation_questions(some_text(3)),
                      "continuation questions: the text has 3 sentences of 6 to 40 words with different ends of at "
                      "most 80 bytes; expected at least 4");
    CHECK_THROWS_WITH(io::continuation_questions("a\xff"), "data: text is not UTF-8: byte 0xff at offset 1");
    CHECK(io::continuation_questions(some_text(4)).size() == 4);
}
