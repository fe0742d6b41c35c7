// SPDX-License-Identifier: MIT
#include <unitscale/base/child_process.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

using namespace unitscale;

namespace {

/// All that a program writes, to its end.
std::string all_of(ChildProcess& child) {
    std::string text;
    while (child.read(text)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return text;
}

ChildProcess shell(const std::string& script) { return ChildProcess({"sh", "-c", script}); }

}  // namespace

TEST_CASE("child process: arguments reach the program, and its output is read whole") {
    ChildProcess echo({"printf", "%s|", "a b", "", "'\"$x\n"});
    CHECK(all_of(echo) == "a b||'\"$x\n|");
    CHECK(echo.failure().empty());
    CHECK(echo.id() == -1);
    ChildProcess many = shell("i=0; while [ $i -lt 20000 ]; do echo 123456789; i=$((i+1)); done");
    CHECK(all_of(many).size() == 200'000);  // more than a pipe holds
    std::string more = "kept";
    CHECK_FALSE(many.read(more));
    CHECK(more == "kept");
}

TEST_CASE("child process: reading does not wait, and comes in parts") {
    ChildProcess child = shell("echo first; sleep 0.2; echo second");
    std::string text;
    while (text.empty()) REQUIRE(child.read(text));
    CHECK(text == "first\n");
    CHECK(child.id() > 0);
    CHECK(all_of(child) == "second\n");
}

TEST_CASE("child process: the way of its end is told") {
    const auto end_of = [](const std::string& script) {
        ChildProcess child = shell(script);
        static_cast<void>(all_of(child));
        return child.failure();
    };
    CHECK(end_of("exit 0") == "");
    CHECK(end_of("exit 3") == "exit code 3");
    CHECK(end_of("kill -9 $$") == "signal 9");
    // A program that leaves another one behind, which holds its output, has ended.
    const auto begin = std::chrono::steady_clock::now();
    CHECK(end_of("sleep 20 & exit 4") == "exit code 4");
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("child process: input is empty, and a launcher's variables and open files are not inherited") {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_NAMESPACE", "SLURM_STEP_NUM_TASKS"})
        setenv(name, "7", 1);
    setenv("SLURM_JOB_ID", "8", 1);
    ChildProcess variables =
        shell("echo $OMPI_COMM_WORLD_SIZE $PMI_RANK $PMIX_NAMESPACE $SLURM_STEP_NUM_TASKS $SLURM_JOB_ID");
    CHECK(all_of(variables) == "8\n");
    for (const char* name :
         {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_NAMESPACE", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"})
        unsetenv(name);
    ChildProcess input({"cat"});
    CHECK(all_of(input).empty());
    CHECK(input.failure().empty());
    // A pipe that is not inherited ends when this process closes it.
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    ChildProcess beside = shell("sleep 20");
    close(ends[1]);
    char byte = 0;
    CHECK(read(ends[0], &byte, 1) == 0);
    close(ends[0]);
}

TEST_CASE("child process: the destructor kills it, and a program without a reader ends") {
    pid_t id = 0;
    {
        ChildProcess child = shell("sleep 20");
        id = child.id();
        ChildProcess moved = std::move(child);
        CHECK(child.id() == -1);
        CHECK(moved.id() == id);
        CHECK(kill(id, 0) == 0);
    }
    CHECK(kill(id, 0) != 0);
    signal(SIGPIPE, SIG_IGN);
    ChildProcess writer = shell("kill -s PIPE $$; exit 5");  // the signal is not ignored in the program
    static_cast<void>(all_of(writer));
    signal(SIGPIPE, SIG_DFL);
    CHECK(writer.failure() == concatenate("signal ", SIGPIPE));
}

TEST_CASE("child process: a program that is not there is an error") {
    const std::string refused = test::error_of([] {
        ChildProcess none({"/nowhere/program"});
        static_cast<void>(all_of(none));
        fail(none.failure());
    });
    INFO(refused);
    CHECK((refused == "ChildProcess: /nowhere/program cannot be started: No such file or directory" ||
           refused == "exit code 127"));  // POSIX allows both
    CHECK(test::error_of([] { const ChildProcess none({}); }) == "ChildProcess: no program is given");
}
