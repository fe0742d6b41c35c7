// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/audit.hpp>
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_log.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/parameter_table.hpp>
#include <unitscale/train/precision_table.hpp>
#include <unitscale/train/saved_model.hpp>
#include <unitscale/train/step.hpp>
#include <unitscale/train/storage.hpp>

#include "experiments/language_run_options.hpp"
#include "experiments/progress.hpp"
#include "experiments/resources.hpp"
#include "experiments/words.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace unitscale::experiments {

/// Trains a character-level transformer on text with a recipe, evaluates it on the last tenth, and generates a sample.
/// Reports to `out` (settings, precision table, evaluations) and draws progress on `progress`.
/// T is the element type of the recipe's tape; `run_language` and its siblings select it.
/// Errors: the errors of the options, the data and the model, before any computation. RunFailed: the loss is no longer
/// finite. Test: tests/experiments/language_run_test.cpp
template <class T>
class LanguageRun {
public:
    explicit LanguageRun(const LanguageRunOptions& options)
        : options_(checked(options)),
          recipe_(recipe_of(options)),
          text_(io::read_text(options.data)),
          vocabulary_(text_),
          tokens_(vocabulary_.encode(text_)),
          parts_(train::split(tokens_, options.seq)),
          model_(options.decoder(vocabulary_.size())),
          state_(options.seed),
          tape_(recipe_, state_, options.threads),
          optimiser_(model_.parameters(), {.beta1 = 0.9,
                                           .beta2 = 0.95,
                                           .weight_decay = options.weight_decay,
                                           .peak_learning_rate = peak(),
                                           .decay_bias_and_norm = false,
                                           .parametrisation = recipe_.parametrisation_rule(),
                                           .storage = recipe_.storage,
                                           .pool = optimiser_memory_}),
          scaler_(recipe_.loss_scaling) {
        train::check_storage<T>("LanguageRun", recipe_);
        if (!options.log.empty()) log_ = std::make_unique<io::JsonLog>(options.log, !options.resume.empty());
        nn::initialise(model_.parameters(), recipe_, options.seed);
        schedule_ = {.peak = peak(), .steps = options.steps};
        if (!options.constant_rate) {
            schedule_.kind = optim::ScheduleKind::cosine;
            schedule_.warmup = options.warmup.value_or(std::max<std::size_t>(options.steps / 10, 1));
        }
        schedule_.validate();
    }

    [[nodiscard]] const Recipe& recipe() const noexcept { return recipe_; }
    [[nodiscard]] nn::Decoder<T>& model() noexcept { return model_; }
    [[nodiscard]] ScalingState& state() noexcept { return state_; }
    [[nodiscard]] Tape<T>& tape() noexcept { return tape_; }
    [[nodiscard]] const train::Split& split() const noexcept { return parts_; }

    /// Fixes the forward factors before any other computation.
    void plan() { train::plan_factors(model_, tape_, first_batch(), options_.micro_batches); }

    /// Takes all steps without output and without an evaluation at the end. `watch` sees every completed step.
    void take_steps(const StepWatcher& watch) {
        restore(stdout);
        Progress silent(stdout, options_.steps, true);
        train(stdout, silent, watch);
    }

    /// The settings, and the format of every product's operands, found by a dry step.
    [[nodiscard]] std::string description() {
        plan();
        static_cast<void>(train::evaluate(model_, tape_, parts_.validation, options_.seq, 1, 1));
        return concatenate(
            "recipe      ", recipe_.name, ": ", recipe_.description, "\nscaling     ", train::scaling_text(recipe_),
            "\nstorage     ", train::storage_text(recipe_.storage), "\nparameters  ",
            train::parametrisation_text(recipe_), "\nmodel       ", options_.model, ", width ", options_.width,
            ", depth ", options_.depth, ", heads ", options_.head_count(), ", sequence ", options_.seq, "; ",
            model_.parameter_count(), " parameters, vocabulary of ", vocabulary_.size(), " characters\ndata        ",
            parts_.training.size(), " characters to train on, ", parts_.validation.size(), " to validate\ntraining    ",
            options_.steps, " steps of ", options_.batch, " x ", options_.seq, " characters, peak learning rate ",
            schedule_.peak, ", warm-up ", schedule_.warmup, " steps, Adam, seed ", options_.seed, ", ",
            options_.threads, options_.threads == 1 ? " thread\n\n" : " threads\n\n", train::precision_table(state_),
            "attention's products without a line here, and all sums, are not rounded\n");
    }

