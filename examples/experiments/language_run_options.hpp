// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/scaling/recipe.hpp>

#include "experiments/words.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// Declared here, so that this header does not include the model.
namespace unitscale {
class MemoryPool;
class ScalingState;
}  // namespace unitscale
namespace unitscale::nn {
struct DecoderConfig;
struct InitialOptions;
}  // namespace unitscale::nn
namespace unitscale::optim {
struct AnyOptimiserOptions;
struct Schedule;
}  // namespace unitscale::optim
namespace unitscale::train {
class ProcessGroup;
}  // namespace unitscale::train

// The options and results of a training run of a language model (experiments/language_run.hpp).
namespace unitscale::experiments {

/// A run that began and could not finish: the loss became NaN, a disk is full. Unlike Error, not caused by the
/// arguments.
class RunFailed : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// A run that failed numerically: a loss or a gradient norm was not finite, or more than 50 steps in a row, or all
/// steps, were skipped for their loss scale. A rerun would fail again.
class Diverged : public RunFailed {
public:
    using RunFailed::RunFailed;
};

/// A tenth of a run of `steps` steps, at least 1: the default warm-up, and the default distance of checkpoints and
/// evaluations of searches.
[[nodiscard]] std::size_t tenth_of(std::size_t steps);

/// The options of `train_transformer`.
struct LanguageRunOptions {
    std::vector<std::filesystem::path> data{};  ///< files or folders of UTF-8 text
    std::string tokens = "characters";       ///< or bytes, bpe:N, or the file of a tokeniser (experiments/tokens.hpp)
    bool test = false;                       ///< the last tenth is halved, for validation and a test at the end
    std::string recipe = "unit-fp8";         ///< a known recipe's name, or a JSON file (io/json_recipe.hpp)
    std::vector<std::string> set{};          ///< fields of the recipe, key=value
    std::optional<int> constant_bias{};      ///< of all operands with a constant scale; empty: the recipe's
    std::optional<std::size_t> switch_at{};  ///< steps that are taken with `recipe`; empty: all
    std::string switch_to{};                 ///< recipe of the other steps, as `recipe`; `set` does not change it
    std::string model = "gpt";               ///< see `named_options`, which describes all options with named values
    std::string placement = "pre";           ///< of the blocks' norms
    std::string context = "own";             ///< layer that mixes positions; own: the model's, as for the next four
    std::string positions = "own";
    std::string feed_forward = "own";
    std::string norm = "own";
    std::string initial = "own";   ///< standard deviations of initial values under the parametrisation `standard`
    std::string residual = "own";  ///< own: the recipe's
    bool final_norm = false;       ///< a norm in front of the readout for post and none, too
    bool readout_bias = false;     ///< a trained bias of the logits
    bool embedding_norm = false;   ///< a norm behind the embedding
    bool bias = false;             ///< trained biases of linear layers
    bool gains = false;            ///< trained gains, and shifts, of norms
    std::size_t width = 128, depth = 4, heads = 2, seq = 128, batch = 16, steps = 500;
    std::size_t head_size = 0;         ///< 0: width / heads; else heads is width / head_size
    std::size_t kv_heads = 0;          ///< key and value heads; 0: one for each query head
    std::size_t hidden = 0;            ///< feed-forward width; 0: the model's multiple of the width
    std::optional<double> lr{};        ///< empty: the recipe's
    std::vector<std::string> rates{};  ///< PATTERN=FACTOR: parameters of these names learn at FACTOR times their rate
    std::string optimiser = "adam";
    double beta1 = 0.9, beta2 = 0.95;     ///< of adam and lamb
    std::optional<double> epsilon{};      ///< of adam and lamb; empty: 1e-8 and 1e-6
    double momentum = 0.9;                ///< of sgd
    double dropout = 0.0;                 ///< of the embedding and of each branch's output
    double weight_decay = 0.0;            ///< the recipe's parametrisation says which kind (optim/weight_decay.hpp)
    std::string schedule = "cosine";      ///< of the learning rate after the warm-up
    double final_share = 0.1;             ///< of the peak learning rate, at the end of cosine and linear
    std::size_t half_life = 0;            ///< steps, of the schedule half-life; 0: an eighth of the run
    std::optional<std::size_t> warmup{};  ///< steps to the peak learning rate; empty: a tenth of the run
    std::size_t masked = 0;               ///< first predictions of each sequence that do not count, in any loss
    bool repeat_skipped = false;          ///< a step that is skipped for its loss scale is taken again
    std::size_t micro_batches = 1;
    bool recompute = false;  ///< blocks keep their input only and run again in the backward pass
    std::uint64_t seed = 1;
    int threads = 1;
    std::size_t eval_every = 100;  ///< 0: only at the end
    std::size_t sample = 300;      ///< characters to generate at the end, from the start of the validation text
    double temperature = 0.5;
    std::size_t top_k = 0;     ///< only the k most likely characters are drawn; 0: all
    bool to_infinity = false;  ///< operands of products that exceed their format become infinite instead of saturating
    std::string log{};         ///< JSON lines, one object per step
    std::string save{};        ///< checkpoint (safetensors), written at the end
    std::size_t save_every = 0;  ///< steps between checkpoints; 0: only at the end
    std::string resume{};        ///< checkpoint to go on from
    std::string weights{};       ///< file of weights to begin with
    bool quiet = false;
    /// The processes that share the run's micro-batches, of which the first writes all files. Null: this one alone.
    std::shared_ptr<train::ProcessGroup> group{};
    std::string shard = "none";  ///< of their state: none, optimiser or gradients (train::Sharding)
    bool overlap = false;        ///< they send gradients while the backward pass goes on

