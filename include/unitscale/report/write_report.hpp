// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/track.hpp>
#include <unitscale/report/html_report.hpp>

#include <concepts>
#include <filesystem>
#include <string_view>

namespace unitscale::report {

/// A run that has recorded statistics: `train::Trainer` after `track`, or a class of one's own.
template <class Run>
concept TrackedTraining = requires(const Run& run) {
    { run.finished_track() } -> std::convertible_to<analysis::Track>;
};

/// Writes the page about a run's tracked steps (`html_report`), whole or not at all.
///   train::Trainer<float> trainer(model, recipe);
///   trainer.track({.every = 20});
///   ... trainer.step(...) ...
///   report::write_report("scales.html", trainer, "a run");
/// The function is outside the trainer, so that training needs no page.
/// Errors: the errors of `finished_track`; the file cannot be written. Test: tests/report/write_report_test.cpp
template <TrackedTraining Run>
void write_report(const std::filesystem::path& path, const Run& run, std::string_view title,
                  const PageSource& source = {}) {
    const analysis::Track track = run.finished_track();
    write_html_report(path, {&track, 1}, title, source);
}

}  // namespace unitscale::report
