// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/audit.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/json_log.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/io/whole_file.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/precision_table.hpp>
#include <unitscale/train/progress.hpp>
#include <unitscale/train/resources.hpp>
#include <unitscale/train/saved_model.hpp>
#include <unitscale/train/step.hpp>
#include <unitscale/train/words.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace unitscale::train {

/// A run that began and could not be finished (the loss became NaN): not the arguments' fault, unlike Error.
class RunFailed : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// What `train_transformer` is asked to do.
struct LanguageRunOptions {
    std::vector<std::filesystem::path> data{};  ///< files or folders of UTF-8 text
    std::string recipe = "unit-fp8";            ///< a known recipe's name, or a JSON file (io/json_recipe.hpp)
    std::vector<std::string> set{};             ///< fields of the recipe, key=value
    std::size_t width = 128, depth = 4, heads = 2, seq = 128, batch = 16, steps = 500;
    std::optional<double> lr{};           ///< empty: the recipe's
    std::optional<std::size_t> warmup{};  ///< steps to the peak learning rate; empty: a tenth of the run
    std::size_t micro_batches = 1;
    bool recompute = false;  ///< blocks keep their input only and run again in the backward pass
    std::uint64_t seed = 1;
    int threads = 1;
    std::size_t eval_every = 100;  ///< 0: only at the end
    std::size_t sample = 300;      ///< characters to write at the end, after the start of the validation text
    double temperature = 0.5;
    std::size_t top_k = 0;       ///< only the k most likely characters are drawn; 0: all
    bool to_infinity = false;    ///< operands of products that exceed their format become infinite instead of saturating
    std::string log{};           ///< JSON lines, one object per step
    std::string save{};          ///< checkpoint (safetensors), written at the end
    std::size_t save_every = 0;  ///< steps between checkpoints; 0: only at the end
    std::string resume{};        ///< checkpoint to go on from
    std::string weights{};       ///< file of weights to begin with
    bool quiet = false;

    static constexpr std::size_t most = 1'000'000'000;  ///< of every size

    /// Error, naming the option: a size of 0 and the like.
    void validate() const {
        check(!data.empty(), "--data: no path given; expected files or folders of text");
        const auto positive = [](const char* option, std::size_t value) {
            check(value >= 1, option, ": is 0; expected at least 1");
            check(value <= most, option, ": is ", value, "; expected at most ", most);
        };
        positive("--width", width);
        positive("--depth", depth);
        positive("--heads", heads);
        positive("--seq", seq);
        positive("--batch", batch);
        positive("--steps", steps);
        positive("--micro-batches", micro_batches);
        check(width % heads == 0, "--heads: width ", width, " is not divisible by ", heads, " heads");
        check(batch % micro_batches == 0, "--micro-batches: batch ", batch, " is not divisible by ", micro_batches,
              " micro-batches");
        check(threads >= 1, "--threads: is ", threads, "; expected at least 1");
        check(!warmup || *warmup <= steps, "--warmup: ", warmup.value_or(0), " steps are more than the run's ", steps);
        check(!lr || (std::isfinite(*lr) && *lr > 0.0), "--lr: is ", lr.value_or(0.0), "; expected a positive number");
        check(std::isfinite(temperature) && temperature >= 0.0, "--temperature: is ", temperature, "; expected 0 or more");
        check(save_every == 0 || !save.empty(), "--save-every: is ", save_every, ", but --save names no file");
        check(resume.empty() || weights.empty(), "--weights: --resume brings weights of its own; give one of the two");
        check(top_k <= most, "--top-k: is ", top_k, "; expected at most ", most);
    }
};

/// What a run measured. Losses in bits per character.
struct LanguageRunResult {
    std::string recipe{};
    std::size_t steps = 0;
    double train_bpc = 0.0;     ///< mean over the last tenth of the steps
    double valid_bpc = 0.0;     ///< over the whole validation part, at the end
    double tokens_per_s = 0.0;  ///< training steps only, without evaluation
    double peak_rss_mb = 0.0;
    double seconds = 0.0;  ///< the whole run
    std::string sample{};
    WordCount words{};

