// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/io/json_log.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/recipe_switch.hpp>

#include "experiments/language_run_options.hpp"
#include "experiments/tokens.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

// A run of a language model has one part, or two with a switch of recipes between them. Each part is a LanguageRun<T>
// (experiments/language_run.hpp), because the recipes may ask for different T. Here is what does not depend on T.
namespace unitscale::experiments {

enum class RunPart { first, second };

/// The recipes of a run's parts, one or two.
/// Errors: the errors of recipe_of. With `--switch-to` in front: the errors of load_recipe, then of
/// train::check_recipe_switch.
[[nodiscard]] std::vector<Recipe> recipes_of(const LanguageRunOptions& options);

/// The part of a run's next step: the first, unless the checkpoint to go on from is past the switch.
/// Errors: the errors of the options and of train::CheckpointReader.
[[nodiscard]] RunPart next_part(const LanguageRunOptions& options);

/// The switch of a run as its checkpoints keep it: {"at":400,"from":{...},"to":{...}}, with whole recipes.
[[nodiscard]] std::string switch_text(const LanguageRunOptions& options, const std::vector<Recipe>& recipes);

/// The optimiser of a run and its factors on learning rates, by the names under which a checkpoint keeps them.
[[nodiscard]] std::map<std::string, std::string> optimiser_texts(const LanguageRunOptions& options);

/// Error, in a line that begins with `--resume`: the checkpoint's run had another optimiser or other `rates`.
void check_resumed_optimiser(const LanguageRunOptions& options);

/// Error, in a line that begins with `--resume`: the checkpoint's run has another switch than this one.
/// A run without a switch may be given one when it is resumed, at its step or later: this changes none of its steps.
void check_resumed_switch(const LanguageRunOptions& options, const std::vector<Recipe>& recipes);

/// The text of a run, its last tenth for validation and test. Errors: the errors of io::read_text,
/// make_tokeniser and TokenisedText.
struct LanguageData {
    explicit LanguageData(const LanguageRunOptions& options);
    LanguageData(const LanguageData&) = delete;
    LanguageData& operator=(const LanguageData&) = delete;

    std::u32string text;
    TokeniserPointer tokeniser;
    const io::Tokeniser& vocabulary;  ///< *tokeniser
    TokenisedText tokenised;
    const train::Split& parts;  ///< of the tokens

    /// Enters the bytes of a token, unless it is a character: the losses are then given per byte, too.
    void add_bytes(LanguageStep& step) const;
    void add_bytes(LanguageRunResult& result) const;
    /// A loss on the validation text: `2.1 bits/char`, or `3.2 bits/token (1.6 bits/byte)`.
    [[nodiscard]] std::string validation_text(double loss) const;
};

/// The options of this process, of those that share a run: only the first reports, logs and generates a sample.
/// Errors: the errors of LanguageRunOptions::validate.
[[nodiscard]] LanguageRunOptions options_of_process(LanguageRunOptions options);

/// The memory of each process that shares a run, a line each, in bytes: of weights, of the optimiser's state, and the
/// peak of a step, which has the gradients. Every process calls it with its own bytes.
[[nodiscard]] std::string memory_table(train::ProcessGroup& group, const LanguageRunResult& result);

/// Ends a run that has failed with this step (train::has_failed): throws Diverged. `peak`: the run's learning rate.
[[noreturn]] void fail_step(double loss, double gradient_norm, std::size_t step, double peak);

/// What processes that share a run must agree on, beside the facts that train::TreeReducer compares: `data`, by a
/// checksum of the text, and `options`, of model and training, as JSON.
[[nodiscard]] std::vector<train::SharedFact> shared_facts(const LanguageRunOptions& options, const LanguageData& data);

/// The lines about a recipe in the settings that a run prints.
[[nodiscard]] std::string recipe_text(const Recipe& recipe);
/// All settings that a part of a run prints: recipe, switch, model, data and training, a line each.
[[nodiscard]] std::string settings_text(const LanguageRunOptions& options, const std::vector<Recipe>& recipes,
                                        RunPart part, const LanguageData& data, std::size_t parameters,
                                        const optim::Schedule& schedule);
/// The name of a part's recipe. If the run switches, the part's steps follow: `mxfp8 to step 400`.
[[nodiscard]] std::string part_name(const LanguageRunOptions& options, const Recipe& recipe, RunPart part);

/// What both parts of a run share.
struct RunCourse {
    using Clock = std::chrono::steady_clock;

    std::shared_ptr<const LanguageData> data{};
    std::unique_ptr<io::JsonLog> log{};
    std::map<std::string, double> numbers{};  ///< kept in checkpoints: running sums and the seed
    Clock::time_point begin = Clock::now();
    double seconds = 0.0;        ///< of the training steps of this process
    std::size_t done = 0;        ///< steps of other processes
    std::size_t step_bytes = 0;  ///< peak of the training steps so far
};

/// A run between its parts.
struct SwitchedRun {
    RunCourse course;
    train::CarriedRun<float> carried;
};

}  // namespace unitscale::experiments
