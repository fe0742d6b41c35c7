// SPDX-License-Identifier: MIT
#include "experiments/scale_report.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/compiled.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/report/html_report.hpp>
#include <unitscale/report/json_lines.hpp>
#include <unitscale/train/storage.hpp>

#include "experiments/language_run.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>

namespace unitscale::experiments {

analysis::TrackerOptions tracker_options(const TrackingOptions& tracking, const LanguageRunOptions& run,
                                         const Recipe& recipe) {
    const auto format = [](const std::string& wanted) -> std::optional<FloatFormat> {
        if (wanted.empty()) return std::nullopt;
        return find_format(wanted);
    };
    return {.name = recipe.name,
            .every = tracking.every > 0 ? tracking.every : std::max<std::size_t>(run.steps / 50, 1),
            .last_step = run.steps,
            .patterns = tracking.patterns,
            .value_format = format(tracking.value_format),
            .gradient_format = format(tracking.gradient_format),
            .threads = run.threads};
}

void ScaleReportOptions::validate() const {
    check(!recipes.empty(), "--recipe: none given");
    for (const std::string& name : recipes) static_cast<void>(tracker_options(tracking, run, find_recipe(name)));
    check(std::isfinite(rate_factor) && rate_factor > 0.0, "--lr-factor: is ", rate_factor,
          "; expected a positive number");
    io::check_writable("--out", out);
    if (!json.empty()) io::check_writable("--json", json);
}

LanguageRunResult run_tracked(const LanguageRunOptions& options, const TrackingOptions& tracking, std::FILE* text,
                              std::FILE* progress, TrackedRun& seen) {
    return train::with_storage(recipe_of(options), [&]<class T>(std::type_identity<T>) {
        LanguageRun<T> run(options);
        analysis::Tracker<T> tracker(tracker_options(tracking, options, run.recipe()));
        run.tape().set_observer(&tracker);
        const auto finish = [&] {
            seen.track = tracker.finish();
            seen.critical = train::critical_products(seen.track, run.state());
        };
        try {
            LanguageRunResult result = run.run(text, progress);
            finish();
            return result;
        } catch (const RunFailed&) {
            finish();
            throw;
        }
    });
}

void scale_report(const ScaleReportOptions& options, std::FILE* text) {
    options.validate();
    std::vector<analysis::Track> tracks;
    for (const std::string& name : options.recipes) {
        LanguageRunOptions run_options = options.run;
        run_options.recipe = name;
        run_options.quiet = true;
        run_options.sample = 0;
        run_options.eval_every = 0;
        run_options.log.clear();
        run_options.lr = options.rate_factor * options.run.lr.value_or(find_recipe(name).learning_rate);
        TrackedRun seen;
        try {
            std::fprintf(text, "%s\n", run_tracked(run_options, options.tracking, text, text, seen).line().c_str());
        } catch (const RunFailed& failure) {
            std::fprintf(text, "recipe=%s ended early: %s\n", name.c_str(), failure.what());
        }
        std::fputs(train::critical_table(seen.critical).c_str(), text);
        const analysis::Track& track = tracks.emplace_back(std::move(seen.track));
        if (track.non_finite)
            std::fprintf(text, "recipe=%s first non-finite value: %s\n", name.c_str(),
                         analysis::explain(*track.non_finite).c_str());
    }
    report::write_html_report(options.out, tracks, "Scales of a transformer in training");
    if (options.json.empty()) return;
    std::string lines;
    for (const analysis::Track& track : tracks) lines += report::json_lines(track);
    io::write_atomically("--json", options.json, lines);
}

LanguageRunResult run_and_report(const LanguageRunOptions& options, const std::string& page, std::FILE* text,
                                 std::FILE* progress) {
    if (page.empty()) return run_language(options, text, progress);
    io::check_writable("--report", page);
    TrackedRun seen;
    const auto write = [&] {
        if (!options.quiet && !seen.critical.empty())
            std::fprintf(text, "%s\n", train::critical_table(seen.critical).c_str());
        report::write_html_report(page, {&seen.track, 1}, "Scales of a transformer in training");
    };
    try {
        LanguageRunResult result = run_tracked(options, {}, text, progress, seen);
        write();
        return result;
    } catch (const RunFailed&) {
        write();
        throw;
    }
}

}  // namespace unitscale::experiments
