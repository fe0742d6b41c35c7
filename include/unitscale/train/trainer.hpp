// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/tracker.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/optim/whole_recipe.hpp>
#include <unitscale/scaling/element.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/step.hpp>
#include <unitscale/train/tree_reducer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// Training of any model with the whole of a recipe.
namespace unitscale::train {

struct TrainerOptions {
    std::uint64_t seed = 1;  ///< of initial values, dropout and stochastic rounding
    int threads = 1;
    /// The learning rate of every update. With a `peak` of 0 the peak is the recipe's learning rate.
    optim::Schedule schedule{.peak = 0.0};
    bool initialise = true;        ///< false: the parameters hold their values already
    nn::InitialOptions initial{};  ///< initial values that differ from the recipe's
};

/// Trains a model under a recipe: all of the recipe, whatever the model. It owns the recipe, the tape with its state,
/// the optimiser with master weights and moments, the loss scaler and the schedule.
///   train::Trainer<float> trainer(model, recipe, {.schedule = {.steps = 400, .warmup = 20}});
///   for (const Batch& batch : batches)
///       trainer.step([&](Tape<float>& tape, std::size_t) { return loss(model(tape.input(batch.x)), batch.y); });
/// Storage, learning-rate factors, loss scaling, clipping and the rounding of weight gradients follow the recipe.
/// T is the recipe's element type (`with_element` picks it). The model lists its parameters (`nn::parameters_of`), and
/// outlives the trainer. Optimiser: Adam, Lamb, Sgd, or a class of one's own that is made as they are.
/// Errors: T is another type than the recipe's; parameters that nothing has written, with `initialise` false; options
/// of the optimiser that the recipe determines; the errors of Tape, Schedule and of the optimiser.
/// Test: tests/train/trainer_test.cpp
template <class T, class Optimiser = optim::Adam<T>>
class Trainer {
public:
    using OptimiserOptions = std::remove_cvref_t<decltype(std::declval<Optimiser&>().options())>;

    template <class Model>
    Trainer(Model& model, const Recipe& recipe, const TrainerOptions& options = {}, OptimiserOptions optimiser = {})
        : recipe_(checked(recipe)),
          options_(with_peak(options, recipe)),
          parameters_(initialised(nn::parameters_of<T>(model), recipe_, options_)),
          state_(options_.seed),
          tape_(recipe_, state_, options_.threads),
          optimiser_(parameters_, by_recipe(std::move(optimiser), recipe_, options_.schedule.peak)),
          scaler_(recipe_.loss_scaling),
          reducer_(reducer_of(recipe_)) {}
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    /// The next step (`take_step`): `loss_of(tape, i)` runs the model for micro-batch i, and returns the loss.
    /// Steps that are `skipped` count as steps of the schedule.
    /// Errors: more steps than the schedule has; the errors of `take_step`.
    template <class LossOf>
    StepResult step(LossOf&& loss_of, std::size_t micro_batches = 1) {
        const double rate = options_.schedule.at(state_.step() + 1);
        return take_step<T>(
            tape_, optimiser_, micro_batches, [&](std::size_t i) { return loss_of(tape_, i); }, rate,
            recipe_.loss_scaling.kind != LossScaleKind::none ? &scaler_ : nullptr, reducer_.get());
    }

    /// From now on the reducer shares out and joins the micro-batches of every step. Processes that train together each
    /// have a trainer with a `TreeReducer` of one group. Null, as at first: this process computes all micro-batches,
    /// one after the other, or by a `TreeReducer` of its own if the recipe has a `communication`.
    /// If the reducer shares the optimiser's state among processes, this one keeps only what it owns. Set such a
    /// reducer before `resume` and the first step: state that is not owned then never takes memory.
    /// Error: state of steps so far is in another process (`train::set_owned`).
    void set_reducer(std::shared_ptr<StepReducer<T>> reducer) {
        if (reducer == nullptr) reducer = reducer_of(recipe_);
        set_owned<T>(optimiser_, reducer.get());
        reducer_ = std::move(reducer);
    }

    /// The result of `run(tape)` in a step without gradients, dropout and randomness: a loss, or what else is wanted.
    template <class Run>
    auto evaluate(Run&& run) {
        tape_.begin_step({.training = false, .gradients = false});
        return std::forward<Run>(run)(tape_);
    }

    /// Steps taken so far, skipped ones included.
    [[nodiscard]] std::uint64_t steps() const noexcept { return state_.step(); }

