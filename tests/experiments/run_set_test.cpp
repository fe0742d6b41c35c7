// SPDX-License-Identifier: MIT
#include "experiments/run_set.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <filesystem>
#include <string>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;
using unitscale::test::error_of;

TEST_CASE("run set: the results file and the folder of unfinished runs are named after the page") {
    RunSetOptions options;
    options.out = std::filesystem::path("pages") / "a.b.html";
    CHECK(options.results_path() == std::filesystem::path("pages") / "a.b.jsonl");
    CHECK(options.unfinished() == std::filesystem::path("pages") / "a.b.runs");
    options.out = "page";
    CHECK(options.results_path() == "page.jsonl");
    CHECK(options.unfinished() == "page.runs");
}

TEST_CASE("run set: counts are from 1 to 1000") {
    RunSetOptions options;
    options.check_counts();
    options.seeds = options.jobs = 1000;
    options.check_counts();
    options.seeds = 1001;
    CHECK(error_of([&] { options.check_counts(); }) == "--seeds: is 1001; expected a number from 1 to 1000");
    options.seeds = 1;
    options.jobs = 0;
    CHECK(error_of([&] { options.check_counts(); }) == "--jobs: is 0; expected a number from 1 to 1000");
}

TEST_CASE("run set: the page has its own name, in a writable folder") {
    const TemporaryFolder folder;
    RunSetOptions options;
    for (const char* name : {"a.jsonl", "a.runs", ""}) {
        CAPTURE(name);
        options.out = name;
        CHECK(error_of([&] { options.check_out("sweep.html"); }) ==
              "--out: is " + std::string(name) + "; expected the name of a page, such as sweep.html");
    }
    options.out = folder.path() / "none" / "a.html";
    CHECK(error_of([&] { options.check_out("sweep.html"); }) ==
          "--out: " + options.out.string() + " cannot be written");
    options.out = folder.path() / "a.html";
    options.check_out("sweep.html");
    CHECK_FALSE(std::filesystem::exists(options.out));
}

TEST_CASE("run set: a tenth of a run is at least one step") {
    CHECK(tenth_of(1) == 1);
    CHECK(tenth_of(19) == 1);
    CHECK(tenth_of(20) == 2);
    CHECK(tenth_of(305) == 30);
}

TEST_CASE("run set: a folder is removed when no unfinished run is left in it") {
    const TemporaryFolder folder;
    const std::filesystem::path runs = folder.path() / "a.runs";
    remove_if_empty(runs);  // a missing folder is no error
    std::filesystem::create_directory(runs);
    const std::filesystem::path file = folder.write("a.runs/run.jsonl", "{}\n");
    remove_if_empty(runs);
    REQUIRE(std::filesystem::exists(file));
    std::filesystem::remove(file);
    remove_if_empty(runs);
    CHECK_FALSE(std::filesystem::exists(runs));
}
