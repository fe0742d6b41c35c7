// SPDX-License-Identifier: MIT
#include <unitscale/io/squad.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

using namespace unitscale;
using io::Question;

namespace {
/// Written for this test. `mills` begins at code point 10, which is byte 11.
const nlohmann::json file = nlohmann::json::parse(R"({"version": "v2.0", "data": [
  {"title": "River", "paragraphs": [
    {"context": "Caf\u00e9s and mills stood still in 1914.", "qas": [
      {"id": "a", "question": "What stood?", "is_impossible": false,
       "answers": [{"text": "mills", "answer_start": 10}, {"text": "Caf\u00e9s and mills", "answer_start": 0}]},
      {"id": "b", "question": "Who came?", "is_impossible": true, "answers": [],
       "plausible_answers": [{"text": "mills", "answer_start": 10}]}]},
    {"context": "Rain.", "qas": [{"id": "c", "question": "What?", "answers": [{"text": "Rain", "answer_start": 0}]}]}]},
  {"paragraphs": []}]})");

std::string fault(const test::TemporaryFolder& folder, auto change) {
    nlohmann::json json = file;
    change(json);
    const auto path = folder.write("squad.json", json.dump());
    const std::string error = test::error_of([&] { static_cast<void>(io::read_squad(path)); });
    const std::string begin = "squad: " + path.string();
    CHECK(error.substr(0, begin.size()) == begin);
    CHECK(error.find('\n') == std::string::npos);
    return error.size() < begin.size() ? error : error.substr(begin.size());
}
}  // namespace

TEST_CASE("squad: questions of version 1.1 and 2.0 are read, with answers at bytes") {
    const test::TemporaryFolder folder;
    const auto questions = io::read_squad(folder.write("squad.json", file.dump()));
    const std::string context = "Caf\u00e9s and mills stood still in 1914.";
    REQUIRE(questions.size() == 3);
    CHECK(questions[0] == Question{.id = "a",
                                   .title = "River",
                                   .context = context,
                                   .question = "What stood?",
                                   .answers = {{"mills", 11}, {"Caf\u00e9s and mills", 0}}});
    CHECK(questions[1] ==
          Question{.id = "b", .title = "River", .context = context, .question = "Who came?", .impossible = true});
    CHECK(questions[2] ==
          Question{.id = "c", .title = "River", .context = "Rain.", .question = "What?", .answers = {{"Rain", 0}}});
}

TEST_CASE("squad: written questions are read back, and share articles and contexts in the file") {
    const test::TemporaryFolder folder;
    const auto questions = io::read_squad(folder.write("squad.json", file.dump()));
    io::write_squad(folder.path() / "copy.json", questions);
    CHECK(io::read_squad(folder.path() / "copy.json") == questions);
    const auto json = nlohmann::json::parse(folder.read(folder.path() / "copy.json"));
    CHECK(json["version"] == "v2.0");
    REQUIRE(json["data"].size() == 1);
    REQUIRE(json["data"][0]["paragraphs"].size() == 2);
    CHECK(json["data"][0]["paragraphs"][0]["qas"].size() == 2);
    CHECK(json["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] == 10);

    const std::vector<Question> answered{questions[0], questions[2]};
    io::write_squad(folder.path() / "answered.json", answered);
    CHECK(nlohmann::json::parse(folder.read(folder.path() / "answered.json"))["version"] == "1.1");

    std::vector<Question> wrong{questions[2]};
    wrong[0].answers[0].begin = 1;
    CHECK_THROWS_WITH(io::write_squad(folder.path() / "wrong.json", wrong),
                      Catch::EndsWith("question 'c': answer 0 is 'Rain', but at its place stands 'ain.'"));
    wrong = {questions[2]};
    wrong[0].question = "\xff";
    CHECK_THROWS_WITH(io::write_squad(folder.path() / "wrong.json", wrong), Catch::EndsWith("a text is not UTF-8"));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "wrong.json"));
}

TEST_CASE("squad: predictions are an object of ids and texts") {
    const test::TemporaryFolder folder;
    const auto questions = io::read_squad(folder.write("squad.json", file.dump()));
    const std::vector<std::string> texts{"mills", "", "Rain"};
    io::write_predictions(folder.path() / "p.json", questions, texts);
    CHECK(nlohmann::json::parse(folder.read(folder.path() / "p.json")) ==
          nlohmann::json{{"a", "mills"}, {"b", ""}, {"c", "Rain"}});
    CHECK_THROWS_WITH(io::write_predictions(folder.path() / "p.json", questions, std::vector<std::string>{"x"}),
                      "squad: 1 predictions for 3 questions");
}

