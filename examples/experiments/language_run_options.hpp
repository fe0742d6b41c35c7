// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/nn/llama.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>

#include "experiments/words.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// What goes into a training run of a language model and what comes out of it: experiments/language_run.hpp.
namespace unitscale::experiments {

/// A run that began and could not be finished (the loss became NaN, a disk is full): not the arguments' fault, unlike Error.
class RunFailed : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// A run that failed by its numbers: it would again.
class Diverged : public RunFailed {
public:
    using RunFailed::RunFailed;
};

inline constexpr std::array<std::string_view, 2> model_names = {"gpt", "llama"};

/// What `train_transformer` is asked to do.
struct LanguageRunOptions {
    std::vector<std::filesystem::path> data{};  ///< files or folders of UTF-8 text
    std::string recipe = "unit-fp8";            ///< a known recipe's name, or a JSON file (io/json_recipe.hpp)
    std::vector<std::string> set{};             ///< fields of the recipe, key=value
    std::string model = "gpt";  ///< gpt: learned positions, gelu; llama: rotary positions, gated silu (nn/llama.hpp)
    std::size_t width = 128, depth = 4, heads = 2, seq = 128, batch = 16, steps = 500;
    std::size_t head_size = 0;   ///< 0: width / heads; else heads is width / head_size
    std::size_t kv_heads = 0;    ///< key and value heads; 0: one for each query head
    std::optional<double> lr{};  ///< empty: the recipe's
    double weight_decay = 0.0;   ///< of Adam; the recipe's parametrisation says which kind (optim/weight_decay.hpp)
    std::optional<std::size_t> warmup{};  ///< steps to the peak learning rate; empty: a tenth of the run
    std::size_t micro_batches = 1;
    bool recompute = false;  ///< blocks keep their input only and run again in the backward pass
    std::uint64_t seed = 1;
    int threads = 1;
    std::size_t eval_every = 100;  ///< 0: only at the end
    std::size_t sample = 300;      ///< characters to write at the end, after the start of the validation text
    double temperature = 0.5;
    std::size_t top_k = 0;     ///< only the k most likely characters are drawn; 0: all
    bool to_infinity = false;  ///< operands of products that exceed their format become infinite instead of saturating
    std::string log{};         ///< JSON lines, one object per step
    std::string save{};        ///< checkpoint (safetensors), written at the end
    std::size_t save_every = 0;  ///< steps between checkpoints; 0: only at the end
    std::string resume{};        ///< checkpoint to go on from
    std::string weights{};       ///< file of weights to begin with
    bool quiet = false;

    static constexpr std::size_t most = 1'000'000'000;  ///< of every size

    /// Attention heads, from `head_size` where it is given.
    [[nodiscard]] std::size_t head_count() const noexcept { return head_size == 0 ? heads : width / head_size; }

    /// The model's configuration.
    [[nodiscard]] nn::DecoderConfig decoder(std::size_t vocabulary) const {
        nn::DecoderConfig config{.vocabulary = vocabulary,
                                 .width = width,
                                 .depth = depth,
                                 .heads = head_count(),
                                 .groups = kv_heads,
                                 .length = seq};
        if (model == "llama")
            config = nn::llama_config({.vocabulary = vocabulary,
                                       .width = width,
                                       .depth = depth,
                                       .head_size = width / head_count(),
                                       .key_value_heads = kv_heads,
                                       .length = seq});
        config.recompute = recompute;
        return config;
    }

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
        check(std::find(model_names.begin(), model_names.end(), model) != model_names.end(), "--model: is ", model,
              "; expected gpt or llama");
        check(width % heads == 0 || head_size != 0, "--heads: width ", width, " is not divisible by ", heads, " heads");
        check(head_size == 0 || width % head_size == 0, "--head-size: width ", width,
              " is not divisible by heads of size ", head_size);
        check(kv_heads == 0 || head_count() % kv_heads == 0, "--kv-heads: ", head_count(),
              " heads are not divisible by ", kv_heads, " key and value heads");
        check(model != "llama" || width / head_count() % 2 == 0, "--model: heads of size ", width / head_count(),
              "; rotary positions need an even size");
        check(batch % micro_batches == 0, "--micro-batches: batch ", batch, " is not divisible by ", micro_batches,
              " micro-batches");
        check(threads >= 1, "--threads: is ", threads, "; expected at least 1");
        check(!warmup || *warmup <= steps, "--warmup: ", warmup.value_or(0), " steps are more than the run's ", steps);
        check(!lr || (std::isfinite(*lr) && *lr > 0.0), "--lr: is ", lr.value_or(0.0), "; expected a positive number");
        check(std::isfinite(weight_decay) && weight_decay >= 0.0, "--weight-decay: is ", weight_decay,
              "; expected 0 or more");
        check(std::isfinite(temperature) && temperature >= 0.0, "--temperature: is ", temperature,
              "; expected 0 or more");
        check(save_every == 0 || !save.empty(), "--save-every: is ", save_every, ", but --save names no file");
        check(resume.empty() || weights.empty(), "--weights: --resume brings weights of its own; give one of the two");
        check(top_k <= most, "--top-k: is ", top_k, "; expected at most ", most);
    }
};

