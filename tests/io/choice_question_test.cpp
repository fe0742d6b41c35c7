// SPDX-License-Identifier: MIT
#include <unitscale/io/choice_question.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <string>

using namespace unitscale;

TEST_CASE("choice question: a fault is one line with the place and the field") {
    const io::ChoiceQuestion good{.question = "The mill", .choices = {" stood.", " sang."}, .answer = 1};
    const auto fault = [&](auto change) {
        io::ChoiceQuestion question = good;
        change(question);
        return test::error_of([&] { io::check_choice_question(question, "a.jsonl: line 2"); });
    };
    const std::string begin = "data: a.jsonl: line 2: ";
    CHECK(fault([](auto&) {}).empty());
    CHECK(fault([](auto& q) { q.question.clear(); }) == begin + "question is empty");
    CHECK(fault([](auto& q) { q.choices.clear(); }) == begin + "choices has 0 entries; expected at least 2");
    CHECK(fault([](auto& q) { q.choices.pop_back(); }) == begin + "choices has 1 entry; expected at least 2");
    CHECK(fault([](auto& q) { q.choices[1].clear(); }) == begin + "choices[1] is empty");
    CHECK(fault([](auto& q) { q.answer = 2; }) ==
          begin + "answer is 2; expected a whole number below 2, the number of choices");
    CHECK(fault([](auto& q) { q.choices[0] = "a\xff"; }) ==
          "data: a.jsonl: line 2: choices[0] is not UTF-8: byte 0xff at offset 1");
    CHECK(fault([](auto& q) { q.question = "\xc3"; }) ==
          "data: a.jsonl: line 2: question is not UTF-8: byte 0xc3 at offset 0");
}
