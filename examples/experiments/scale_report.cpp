// SPDX-License-Identifier: MIT
#include "experiments/scale_report.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/report/html_report.hpp>
#include <unitscale/report/json_lines.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "experiments/language_run.hpp"
#include "experiments/run_in_parts.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

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
                              std::FILE* progress, std::vector<TrackedRun>& seen) {
    return run_in_parts(options, text, progress, {},
                        [&]<class T>(LanguageRun<T>& run, const std::function<void()>& take) {
                            analysis::TrackerOptions how = tracker_options(tracking, options, run.recipe());
                            how.name = part_name(options, run.recipe(), run.part());
                            how.last_step = run.last_step();
                            analysis::Tracker<T> tracker(how);
                            run.tape().set_observer(&tracker);
                            const auto finish = [&] {
                                run.tape().set_observer(nullptr);
                                // A run that is resumed at its switch takes no step of the first part.
                                if (run.last_step() < options.steps && tracker.track().tensors.empty()) return;
                                TrackedRun& part = seen.emplace_back();
                                part.track = tracker.finish();
                                part.critical = train::critical_products(part.track, run.state());
                            };
                            try {
                                take();
                            } catch (const RunFailed&) {
                                finish();
                                throw;
                            }
                            finish();
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
        std::vector<TrackedRun> parts;
        try {
            std::fprintf(text, "%s\n", run_tracked(run_options, options.tracking, text, text, parts).line().c_str());
        } catch (const RunFailed& failure) {
            std::fprintf(text, "recipe=%s ended early: %s\n", name.c_str(), failure.what());
        }
        TrackedRun& seen = parts.front();
        std::fputs(train::critical_table(seen.critical).c_str(), text);
        const analysis::Track& track = tracks.emplace_back(std::move(seen.track));
        if (track.non_finite)
            std::fprintf(text, "recipe=%s first non-finite value: %s\n", name.c_str(),
                         analysis::explain(*track.non_finite).c_str());
    }
    report::write_html_report(options.out, tracks, "Scales of a transformer in training", options.source);
    if (options.json.empty()) return;
    std::string lines;
    for (const analysis::Track& track : tracks) lines += report::json_lines(track);
    io::write_atomically("--json", options.json, lines);
}

LanguageRunResult run_and_report(const LanguageRunOptions& options, const std::string& page,
                                 const report::PageSource& source, std::FILE* text, std::FILE* progress) {
    if (page.empty()) return run_language(options, text, progress);
    io::check_writable("--report", page);
    std::vector<TrackedRun> seen;
    const auto write = [&] {
        std::vector<analysis::Track> tracks;
        for (TrackedRun& part : seen) {
            if (!options.quiet && !part.critical.empty())
                std::fprintf(text, "%s\n", train::critical_table(part.critical).c_str());
            tracks.push_back(std::move(part.track));
        }
        report::write_html_report(page, tracks, "Scales of a transformer in training", source);
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