    /// Saves the run, with numbers and texts of the caller's own (`save_run`). With a reducer one process writes the
    /// file. All processes must call the function if the reducer shares the optimiser's state, or if the recipe has
    /// error feedback; else the others do nothing.
    void save(const std::filesystem::path& path, const std::map<std::string, double>& more = {},
              const std::map<std::string, std::string>& texts = {}) {
        ProcessGroup* const group = reducer_ != nullptr ? reducer_->state_group(recipe_) : nullptr;
        if (group != nullptr || reducer_ == nullptr || reducer_->writes_files())
            save_run(path, parts(), recipe_, more, texts, group);
    }
    /// Goes on with a saved run, to the bit. Returns the caller's numbers. Given texts must equal the saved ones.
    /// Errors: as `load_run`; a run of more steps than the schedule has. On an error nothing is changed.
    std::map<std::string, double> resume(const std::filesystem::path& path,
                                         const std::map<std::string, std::string>& texts = {}) {
        return load_run(path, parts(), texts);
    }

    /// Records the statistics of tensors and operands from the next step on. From then on an `analysis::Tracker` is the
    /// tape's observer, and the result. It changes no bit of training.
    analysis::Tracker<T>& track(analysis::TrackerOptions options = {}) {
        const auto tracker = std::make_shared<analysis::Tracker<T>>(std::move(options));
        tape_.set_observer(tracker.get());
        finished_track_ = [tracker] { return tracker->finish(); };
        return *tracker;
    }
    /// The record of the steps that were tracked; `report::write_report` makes a page of it.
    /// Errors: no `track` before; as the tracker's `finish`.
    [[nodiscard]] analysis::Track finished_track() const {
        check(finished_track_ != nullptr, "Trainer: no statistics; call track() before the first step");
        return finished_track_();
    }

    [[nodiscard]] const Recipe& recipe() const noexcept { return recipe_; }
    [[nodiscard]] const optim::Schedule& schedule() const noexcept { return options_.schedule; }
    [[nodiscard]] const std::vector<Parameter<T>*>& parameters() const noexcept { return parameters_; }
    [[nodiscard]] Tape<T>& tape() noexcept { return tape_; }
    [[nodiscard]] ScalingState& state() noexcept { return state_; }
    [[nodiscard]] Optimiser& optimiser() noexcept { return optimiser_; }
    [[nodiscard]] optim::LossScaler& scaler() noexcept { return scaler_; }
    [[nodiscard]] RunParts<T, Optimiser> parts() {
        const bool feeds_back = recipe_.communication && recipe_.communication->error_feedback;
        return {parameters_, optimiser_, state_, scaler_, feeds_back ? reducer_->remainders() : nullptr};
    }

private:
    [[nodiscard]] static const Recipe& checked(const Recipe& recipe) {
        check_element<T>("Trainer", recipe);  // before the parameters are written
        return recipe;
    }
    [[nodiscard]] static std::shared_ptr<StepReducer<T>> reducer_of(const Recipe& recipe);
    [[nodiscard]] static TrainerOptions with_peak(TrainerOptions options, const Recipe& recipe) {
        if (options.schedule.peak == 0.0) options.schedule.peak = recipe.learning_rate;
        options.schedule.validate();
        return options;
    }
    [[nodiscard]] static std::vector<Parameter<T>*> initialised(std::vector<Parameter<T>*> parameters,
                                                                const Recipe& recipe, const TrainerOptions& options) {
        check(!parameters.empty(), "Trainer: the model has no parameters");
        if (options.initialise) nn::initialise(parameters, recipe, options.seed, options.initial);
        for (const Parameter<T>* parameter : parameters)
            check(parameter->version() > 0, "Trainer: parameter ", parameter->name(),
                  " has no values; expected nn::initialise, or values of a file, before");
        return parameters;
    }
    [[nodiscard]] static OptimiserOptions by_recipe(OptimiserOptions options, const Recipe& recipe, double peak) {
        check(options.peak_learning_rate == 0.0, "Trainer: peak_learning_rate is ", options.peak_learning_rate,
              "; the schedule determines it, expected 0");
        options.peak_learning_rate = peak;
        return optim::by_recipe("Trainer", std::move(options), recipe);
    }

    Recipe recipe_;
    TrainerOptions options_;
    std::vector<Parameter<T>*> parameters_;
    ScalingState state_;
    std::function<analysis::Track()> finished_track_{};  ///< keeps the tracker; it outlives the tape
    Tape<T> tape_;
    Optimiser optimiser_;
    optim::LossScaler scaler_;
    std::shared_ptr<StepReducer<T>> reducer_;
};

template <class T, class Optimiser>  // out of the class, so that users of unitscale::compiled do not compile it
std::shared_ptr<StepReducer<T>> Trainer<T, Optimiser>::reducer_of(const Recipe& recipe) {
    return recipe.communication ? std::make_shared<TreeReducer<T>>() : nullptr;
}

}  // namespace unitscale::train

#ifdef UNITSCALE_COMPILED_TRAINING  // defined by the CMake target unitscale::compiled
#include <unitscale/train/compiled.hpp>
#endif
