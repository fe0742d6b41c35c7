// SPDX-License-Identifier: MIT
#include "experiments/compare.hpp"

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/saved_model.hpp>

#include "experiments/comparison_page.hpp"
#include "experiments/comparison_table.hpp"
#include "experiments/constant_bias.hpp"
#include "experiments/language_run.hpp"
#include "experiments/progress.hpp"
#include "experiments/results_file.hpp"
#include "experiments/run_set.hpp"
#include "experiments/sweep_search.hpp"
#include "experiments/sweep_space.hpp"
#include "experiments/trained_run.hpp"
#include "experiments/unfinished_run.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace unitscale::experiments {

namespace {

/// The settings that all runs of a comparison share.
nlohmann::ordered_json settings_of(const SweepSpace& space, const std::u32string& text) {
    const LanguageRunOptions& run = space.run;
    nlohmann::ordered_json settings = {{"text", fingerprint(io::encode_utf8(text))},
                                       {"characters", text.size()},
                                       {"width", run.width},
                                       {"depth", run.depth},
                                       {"heads", run.heads},
                                       {"seq", run.seq},
                                       {"batch", run.batch},
                                       {"steps", run.steps},
                                       {"warmup", *run.warmup},
                                       {"eval_every", run.eval_every}};
    if (run.kv_heads > 0) settings["kv_heads"] = run.kv_heads;
    settings.update(changed_options(run));
    return settings;
}

/// A comparison in progress: trains the missing runs and keeps the result of every run that has ended.
class Comparison {
public:
    /// Trains nothing yet. Errors: the errors of the options, the data and the results file.
    Comparison(const ComparisonOptions& options, std::FILE* out, std::FILE* progress)
        : options_(checked(options)),
          out_(out),
          text_(read_training_text(options.run.data, {options.run.seq})),
          space_(options.space()),
          settings_(settings_of(space_, text_)),
          file_(options_.results_path(), settings_),
          set_(options_, space_, Measured::steps, settings_.dump()),
          progress_(progress, 1, true) {
        for (const std::string& source : options_.recipes) recipes_.push_back(io::load_recipe(source));
        const auto unknown = [](const SweepPoint&) { return std::numeric_limits<double>::quiet_NaN(); };
        runs_ = runs_of(space_, sweep_points(space_, {}, unknown), options_.seeds);
        for (const SearchRun& run : runs_) {
            compared_.push_back(compared(run));
            if (file_.find(compared_.back(), run.recipe_fingerprint) == nullptr) waiting_.push_back(run);
        }
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
        set_.clean(runs_);
        write_page();
        print();
    }

private:
    static const ComparisonOptions& checked(const ComparisonOptions& options) {
        options.validate();
        return options;
    }

    [[nodiscard]] std::string heading() const {
        const LanguageRunOptions& run = options_.run;
        return concatenate("model ", run.model_text(), ", width ", run.width, ", depth ", run.depth, ", heads ",
                           run.heads, "; ", run.steps, " steps of ", run.batch, " x ", run.seq, " of ", text_.size(),
                           " characters; ", options_.seeds, options_.seeds == 1 ? " seed" : " seeds", "; ",
                           options_.jobs, options_.jobs == 1 ? " run at a time" : " runs side by side", ", ",
                           run.threads, run.threads == 1 ? " thread each" : " threads each");
    }

    /// The file that keeps the trained weights of a run until the bias window is evaluated.
    [[nodiscard]] std::filesystem::path kept(const SearchRun& run) const { return set_.path_of(run) += ".trained"; }

    void train_all() {
        start_ = std::chrono::steady_clock::now();
        try {
            set_.train(waiting_,
                       {.began = [this](const SearchRun&, std::size_t known) { advance(known, 0.0); },
                        .stepped = [this](const SearchRun&, const LanguageStep& step) { advance(1, step.train_bpc); },
                        .lost = [this](const SearchRun& run, const std::string& reason,
                                       bool again) { lose(run, reason, again); },
                        .ended = [this](const SearchRun& run, const TrainedRun& trained,
                                        const std::filesystem::path& checkpoint) { keep(run, trained, checkpoint); }});
        } catch (...) {
            progress_.finish();
            throw;
        }
        progress_.finish();
    }

    void lose(const SearchRun& run, const std::string& reason, bool again) {
        if (!again || options_.run.quiet) return;
        progress_.finish();
        std::fprintf(out_, "%s: died, is made again: %s\n", compared(run).text().c_str(), reason.c_str());
        std::fflush(out_);
    }