    /// The line that ends a run's output.
    [[nodiscard]] std::string line() const {
        char text[256];
        std::snprintf(text, sizeof text,
                      "result recipe=%s steps=%zu train_bpc=%.4f valid_bpc=%.4f tokens_per_s=%.0f peak_rss_mb=%.0f seconds=%.1f",
                      recipe.c_str(), steps, train_bpc, valid_bpc, tokens_per_s, peak_rss_mb, seconds);
        return text;
    }
};

/// Trains a character-level transformer on text with a recipe, evaluates it on the last tenth, and lets it write.
/// Narrates on `out` (settings, precision table, evaluations, sample) and draws progress on `progress`.
/// Errors: those of the options, the data and the model, before anything is computed; RunFailed when the loss is no
/// longer finite. Test: tests/train/language_run_test.cpp
class LanguageRun {
public:
    explicit LanguageRun(const LanguageRunOptions& options)
        : options_(checked(options)),
          recipe_(recipe_of(options)),
          text_(io::read_text(options.data)),
          vocabulary_(text_),
          tokens_(vocabulary_.encode(text_)),
          parts_(split(tokens_, options.seq)),
          model_({.vocabulary = vocabulary_.size(),
                  .width = options.width,
                  .depth = options.depth,
                  .heads = options.heads,
                  .length = options.seq,
                  .recompute = options.recompute}),
          state_(options.seed),
          tape_(recipe_, state_, options.threads) {
        if (!options.log.empty()) log_ = std::make_unique<io::JsonLog>(options.log, !options.resume.empty());
        nn::initialise(model_.parameters(), recipe_, options.seed);
        schedule_ = {.kind = optim::ScheduleKind::cosine,
                     .peak = options.lr.value_or(recipe_.learning_rate),
                     .steps = options.steps,
                     .warmup = options.warmup.value_or(std::max<std::size_t>(options.steps / 10, 1))};
        schedule_.validate();
    }

    [[nodiscard]] const Recipe& recipe() const noexcept { return recipe_; }
    [[nodiscard]] nn::Decoder<float>& model() noexcept { return model_; }
    [[nodiscard]] ScalingState& state() noexcept { return state_; }
    [[nodiscard]] Tape<float>& tape() noexcept { return tape_; }

    /// Settings and the format of every product's operands, found by a dry step.
    [[nodiscard]] std::string description() {
        plan();
        static_cast<void>(evaluate(model_, tape_, parts_.validation, options_.seq, 1, 1));
        return concatenate("recipe      ", recipe_.name, ": ", recipe_.description, "\nscaling     ", scaling_text(recipe_),
                           "\nmodel       width ", options_.width, ", depth ", options_.depth, ", heads ", options_.heads,
                           ", sequence ", options_.seq, "; ", model_.parameter_count(), " parameters, vocabulary of ",
                           vocabulary_.size(), " characters\ndata        ", parts_.training.size(), " characters to train on, ",
                           parts_.validation.size(), " to validate\ntraining    ", options_.steps, " steps of ", options_.batch,
                           " x ", options_.seq, " characters, peak learning rate ", schedule_.peak, ", warm-up ",
                           schedule_.warmup, " steps, Adam, seed ", options_.seed, ", ", options_.threads,
                           options_.threads == 1 ? " thread\n\n" : " threads\n\n", precision_table(state_),
                           "attention's own products and sums are never rounded\n");
    }

    /// Fixes the forward factors, before anything else is computed.
    void plan() {
        const std::size_t rows = options_.batch / options_.micro_batches;
        Batch batch = make_batch(rows, options_.seq);
        fill_random(batch, parts_.training, {options_.seed, hash_name("data")}, 1, 0);
        plan_factors(model_, tape_, batch, options_.micro_batches);
    }

