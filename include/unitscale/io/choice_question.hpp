// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/text.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::io {

/// A multiple-choice question, in UTF-8. Each choice continues the question's text, and may begin with a blank.
struct ChoiceQuestion {
    std::string question{};
    std::vector<std::string> choices{};
    std::size_t answer = 0;  ///< the number of the right choice, from 0

    friend bool operator==(const ChoiceQuestion&, const ChoiceQuestion&) = default;
};

/// The errors of a question, in one line that names `where` and the field. They are: an empty question; fewer than two
/// choices; an empty choice; an answer that is no choice's number; a text that is not UTF-8.
///   data: task.jsonl: line 3: answer is 4; expected a whole number below 4, the number of choices
/// Test: tests/io/choice_question_test.cpp
inline void check_choice_question(const ChoiceQuestion& question, std::string_view where) {
    const auto check_text = [&](const std::string& text, const std::string& field) {
        check(!text.empty(), "data: ", where, ": ", field, " is empty");
        static_cast<void>(decode_utf8(text, concatenate(where, ": ", field)));
    };
    const std::size_t count = question.choices.size();
    check_text(question.question, "question");
    check(count >= 2, "data: ", where, ": choices has ", count, count == 1 ? " entry" : " entries",
          "; expected at least 2");
    for (std::size_t i = 0; i < count; ++i) check_text(question.choices[i], concatenate("choices[", i, "]"));
    check(question.answer < count, "data: ", where, ": answer is ", question.answer, "; expected a whole number below ",
          count, ", the number of choices");
}

}  // namespace unitscale::io