    void keep(const SearchRun& run, const TrainedRun& trained, const std::filesystem::path& checkpoint) {
        RunResult result = result_of(run, trained);
        done_steps_ += options_.run.steps - result.steps;  // a failed run takes no further steps
        const bool windowed =
            !options_.biases().empty() && result.run.recipe == "fp32" && run.seed == options_.run.seed;
        if (windowed && !result.failed) {
            std::error_code error;
            std::filesystem::rename(checkpoint, kept(run), error);
        }
        progress_.finish();
        if (!options_.run.quiet) {
            const std::string outcome = result.failed ? "failed: " + result.reason
                                                      : io::cell("%.4f bits/char", result.valid_loss) +
                                                            io::cell(", %.0f tokens/s", result.tokens_per_s);
            std::fprintf(out_, "%s: %s\n", result.run.text().c_str(), outcome.c_str());
            std::fflush(out_);
        }
        file_.add(std::move(result), !trained.lost);
        write_page();
    }

    void advance(std::size_t steps, double loss) {
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
        std::error_code ignored;
        for (const SearchRun& run : runs_) std::filesystem::remove(kept(run), ignored);
    }

    /// The losses of a run's weights with each constant bias. If the weights were not kept, the run is trained again.
    [[nodiscard]] BiasWindow window_of(const RunResult& trained, const std::vector<int>& biases) {
        const auto place = std::find(compared_.begin(), compared_.end(), trained.run) - compared_.begin();
        const SearchRun& run = runs_[static_cast<std::size_t>(place)];
        if (!std::filesystem::exists(kept(run)))
            set_.train({run}, {.ended = [&](const SearchRun&, const TrainedRun& again,
                                            const std::filesystem::path& checkpoint) {
                           check(again.result.valid_bpc == trained.valid_loss, "--window: ", trained.run.text(),
                                 " does not end where it did; is it another program or machine?");
                           std::filesystem::rename(checkpoint, kept(run));
                       }});
        train::SavedModel<float> saved(kept(run), options_.run.threads);
        const std::vector<std::int32_t> tokens = saved.vocabulary().encode(text_);
        const auto loss = [&](const Recipe& recipe) {
            ScalingState state;
            Tape<float> tape(recipe, state, options_.run.threads);
            return train::evaluate(saved.model(), tape, train::split(tokens, options_.run.seq).validation,
                                   options_.run.seq, options_.run.batch);
        };
        BiasWindow window{.run = trained.run, .biases = biases, .unrounded = loss(find_recipe("fp32"))};
        for (const int bias : biases)
            window.losses.push_back(loss(with_constant_bias(find_recipe("fp8-cscale"), bias)));
        return window;
    }

    [[nodiscard]] std::vector<RecipeSummary> summaries() const {
        return summarise(recipes_, compared_, file_.results());
    }
    /// The known window, if its biases are the requested ones.
    [[nodiscard]] std::optional<BiasWindow> window() const {
        const bool asked = file_.window() && file_.window()->biases == options_.biases();
        return asked ? file_.window() : std::nullopt;
    }

    void write_page() const {
        const std::vector<RecipeSummary> all = summaries();
        io::write_atomically("--out", options_.out, comparison_page(all, heading(), window(), options_.source));
        if (options_.plot.empty()) return;
        if (const std::string svg = comparison_plot(all, options_.source); !svg.empty())
            io::write_atomically("--plot", options_.plot, svg);
    }

    void print() const {
        const std::vector<RecipeSummary> all = summaries();
        const auto say = [this](const std::string& text) { std::fprintf(out_, "%s", text.c_str()); };
        say("\n" + io::text_table(comparison_rows(all)));
        say("\ngradients that became zero, by op: rounded by products (as stored)\n" + io::text_table(zero_rows(all)));
        if (const auto rows = overflow_rows(all); rows.size() > 1)
            say("\nelements that overflowed, in the steps whose gradients are counted\n" + io::text_table(rows));
        for (const std::string& line : failure_lines(all)) say("\n" + line + "\n");
        if (const auto found = window())
            say(concatenate("\none constant bias for weights and activations (FP8-CSCALE), weights of ",
                            found->run.text(), "\n", io::text_table(window_rows(*found))));
        std::fflush(out_);
    }

    ComparisonOptions options_;
    std::FILE* out_;
    std::u32string text_;
    SweepSpace space_;
    nlohmann::ordered_json settings_;
    ComparisonFile file_;
    RunSet set_;
    std::vector<Recipe> recipes_{};
    std::vector<SearchRun> runs_{}, waiting_{};
    std::vector<ComparedRun> compared_{};  ///< of `runs_`, in their order
    Progress progress_;
    std::chrono::steady_clock::time_point start_{};
    std::size_t done_steps_ = 0, timed_steps_ = 0;
};

}  // namespace

void compare_recipes(const ComparisonOptions& options, std::FILE* out, std::FILE* progress) {
    Comparison(options, out, progress).run();
}

void make_comparison_run(const ComparisonOptions& options, const std::string& task, std::FILE* out) {
    make_run(out, [&] {
        const SweepSpace space = options.space();
        const nlohmann::ordered_json settings =
            settings_of(space, read_training_text(options.run.data, {options.run.seq}));
        RunSet(options, space, Measured::steps, settings.dump()).make(task, out);
    });
}

}  // namespace unitscale::experiments
