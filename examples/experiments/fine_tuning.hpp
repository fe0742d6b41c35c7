// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/save_published.hpp>
#include <unitscale/train/saved_model.hpp>
#include <unitscale/train/step.hpp>
#include <unitscale/train/trainer.hpp>

#include "experiments/language_run_options.hpp"
#include "experiments/progress.hpp"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

// Fine-tuning of a decoder that holds published weights, on token ids.
namespace unitscale::experiments {

/// The options of fine-tuning. The defaults are the FP8 LLM paper's, but for learning rate and steps.
/// Reference: Perez et al. 2023, arXiv:2309.17224.
struct FineTuningOptions {
    std::filesystem::path ids{};  ///< .npy file of token ids, [N]; the last tenth is for validation
    /// Of the tuned weights: a `.safetensors` file, or a folder as the package transformers has it; empty: none.
    std::filesystem::path save{};
    std::filesystem::path original{};  ///< the published model, for such a folder
    std::size_t steps = 100;
    std::size_t batch = 512;                     ///< sequences in a step
    std::optional<std::size_t> micro_batches{};  ///< parts of a batch; empty: one for each sequence
    std::optional<std::size_t> seq{};            ///< tokens in a sequence; empty: the model's positions
    double lr = 2e-5;                            ///< constant
    double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-5;
    std::optional<double> weight_decay{};  ///< empty: `usual_weight_decay`, for models that have one
    std::uint64_t seed = 1;                ///< of the order of data and of stochastic rounding
    int threads = 1;

    [[nodiscard]] std::size_t parts() const noexcept { return micro_batches.value_or(batch); }
    [[nodiscard]] bool saves_folder() const { return !save.empty() && save.extension() != ".safetensors"; }
    [[nodiscard]] std::size_t length(const nn::DecoderConfig& model) const noexcept {
        return seq.value_or(model.length);
    }
    /// The weight decay of a model of so many parameters.
    /// Error: none is given for a model larger than the paper's 590M.
    [[nodiscard]] double used_weight_decay(std::size_t parameters) const;

    /// Checks the options for a model, before anything is computed. No file changes.
    /// Errors, naming the option: a number out of range; more tokens in a sequence than the model has positions; no
    /// weight decay; a file that cannot be written.
    void validate(const nn::DecoderConfig& model) const;
};

/// The weight decay of models up to gpt-590m (nn/published_shapes.hpp).
inline constexpr double usual_weight_decay = 0.01;

/// The token ids of a .npy file. Errors, naming the file: elements that are not whole numbers; a shape other than [N];
/// an id outside [0, vocabulary); the errors of io/npy.hpp.
[[nodiscard]] std::vector<std::int32_t> read_token_ids(const std::filesystem::path& path, std::size_t vocabulary);

/// Mean losses over the validation tokens, in nats per token, and the training's speed.
struct FineTuned {
    double before = 0.0, after = 0.0;
    double tokens_per_s = 0.0;
    std::uint64_t skipped = 0;  ///< steps that were not taken: their loss scale was too large
};

/// The settings as the program prints them, a line each.
[[nodiscard]] std::string fine_tuning_text(const FineTuningOptions& options, const nn::DecoderConfig& model,
                                           const Recipe& recipe, std::size_t tokens);
/// `3.2189 nats, 4.6439 bits per token`.
[[nodiscard]] std::string token_loss_text(double nats);
/// The last line of the program's output.
[[nodiscard]] std::string fine_tuned_line(const FineTuningOptions& options, const Recipe& recipe,
                                          const FineTuned& tuned);

/// Trains a model that holds its weights already, by AdamW at a constant rate, and saves it.
/// `options` are valid and `ids` are ids of the model. Reports to `out`, and draws progress on `progress`.
/// Biases and norms do not decay. Loss scale, storage and clipping are the recipe's (train::Trainer).
/// Errors: too few ids; the errors of Trainer. RunFailed: a loss that is not finite, skipped steps as
/// `train::has_failed` says. Test: tests/experiments/fine_tuning_test.cpp
template <class T>
FineTuned fine_tune(nn::Decoder<T>& model, const Recipe& recipe, const FineTuningOptions& options,
                    const std::vector<std::int32_t>& ids, std::FILE* out, std::FILE* progress) {
    using Clock = std::chrono::steady_clock;
    const std::size_t length = options.length(model.config()), rows = options.batch / options.parts();
    const train::Split split = train::split(ids, length, false, "tokens");
    train::Trainer<T> trainer(
        model, recipe,
        {.seed = options.seed,
         .threads = options.threads,
         .schedule = {.kind = optim::ScheduleKind::constant, .peak = options.lr, .steps = options.steps},
         .initialise = false},
        {.beta1 = options.beta1,
         .beta2 = options.beta2,
         .epsilon = options.epsilon,
         .weight_decay = options.used_weight_decay(model.parameter_count()),
         .decay_bias_and_norm = false});
    const auto failed = [&](const char* what, double value) {
        throw RunFailed(concatenate("fine-tuning: the ", what, " is ", value, " at step ", trainer.steps(),
                                    "; try a lower --lr (it is ", options.lr, ")"));
    };
    const auto validation_loss = [&] {
        const double loss =
            train::evaluate(model, trainer.tape(), split.validation, length, rows) / train::bits_per_nat;
        if (!std::isfinite(loss)) failed("validation loss", loss);
        return loss;
    };

    const RandomKey order{options.seed, hash_name("data")};
    train::Batch batch = train::make_batch(rows, length);
    train::fill_random(batch, split.training, order, 1);
    train::plan_factors(model, trainer.tape(), batch, options.parts());
    FineTuned tuned{.before = validation_loss()};
    std::fprintf(out, "before      %s\n", token_loss_text(tuned.before).c_str());
    std::fflush(out);

    Progress drawn(progress, options.steps, false, {.measured = "bits/token"});
    double smooth = 0.0;
    const Clock::time_point begin = Clock::now();
    for (std::size_t step = 1; step <= options.steps; ++step) {
        const train::StepResult result = trainer.step(
            [&](Tape<T>& tape, std::size_t part) {
                train::fill_random(batch, split.training, order, step, part * rows);
                return ops::softmax_cross_entropy(model(tape, batch.ids), batch.labels);
            },
            options.parts());
        tuned.skipped = trainer.scaler().skipped();
        if (train::has_failed(result, trainer.scaler(), options.steps)) {
            drawn.finish();
            const bool finite = std::isfinite(result.loss);
            failed(finite ? "gradient norm" : "loss", finite ? result.gradient_norm : result.loss);
        }
        const double bits = result.loss * train::bits_per_nat;
        smooth = step == 1 ? bits : 0.9 * smooth + 0.1 * bits;
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        tuned.tokens_per_s = static_cast<double>(step * options.batch * length) / seconds;
        drawn.update(step, smooth, tuned.tokens_per_s,
                     seconds / static_cast<double>(step) * static_cast<double>(options.steps - step));
    }
    drawn.finish();
    tuned.after = validation_loss();
    std::fprintf(out, "after       %s\n", token_loss_text(tuned.after).c_str());
    if (options.saves_folder()) train::save_published(options.save, model, recipe, options.original);
    else if (!options.save.empty()) train::save_decoder(options.save, model, recipe);
    return tuned;
}

}  // namespace unitscale::experiments
