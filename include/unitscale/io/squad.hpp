// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_text.hpp>
#include <unitscale/io/question.hpp>
#include <unitscale/io/text.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Questions in the JSON format of SQuAD 1.1 and 2.0, and predictions in the format that its evaluation reads.
namespace unitscale::io {

/// Reads the fields of a SQuAD file, and names the file, the place and the question in errors.
class SquadReader {
public:
    explicit SquadReader(const std::filesystem::path& path) : where_(concatenate("squad: ", path.string())) {
        const std::string bytes = read_bytes(path);
        // Values nested deeper than in any such file are left out: an error may then print what it found.
        const auto shallow = [](int depth, auto, const auto&) { return depth < 16; };
        json_ = parse_json<nlohmann::json>(where_, bytes, shallow);
    }

    [[nodiscard]] std::vector<Question> read() {
        if (!json_.is_object()) refuse("the text", json_, "an object with the key 'data'");
        std::set<std::string> ids;
        each(json_, "data", "", [&](const nlohmann::json& article, const std::string& article_place) {
            const std::string title = text_or_nothing(article, "title", article_place);
            each(article, "paragraphs", article_place + ".", [&](const nlohmann::json& paragraph, const auto& place) {
                const std::string context = text(paragraph, "context", place);
                const std::vector<std::size_t> bytes = character_bytes(context);
                each(paragraph, "qas", place + ".", [&](const nlohmann::json& entry, const std::string& at) {
                    Question question = read_question(entry, at, context, bytes);
                    question.title = title;
                    if (!ids.insert(question.id).second)
                        fail(where_, ": two questions have the id '", question.id, "'");
                    check_question(question, where_);
                    questions_.push_back(std::move(question));
                });
            });
        });
        check(!questions_.empty(), where_, " has no questions");
        return std::move(questions_);
    }

private:
    [[nodiscard]] Question read_question(const nlohmann::json& entry, const std::string& at, const std::string& context,
                                         const std::vector<std::size_t>& bytes) {
        Question question{.id = text(entry, "id", at), .context = context};
        const std::string place = concatenate("question '", question.id, "': ");
        question.question = text(entry, "question", place);
        if (const auto found = entry.find("is_impossible"); found != entry.end()) {
            if (!found->is_boolean()) refuse(place + "is_impossible", *found, "true or false");
            question.impossible = found->get<bool>();
        }
        each(entry, "answers", place, [&](const nlohmann::json& answer, const std::string& answer_place) {
            const nlohmann::json& start = member(answer, "answer_start", answer_place);
            if (!start.is_number_unsigned() || start.get<std::size_t>() >= bytes.size())
                refuse(answer_place + ".answer_start", start,
                       concatenate("a whole number below ", bytes.size(), ", the number of the context's characters"));
            question.answers.push_back({text(answer, "text", answer_place), bytes[start.get<std::size_t>()]});
        });
        return question;
    }
    /// The byte at which each character of a text begins.
    [[nodiscard]] static std::vector<std::size_t> character_bytes(const std::string& text) {
        std::vector<std::size_t> bytes;
        std::size_t byte = 0;
        for (const char32_t point : decode_utf8(text)) {
            bytes.push_back(byte);
            byte += utf8_length(point);
        }
        return bytes;
    }

    template <class Use>
    void each(const nlohmann::json& object, const char* key, const std::string& place, const Use& use) {
        const std::string owner = place.empty() || !place.ends_with('.') ? place : place.substr(0, place.size() - 1);
        const nlohmann::json& list = member(object, key, owner);
        if (!list.is_array()) refuse(place + key, list, "a list");
        for (std::size_t i = 0; i < list.size(); ++i) {
            const std::string here = concatenate(place, key, '[', i, ']');
            if (!list[i].is_object()) refuse(here, list[i], "an object");
            use(list[i], here);
        }
    }
    [[nodiscard]] const nlohmann::json& member(const nlohmann::json& object, const char* key,
                                               const std::string& place) const {
        const auto found = object.find(key);
        if (found == object.end())
            fail(where_, ": ", place, place.empty() || place.ends_with(": ") ? "" : " ", "has no key '", key, "'");
        return *found;
    }
    [[nodiscard]] std::string text(const nlohmann::json& object, const char* key, const std::string& place) const {
        const nlohmann::json& found = member(object, key, place);
        if (!found.is_string()) refuse(place.ends_with(": ") ? place + key : place + "." + key, found, "a text");
        return found.get<std::string>();
    }
    [[nodiscard]] std::string text_or_nothing(const nlohmann::json& object, const char* key,
                                              const std::string& place) const {
        return object.contains(key) ? text(object, key, place) : std::string();
    }
    [[noreturn]] void refuse(const std::string& place, const nlohmann::json& found, std::string_view expected) const {
        const std::string shown = found.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
        fail(where_, ": ", place, " is ", shown.size() <= 40 ? shown : shown.substr(0, 37) + "...", "; expected ",
             expected);
    }

