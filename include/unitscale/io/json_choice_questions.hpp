// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/choice_question.hpp>
#include <unitscale/io/text.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Multiple-choice questions in files of JSON lines:
//   {"question": "The river rose", "choices": [" over its banks.", " and spoke."], "answer": 0}
namespace unitscale::io {

/// The question of one line. Errors: see `read_choice_questions`.
[[nodiscard]] inline ChoiceQuestion choice_question_from_json(std::string_view line, const std::string& where) {
    static_cast<void>(decode_utf8(line, where));
    const auto json = nlohmann::json::parse(line, nullptr, false);
    check(!json.is_discarded(), "data: ", where, " is not JSON");
    const auto refuse = [&](const std::string& place, const nlohmann::json& found, std::string_view expected) {
        fail("data: ", where, place.empty() ? "" : ": ", place, " is ",
             found.is_number() ? found.dump() : concatenate("of type ", found.type_name()), "; expected ", expected);
    };
    if (!json.is_object()) refuse("", json, "an object");
    const auto member = [&](const char* key) -> const nlohmann::json& {
        const auto found = json.find(key);
        if (found == json.end()) fail("data: ", where, " has no key '", key, "'");
        return *found;
    };
    const auto text = [&](const std::string& place, const nlohmann::json& found) {
        if (!found.is_string()) refuse(place, found, "a text");
        return found.get<std::string>();
    };
    ChoiceQuestion question{.question = text("question", member("question"))};
    const nlohmann::json &choices = member("choices"), &answer = member("answer");
    if (!choices.is_array()) refuse("choices", choices, "a list of texts");
    for (std::size_t i = 0; i < choices.size(); ++i)
        question.choices.push_back(text(concatenate("choices[", i, "]"), choices[i]));
    if (!answer.is_number_unsigned()) refuse("answer", answer, "a whole number, not negative");
    question.answer = answer.get<std::size_t>();
    check_choice_question(question, where);
    return question;
}

/// The questions of a file, one to a line, in its order. Lines of white space are skipped, and so are other keys.
/// Errors, in one line that names the file, the line and the field: a file that is missing or has no questions; a line
/// that is not UTF-8 or not a JSON object; a key that is absent or of another type; the errors of
/// `check_choice_question`.
///   data: task.jsonl: line 3 has no key 'answer'
/// Test: tests/io/json_choice_questions_test.cpp
[[nodiscard]] inline std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& path) {
    const std::string bytes = read_bytes(path);
    std::vector<ChoiceQuestion> questions;
    std::size_t number = 0;
    for (std::size_t begin = 0, end = 0; begin < bytes.size(); begin = end + 1) {
        end = std::min(bytes.find('\n', begin), bytes.size());
        ++number;
        const std::string_view line = std::string_view(bytes).substr(begin, end - begin);
        if (line.find_first_not_of(" \t\r") == line.npos) continue;
        questions.push_back(choice_question_from_json(line, concatenate(path.string(), ": line ", number)));
    }
    check(!questions.empty(), "data: ", path.string(), " has no questions");
    return questions;
}

/// Writes questions in this format, whole or not at all.
/// Errors: the errors of `check_choice_question`, for the line that the question would be; a file that cannot be
/// written.
inline void write_choice_questions(const std::filesystem::path& path, std::span<const ChoiceQuestion> questions) {
    std::string text;
    for (std::size_t i = 0; i < questions.size(); ++i) {
        check_choice_question(questions[i], concatenate(path.string(), ": line ", i + 1));
        const nlohmann::ordered_json line{
            {"question", questions[i].question}, {"choices", questions[i].choices}, {"answer", questions[i].answer}};
        text += line.dump() + "\n";
    }
    write_atomically("data", path, text);
}

}  // namespace unitscale::io
