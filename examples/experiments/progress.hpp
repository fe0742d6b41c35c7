// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace unitscale::experiments {

/// Seconds as minutes and hours: 95 is `1:35`, 7295 is `2:01:35`.
[[nodiscard]] std::string duration_text(double seconds);

/// Whether a stream is a terminal, on which a line can be redrawn.
[[nodiscard]] bool is_terminal(std::FILE* stream);

/// The words of a progress line: `step 3/10  2.500 bits/char  1234 tokens/s  0:07 left`.
struct ProgressWords {
    const char* step = "step";
    const char* measured = "bits/char";  ///< the unit of the number that a step measures
    const char* speed = "tokens/s";
};

/// The progress of a run on a stream: one redrawn line on a terminal, ten plain lines a run elsewhere.
/// Test: tests/experiments/progress_test.cpp
class Progress {
public:
    Progress(std::FILE* stream, std::size_t steps, bool quiet, const ProgressWords& words = {})
        : Progress(stream, steps, quiet, is_terminal(stream), words) {}
    Progress(std::FILE* stream, std::size_t steps, bool quiet, bool terminal, const ProgressWords& words = {});

    /// The line for a state: bar, step, measured number, speed, time left.
    [[nodiscard]] std::string line(std::size_t step, double measured, double speed, double seconds_left) const;

    void update(std::size_t step, double measured, double speed, double seconds_left);

    /// Ends a redrawn line, so that other output starts on a new one.
    void finish();

private:
    std::FILE* stream_;
    std::size_t steps_;
    bool quiet_;
    bool terminal_;
    ProgressWords words_;
    bool drawn_ = false;
    std::chrono::steady_clock::time_point last_{};
};

}  // namespace unitscale::experiments
