// SPDX-License-Identifier: MIT
#include <unitscale/io/json_choice_questions.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <filesystem>
#include <string>
#include <vector>

using namespace unitscale;
using io::ChoiceQuestion;

namespace {
const std::string good = R"({"question": "Caf\u00e9s", "choices": [" open.", " sing.\n"], "answer": 1, "id": 7})";

/// The error of a file with this second line, without the path in front.
std::string fault(const test::TemporaryFolder& folder, const std::string& line) {
    const auto path = folder.write("task.jsonl", good + "\n" + line + "\n");
    const std::string error = test::error_of([&] { static_cast<void>(io::read_choice_questions(path)); });
    const std::string begin = "data: " + path.string() + ": line 2";
    CHECK(error.substr(0, begin.size()) == begin);
    CHECK(error.find('\n') == std::string::npos);
    return error.size() < begin.size() ? error : error.substr(begin.size());
}
}  // namespace

TEST_CASE("choice questions: lines of JSON are read in order; other keys and blank lines are skipped") {
    const test::TemporaryFolder folder;
    const std::string second = R"({"answer":0,"choices":["a","b","c"],"question":"x"})";
    const std::vector<ChoiceQuestion> expected{
        {.question = "Caf\u00e9s", .choices = {" open.", " sing.\n"}, .answer = 1},
        {.question = "x", .choices = {"a", "b", "c"}, .answer = 0}};
    CHECK(io::read_choice_questions(folder.write("a.jsonl", good + "\n\n \t\r\n" + second)) == expected);
    CHECK(io::read_choice_questions(folder.write("b.jsonl", good + "\r\n" + second + "\r\n")) == expected);
}

TEST_CASE("choice questions: written questions are read back; a wrong question writes nothing") {
    const test::TemporaryFolder folder;
    std::vector<ChoiceQuestion> questions{{.question = "\"\u00e9\"\\", .choices = {"\t", " \u20ac\n"}, .answer = 1},
                                          {.question = "x", .choices = {"a", "b", "c"}, .answer = 2}};
    const auto path = folder.path() / "task.jsonl";
    io::write_choice_questions(path, questions);
    CHECK(io::read_choice_questions(path) == questions);
    questions[1].answer = 3;
    const auto other = folder.path() / "other.jsonl";
    CHECK_THROWS_WITH(
        io::write_choice_questions(other, questions),
        "data: " + other.string() + ": line 2: answer is 3; expected a whole number below 3, the number of choices");
    CHECK_FALSE(std::filesystem::exists(other));
    questions[1].answer = 0;
    CHECK_THROWS_WITH(io::write_choice_questions(folder.path() / "none" / "a.jsonl", questions),
                      Catch::Contains("a.jsonl cannot be written"));
}

TEST_CASE("choice questions: a fault is one line with the file, the line and the field") {
    const test::TemporaryFolder folder;
    CHECK(fault(folder, "{\"question\": ") == " is not JSON");
    CHECK(fault(folder, "[1]") == " is of type array; expected an object");
    CHECK(fault(folder, "{\"question\": \"\xff\"}") == " is not UTF-8: byte 0xff at offset 14");
    CHECK(fault(folder, R"({"question": "\ud800", "choices": ["a", "b"], "answer": 0})") == " is not JSON");
    CHECK(fault(folder, R"({"choices": ["a", "b"], "answer": 0})") == " has no key 'question'");
    CHECK(fault(folder, R"({"question": "x", "answer": 0})") == " has no key 'choices'");
    CHECK(fault(folder, R"({"question": "x", "choices": ["a", "b"]})") == " has no key 'answer'");
    CHECK(fault(folder, R"({"question": 4, "choices": ["a", "b"], "answer": 0})") ==
          ": question is 4; expected a text");
    CHECK(fault(folder, R"({"question": "x", "choices": "ab", "answer": 0})") ==
          ": choices is of type string; expected a list of texts");
    CHECK(fault(folder, R"({"question": "x", "choices": ["a", null], "answer": 0})") ==
          ": choices[1] is of type null; expected a text");
    for (const char* answer : {"-1", "1.5"})
        CHECK(fault(folder, std::string(R"({"question": "x", "choices": ["a", "b"], "answer": )") + answer + "}") ==
              std::string(": answer is ") + answer + "; expected a whole number, not negative");
    CHECK(fault(folder, R"({"question": "x", "choices": ["a", "b"], "answer": "0"})") ==
          ": answer is of type string; expected a whole number, not negative");
    CHECK(fault(folder, R"({"question": "x", "choices": ["a", "b"], "answer": 2})") ==
          ": answer is 2; expected a whole number below 2, the number of choices");
    CHECK(fault(folder, R"({"question": "x", "choices": ["a"], "answer": 0})") ==
          ": choices has 1 entry; expected at least 2");
    CHECK(fault(folder, R"({"question": "x", "choices": ["a", ""], "answer": 0})") == ": choices[1] is empty");
    CHECK(fault(folder, R"({"question": "", "choices": ["a", "b"], "answer": 0})") == ": question is empty");
    // Nested far deeper than any stack is.
    CHECK(fault(folder, std::string(1'000'000, '[') + std::string(1'000'000, ']')) ==
          " is of type array; expected an object");

    const auto empty = folder.write("empty.jsonl", "\n  \n");
    CHECK_THROWS_WITH(io::read_choice_questions(empty), "data: " + empty.string() + " has no questions");
    CHECK_THROWS_WITH(io::read_choice_questions(folder.path() / "none.jsonl"),
                      Catch::EndsWith("none.jsonl does not exist"));
}