    static constexpr std::size_t most = 1'000'000'000;  ///< upper bound of every size

    /// Attention heads, from `head_size` where it is given.
    [[nodiscard]] std::size_t head_count() const noexcept { return head_size == 0 ? heads : width / head_size; }

    /// Takes model and sizes from the published shape of that name (nn/published_shapes.hpp).
    /// An option for which `given("width")` is true, named as on the command line, keeps its value.
    /// Norms, biases, vocabulary and sequence length stay too. Error: an unknown name, with the known names.
    void set_shape(std::string_view shape, const std::function<bool(std::string_view)>& given);

    /// The epsilon of adam and lamb, given or usual.
    [[nodiscard]] double used_epsilon() const;

    /// The model in words, with the options that differ from the usual ones: `gpt, placement post, readout-bias`.
    [[nodiscard]] std::string model_text() const;

    /// The model's configuration.
    [[nodiscard]] nn::DecoderConfig decoder(std::size_t vocabulary) const;
    /// The model's initial values under a recipe.
    [[nodiscard]] nn::InitialOptions initial_options(const Recipe& of_run) const;
    /// Error, naming `--rate`: a text of `rates` is no pattern with a factor.
    [[nodiscard]] optim::AnyOptimiserOptions optimiser_options(std::shared_ptr<MemoryPool> memory = {}) const;
    /// The learning rate of every step; `peak` where `lr` is empty.
    [[nodiscard]] optim::Schedule learning_rates(double peak) const;

