// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/gradient_zeros.hpp>
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_log.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/saved_model.hpp>
#include <unitscale/train/storage.hpp>

#include "experiments/comparison.hpp"
#include "experiments/comparison_page.hpp"
#include "experiments/comparison_table.hpp"
#include "experiments/job_queue.hpp"
#include "experiments/language_run.hpp"
#include "experiments/progress.hpp"
#include "experiments/record_file.hpp"
#include "experiments/scale_report.hpp"
#include "experiments/unfinished_run.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace unitscale::experiments {

/// The first value that is not finite in a run whose numbers have failed, explained; empty: there was none in a training step. The run
/// is made once more from its beginning, watched. RunFailed with `reason` if it does not fail again: then it was not the numbers.
[[nodiscard]] inline std::string first_bad_value(LanguageRunOptions options, const std::string& reason) {
    options.save.clear();
    options.resume.clear();
    options.save_every = options.eval_every = 0;
    TrackedRun seen;
    try {
        static_cast<void>(run_tracked(options, {.every = options.steps}, stdout, stdout, seen));
    } catch (const RunFailed&) {
        return seen.track.non_finite ? analysis::explain(*seen.track.non_finite, seen.track) : "";
    }
    throw RunFailed(reason);
}

/// Trains, from the beginning or from where the run was left. `source` is the recipe's name or file; `watch` sees every step and may
/// throw, which leaves the run to be taken up again. A run whose numbers fail has a record that says so.
/// Errors: the options' and those of files.
[[nodiscard]] inline RunRecord train_compared(LanguageRunOptions options, const ComparedRun& run,
                                              const std::string& source, const UnfinishedRun& unfinished,
                                              const std::function<void(const LanguageStep&)>& watch) {
    using Json = nlohmann::ordered_json;
    options.recipe = source;
    options.lr = run.rate;
    options.seed = run.seed;
    options.quiet = true;
    options.sample = 0;
    options.log.clear();
    options.weights.clear();
    options.save = unfinished.checkpoint().string();
    if (!unfinished.lines().empty()) options.resume = options.save;
    const Recipe recipe = recipe_of(options);
    RunRecord record{.run = run, .recipe_fingerprint = fingerprint(recipe)};
    std::vector<Json> lines = unfinished.lines();
    LanguageRunResult result;
    try {
        train::with_storage(recipe, [&]<class T>(std::type_identity<T>) {
            io::JsonLog log(unfinished.log(), true);
            LanguageRun<T> training(options);
            analysis::GradientZeros<T> zeros(training.state(), std::max<std::size_t>(options.steps / 20, 1),
                                             options.steps);
            training.tape().set_observer(&zeros);
            const std::size_t bias_every = std::max<std::size_t>(options.steps / 100, 1);
            result = training.run(stdout, stdout, [&](const LanguageStep& step, const ScalingState& state) {
                Json line = {{"step", step.step},
                             {"train", step.train_bpc},
                             {"skipped", step.skipped},
                             {"tokens_per_s", step.tokens_per_s}};
                if (step.valid_bpc_part) line["valid"] = *step.valid_bpc_part;
                if ((step.step - 1) % bias_every == 0 || step.step == options.steps)
                    if (Json biases = measured_biases(state); !biases.empty()) line["biases"] = std::move(biases);
                if (zeros.counted_step() == step.step)
                    for (const auto& [kind, count] : zeros.counts())
                        line["zeros"][kind] = {count.elements, count.stored, count.rounded};
                log.write(line);
                lines.push_back(std::move(line));
                watch(step);
            });
        });
        record.train_loss = result.train_bpc;
        record.valid_loss = result.valid_bpc;
        record.weight_bytes = result.weight_bytes;
        record.state_bytes = result.state_bytes;
        record.step_bytes = result.step_bytes;
    } catch (const RunFailed& failure) {
        record.failed = true;
        record.reason = failure.what();
        record.first_bad = first_bad_value(options, record.reason);
        record.reason = failure_text(failure);
    }
    add_steps(record, lines);
    if (!record.failed) {
        record.valid_steps.push_back(record.steps);
        record.valid.push_back(record.valid_loss);
    }
    return record;
}

/// A comparison at work: trains what is not done yet, several runs side by side, each in a thread with a model and a tape of its own,
/// and remembers every run that has ended. Test: tests/experiments/compare_test.cpp
class Comparison {
public:
    /// Nothing is trained yet. Errors: those of the options, the data and the comparison's file.
    Comparison(const ComparisonOptions& options, std::FILE* out, std::FILE* progress)
        : options_(checked(options)),
          out_(out),
          text_(io::read_text(options.run.data)),
          settings_(settings()),
          file_(options_.records(), settings_),
          progress_(progress, 1, true) {
        for (const std::string& source : options_.recipes) recipes_.push_back(io::load_recipe(source));
        runs_ = runs_of(options_, recipes_);
        for (const ComparedRun& run : runs_)
            if (file_.find(run, fingerprint(recipe_of(run))) == nullptr) waiting_.push_back(run);
        progress_ =
            Progress(progress, std::max<std::size_t>(waiting_.size() * options_.run.steps, 1), options_.run.quiet);
    }

