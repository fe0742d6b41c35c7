// SPDX-License-Identifier: MIT
#include <unitscale/distributed/task_farm.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/mpi_session.hpp"
#include "support/temporary_folder.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

// Runs alone and under mpirun (tests/CMakeLists.txt). Process 0 checks; the others serve.
using namespace unitscale;
using distributed::TaskFarm;

namespace {

/// What the tasks of a farm have written and how they have ended.
struct Told {
    std::map<std::size_t, std::vector<std::string>> lines{};
    std::vector<std::size_t> done{};
    std::vector<std::string> again{}, lost{};
    distributed::TaskEvents events{
        .line = [this](std::size_t task, std::string_view line) { lines[task].emplace_back(line); },
        .done = [this](std::size_t task) { done.push_back(task); },
        .lost = [this](std::size_t task, const std::string& reason,
                       bool once_more) { (once_more ? again : lost).push_back(concatenate(task, ": ", reason)); },
    };
    std::set<std::size_t> done_once() const {
        std::set<std::size_t> once(done.begin(), done.end());
        CHECK(once.size() == done.size());
        return once;
    }
};

std::vector<std::string> shell(const std::string& script) { return {"sh", "-c", script, "sh"}; }

}  // namespace

TEST_CASE("task farm: every task runs once, and its lines come back whole and in order") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    TaskFarm farm(shell("echo begin $1; i=0; while [ $i -lt 1000 ]; do echo $1 $i; i=$((i+1)); done"),
                  {.side_by_side = 2});
    if (farm.rank() > 0) return farm.serve();
    Told told;
    std::vector<std::string> tasks;
    for (int i = 0; i < 11; ++i) tasks.push_back(std::to_string(100 + i));
    farm.run(tasks, told.events);
    CHECK(told.done_once().size() == tasks.size());
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        REQUIRE(told.lines[i].size() == 1001);
        CHECK(told.lines[i].front() == "begin " + tasks[i]);
        CHECK(told.lines[i].back() == tasks[i] + " 999");
    }
    CHECK(told.again.empty());
    CHECK_FALSE(farm.lost_process());

    // A farm runs further tasks, and none.
    Told further;
    farm.run({"x"}, further.events);
    farm.run({}, further.events);
    CHECK(further.done_once() == std::set<std::size_t>{0});
    CHECK(further.lines[0].front() == "begin x");
}

TEST_CASE("task farm: tasks run side by side in all processes") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    const std::string folder = test::TemporaryFolder().path().string() + "-together";  // of process 0
    // Every task leaves a mark and waits until all have: with fewer places it would never end.
    TaskFarm farm(shell("mkdir -p $(dirname $1); : > $1; n=0; while [ $(ls $(dirname $1) | wc -l) -lt ${1##*of} ] && "
                        "[ $n -lt 2000 ]; do sleep 0.01; n=$((n+1)); done; echo $n"),
                  {.side_by_side = 2});
    if (farm.rank() > 0) return farm.serve();
    std::vector<std::string> tasks;
    for (std::size_t i = 0; i < 2 * farm.size(); ++i)
        tasks.push_back(concatenate(folder, '/', i, "of", 2 * farm.size()));
    Told told;
    farm.run(tasks, told.events);
    std::filesystem::remove_all(folder);
    CHECK(told.done_once().size() == tasks.size());
    for (const auto& [task, lines] : told.lines) CHECK(std::stoi(lines.front()) < 2000);
}

TEST_CASE("task farm: a program that dies costs its task only, which is given out again") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    const test::TemporaryFolder folder;
    // Dies as long as there is a file of its name with marks left.
    TaskFarm farm(shell("echo try; if rmdir $1/a 2> /dev/null; then kill -9 $$; fi; if rmdir $1/b 2> /dev/null; then "
                        "exit 3; fi; if [ -d $1/c ]; then kill -11 $$; fi"),
                  {.attempts = 3});
    if (farm.rank() > 0) return farm.serve();
    std::vector<std::string> tasks;
    for (const char* name : {"whole", "twice", "always"}) tasks.push_back((folder.path() / name).string());
    for (const char* mark : {"twice/a", "twice/b", "always/a", "always/c"})
        std::filesystem::create_directories(folder.path() / mark);
    Told told;
    farm.run(tasks, told.events);
    CHECK(told.done_once() == std::set<std::size_t>{0, 1});
    CHECK(told.lines[1].size() == 3);
    const auto begins = [](const std::vector<std::string>& texts, std::string_view begin) {
        return std::count_if(texts.begin(), texts.end(),
                             [&](const std::string& text) { return text.starts_with(begin); });
    };
    CHECK(told.again.size() == 4);
    CHECK(begins(told.again, "1: signal 9 in process ") == 1);
    CHECK(begins(told.again, "1: exit code 3 in process ") == 1);
    CHECK(begins(told.again, "2: signal 9 in process ") == 1);
    CHECK(begins(told.again, "2: signal 11 in process ") == 1);
    REQUIRE(told.lost.size() == 1);
    CHECK(told.lost.front().starts_with("2: signal 11 in process "));
}

TEST_CASE("task farm: a program that cannot be started loses its tasks") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    TaskFarm farm({"/nowhere/program"}, {.attempts = 2});
    if (farm.rank() > 0) return farm.serve();
    Told told;
    farm.run({"a", "b", "c"}, told.events);
    CHECK(told.lost.size() == 3);
    const std::string& lost = told.lost.front();
    INFO(lost);
    CHECK((lost.find(": ChildProcess: /nowhere/program cannot be started: No such file or directory in process ") !=
               std::string::npos ||
           lost.find(": exit code 127 in process ") != std::string::npos));  // POSIX allows both
}

TEST_CASE("task farm: an error of an event ends the farm and its programs") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    const auto begin = std::chrono::steady_clock::now();
    {
        TaskFarm farm(shell("echo $1; exec sleep 60"), {});
        if (farm.rank() > 0) {
            farm.serve();
        } else {
            CHECK(test::error_of([&] {
                      farm.run({"a", "b", "c", "d", "e"},
                               {.line = [](std::size_t, std::string_view line) { fail("enough of ", line); }});
                  }).starts_with("enough of "));
        }
    }
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("task farm: processes do not wait for ever for a process 0 that gives out nothing") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    std::string error;
    TaskFarm farm(shell("echo $1"), {.pause = std::chrono::milliseconds(300)});
    if (farm.rank() > 0) error = test::error_of([&] { farm.serve(); });
    MPI_Barrier(MPI_COMM_WORLD);  // process 0 is alive, and silent
    if (farm.rank() > 0) CHECK(error == "TaskFarm: process 0 has been silent for 0.3 s without tasks");
    CHECK(farm.lost_process() == (farm.rank() > 0));
}