    /// The audit of the first step's scale factors. Takes no step.
    [[nodiscard]] analysis::Audit audit() {
        plan();
        Batch batch = make_batch(options_.batch / options_.micro_batches, options_.seq);
        fill_random(batch, parts_.training, {options_.seed, hash_name("data")}, 1, 0);
        tape_.begin_step({.micro_batches = options_.micro_batches, .training = false});
        return analysis::audit(tape_, ops::softmax_cross_entropy(model_(tape_, batch.ids), batch.labels));
    }

    LanguageRunResult run(std::FILE* out, std::FILE* progress_stream) {
        using Clock = std::chrono::steady_clock;
        const auto seconds_since = [](Clock::time_point start) {
            return std::chrono::duration<double>(Clock::now() - start).count();
        };
        const auto begin = Clock::now();
        if (!options_.save.empty()) io::check_writable("checkpoint", options_.save);
        optim::Adam<float> optimiser(model_.parameters(), {.beta1 = 0.9, .beta2 = 0.95});
        optim::LossScaler scaler(recipe_.loss_scaling);
        optim::LossScaler* const used_scaler = recipe_.loss_scaling.kind == LossScaleKind::none ? nullptr : &scaler;
        const Parts parts{model_.parameters(), optimiser, state_, scaler};
        const std::map<std::string, std::string> texts = {{"vocabulary", io::encode_utf8(vocabulary_.characters())},
                                                          {"model", decoder_to_json(model_.config()).dump()}};
        std::map<std::string, double> numbers = restored(parts, texts, out);
        if (!options_.quiet) std::fprintf(out, "%s\n", description().c_str());
        std::vector<Batch> batches;
        const std::size_t rows = options_.batch / options_.micro_batches;
        for (std::size_t i = 0; i < options_.micro_batches; ++i) batches.push_back(make_batch(rows, options_.seq));

        Progress progress(progress_stream, options_.steps, options_.quiet);
        const RandomKey data_key{options_.seed, hash_name("data")};
        const std::size_t tail = std::max<std::size_t>(options_.steps / 10, 1);
        const auto finite = [&](double valid, std::size_t step) {
            if (std::isfinite(valid)) return valid;
            progress.finish();
            throw RunFailed(concatenate("train: the validation loss is ", valid, " after step ", step,
                                        "; try a lower --lr (it is ", schedule_.peak, ")"));
        };
        double training_seconds = 0.0;
        double &tail_sum = numbers["tail_sum"], &smooth = numbers["smooth"];
        const std::size_t done = state_.step();
        for (std::size_t step = done + 1; step <= options_.steps; ++step) {
            const auto step_begin = Clock::now();
            for (std::size_t i = 0; i < batches.size(); ++i) fill_random(batches[i], parts_.training, data_key, step, i * rows);
            const double rate = schedule_.at(step);
            const StepResult result = train_step<float>(model_, tape_, optimiser, batches, rate, used_scaler);
            if (!result.updated && (!result.skipped || scaler.skipped_in_a_row() > most_skipped_steps)) {
                progress.finish();
                throw RunFailed(concatenate("train: the ", std::isfinite(result.loss) ? "gradient norm" : "loss", " is ",
                                            std::isfinite(result.loss) ? result.gradient_norm : result.loss, " at step ", step,
                                            "; try a lower --lr (it is ", schedule_.peak, ")"));
            }
            training_seconds += seconds_since(step_begin);
            const double bits = result.loss * bits_per_nat;
            smooth = step == 1 ? bits : 0.9 * smooth + 0.1 * bits;
            if (step + tail > options_.steps) tail_sum += bits;
            const double speed = static_cast<double>((step - done) * options_.batch * options_.seq) / training_seconds;
            nlohmann::ordered_json record = {
                {"step", step}, {"train_bpc", bits}, {"learning_rate", rate}, {"tokens_per_s", speed}};
            if (recipe_.clip_norm > 0.0) record["gradient_norm"] = result.gradient_norm;
            if (used_scaler != nullptr) {
                record["loss_scale"] = scaler.scale();
                record["skipped"] = scaler.skipped();
            }
            if (options_.eval_every > 0 && step % options_.eval_every == 0 && step != options_.steps) {
                const double valid =
                    finite(evaluate(model_, tape_, parts_.validation, options_.seq, options_.batch, 10 * options_.batch), step);
                record["valid_bpc_part"] = valid;
                progress.finish();
                if (!options_.quiet) std::fprintf(out, "step %zu: %.4f bits/char on part of the validation text\n", step, valid);
            }
            if (log_) or_run_failed([&] { log_->write(record); });
            progress.update(step, smooth, speed,
                            training_seconds / static_cast<double>(step - done) * static_cast<double>(options_.steps - step));
            const bool due = step == options_.steps || (options_.save_every > 0 && step % options_.save_every == 0);
            if (due && !options_.save.empty()) or_run_failed([&] { save_run(options_.save, parts, recipe_, numbers, texts); });
        }
        progress.finish();

        LanguageRunResult result{
            .recipe = recipe_.name, .steps = options_.steps, .train_bpc = tail_sum / static_cast<double>(tail)};
        result.valid_bpc = finite(evaluate(model_, tape_, parts_.validation, options_.seq, options_.batch), options_.steps);
        result.tokens_per_s =
            training_seconds == 0.0
                ? 0.0
                : static_cast<double>((options_.steps - done) * options_.batch * options_.seq) / training_seconds;
        if (options_.sample > 0) {
            const auto prompt = parts_.validation.first(std::max<std::size_t>(options_.seq / 2, 1));
            result.sample = vocabulary_.decode(generate(model_, tape_, prompt,
                                                        {.tokens = options_.sample,
                                                         .temperature = options_.temperature,
                                                         .top_k = options_.top_k,
                                                         .seed = options_.seed}));
            result.words =
                count_known_words(result.sample, io::encode_utf8(std::u32string_view(text_).substr(0, parts_.training.size())));
        }
        result.peak_rss_mb = peak_resident_megabytes();
        result.seconds = seconds_since(begin);
        return result;
    }

private:
    using Parts = RunParts<float, optim::Adam<float>>;
    static constexpr std::uint64_t most_skipped_steps = 50;  ///< in a row, before a run is given up