    std::string where_;
    nlohmann::json json_{};
    std::vector<Question> questions_{};
};

/// The questions of a file in the JSON format of SQuAD 1.1 or 2.0, in its order:
///   data[] { title, paragraphs[] { context, qas[] } }
///   qas[]  { id, question, answers[] { text, answer_start }, is_impossible }
/// `answer_start` counts Unicode code points; `Answer::begin` counts bytes. A title may be absent, and so may
/// `is_impossible` (false). Other keys, as `plausible_answers`, are ignored.
/// Errors, in one line that names the file, the question's id and what was expected: a file that is missing or not
/// JSON; a key that is absent or of another type; an id that is there twice; the errors of `check_question`; no
/// questions.
///   squad: dev.json: question '7': answers[0].answer_start is "4"; expected a whole number below 90, ...
/// Reference: Rajpurkar et al. 2016, arXiv:1606.05250; Rajpurkar et al. 2018, arXiv:1806.03822.
/// Test: tests/io/squad_test.cpp
[[nodiscard]] inline std::vector<Question> read_squad(const std::filesystem::path& path) {
    return SquadReader(path).read();
}

/// Writes questions in this format, whole or not at all. Neighbours with equal titles and contexts share them in the
/// file. The version is v2.0 with impossible questions, else 1.1.
/// Errors: those of `check_question`; texts that are not UTF-8; a file that cannot be written.
inline void write_squad(const std::filesystem::path& path, std::span<const Question> questions) {
    nlohmann::ordered_json data = nlohmann::ordered_json::array();
    const Question* last = nullptr;
    bool impossible = false;
    for (const Question& question : questions) {
        check_question(question, concatenate("squad: ", path.string()));
        impossible = impossible || question.impossible;
        const bool same_article = last != nullptr && last->title == question.title;
        if (!same_article) data.push_back({{"title", question.title}, {"paragraphs", nlohmann::ordered_json::array()}});
        nlohmann::ordered_json& paragraphs = data.back()["paragraphs"];
        if (!same_article || last->context != question.context)
            paragraphs.push_back({{"context", question.context}, {"qas", nlohmann::ordered_json::array()}});
        nlohmann::ordered_json answers = nlohmann::ordered_json::array();
        for (const Answer& answer : question.answers)
            answers.push_back({{"text", answer.text},
                               {"answer_start", decode_utf8(question.context.substr(0, answer.begin)).size()}});
        paragraphs.back()["qas"].push_back({{"id", question.id},
                                            {"question", question.question},
                                            {"answers", std::move(answers)},
                                            {"is_impossible", question.impossible}});
        last = &question;
    }
    const nlohmann::ordered_json file{{"version", impossible ? "v2.0" : "1.1"}, {"data", std::move(data)}};
    try {
        write_atomically("squad", path, file.dump() + "\n");
    } catch (const nlohmann::json::type_error&) {
        fail("squad: ", path.string(), ": a text is not UTF-8");
    }
}

/// Writes predictions as one object, id to text, as SQuAD's evaluation reads them. An empty text stands for no answer.
/// Errors: other numbers of texts than of questions; a file that cannot be written.
inline void write_predictions(const std::filesystem::path& path, std::span<const Question> questions,
                              std::span<const std::string> texts) {
    check(questions.size() == texts.size(), "squad: ", texts.size(), " predictions for ", questions.size(),
          " questions");
    nlohmann::ordered_json predictions = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < texts.size(); ++i) predictions[questions[i].id] = texts[i];
    write_atomically("squad", path,
                     predictions.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace unitscale::io
