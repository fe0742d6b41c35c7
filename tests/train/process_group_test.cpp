// SPDX-License-Identifier: MIT
#include <unitscale/train/process_group.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/thread_group.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string text_of(std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte byte : bytes) text += static_cast<char>(byte);
    return text;
}

/// The errors of processes that compare these facts, by process.
std::vector<std::string> errors_of(const std::vector<std::vector<train::SharedFact>>& facts) {
    std::vector<std::string> errors(facts.size());
    test::in_group(facts.size(), [&](const std::shared_ptr<train::ProcessGroup>& group) {
        errors[group->rank()] = test::error_of([&] { train::check_same(*group, facts[group->rank()]); });
    });
    return errors;
}

}  // namespace

TEST_CASE("a group of one process keeps its data") {
    train::ProcessGroup group;
    CHECK(group.rank() == 0);
    CHECK(group.size() == 1);
    std::string got(3, ' ');
    const std::vector<std::size_t> bytes = {3};
    group.exchange(bytes_of("abc"), bytes, std::as_writable_bytes(std::span(got)), bytes);
    CHECK(got == "abc");
    group.collect(bytes_of("def"), std::as_writable_bytes(std::span(got)), bytes);
    CHECK(got == "def");
    REQUIRE(group.gather(bytes_of("ghi")).size() == 1);
    CHECK(text_of(group.gather(bytes_of("ghi")).front()) == "ghi");
    CHECK_NOTHROW(train::check_same(group, std::vector<train::SharedFact>{{"seed", "1"}}));
}

TEST_CASE("processes gather texts of different lengths") {
    std::vector<std::string> got(3);
    test::in_group(3, [&](const std::shared_ptr<train::ProcessGroup>& group) {
        for (const auto& part : group->gather(bytes_of(std::string(group->rank(), 'x') + "|")))
            got[group->rank()] += text_of(part);
    });
    for (const std::string& text : got) CHECK(text == "|x|xx|");
}

TEST_CASE("processes with other facts are refused, with the first difference") {
    for (const std::string& error : errors_of({{{"build", "1"}, {"seed", "7"}}, {{"build", "1"}, {"seed", "7"}}}))
        CHECK(error.empty());
    for (const std::string& error :
         errors_of({{{"build", "1"}, {"seed", "7"}}, {{"build", "1"}, {"seed", "7"}}, {{"build", "1"}, {"seed", "8"}}}))
        CHECK(error == "processes: rank 2 has another seed than rank 0: '8', not '7'");
    const std::string before(100, 'b'), behind(100, 'c');
    for (const std::string& error :
         errors_of({{{"recipe", before + "x" + behind}}, {{"recipe", before + "y" + behind}}}))
        CHECK(error == "processes: rank 1 has another recipe than rank 0: '..." + std::string(30, 'b') + "y" +
                           std::string(29, 'c') + "...', not '..." + std::string(30, 'b') + "x" + std::string(29, 'c') +
                           "...'");
    for (const std::string& error : errors_of({{{"seed", "7"}}, {{"data", "7"}}}))
        CHECK(error == "processes: rank 1 has facts of other names than rank 0");
}

TEST_CASE("processes add numbers in their order") {
    std::vector<std::vector<double>> numbers = {{0x1p53, 0.0}, {1.0, 0.0}, {1.0, 7.0}};
    test::in_group(3, [&](const std::shared_ptr<train::ProcessGroup>& group) { group->sum(numbers[group->rank()]); });
    for (const std::vector<double>& each : numbers) CHECK(each == std::vector<double>{0x1p53, 7.0});
    std::vector<double> alone = {1.0};
    train::ProcessGroup group;
    group.sum(alone);
    CHECK(alone[0] == 1.0);
    const std::vector<std::byte> sent(3, std::byte{7});
    std::vector<std::byte> got(3);
    const std::vector<std::size_t> bytes = {3};
    CHECK(group.begin_exchange(sent, bytes, got, bytes)->is_done());
    CHECK(got == sent);
}

TEST_CASE("processes find the largest of their numbers") {
    for (const std::size_t count : {0u, 1u, 2u, 3u, 7u}) {
        std::vector<std::vector<float>> numbers(3, std::vector<float>(count));
        std::vector<float> expected(count);
        for (std::size_t i = 0; i < count; ++i) {
            for (std::size_t r = 0; r < 3; ++r) numbers[r][i] = static_cast<float>((5 * i + 7 * r) % 11);
            expected[i] = std::max({numbers[0][i], numbers[1][i], numbers[2][i]});
        }
        test::in_group(
            3, [&](const std::shared_ptr<train::ProcessGroup>& group) { group->maximise(numbers[group->rank()]); });
        for (const std::vector<float>& each : numbers) CHECK(each == expected);
    }
    std::vector<float> alone = {1.0f};
    train::ProcessGroup().maximise(alone);
    CHECK(alone[0] == 1.0f);
}
