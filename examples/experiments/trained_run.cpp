// SPDX-License-Identifier: MIT
#include "experiments/trained_run.hpp"

#include <unitscale/analysis/gradient_zeros.hpp>
#include <unitscale/analysis/overflows.hpp>
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/json_log.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/element.hpp>

#include "experiments/language_run.hpp"
#include "experiments/last_step_rms.hpp"
#include "experiments/layer_rms.hpp"
#include "experiments/measured_biases.hpp"
#include "experiments/scale_report.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>

namespace unitscale::experiments {

namespace {

/// Explains the first value that is not finite in a diverged run. Empty: no training step held one.
/// Trains the run again from its beginning, with a tracker.
std::string first_bad_value(LanguageRunOptions options) {
    options.save.clear();
    options.resume.clear();
    options.save_every = options.eval_every = 0;
    std::vector<TrackedRun> seen;
    try {
        static_cast<void>(run_tracked(options, {.every = options.steps}, stdout, stdout, seen));
    } catch (const Diverged&) {
        // The track holds the value.
    }
    const analysis::Track& track = seen.front().track;
    return track.non_finite ? analysis::explain(*track.non_finite) : "";
}

/// Keeps the log of a run.
template <class T>
class StepLog {
public:
    using Json = nlohmann::ordered_json;

    /// Observes the tape of `run` while it lives.
    StepLog(LanguageRun<T>& run, std::size_t steps, const UnfinishedRun& files, std::vector<Json>& lines)
        : steps_(steps), log_(files.log(), true), lines_(lines) {
        run.tape().set_observer(&overflows_);
    }

    void add(const LanguageStep& step, const ScalingState& state) {
        Json line = {{"step", step.step},
                     {"train", step.train_bpc},
                     {"skipped", step.skipped},
                     {"tokens_per_s", step.tokens_per_s}};
        if (step.valid_bpc_part) line["valid"] = *step.valid_bpc_part;
        const std::size_t bias_every = std::max<std::size_t>(steps_ / 100, 1);
        if ((step.step - 1) % bias_every == 0 || step.step == steps_)
            if (Json biases = measured_biases(state); !biases.empty()) line["biases"] = std::move(biases);
        if (zeros_.counted_step() == step.step)
            for (const auto& [kind, count] : zeros_.counts())
                line["zeros"][kind] = {count.elements, count.stored, count.rounded};
        if (overflows_.counted_step() == step.step && !overflows_.counts().empty())
            line["overflows"] = overflows_.counts();
        log_.write(line);
        lines_.push_back(std::move(line));
    }

private:
    std::size_t steps_;
    std::size_t every_ = std::max<std::size_t>(steps_ / 20, 1);  ///< steps between counts
    analysis::GradientZeros<T> zeros_{every_, steps_};
    analysis::Overflows<T> overflows_{every_, steps_, &zeros_};
    io::JsonLog log_;
    std::vector<Json>& lines_;
};

}  // namespace

TrainedRun train_run(LanguageRunOptions options, Measured measured, const UnfinishedRun& files,
                     const std::function<void(const LanguageStep&)>& watch, bool rms) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    options.quiet = true;
    options.sample = 0;
    options.log.clear();
    options.weights.clear();
    options.save = files.checkpoint().string();
    const bool ended = rms && step_of_checkpoint(files.checkpoint()) >= options.steps;
    options.resume = files.can_resume() && !ended ? options.save : "";
    TrainedRun trained{.lines = files.lines()};
    try {
        train::with_element(recipe_of(options), [&]<class T>(std::type_identity<T>) {
            LanguageRun<T> run(options);
            std::optional<StepLog<T>> log;
            if (measured == Measured::steps) log.emplace(run, options.steps, files, trained.lines);
            LastStepRms<T> last(options.steps, run.tape().observer());
            if (rms) run.tape().set_observer(&last);
            trained.result = run.run(stdout, stdout, [&](const LanguageStep& step, const ScalingState& state) {
                if (log) log->add(step, state);
                watch(step);
            });
            if (rms) trained.rms = medians_by_layer(last.layers());
        });
    } catch (const Diverged& failure) {
        trained.failed = true;
        trained.reason = failure_text(failure);
        if (measured == Measured::steps) trained.first_bad = first_bad_value(options);
    }
    trained.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return trained;
}

std::string failure_text(const RunFailed& failure) {
    std::string reason = failure.what();
    reason = reason.substr(0, reason.find("; try "));
    if (reason.starts_with("train: ")) reason.erase(0, 7);
    return reason;
}

LoggedZeros zeros_of(const std::vector<nlohmann::ordered_json>& lines) {
    LoggedZeros zeros;
    for (const auto& line : lines)
        if (line.contains("zeros"))
            for (const auto& [kind, counts] : line["zeros"].items())
                for (std::size_t k = 0; k < 3; ++k) zeros[kind][k] += counts.at(k).get<std::uint64_t>();
    return zeros;
}

analysis::OverflowCounts overflows_of(const std::vector<nlohmann::ordered_json>& lines) {
    analysis::OverflowCounts overflows;
    for (const auto& line : lines)
        if (line.contains("overflows"))
            for (const auto& [kind, count] : line["overflows"].items()) overflows[kind] += count.get<std::uint64_t>();
    return overflows;
}

}  // namespace unitscale::experiments