    /// Trains, evaluates the window, writes the page and the tables. Errors: those of files; RunFailed when one cannot be written while
    /// a run is under way. Runs that have ended by then are kept.
    void run() {
        if (!options_.run.quiet) {
            std::fprintf(out_, "%s\n%zu runs, of which %zu are done\n", heading().c_str(), runs_.size(),
                         runs_.size() - waiting_.size());
            std::fflush(out_);
        }
        train_all();
        if (const std::vector<int> biases = options_.biases(); !biases.empty()) find_window(biases);
        std::error_code ignored;
        if (std::filesystem::exists(options_.unfinished(),
                                    ignored))  // a kill may have come between a run's record and this
            for (const ComparedRun& run : runs_) unfinished(run).remove();
        std::filesystem::remove(options_.unfinished(), ignored);  // if nothing is left in it
        write_page();
        print();
    }

private:
    static const ComparisonOptions& checked(const ComparisonOptions& options) {
        options.validate();
        return options;
    }

    /// What all runs of a comparison share.
    [[nodiscard]] nlohmann::ordered_json settings() {
        const LanguageRunOptions& run = options_.run;
        const io::CharacterVocabulary vocabulary(text_);
        static_cast<void>(train::split(vocabulary.encode(text_), run.seq));
        options_.run.eval_every = options_.eval_every.value_or(std::max<std::size_t>(run.steps / 10, 1));
        options_.run.save_every = options_.save_every.value_or(std::max<std::size_t>(run.steps / 10, 1));
        options_.run.warmup = run.warmup.value_or(std::max<std::size_t>(run.steps / 10, 1));
        return {{"text", fingerprint(io::encode_utf8(text_))},
                {"characters", text_.size()},
                {"width", run.width},
                {"depth", run.depth},
                {"heads", run.heads},
                {"seq", run.seq},
                {"batch", run.batch},
                {"steps", run.steps},
                {"warmup", *run.warmup},
                {"eval_every", run.eval_every}};
    }

    [[nodiscard]] std::string heading() const {
        const LanguageRunOptions& run = options_.run;
        return concatenate("width ", run.width, ", depth ", run.depth, ", heads ", run.heads, "; ", run.steps,
                           " steps of ", run.batch, " x ", run.seq, " of ", text_.size(), " characters; ",
                           options_.seeds, options_.seeds == 1 ? " seed" : " seeds", "; ", options_.jobs,
                           options_.jobs == 1 ? " run at a time" : " runs side by side", ", ", run.threads,
                           run.threads == 1 ? " thread each" : " threads each");
    }

    [[nodiscard]] std::size_t place_of(const ComparedRun& run) const {
        const auto found = std::find_if(recipes_.begin(), recipes_.end(),
                                        [&](const Recipe& recipe) { return recipe.name == run.recipe; });
        return static_cast<std::size_t>(found - recipes_.begin());
    }
    [[nodiscard]] const Recipe& recipe_of(const ComparedRun& run) const { return recipes_[place_of(run)]; }

    [[nodiscard]] UnfinishedRun unfinished(const ComparedRun& run) const {
        return {options_.unfinished(), run, settings_.dump() + fingerprint(recipe_of(run)), options_.run.steps};
    }
    /// Where the trained weights of a run are kept that the window needs.
    [[nodiscard]] std::filesystem::path kept(const UnfinishedRun& run) const {
        return std::filesystem::path(run.checkpoint()).replace_extension(".trained");
    }
    [[nodiscard]] bool keeps(const ComparedRun& run) const {
        return !options_.biases().empty() && run.recipe == "fp32" && run.seed == options_.run.seed;
    }

    void train_all() {
        start_ = std::chrono::steady_clock::now();
        try {
            queue_.run(options_.jobs, waiting_.size(), [this](std::size_t i) { train(waiting_[i]); });
        } catch (...) {
            progress_.finish();
            throw;
        }
        progress_.finish();
    }

    void train(const ComparedRun& run) {
        const UnfinishedRun files = unfinished(run);
        const std::size_t known = files.lines().size();
        advance(known, 0.0);
        RunRecord record =
            train_compared(options_.run, run, options_.recipes[place_of(run)], files, [&](const LanguageStep& step) {
                queue_.leave_if_stopped();
                advance(1, step.train_bpc);
            });
        const std::lock_guard lock(mutex_);
        done_steps_ += options_.run.steps - record.steps;  // a failed run has no more of them
        std::error_code error;
        if (keeps(run) && !record.failed) std::filesystem::rename(files.checkpoint(), kept(files), error);
        progress_.finish();
        if (!options_.run.quiet) {
            std::fprintf(out_, "%s: %s\n", run.text().c_str(),
                         record.failed ? ("failed: " + record.reason).c_str()
                                       : (cell("%.4f bits/char", record.valid_loss) +
                                          cell(", %.0f tokens/s", record.tokens_per_s))
                                             .c_str());
            std::fflush(out_);
        }
        file_.add(std::move(record));
        files.remove();
        write_page();
    }