TEST_CASE("squad: a fault is one line with the file, the place or question, and what was expected") {
    const test::TemporaryFolder folder;
    const auto question = [](nlohmann::json& json) -> nlohmann::json& {
        return json["data"][0]["paragraphs"][0]["qas"][0];
    };
    const std::string first = ": data[0].paragraphs[0]";
    CHECK(fault(folder, [](auto& j) { j = nlohmann::json::array(); }) ==
          ": the text is []; expected an object with the key 'data'");
    CHECK(fault(folder, [](auto& j) { j.erase("data"); }) == ": has no key 'data'");
    CHECK(fault(folder, [](auto& j) { j["data"] = 3; }) == ": data is 3; expected a list");
    CHECK(fault(folder, [](auto& j) { j["data"] = nlohmann::json::array(); }) == " has no questions");
    CHECK(fault(folder, [](auto& j) { j["data"][0] = "x"; }) == ": data[0] is \"x\"; expected an object");
    CHECK(fault(folder, [](auto& j) { j["data"][0]["title"] = 1; }) == ": data[0].title is 1; expected a text");
    CHECK(fault(folder, [](auto& j) { j["data"][0].erase("paragraphs"); }) == ": data[0] has no key 'paragraphs'");
    CHECK(fault(folder, [](auto& j) { j["data"][0]["paragraphs"][0].erase("context"); }) ==
          first + " has no key 'context'");
    CHECK(fault(folder, [](auto& j) { j["data"][0]["paragraphs"][0]["context"] = {1}; }) ==
          first + ".context is [1]; expected a text");
    CHECK(fault(folder, [](auto& j) { j["data"][0]["paragraphs"][0]["qas"] = nullptr; }) ==
          first + ".qas is null; expected a list");
    CHECK(fault(folder, [&](auto& j) { question(j).erase("id"); }) == first + ".qas[0] has no key 'id'");
    CHECK(fault(folder, [&](auto& j) { question(j)["id"] = "b"; }) == ": two questions have the id 'b'");
    CHECK(fault(folder, [&](auto& j) { question(j)["question"] = 2; }) ==
          ": question 'a': question is 2; expected a text");
    CHECK(fault(folder, [&](auto& j) { question(j).erase("answers"); }) == ": question 'a': has no key 'answers'");
    CHECK(fault(folder, [&](auto& j) { question(j)["is_impossible"] = "no"; }) ==
          ": question 'a': is_impossible is \"no\"; expected true or false");
    CHECK(fault(folder, [&](auto& j) { question(j)["is_impossible"] = true; }) ==
          ": question 'a': is impossible, but has 2 answers; expected none");
    CHECK(fault(folder, [&](auto& j) { question(j)["answers"] = nlohmann::json::array(); }) ==
          ": question 'a': has no answers; expected at least one, or an impossible question");
    CHECK(fault(folder, [&](auto& j) { question(j)["answers"][1].erase("text"); }) ==
          ": question 'a': answers[1] has no key 'text'");
    const std::string count = "; expected a whole number below 36, the number of the context's characters";
    CHECK(fault(folder, [&](auto& j) { question(j)["answers"][0]["answer_start"] = "10"; }) ==
          ": question 'a': answers[0].answer_start is \"10\"" + count);
    CHECK(fault(folder, [&](auto& j) { question(j)["answers"][0]["answer_start"] = -1; }) ==
          ": question 'a': answers[0].answer_start is -1" + count);
    CHECK(fault(folder, [&](auto& j) { question(j)["answers"][0]["answer_start"] = 36; }) ==
          ": question 'a': answers[0].answer_start is 36" + count);
    CHECK(fault(folder, [&](auto& j) { question(j)["answers"][0]["answer_start"] = 11; }) ==
          ": question 'a': answer 0 is 'mills', but at its place stands 'ills '");

    const auto path = folder.write("broken.json", "{\"data\": [}");
    CHECK_THROWS_WITH(io::read_squad(path), "squad: " + path.string() + " is not JSON: error at byte 11, line 1");
    const auto large = folder.write("large.json", "{\"data\": 1e999}");
    CHECK_THROWS_WITH(io::read_squad(large), "squad: " + large.string() + " has a number that is too large");
    CHECK_THROWS_WITH(io::read_squad(folder.path() / "none.json"), Catch::EndsWith("none.json does not exist"));
    // Nested far deeper than any stack is.
    const auto deep = folder.write("deep.json", std::string(1'000'000, '[') + std::string(1'000'000, ']'));
    CHECK_THROWS_WITH(io::read_squad(deep), Catch::Contains("expected an object with the key 'data'"));
}
