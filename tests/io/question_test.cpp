// SPDX-License-Identifier: MIT
#include <unitscale/io/question.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <string>

using namespace unitscale;

namespace {
std::string fault(auto change) {
    io::Question question{
        .id = "7", .context = "The mill stood still.", .question = "What stood?", .answers = {{"mill", 4}}};
    change(question);
    return test::error_of([&] { io::check_question(question, "file"); });
}
}  // namespace

TEST_CASE("question: a right one passes, and a fault is one line with the id") {
    CHECK(fault([](auto&) {}).empty());
    CHECK(fault([](auto& q) { q.answers.push_back({"The mill", 0}); }).empty());
    CHECK(fault([](auto& q) { q.answers.clear(), q.impossible = true; }).empty());
    CHECK(fault([](auto& q) { q.id.clear(); }) == "file: a question without an id: 'What stood?'");
    CHECK(fault([](auto& q) { q.answers.clear(); }) ==
          "file: question '7': has no answers; expected at least one, or an impossible question");
    CHECK(fault([](auto& q) { q.impossible = true; }) ==
          "file: question '7': is impossible, but has 1 answers; expected none");
    CHECK(fault([](auto& q) { q.answers[0].text.clear(); }) == "file: question '7': answer 0 is empty");
    CHECK(fault([](auto& q) { q.answers[0].begin = 5; }) ==
          "file: question '7': answer 0 is 'mill', but at its place stands 'ill '");
    CHECK(fault([](auto& q) {
              q.answers[0] = {"still.", 16};
          }) == "file: question '7': answer 0 is 'still.', but at its place stands 'till.'");
    CHECK(fault([](auto& q) { q.answers[0].begin = 1000; }) ==
          "file: question '7': answer 0 is 'mill', but at its place stands ''");
}