    /// Checks the options. Error: it names the option, such as a size of 0.
    void validate() const;
};

/// An option with named values: on the command line `--NAME`, and an axis of sweeps. The value `own` leaves the choice
/// to the model or the recipe.
struct NamedOption {
    std::string_view name;
    std::string LanguageRunOptions::*value;
    std::vector<std::string_view> values;
    std::string_view help;
    bool of_model = true;  ///< else of the training
};
/// A part of the model that an option adds: on the command line the flag `--NAME`.
struct NamedPart {
    std::string_view name;
    bool LanguageRunOptions::*value;
    std::string_view help;
};
[[nodiscard]] const std::vector<NamedOption>& named_options();
[[nodiscard]] const std::vector<NamedPart>& named_parts();

/// The options of model and training that differ from the usual ones, for files that compare settings.
/// Sizes, learning rate, recipe and seed are left out. Options at their usual values are left out too, so that a file
/// that is older than an option still agrees.
[[nodiscard]] nlohmann::ordered_json changed_options(const LanguageRunOptions& options);

/// Names with the word `or` before the last: `pre, post or none`.
[[nodiscard]] std::string choice_text(const std::vector<std::string_view>& names);

/// The text to train on. Error: files or folders cannot be read, or a part of the text (training, validation, and with
/// `test` the test) is too short for sequences of one of these lengths.
[[nodiscard]] std::u32string read_training_text(const std::vector<std::filesystem::path>& data,
                                                const std::vector<std::size_t>& lengths, bool test = false);

/// The recipe that the options name, with their changes: of the first step. Errors: the errors of io/json_recipe.hpp;
/// a multiplier of the non-linearity beside relu.
[[nodiscard]] Recipe recipe_of(const LanguageRunOptions& options);

/// Operands of the recipe's products that exceed their format become infinite.
void overflow_to_infinity(Recipe& recipe);

/// A training step as logged. Losses in bits per token: bits per character unless the bytes of a token are given.
struct LanguageStep {
    std::size_t step = 0;
    double train_bpc = 0.0;
    double learning_rate = 0.0;
    double tokens_per_s = 0.0;  ///< mean over the steps of this process, without evaluation
    std::optional<double>
        gradient_norm{};                 ///< before clipping; empty unless gradients are clipped or the loss is scaled
    std::optional<double> loss_scale{};  ///< of this step, where the recipe scales the loss
    std::uint64_t skipped = 0;           ///< skipped steps up to and including this one
    std::optional<std::size_t> sent_bytes{};   ///< by this process, of gradients and weights it owns (TreeReducer)
    std::optional<std::string> switched_to{};  ///< the recipe, in the first step after a switch
    std::optional<double> bytes_per_token{}, valid_bytes_per_token{};  ///< of the training and the validation text
    std::optional<double> valid_bpc_part{};  ///< on part of the validation text; empty where no evaluation was due

    [[nodiscard]] nlohmann::ordered_json json() const;
};

/// Called after every step of a run, with the scaling state of that step (products, biases).
using StepWatcher = std::function<void(const LanguageStep&, const ScalingState&)>;

/// The measurements of a run. Losses in bits per token: bits per character unless the bytes of a token are given.
struct LanguageRunResult {
    std::string recipe{};
    std::size_t steps = 0;
    std::size_t switch_at = 0;         ///< steps with `recipe`, if the run has switched; else 0
    std::string switch_to{};           ///< the recipe of the other steps
    double train_bpc = 0.0;            ///< mean over the last tenth of the steps
    double valid_bpc = 0.0;            ///< over the whole validation part, at the end
    std::optional<double> test_bpc{};  ///< over the whole test part, at the end, if the run has one
    std::optional<double> bytes_per_token{}, test_bytes_per_token{};  ///< of the validation and the test text
    double tokens_per_s = 0.0;                                        ///< training steps only, without evaluation
    double peak_rss_mb = 0.0;
    double seconds = 0.0;                     ///< the whole run
    std::uint64_t skipped = 0;                ///< steps skipped because the loss scale was too large
    std::size_t weight_bytes = 0;             ///< of the parameters' values
    std::size_t state_bytes = 0;              ///< of the optimiser: master weights and moments
    std::size_t step_bytes = 0;               ///< peak of a training step: activations, gradients, scratch
    std::optional<std::size_t> sent_bytes{};  ///< in the last step, by the first of processes that share the run
    std::string sample{};
    WordCount words{};

    /// The last line of the output of a run.
    [[nodiscard]] std::string line() const;
};

}  // namespace unitscale::experiments
