// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/language_run_options.hpp"
#include "experiments/sweep_space.hpp"
#include "experiments/trained_run.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// A run of a search that is made in a process of its own: its task, which is one argument of the program, and the lines
// that the program then writes.
//   {"began":0}  {"step":1,"train":6.2}  ...  {"trained":{"failed":false,...}}  or  {"error":"...","arguments":true}
namespace unitscale::experiments {

/// A run as a task. The fingerprints show whether the process that makes the run has the search's recipe, options and
/// text. Test: tests/experiments/run_task_test.cpp
struct RunTask {
    SweepPoint point{};
    std::uint64_t seed = 1;
    std::string recipe{}, settings{};  ///< fingerprints

    [[nodiscard]] std::string text() const;
    /// Error: the text does not describe a task.
    [[nodiscard]] static RunTask parse(std::string_view text);
    friend bool operator==(const RunTask&, const RunTask&) = default;
};

[[nodiscard]] std::string began_line(std::size_t known);
[[nodiscard]] std::string step_line(const LanguageStep& step);
/// Numbers come back with all their bits. A step's log becomes as a file gives it: NaN and infinities are names.
[[nodiscard]] std::string trained_line(const TrainedRun& trained);
/// `arguments`: the error is an Error, caused by the arguments, else a failed run.
[[nodiscard]] std::string error_line(std::string_view message, bool arguments);

/// Reads the lines of a run. Repeated reports, after a lost attempt, are left out.
/// Test: tests/experiments/run_task_test.cpp
class RunLines {
public:
    std::function<void(std::size_t known)> began{};
    std::function<void(const LanguageStep&)> stepped{};

    /// Errors: the run's own, Error or RunFailed; the line is none of a run.
    void read(std::string_view line);
    /// The outcome, once it has come.
    [[nodiscard]] const std::optional<TrainedRun>& trained() const noexcept { return trained_; }

private:
    bool began_ = false;
    std::size_t steps_ = 0;  ///< reported
    std::optional<TrainedRun> trained_{};
};

}  // namespace unitscale::experiments