    /// Puts back what --resume or --weights names; returns the numbers that go on with the run.
    std::map<std::string, double> restored(const Parts& parts, const std::map<std::string, std::string>& texts, std::FILE* out) {
        const auto seed = static_cast<double>(options_.seed);
        if (!options_.weights.empty())
            for (const std::string& note :
                 load_weights(options_.weights, parts.parameters, recipe_.scaling != Scaling::propagate))
                std::fprintf(out, "%s\n", note.c_str());
        if (options_.resume.empty()) return {{"seed", seed}, {"tail_sum", 0.0}, {"smooth", 0.0}};
        std::map<std::string, double> numbers = load_run(options_.resume, parts, texts);
        check(state_.step() <= options_.steps, "--resume: ", options_.resume, " is at step ", state_.step(), ", after the run's ",
              options_.steps, " steps");
        check(numbers["seed"] == seed, "--resume: ", options_.resume, " was trained with --seed ", numbers["seed"], ", not ",
              options_.seed);
        return numbers;
    }

    /// A file that can no longer be written (a full disk) is not the arguments' fault.
    template <class F>
    static void or_run_failed(F&& write) {
        try {
            write();
        } catch (const Error& error) {
            throw RunFailed(error.what());
        }
    }

    static Recipe recipe_of(const LanguageRunOptions& options) {
        Recipe recipe = io::load_recipe(options.recipe);
        for (const std::string& assignment : options.set) recipe = io::override_recipe(recipe, assignment);
        if (options.to_infinity)
            for (ProductRule& rule : recipe.products)
                for (auto* operand : {&rule.formats.activation, &rule.formats.weight, &rule.formats.gradient})
                    if (*operand) (*operand)->overflow = Overflow::to_infinity;
        return recipe;
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
    Split parts_;
    nn::Decoder<float> model_;
    ScalingState state_;
    Tape<float> tape_;
    std::unique_ptr<io::JsonLog> log_{};
    optim::Schedule schedule_{};
};

}  // namespace unitscale::train
