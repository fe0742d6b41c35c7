// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::io {

/// A part of a context that answers a question.
struct Answer {
    std::string text{};
    std::size_t begin = 0;  ///< the byte of the context at which the text stands

    friend bool operator==(const Answer&, const Answer&) = default;
};

/// A question about a context, in UTF-8. Several answers are what several people marked.
struct Question {
    std::string id{}, title{};  ///< title: of the document that the context is from
    std::string context{}, question{};
    std::vector<Answer> answers{};
    bool impossible = false;  ///< the context has no answer

    friend bool operator==(const Question&, const Question&) = default;
};

/// The errors of a question, in one line that begins with `where` and names the id. They are: no id; no answer, unless
/// the question is impossible; answers, although it is; an answer that is empty, or does not stand at its place.
/// Test: tests/io/question_test.cpp
inline void check_question(const Question& question, std::string_view where) {
    check(!question.id.empty(), where, ": a question without an id: '", question.question.substr(0, 40), "'");
    const auto fault = [&](const auto&... parts) { fail(where, ": question '", question.id, "': ", parts...); };
    if (question.impossible && !question.answers.empty())
        fault("is impossible, but has ", question.answers.size(), " answers; expected none");
    if (!question.impossible && question.answers.empty())
        fault("has no answers; expected at least one, or an impossible question");
    for (std::size_t i = 0; i < question.answers.size(); ++i) {
        const Answer& answer = question.answers[i];
        if (answer.text.empty()) fault("answer ", i, " is empty");
        if (answer.begin > question.context.size() ||
            question.context.compare(answer.begin, answer.text.size(), answer.text) != 0)
            fault("answer ", i, " is '", answer.text.substr(0, 40), "', but at its place stands '",
                  question.context.substr(std::min(answer.begin, question.context.size()),
                                          std::min<std::size_t>(answer.text.size(), 40)),
                  "'");
    }
}

}  // namespace unitscale::io