    /// The parametrisation's effect on every parameter, at the learning rate of the next step.
    [[nodiscard]] std::string parameters() {
        if (!options_.resume.empty()) restore(nullptr);
        return train::parameter_table(optimiser_, recipe_,
                                      schedule_.at(std::min<std::size_t>(state_.step() + 1, options_.steps)));
    }

    /// The audit of the first step's scale factors. Takes no step.
    [[nodiscard]] analysis::Audit audit() {
        plan();
        const train::Batch batch = first_batch();
        tape_.begin_step({.micro_batches = options_.micro_batches, .training = false});
        return analysis::audit(tape_, ops::softmax_cross_entropy(model_(tape_, batch.ids), batch.labels));
    }

    /// Trains to the end. `watch` sees every completed step, before a checkpoint holds it.
    LanguageRunResult run(std::FILE* out, std::FILE* progress_stream, const StepWatcher& watch = {}) {
        const Clock::time_point begin = Clock::now();
        if (!options_.save.empty()) io::check_writable("checkpoint", options_.save);
        restore(out);
        if (!options_.quiet) std::fprintf(out, "%s\n", description().c_str());

        LanguageRunResult result{.recipe = recipe_.name, .steps = options_.steps};
        Progress progress(progress_stream, options_.steps, options_.quiet);
        try {
            result.tokens_per_s = train(out, progress, watch);
            result.step_bytes = tape_.pool()->peak_bytes();
            result.valid_bpc = validate(options_.steps);
        } catch (const RunFailed&) {
            progress.finish();
            throw;
        }
        progress.finish();
        result.train_bpc = numbers_["tail_sum"] / static_cast<double>(tail_steps());
        result.skipped = scaler_.skipped();
        if (result.skipped > 0 && !options_.quiet)
            std::fprintf(out, "%zu of %zu steps were not taken: their loss scale was too large\n",
                         static_cast<std::size_t>(result.skipped), options_.steps);
        for (const Parameter<T>* parameter : model_.parameters())
            result.weight_bytes += parameter->value().span().size_bytes();
        result.state_bytes = optimiser_memory_->live_bytes();
        if (options_.sample > 0) write_sample(result);
        result.peak_rss_mb = peak_resident_megabytes();
        result.seconds = seconds_since(begin);
        return result;
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::uint64_t most_skipped_steps = 50;  ///< in a row; more end the run

    static double seconds_since(Clock::time_point start) {
        return std::chrono::duration<double>(Clock::now() - start).count();
    }
    [[nodiscard]] std::size_t rows() const noexcept { return options_.batch / options_.micro_batches; }
    [[nodiscard]] double peak() const noexcept { return options_.lr.value_or(recipe_.learning_rate); }
    /// The steps of the last tenth. Their mean is the training loss of the run.
    [[nodiscard]] std::size_t tail_steps() const noexcept { return std::max<std::size_t>(options_.steps / 10, 1); }
    [[nodiscard]] RandomKey data_key() const noexcept { return {options_.seed, hash_name("data")}; }
    [[nodiscard]] bool scales_loss() const noexcept { return recipe_.loss_scaling.kind != LossScaleKind::none; }

    [[nodiscard]] train::Batch first_batch() const {
        train::Batch batch = train::make_batch(rows(), options_.seq);
        train::fill_random(batch, parts_.training, data_key(), 1, 0);
        return batch;
    }

    /// Takes all remaining steps. Returns tokens per second, without evaluations.
    double train(std::FILE* out, Progress& progress, const StepWatcher& watch) {
        std::vector<train::Batch> batches;
        for (std::size_t i = 0; i < options_.micro_batches; ++i)
            batches.push_back(train::make_batch(rows(), options_.seq));
        double &tail_sum = numbers_["tail_sum"], &smooth = numbers_["smooth"];
        double seconds = 0.0, speed = 0.0;
        const std::size_t done = state_.step();
        for (std::size_t step = done + 1; step <= options_.steps; ++step) {
            const Clock::time_point begin = Clock::now();
            for (std::size_t i = 0; i < batches.size(); ++i)
                train::fill_random(batches[i], parts_.training, data_key(), step, i * rows());
            LanguageStep now{.step = step, .learning_rate = schedule_.at(step)};
            if (scales_loss()) now.loss_scale = scaler_.scale();
            train::StepResult result;
            do {
                result = train::train_step<T>(model_, tape_, optimiser_, batches, now.learning_rate,
                                              scales_loss() ? &scaler_ : nullptr);
            } while (options_.repeat_skipped && result.skipped && scaler_.skipped_in_a_row() <= most_skipped_steps);
            check_step(result, step);
            seconds += seconds_since(begin);
            speed = static_cast<double>((step - done) * options_.batch * options_.seq) / seconds;

            now.train_bpc = result.loss * train::bits_per_nat;
            now.tokens_per_s = speed;
            now.skipped = scaler_.skipped();
            if (scales_loss() || recipe_.clip_norm > 0.0) now.gradient_norm = result.gradient_norm;
            smooth = step == 1 ? now.train_bpc : 0.9 * smooth + 0.1 * now.train_bpc;
            if (step + tail_steps() > options_.steps) tail_sum += now.train_bpc;
            if (options_.eval_every > 0 && step % options_.eval_every == 0 && step != options_.steps) {
                now.valid_bpc_part = validate(step, 10 * options_.batch);
                progress.finish();
                if (!options_.quiet)
                    std::fprintf(out, "step %zu: %.4f bits/char on part of the validation text\n", step,
                                 *now.valid_bpc_part);
            }
            if (log_) or_run_failed([&] { log_->write(now.json()); });
            progress.update(step, smooth, speed,
                            seconds / static_cast<double>(step - done) * static_cast<double>(options_.steps - step));
            if (watch) watch(now, state_);
            const bool due = step == options_.steps || (options_.save_every > 0 && step % options_.save_every == 0);
            if (due && !options_.save.empty())
                or_run_failed([&] { train::save_run(options_.save, parts(), recipe_, numbers_, texts()); });
        }
        return speed;
    }

    /// Error unless the step was taken, or was skipped because the loss scale is still too large: Diverged.
    void check_step(const train::StepResult& result, std::size_t step) const {
        if (result.updated || (result.skipped && scaler_.skipped_in_a_row() <= most_skipped_steps)) return;
        const bool finite = std::isfinite(result.loss);
        throw Diverged(concatenate("train: the ", finite ? "gradient norm" : "loss", " is ",
                                   finite ? result.gradient_norm : result.loss, " at step ", step,
                                   "; try a lower --lr (it is ", schedule_.peak, ")"));
    }

    /// Bits per character on the validation text, or on at most `most` windows of it. Diverged: not finite.
    double validate(std::size_t step, std::size_t most = std::numeric_limits<std::size_t>::max()) {
        const double valid = train::evaluate(model_, tape_, parts_.validation, options_.seq, options_.batch, most);
        if (!std::isfinite(valid))
            throw Diverged(concatenate("train: the validation loss is ", valid, " after step ", step,
                                       "; try a lower --lr (it is ", schedule_.peak, ")"));
        return valid;
    }

    void write_sample(LanguageRunResult& result) {
        const auto prompt = parts_.validation.first(std::max<std::size_t>(options_.seq / 2, 1));
        result.sample = vocabulary_.decode(train::generate(model_, tape_, prompt,
                                                           {.tokens = options_.sample,
                                                            .temperature = options_.temperature,
                                                            .top_k = options_.top_k,
                                                            .seed = options_.seed}));
        result.words = count_known_words(result.sample,
                                         io::encode_utf8(std::u32string_view(text_).substr(0, parts_.training.size())));
    }

    [[nodiscard]] train::RunParts<T, optim::Adam<T>> parts() {
        return {model_.parameters(), optimiser_, state_, scaler_};
    }
    /// The texts that a checkpoint must agree with.
    [[nodiscard]] std::map<std::string, std::string> texts() const {
        return {{"vocabulary", io::encode_utf8(vocabulary_.characters())},
                {"model", train::decoder_to_json(model_.config()).dump()}};
    }

    /// Restores the state of --resume or the weights of --weights.
    void restore(std::FILE* out) {
        const auto seed = static_cast<double>(options_.seed);
        if (!options_.weights.empty())
            for (const std::string& note :
                 train::load_weights(options_.weights, model_.parameters(), recipe_.scaling != Scaling::propagate))
                std::fprintf(out, "%s\n", note.c_str());
        if (options_.resume.empty()) {
            numbers_ = {{"seed", seed}, {"tail_sum", 0.0}, {"smooth", 0.0}};
            return;
        }
        numbers_ = train::load_run(options_.resume, parts(), texts());
        check(state_.step() <= options_.steps, "--resume: ", options_.resume, " is at step ", state_.step(),
              ", after the run's ", options_.steps, " steps");
        check(numbers_["seed"] == seed, "--resume: ", options_.resume, " was trained with --seed ", numbers_["seed"],
              ", not ", options_.seed);
    }

    /// An Error while writing (a full disk) becomes RunFailed: the arguments are not its cause.
    template <class F>
    static void or_run_failed(F&& write) {
        try {
            write();
        } catch (const Error& error) {
            throw RunFailed(error.what());
        }
    }

    static const LanguageRunOptions& checked(const LanguageRunOptions& options) {
        options.validate();
        return options;
    }

    LanguageRunOptions options_;
    Recipe recipe_;
    std::u32string text_;
    io::CharacterVocabulary vocabulary_;
    std::vector<std::int32_t> tokens_;
    train::Split parts_;
    nn::Decoder<T> model_;
    ScalingState state_;
    Tape<T> tape_;
    std::shared_ptr<MemoryPool> optimiser_memory_ = std::make_shared<MemoryPool>();
    optim::Adam<T> optimiser_;
    optim::LossScaler scaler_;
    std::unique_ptr<io::JsonLog> log_{};
    optim::Schedule schedule_{};
    std::map<std::string, double> numbers_{};  ///< kept in checkpoints: running sums and the seed
};

/// `LanguageRun<T>::run` for the element type T that the options' recipe asks for.
LanguageRunResult run_language(const LanguageRunOptions& options, std::FILE* out, std::FILE* progress,
                               const StepWatcher& watch = {});
/// `LanguageRun<T>::description`, for T as in `run_language`.
[[nodiscard]] std::string describe_language(const LanguageRunOptions& options);
/// `LanguageRun<T>::parameters`, for T as in `run_language`.
[[nodiscard]] std::string parameters_of_language(const LanguageRunOptions& options);
/// `LanguageRun<T>::audit`, for T as in `run_language`.
[[nodiscard]] analysis::Audit audit_language(const LanguageRunOptions& options);

// Compiled once for each element type of recipes: run_<type>.cpp.
extern template class LanguageRun<float>;
extern template class LanguageRun<Half>;
extern template class LanguageRun<BFloat16>;

}  // namespace unitscale::experiments

namespace unitscale {

extern template class train::SavedModel<float>;
extern template class train::SavedModel<Half>;
extern template class train::SavedModel<BFloat16>;
extern template class analysis::Tracker<float>;
extern template class analysis::Tracker<Half>;
extern template class analysis::Tracker<BFloat16>;

}  // namespace unitscale
