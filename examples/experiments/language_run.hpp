// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/audit.hpp>
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/compiled.hpp>  // no file with a run instantiates the ops again
#include <unitscale/nn/decoder.hpp>
#include <unitscale/optim/any_optimiser.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/saved_model.hpp>
#include <unitscale/train/trainer.hpp>
#include <unitscale/train/tree_reducer.hpp>

#include "experiments/language_run_options.hpp"
#include "experiments/progress.hpp"
#include "experiments/run_parts.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unitscale::experiments {

/// Trains a transformer on the tokens of a text with a recipe, evaluates it on the last tenth, and generates a sample.
/// Reports to `out` (settings, precision table, evaluations) and draws progress on `progress`.
/// T is the element type of the recipe's tape; `run_language` and its siblings select it.
/// A run that switches its recipe has two parts, an object each (experiments/run_in_parts.hpp).
/// Errors: the errors of the options, the data and the model, before any computation. RunFailed: the loss is no longer
/// finite. Test: tests/experiments/language_run_test.cpp
template <class T>
class LanguageRun {
public:
    /// The part of the run. `before`: the first part, which a second one continues; without it a checkpoint does.
    explicit LanguageRun(const LanguageRunOptions& options, RunPart part = RunPart::first,
                         std::optional<SwitchedRun> before = {});
    ~LanguageRun();

    [[nodiscard]] RunPart part() const noexcept { return part_; }
    [[nodiscard]] const Recipe& recipe() const noexcept { return recipe_; }
    [[nodiscard]] nn::Decoder<T>& model() noexcept { return model_; }
    [[nodiscard]] ScalingState& state() noexcept { return trainer_.state(); }
    [[nodiscard]] Tape<T>& tape() noexcept { return trainer_.tape(); }
    [[nodiscard]] const train::Split& split() const noexcept { return data_->parts; }
    /// The last step of this part.
    [[nodiscard]] std::size_t last_step() const noexcept {
        return part_ == RunPart::first ? options_.switch_at.value_or(options_.steps) : options_.steps;
    }

    /// Fixes the forward factors before any other computation.
    void plan();

    /// Takes all steps without output and without an evaluation at the end. `watch` sees every completed step.
    void take_steps(const StepWatcher& watch);

    /// The settings, and the format of every product's operands, found by a dry step.
    [[nodiscard]] std::string description();

    /// The parametrisation's effect on every parameter, at the learning rate of the next step.
    [[nodiscard]] std::string parameters();

    /// The audit of the first step's scale factors. Takes no step.
    [[nodiscard]] analysis::Audit audit();

    /// Trains to the end. `watch` sees every completed step, before a checkpoint holds it.
    /// Error: the run has another part.
    LanguageRunResult run(std::FILE* out, std::FILE* progress_stream, const StepWatcher& watch = {});

    /// Trains to the end of this part. Only the last part fills the whole result.
    LanguageRunResult run_part(std::FILE* out, std::FILE* progress_stream, const StepWatcher& watch = {});

    /// Ends the first part. Only the result may be used afterwards.
    [[nodiscard]] SwitchedRun leave();

private:
    [[nodiscard]] std::size_t rows() const noexcept { return options_.batch / options_.micro_batches; }
    /// The schedule of both parts, with the first recipe's learning rate.
    [[nodiscard]] optim::Schedule schedule() const { return options_.learning_rates(recipes_.front().learning_rate); }
    /// The steps of the last tenth, which give the run's training loss.
    [[nodiscard]] std::size_t tail_steps() const noexcept { return std::max<std::size_t>(options_.steps / 10, 1); }
    [[nodiscard]] RandomKey data_key() const noexcept { return {options_.seed, hash_name("data")}; }
    [[nodiscard]] bool writes_files() const noexcept { return !reducer_ || reducer_->writes_files(); }
    [[nodiscard]] bool scales_loss() const noexcept { return recipe_.loss_scaling.kind != LossScaleKind::none; }
    /// Micro-batch number `index` of a step.
    void fill(train::Batch& batch, std::size_t step, std::size_t index) const;
    [[nodiscard]] train::Batch first_batch() const;

    void check_one_part() const;

    /// The format of every product's operands, found by a dry step.
    [[nodiscard]] std::string products_text();

    /// Takes all remaining steps of this part. Returns tokens per second, without evaluations.
    double train(std::FILE* out, Progress& progress, const StepWatcher& watch);

    /// Bits per token on a part of the text, or on at most `most` windows of it. Diverged: not finite.
    double loss_on(const char* part, std::span<const std::int32_t> tokens, std::size_t step,
                   std::size_t most = SIZE_MAX);

    void write_sample(LanguageRunResult& result);

    /// The texts that a checkpoint must agree with.
    [[nodiscard]] std::map<std::string, std::string> texts() const;

    void save();

    /// Restores the state of --resume or the weights of --weights.
    void restore(std::FILE* out);

    LanguageRunOptions options_;
    std::vector<Recipe> recipes_;
    RunPart part_;
    Recipe recipe_;
    RunCourse course_;
    std::shared_ptr<const LanguageData> data_;
    nn::Decoder<T> model_;
    std::shared_ptr<MemoryPool> optimiser_memory_ = std::make_shared<MemoryPool>();
    train::Trainer<T, optim::AnyOptimiser<T>> trainer_;
    std::shared_ptr<train::TreeReducer<T>> reducer_{};  ///< of processes that share the run
    bool continues_;                                    ///< the first part was made by this process
};

/// `run_in_parts`, for the element types T that the options' recipes ask for.
LanguageRunResult run_language(const LanguageRunOptions& options, std::FILE* out, std::FILE* progress,
                               const StepWatcher& watch = {});
/// `LanguageRun<T>::description` of the next step's part, for its T.
[[nodiscard]] std::string describe_language(const LanguageRunOptions& options);
/// `LanguageRun<T>::parameters` of the next step's part, for its T.
[[nodiscard]] std::string parameters_of_language(const LanguageRunOptions& options);
/// `LanguageRun<T>::audit` of the first step, for the first recipe's T.
[[nodiscard]] analysis::Audit audit_language(const LanguageRunOptions& options);

// Compiled once, for each element type of recipes: language_run.cpp.
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
