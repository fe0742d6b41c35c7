// SPDX-License-Identifier: MIT
#include "experiments/run_task.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using unitscale::test::error_of;

TEST_CASE("run task: a task comes back from its text, which is one line") {
    const RunTask task{{"0.5", "a \"b\"\n"}, 18446744073709551615u, "recipe", "settings"};
    CHECK(task.text().find('\n') == std::string::npos);
    CHECK(RunTask::parse(task.text()) == task);
    CHECK(error_of([] { static_cast<void>(RunTask::parse("{\"point\":[]}")); }) ==
          "run: '{\"point\":[]}' is not the task of a run");
    CHECK(error_of([] { static_cast<void>(RunTask::parse("all")); }) == "run: 'all' is not the task of a run");
}

TEST_CASE("run task: the outcome of a run comes back with all bits") {
    TrainedRun trained{.failed = true, .reason = "the loss is nan\n", .first_bad = "in step 3", .seconds = 1.0 / 3.0};
    trained.result = {.recipe = "fp32",
                      .steps = 7,
                      .train_bpc = 0.1,
                      .valid_bpc = std::nextafter(2.0, 3.0),
                      .test_bpc = 1e-300,
                      .tokens_per_s = 1e300,
                      .peak_rss_mb = 5.5,
                      .seconds = 6.25,
                      .skipped = 3,
                      .weight_bytes = 4,
                      .state_bytes = 5,
                      .step_bytes = 6};
    trained.lines = {{{"step", 1}, {"train", 0.3}}, {{"step", 2}, {"train", 0.7}, {"skipped", 1}}};
    trained.rms = {{.layer = "query", .weight = 0.25}};
    RunLines lines;
    CHECK_FALSE(lines.trained().has_value());
    lines.read(trained_line(trained));
    REQUIRE(lines.trained().has_value());
    const TrainedRun& read = *lines.trained();
    CHECK(read.failed);
    CHECK_FALSE(read.lost);
    CHECK(read.reason == trained.reason);
    CHECK(read.first_bad == trained.first_bad);
    CHECK(read.seconds == trained.seconds);
    CHECK(read.result.recipe == "fp32");
    CHECK(read.result.steps == 7);
    CHECK(read.result.train_bpc == 0.1);
    CHECK(read.result.valid_bpc == trained.result.valid_bpc);
    CHECK(read.result.test_bpc == 1e-300);
    CHECK(read.result.tokens_per_s == 1e300);
    CHECK(read.result.peak_rss_mb == 5.5);
    CHECK(read.result.seconds == 6.25);
    CHECK(read.result.skipped == 3);
    CHECK(read.result.weight_bytes == 4);
    CHECK(read.result.state_bytes == 5);
    CHECK(read.result.step_bytes == 6);
    CHECK(read.lines == trained.lines);
    REQUIRE(read.rms.size() == 1);
    CHECK(read.rms.front().layer == "query");
    CHECK(read.rms.front().weight == 0.25);
    CHECK(std::isnan(read.rms.front().input));

    trained.result.test_bpc.reset();
    trained.result.train_bpc = std::numeric_limits<double>::quiet_NaN();
    lines.read(trained_line(trained));
    CHECK_FALSE(lines.trained()->result.test_bpc.has_value());
    CHECK(std::isnan(lines.trained()->result.train_bpc));
}

TEST_CASE("run task: the begin and every step are reported once, however often a run is tried") {
    std::vector<std::size_t> begins, steps;
    std::vector<double> losses;
    RunLines lines;
    lines.read(began_line(1));  // nobody asks
    lines = {};
    lines.began = [&](std::size_t known) { begins.push_back(known); };
    lines.stepped = [&](const LanguageStep& step) {
        steps.push_back(step.step);
        losses.push_back(step.train_bpc);
    };
    lines.read(began_line(2));
    lines.read(step_line({.step = 3, .train_bpc = 0.1}));
    lines.read(step_line({.step = 4, .train_bpc = 1.0 / 3.0}));
    lines.read(began_line(3));  // the first attempt was lost
    lines.read(step_line({.step = 4, .train_bpc = 1.0 / 3.0}));
    lines.read(step_line({.step = 5, .train_bpc = 0.2}));
    CHECK(begins == std::vector<std::size_t>{2});
    CHECK(steps == std::vector<std::size_t>{3, 4, 5});
    CHECK(losses == std::vector<double>{0.1, 1.0 / 3.0, 0.2});
}

TEST_CASE("run task: errors of a run are thrown as they were, and other lines are errors") {
    RunLines lines;
    CHECK(error_of([&] { lines.read(error_line("data: \"a\" is missing", true)); }) == "data: \"a\" is missing");
    std::string failed;
    try {
        lines.read(error_line("a disk is full", false));
    } catch (const RunFailed& error) {
        failed = error.what();
    }
    CHECK(failed == "a disk is full");
    CHECK(error_of([&] { lines.read("Segmentation fault"); }) ==
          "run: its process has written 'Segmentation fault', which is not a line of a run");
    CHECK(error_of([&] { lines.read("{}"); }) == "run: its process has written '{}', which is not a line of a run");
    CHECK_FALSE(lines.trained().has_value());
}