    void advance(std::size_t steps, double loss) {
        const std::lock_guard lock(mutex_);
        done_steps_ += steps;
        if (loss == 0.0) return;  // steps of an earlier process
        ++timed_steps_;
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
        const double per_step = seconds.count() / static_cast<double>(timed_steps_);
        const std::size_t all = waiting_.size() * options_.run.steps;
        progress_.update(done_steps_, loss, static_cast<double>(options_.run.batch * options_.run.seq) / per_step,
                         per_step * static_cast<double>(all - std::min(all, done_steps_)));
    }

    /// The window of fp32's weights, at its best rate and with the first seed. What was kept for it goes.
    void find_window(const std::vector<int>& biases) {
        const std::vector<RecipeSummary> all = summaries();
        const auto fp32 = std::find_if(all.begin(), all.end(),
                                       [](const RecipeSummary& summary) { return summary.recipe.name == "fp32"; });
        const RunRecord& trained = fp32->best_rate().runs.front();
        const bool known = file_.window() && file_.window()->run == trained.run && file_.window()->biases == biases;
        if (trained.failed)
            std::fprintf(out_, "\nno window: %s has failed, there are no weights to evaluate\n",
                         trained.run.text().c_str());
        else if (!known) file_.set_window(window_of(trained, biases));
        for (const RateSummary& rate : fp32->rates) {
            const UnfinishedRun files = unfinished(rate.runs.front().run);
            std::error_code ignored;
            std::filesystem::remove(kept(files), ignored);
            files.remove();
        }
    }

    /// The losses of a run's weights with each constant bias. They are trained again if the window was asked for afterwards.
    [[nodiscard]] BiasWindow window_of(const RunRecord& trained, const std::vector<int>& biases) const {
        const UnfinishedRun files = unfinished(trained.run);
        if (!std::filesystem::exists(kept(files))) {
            const RunRecord again = train_compared(options_.run, trained.run, options_.recipes[place_of(trained.run)],
                                                   files, [](const LanguageStep&) {});
            check(again.valid_loss == trained.valid_loss, "--window: ", trained.run.text(),
                  " does not end where it did; is it another program or machine?");
            std::filesystem::rename(files.checkpoint(), kept(files));
        }
        train::SavedModel<float> saved(kept(files), options_.run.threads);
        const std::vector<std::int32_t> tokens = saved.vocabulary().encode(text_);
        const auto loss = [&](const Recipe& recipe) {
            ScalingState state;
            Tape<float> tape(recipe, state, options_.run.threads);
            return train::evaluate(saved.model(), tape, train::split(tokens, options_.run.seq).validation,
                                   options_.run.seq, options_.run.batch);
        };
        BiasWindow window{.run = trained.run, .biases = biases, .unrounded = loss(find_recipe("fp32"))};
        Recipe recipe = find_recipe("fp8-cscale");
        for (const int bias : biases) {
            for (ProductRule& rule : recipe.products)
                for (ScaleRule* scale :
                     {&rule.formats.activation_scale, &rule.formats.weight_scale, &rule.formats.gradient_scale})
                    scale->bias = bias;
            window.losses.push_back(loss(recipe));
        }
        return window;
    }

    [[nodiscard]] std::vector<RecipeSummary> summaries() const { return summarise(recipes_, runs_, file_.records()); }
    /// The window that was asked for.
    [[nodiscard]] std::optional<BiasWindow> window() const {
        const bool asked = file_.window() && file_.window()->biases == options_.biases();
        return asked ? file_.window() : std::nullopt;
    }

    void write_page() const {
        io::write_atomically("--out", options_.out, comparison_page(summaries(), heading(), window()));
    }

    void print() const {
        const std::vector<RecipeSummary> all = summaries();
        const auto say = [this](const std::string& text) { std::fprintf(out_, "%s", text.c_str()); };
        say("\n" + io::text_table(comparison_rows(all)));
        say("\ngradients that became zero, by op: rounded by products (as stored)\n" + io::text_table(zero_rows(all)));
        for (const std::string& line : failure_lines(all)) say("\n" + line + "\n");
        if (const auto found = window())
            say(concatenate("\none constant bias for weights and activations (FP8-CSCALE), weights of ",
                            found->run.text(), "\n", io::text_table(window_rows(*found))));
        std::fflush(out_);
    }

    ComparisonOptions options_;
    std::FILE* out_;
    std::u32string text_;
    nlohmann::ordered_json settings_;
    ComparisonFile file_;
    std::vector<Recipe> recipes_{};
    std::vector<ComparedRun> runs_{}, waiting_{};
    std::mutex mutex_{};  ///< of what follows, of the file, the page and the output
    Progress progress_;
    std::chrono::steady_clock::time_point start_{};
    std::size_t done_steps_ = 0, timed_steps_ = 0;
    JobQueue queue_{};
};

/// Trains every recipe on the same batches and says on `out`, and on one page, how they compare. Killed, it goes on where it was when it
/// is called again.
inline void compare_recipes(const ComparisonOptions& options, std::FILE* out, std::FILE* progress) {
    Comparison(options, out, progress).run();
}

}  // namespace unitscale::experiments
