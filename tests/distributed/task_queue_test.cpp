// SPDX-License-Identifier: MIT
#include <unitscale/distributed/task_queue.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;
using distributed::TaskQueue;

namespace {

/// The events of a queue, as texts.
struct Told {
    std::vector<std::string> all{};
    distributed::TaskEvents events{
        .line = [this](std::size_t task, std::string_view line) { all.push_back(concatenate(task, ": ", line)); },
        .done = [this](std::size_t task) { all.push_back(concatenate(task, " done")); },
        .lost = [this](std::size_t task, const std::string& reason,
                       bool again) { all.push_back(concatenate(task, again ? " again: " : " lost: ", reason)); },
    };
};
using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("task queue: tasks are given in order, each to one worker, and end once") {
    Told told;
    TaskQueue queue(3, {true, true}, 2, told.events);
    CHECK_FALSE(queue.empty());
    CHECK(queue.take(0) == 0u);
    CHECK(queue.take(1) == 1u);
    CHECK(queue.take(0) == 2u);
    CHECK(queue.take(1) == std::nullopt);
    CHECK(queue.held(0) == 2);
    CHECK(queue.held(1) == 1);
    queue.end(1, 0, "");  // of another worker
    queue.end(0, 7, "");  // of no task
    CHECK(told.all.empty());
    queue.end(0, 0, "");
    queue.end(0, 0, "");
    CHECK(told.all == Texts{"0 done"});
    CHECK(queue.held(0) == 1);
    queue.end(1, 1, "");
    CHECK_FALSE(queue.empty());
    queue.end(0, 2, "");
    CHECK(queue.empty());
    CHECK(told.all == Texts{"0 done", "1 done", "2 done"});
    CHECK(TaskQueue(0, {true}, 1, {}).empty());
}

TEST_CASE("task queue: lines are put together from parts, for each task") {
    Told told;
    TaskQueue queue(2, {true, true}, 2, told.events);
    REQUIRE(queue.take(0) == 0u);
    REQUIRE(queue.take(1) == 1u);
    queue.write(0, 0, "on");
    queue.write(1, 1, "two\n\nth");
    queue.write(0, 0, "e\n");
    queue.write(0, 1, "of another worker\n");
    queue.write(1, 1, "ree\n");
    queue.write(1, 1, "rest");
    CHECK(told.all == Texts{"1: two", "1: ", "0: one", "1: three"});
    // What a lost attempt has left of a line is not the begin of the next attempt's line.
    queue.end(1, 1, "signal 9");
    REQUIRE(queue.take(0) == 1u);
    queue.write(0, 1, "four\n");
    CHECK(told.all.back() == "1: four");
}

TEST_CASE("task queue: a lost task waits behind the others, for another worker, and is lost for good in the end") {
    Told told;
    TaskQueue queue(2, {true, true, true}, 3, told.events);
    REQUIRE(queue.take(1) == 0u);
    queue.end(1, 0, "signal 9");
    CHECK(told.all == Texts{"0 again: signal 9"});
    CHECK(queue.take(2) == 1u);
    CHECK(queue.take(1) == std::nullopt);  // it has lost that task
    CHECK(queue.take(2) == 0u);
    queue.end(2, 0, "signal 11");
    CHECK(queue.take(2) == std::nullopt);
    CHECK(queue.take(1) == 0u);  // another one has lost it since
    queue.end(1, 0, "exit code 1");
    CHECK(told.all == Texts{"0 again: signal 9", "0 again: signal 11", "0 lost: exit code 1"});
    CHECK_FALSE(queue.empty());
    queue.end(2, 1, "");
    CHECK(queue.empty());
}

TEST_CASE("task queue: the tasks of a worker that is gone are given to others, and it gets none") {
    Told told;
    TaskQueue queue(3, {true, true, false}, 3, told.events);
    REQUIRE(queue.take(1) == 0u);
    REQUIRE(queue.take(1) == 1u);
    CHECK(queue.take(2) == std::nullopt);  // gone before
    queue.lose(1, "silent");
    CHECK(told.all == Texts{"0 again: silent", "1 again: silent"});
    queue.end(1, 0, "");  // too late
    CHECK(told.all.size() == 2);
    CHECK(queue.take(1) == std::nullopt);
    CHECK(queue.take(0) == 2u);
    CHECK(queue.take(0) == 0u);
    queue.end(0, 0, "signal 9");
    CHECK(queue.take(0) == 1u);
    CHECK(queue.take(0) == 0u);  // no other worker is left
}
