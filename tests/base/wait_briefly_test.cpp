// SPDX-License-Identifier: MIT
#include <unitscale/base/child_process.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/wait_briefly.hpp>

#include "support/catch.hpp"

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

using namespace unitscale;

namespace {

constexpr const char* case_of_child = "wait briefly: a program of its own";

/// What the hidden case below writes, with changes of its environment as the arguments of `env`.
std::string output_of_child(const std::vector<std::string>& changes) {
    std::vector<std::string> command = {"env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT"};
    command.insert(command.end(), changes.begin(), changes.end());
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    // OpenMP writes its settings to standard error before `main`.
    command.insert(command.end(),
                   {"OMP_DISPLAY_ENV=verbose", "sh", "-c", "exec \"$0\" \"$1\" 2>&1", self, case_of_child});
    ChildProcess child(command);
    std::string text;
    while (child.read(text)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(child.failure().empty());
    return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("wait briefly: a program of its own", "[.]") {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::string words((std::istreambuf_iterator<char>(file)), {});
    std::vector<char*> argv;
    for (std::size_t i = 0; i < words.size(); i += std::char_traits<char>::length(&words[i]) + 1)
        argv.push_back(&words[i]);
    argv.push_back(nullptr);
    wait_briefly(argv.data());
    const char* const rounds = std::getenv("GOMP_SPINCOUNT");
    std::vector<int> parts(2);
    parallel_for(2, 2, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t i = begin; i < end; ++i) parts[static_cast<std::size_t>(i)] = 1;
    });
    CHECK(parts == std::vector<int>{1, 1});
    std::printf("rounds: %s\n", rounds != nullptr ? rounds : "none");
}

TEST_CASE("wait briefly: OpenMP learns of it, and the user's own settings stay") {
    const std::string plain = output_of_child({}), policy = output_of_child({"OMP_WAIT_POLICY=active"}),
                      count = output_of_child({"GOMP_SPINCOUNT=7"});
    CHECK(has(policy, "rounds: none\n"));
    CHECK(has(count, "rounds: 7\n"));
#if defined(__linux__) && defined(_OPENMP) && !defined(__clang__)
    CHECK(has(plain, "rounds: 3000\n"));
    CHECK(has(plain, "GOMP_SPINCOUNT = '3000'"));  // what GCC's OpenMP says of itself
    CHECK_FALSE(has(policy, "GOMP_SPINCOUNT = '3000'"));
#else
    CHECK(has(plain, "rounds: none\n"));
#endif
}