/// The recipe that the options name, with what they change in it. Errors: those of io/json_recipe.hpp.
[[nodiscard]] inline Recipe recipe_of(const LanguageRunOptions& options) {
    Recipe recipe = io::load_recipe(options.recipe);
    for (const std::string& assignment : options.set) recipe = io::override_recipe(recipe, assignment);
    if (options.to_infinity)
        for (ProductRule& rule : recipe.products)
            for (auto* operand : {&rule.formats.activation, &rule.formats.weight, &rule.formats.gradient})
                if (*operand) (*operand)->overflow = Overflow::to_infinity;
    return recipe;
}

/// A training step as the log has it. Losses in bits per character.
struct LanguageStep {
    std::size_t step = 0;
    double train_bpc = 0.0;
    double learning_rate = 0.0;
    double tokens_per_s = 0.0;               ///< mean over this process' steps so far, without evaluation
    std::optional<double> gradient_norm{};   ///< before clipping; where gradients are clipped or the loss is scaled
    std::optional<double> loss_scale{};      ///< of this step, where the recipe has one
    std::uint64_t skipped = 0;               ///< steps that were not taken so far, this one included
    std::optional<double> valid_bpc_part{};  ///< on part of the validation text, where an evaluation was due

    [[nodiscard]] nlohmann::ordered_json json() const {
        nlohmann::ordered_json record = {
            {"step", step}, {"train_bpc", train_bpc}, {"learning_rate", learning_rate}, {"tokens_per_s", tokens_per_s}};
        if (gradient_norm) record["gradient_norm"] = *gradient_norm;
        if (loss_scale) record["loss_scale"] = *loss_scale;
        if (loss_scale) record["skipped"] = skipped;
        if (valid_bpc_part) record["valid_bpc_part"] = *valid_bpc_part;
        return record;
    }
};

/// Sees every step of a run when it is done, and what the library remembers then (products, biases).
using StepWatcher = std::function<void(const LanguageStep&, const ScalingState&)>;

/// What a run measured. Losses in bits per character.
struct LanguageRunResult {
    std::string recipe{};
    std::size_t steps = 0;
    double train_bpc = 0.0;     ///< mean over the last tenth of the steps
    double valid_bpc = 0.0;     ///< over the whole validation part, at the end
    double tokens_per_s = 0.0;  ///< training steps only, without evaluation
    double peak_rss_mb = 0.0;
    double seconds = 0.0;          ///< the whole run
    std::uint64_t skipped = 0;     ///< steps not taken because the loss scale was too large
    std::size_t weight_bytes = 0;  ///< the values that the model computes with
    std::size_t state_bytes = 0;   ///< the optimiser's: master weights and moments
    std::size_t step_bytes = 0;    ///< the most that a training step held: activations, gradients, scratch
    std::string sample{};
    WordCount words{};

    /// The line that ends a run's output.
    [[nodiscard]] std::string line() const {
        char text[256];
        std::snprintf(
            text, sizeof text,
            "result recipe=%s steps=%zu train_bpc=%.4f valid_bpc=%.4f tokens_per_s=%.0f peak_rss_mb=%.0f seconds=%.1f",
            recipe.c_str(), steps, train_bpc, valid_bpc, tokens_per_s, peak_rss_mb, seconds);
        return text;
    }
};

}  // namespace unitscale::experiments
