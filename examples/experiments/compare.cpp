// SPDX-License-Identifier: MIT
#include "experiments/compare.hpp"

#include <unitscale/analysis/gradient_zeros.hpp>
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/compiled.hpp>
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

#include "experiments/comparison_page.hpp"
#include "experiments/comparison_table.hpp"
#include "experiments/job_queue.hpp"
#include "experiments/language_run.hpp"
#include "experiments/progress.hpp"
#include "experiments/results_file.hpp"
#include "experiments/scale_report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace unitscale::experiments {

namespace {

/// Explains the first value that is not finite in a diverged run. Empty: no training step held one.
/// Reruns the run from its beginning, with a tracker. If the rerun succeeds, the failure was not numerical: RunFailed
/// with `reason`.
std::string first_bad_value(LanguageRunOptions options, const std::string& reason) {
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

/// A comparison in progress: trains the missing runs and keeps the result of every run that has ended.
/// Each of the parallel runs has a thread, a model and a tape of its own. Test: tests/experiments/compare_test.cpp
class Comparison {
public:
    /// Trains nothing yet. Errors: the errors of the options, the data and the results file.
    Comparison(const ComparisonOptions& options, std::FILE* out, std::FILE* progress)
        : options_(checked(options)),
          out_(out),
          text_(io::read_text(options.run.data)),
          settings_(settings()),
          file_(options_.results_path(), settings_),
          progress_(progress, 1, true) {
        for (const std::string& source : options_.recipes) recipes_.push_back(io::load_recipe(source));
        runs_ = runs_of(options_, recipes_);
        for (const ComparedRun& run : runs_)
            if (file_.find(run, fingerprint(recipe_of(run))) == nullptr) waiting_.push_back(run);
        progress_ =
            Progress(progress, std::max<std::size_t>(waiting_.size() * options_.run.steps, 1), options_.run.quiet);
    }

    /// Trains, evaluates the bias window, writes the page and prints the tables. Runs that have ended are kept on any
    /// error.
    /// Errors: the errors of the files; RunFailed when a file cannot be written during a run.
    void run() {
        if (!options_.run.quiet) {
            std::fprintf(out_, "%s\n%zu runs, of which %zu are done\n", heading().c_str(), runs_.size(),
                         runs_.size() - waiting_.size());
            std::fflush(out_);
        }
        train_all();
        if (const std::vector<int> biases = options_.biases(); !biases.empty()) find_window(biases);
        // A kill between a run's result and the removal of its files leaves them behind.
        std::error_code ignored;
        if (std::filesystem::exists(options_.unfinished(), ignored))
            for (const ComparedRun& run : runs_) unfinished(run).remove();
        remove_if_empty(options_.unfinished());
        write_page();
        print();
    }

private:
    static const ComparisonOptions& checked(const ComparisonOptions& options) {
        options.validate();
        return options;
    }

    /// The settings that all runs of a comparison share.
    [[nodiscard]] nlohmann::ordered_json settings() {
        const LanguageRunOptions& run = options_.run;
        const io::CharacterVocabulary vocabulary(text_);
        static_cast<void>(train::split(vocabulary.encode(text_), run.seq));
        options_.run.eval_every = options_.eval_every.value_or(tenth_of(run.steps));
        options_.run.save_every = options_.save_every.value_or(tenth_of(run.steps));
        options_.run.warmup = run.warmup.value_or(tenth_of(run.steps));
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
    /// The file that keeps the trained weights of a run until the bias window is evaluated.
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
        RunResult result =
            train_compared(options_.run, run, options_.recipes[place_of(run)], files, [&](const LanguageStep& step) {
                queue_.leave_if_stopped();
                advance(1, step.train_bpc);
            });
        const std::lock_guard lock(mutex_);
        done_steps_ += options_.run.steps - result.steps;  // a failed run takes no further steps
        std::error_code error;
        if (keeps(run) && !result.failed) std::filesystem::rename(files.checkpoint(), kept(files), error);
        progress_.finish();
        if (!options_.run.quiet) {
            std::fprintf(out_, "%s: %s\n", run.text().c_str(),
                         result.failed ? ("failed: " + result.reason).c_str()
                                       : (io::cell("%.4f bits/char", result.valid_loss) +
                                          io::cell(", %.0f tokens/s", result.tokens_per_s))
                                             .c_str());
            std::fflush(out_);
        }
        file_.add(std::move(result));
        files.remove();
        write_page();
    }

    void advance(std::size_t steps, double loss) {
        const std::lock_guard lock(mutex_);
        done_steps_ += steps;
        if (loss == 0.0) return;  // steps of an earlier process: not timed
        ++timed_steps_;
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
        const double per_step = seconds.count() / static_cast<double>(timed_steps_);
        const std::size_t all = waiting_.size() * options_.run.steps;
        progress_.update(done_steps_, loss, static_cast<double>(options_.run.batch * options_.run.seq) / per_step,
                         per_step * static_cast<double>(all - std::min(all, done_steps_)));
    }

    /// Evaluates the bias window on fp32's weights, at fp32's best rate and with the first seed. Removes the kept
    /// weights.
    void find_window(const std::vector<int>& biases) {
        const std::vector<RecipeSummary> all = summaries();
        const auto fp32 = std::find_if(all.begin(), all.end(),
                                       [](const RecipeSummary& summary) { return summary.recipe.name == "fp32"; });
        const RunResult& trained = fp32->best_rate().runs.front();
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

    /// The losses of a run's weights with each constant bias. If the weights were not kept, the run is trained again.
    [[nodiscard]] BiasWindow window_of(const RunResult& trained, const std::vector<int>& biases) const {
        const UnfinishedRun files = unfinished(trained.run);
        if (!std::filesystem::exists(kept(files))) {
            const RunResult again = train_compared(options_.run, trained.run, options_.recipes[place_of(trained.run)],
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

    [[nodiscard]] std::vector<RecipeSummary> summaries() const { return summarise(recipes_, runs_, file_.results()); }
    /// The known window, if its biases are the requested ones.
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
    std::mutex mutex_{};  ///< guards the members below, the file, the page and the output
    Progress progress_;
    std::chrono::steady_clock::time_point start_{};
    std::size_t done_steps_ = 0, timed_steps_ = 0;
    JobQueue queue_{};
};

}  // namespace

RunResult train_compared(LanguageRunOptions options, const ComparedRun& run, const std::string& source,
                         const UnfinishedRun& unfinished, const std::function<void(const LanguageStep&)>& watch) {
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
    RunResult result{.run = run, .recipe_fingerprint = fingerprint(recipe)};
    std::vector<Json> lines = unfinished.lines();
    LanguageRunResult trained;
    try {
        train::with_storage(recipe, [&]<class T>(std::type_identity<T>) {
            io::JsonLog log(unfinished.log(), true);
            LanguageRun<T> training(options);
            analysis::GradientZeros<T> zeros(training.state(), std::max<std::size_t>(options.steps / 20, 1),
                                             options.steps);
            training.tape().set_observer(&zeros);
            const std::size_t bias_every = std::max<std::size_t>(options.steps / 100, 1);
            trained = training.run(stdout, stdout, [&](const LanguageStep& step, const ScalingState& state) {
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
        result.train_loss = trained.train_bpc;
        result.valid_loss = trained.valid_bpc;
        result.weight_bytes = trained.weight_bytes;
        result.state_bytes = trained.state_bytes;
        result.step_bytes = trained.step_bytes;
    } catch (const RunFailed& failure) {
        result.failed = true;
        result.reason = failure.what();
        result.first_bad = first_bad_value(options, result.reason);
        result.reason = failure_text(failure);
    }
    add_steps(result, lines);
    if (!result.failed) {
        result.valid_steps.push_back(result.steps);
        result.valid.push_back(result.valid_loss);
    }
    return result;
}

void compare_recipes(const ComparisonOptions& options, std::FILE* out, std::FILE* progress) {
    Comparison(options, out, progress).run();
}

}  // namespace unitscale::experiments
