// SPDX-License-Identifier: MIT

#include <unitscale/base/error.hpp>

#include "experiments/progress.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>

using namespace unitscale;

namespace {

/// The output of a Progress, as text.
template <class F>
std::string written(F&& f) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
    REQUIRE(file != nullptr);
    f(file.get());
    std::rewind(file.get());
    std::string text;
    for (int c = std::fgetc(file.get()); c != EOF; c = std::fgetc(file.get())) text += static_cast<char>(c);
    return text;
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
    return found;
}

}  // namespace

TEST_CASE("progress: durations as people write them") {
    CHECK(experiments::duration_text(0.0) == "0:00");
    CHECK(experiments::duration_text(0.6) == "0:01");
    CHECK(experiments::duration_text(95.0) == "1:35");
    CHECK(experiments::duration_text(3599.4) == "59:59");
    CHECK(experiments::duration_text(3599.5) == "1:00:00");
    CHECK(experiments::duration_text(7295.0) == "2:01:35");
    CHECK(experiments::duration_text(90061.0) == "25:01:01");
}

TEST_CASE("progress: a file is no terminal") {
    CHECK(written([](std::FILE* file) { CHECK(!experiments::is_terminal(file)); }).empty());
}

TEST_CASE("progress: plain lines, about ten a run, where there is no terminal") {
    for (const std::size_t steps : {500u, 37u, 10u, 3u, 1u}) {
        const std::string text = written([&](std::FILE* file) {
            experiments::Progress progress(file, steps, false);
            for (std::size_t step = 1; step <= steps; ++step)
                progress.update(step, 2.5, 1234.4, static_cast<double>(steps - step));
            progress.finish();
        });
        INFO(text);
        const std::size_t lines = count(text, "\n");
        CHECK(lines >= std::min<std::size_t>(steps, 10));
        CHECK(lines <= 12);
        CHECK(text.find('\r') == std::string::npos);
        CHECK(text.find('[') == std::string::npos);
        CHECK(count(text, "step ") == lines);
        CHECK(text.ends_with(concatenate("step ", steps, "/", steps, "  2.500 bits/char  1234 tokens/s  0:00 left\n")));
    }
}

TEST_CASE("progress: on a terminal one line is drawn over, with a bar, and ended") {
    const std::string text = written([](std::FILE* file) {
        experiments::Progress progress(file, 4, false, true);
        CHECK(progress.line(1, 2.0, 10.0, 95.0) ==
              "[######..................] step 1/4  2.000 bits/char  10 tokens/s  1:35 left");
        CHECK(progress.line(4, 2.0, 10.0, 0.0) ==
              "[########################] step 4/4  2.000 bits/char  10 tokens/s  0:00 left");
        CHECK(experiments::Progress(file, 4, true, false, {.measured = "nats"}).line(1, 2.0, 10.0, 95.0) ==
              "step 1/4  2.000 nats  10 tokens/s  1:35 left");
        const experiments::ProgressWords words{.step = "question", .measured = "right", .speed = "questions/s"};
        CHECK(experiments::Progress(file, 4, true, false, words).line(1, 0.5, 10.0, 95.0) ==
              "question 1/4  0.500 right  10 questions/s  1:35 left");
        for (std::size_t step = 1; step <= 4; ++step) progress.update(step, 2.0, 10.0, 1.0);
        progress.finish();
        progress.finish();  // a second call does nothing
    });
    CHECK(text.starts_with("\r"));
    CHECK(count(text, "step 4/4") == 1);
    CHECK(count(text, "\n") == 1);
    CHECK(text.back() == '\n');
}

TEST_CASE("progress: quiet writes nothing") {
    for (const bool terminal : {false, true})
        CHECK(written([&](std::FILE* file) {
                  experiments::Progress progress(file, 3, true, terminal);
                  for (std::size_t step = 1; step <= 3; ++step) progress.update(step, 2.0, 10.0, 1.0);
                  progress.finish();
              }).empty());
}
