// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/quantise_gradients.hpp>
#include <unitscale/train/batches.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unitscale::train {

class ProcessGroup;
class Remainders;

/// The result of one training step.
struct StepResult {
    double loss = 0.0;           ///< mean over the step's tokens, in nats
    double gradient_norm = 0.0;  ///< before clipping; 0 without clipping and without a scaler
    bool updated = false;        ///< false: loss or gradient norm was not finite, and parameters are unchanged
    bool skipped = false;        ///< no update: the loss scale was too large; all kinds but `constant` lower it
};

/// Steps that a run may skip in a row.
inline constexpr std::uint64_t most_skipped_steps = 50;

/// Whether a run of `steps` steps has failed with this one. It has if the step was not taken, unless it was skipped:
/// the loss scale may still fall. It has, too, after more than `most_skipped_steps` skipped steps in a row, or if all
/// steps were skipped.
[[nodiscard]] inline bool has_failed(const StepResult& result, const optim::LossScaler& scaler, std::size_t steps) {
    const std::uint64_t skipped = scaler.skipped_in_a_row();
    return !result.updated && (!result.skipped || skipped > most_skipped_steps || skipped >= steps);
}

/// Shares out a step's micro-batches among processes, and joins their losses and gradients. `take_step` calls it.
/// train::TreeReducer is one.
template <class T>
class StepReducer {
public:
    /// The micro-batches from `first` up to `last`, without `last`.
    struct Share {
        std::size_t first, last;
    };

    StepReducer() = default;
    StepReducer(const StepReducer&) = delete;
    StepReducer& operator=(const StepReducer&) = delete;
    virtual ~StepReducer() = default;

    /// Begins a step with the optimiser's parameters, which have no gradients. `seed`: of the backward pass. Returns
    /// the micro-batches that this process computes, in turn.
    [[nodiscard]] virtual Share begin(Tape<T>& tape, std::span<Parameter<T>* const> parameters,
                                      std::size_t micro_batches, double seed) = 0;
    /// Takes the gradient that a micro-batch has given a parameter. The parameter has none afterwards.
    virtual void add_gradient(std::size_t micro_batch, Parameter<T>& parameter) = 0;
    /// Ends a micro-batch, whose gradients have all been added.
    virtual void add_loss(std::size_t micro_batch, double loss) = 0;
    /// Ends the step: returns its loss, and gives every parameter the gradient of the whole step. Where processes share
    /// the gradients among each other, only owned parameters get theirs.
    [[nodiscard]] virtual double finish() = 0;

    /// Whether this process updates each of the parameters, and keeps their state; empty: it updates all.
    [[nodiscard]] virtual std::vector<bool> owned(std::span<Parameter<T>* const> /*parameters*/) const { return {}; }
    /// Adds numbers that belong to gradients (`optim::SumOfProcesses`), where processes share these.
    virtual void sum(std::span<double> /*numbers*/) {}
    /// Ends an update: every parameter gets the value that its owner has found.
    virtual void share_values() {}
    /// The processes that hold parts of the run's state under this recipe: of the optimiser's state, or remainders of
    /// error feedback. Null: each has all of it.
    [[nodiscard]] virtual ProcessGroup* state_group(const Recipe& /*recipe*/) const noexcept { return nullptr; }
    /// The remainders of error feedback in this process; null: there are none.
    [[nodiscard]] virtual Remainders* remainders() noexcept { return nullptr; }
    /// Whether this process writes the files of the training.
    [[nodiscard]] virtual bool writes_files() const noexcept = 0;
};

/// Gives an optimiser the parameters that this process updates, and keeps state of: those that the reducer says, all
/// without one. `take_step` calls it. Call it before a run is resumed, too: other state then never takes memory.
/// Error: state of steps so far is in another process (`Optimiser::set_owned`).
template <class T, class Optimiser>
void set_owned(Optimiser& optimiser, const StepReducer<T>* reducer) {
    optimiser.set_owned(reducer != nullptr ? reducer->owned(optimiser.parameters()) : std::vector<bool>{});
}

/// One training step of any model: forward and backward over the micro-batches, then one update.
/// `loss_of(i)` runs the model on the tape for micro-batch i and returns its loss, a Variable<T>.
/// The micro-batches together are the step's batch: losses and gradients are sums over the micro-batches.
/// The first step plans the forward factors, by a dry pass over micro-batch 0 (Tape::plan).
/// Where the recipe asks for it, weight gradients are quantised and all gradients clipped before the update. A weight's
/// gradient is quantised as soon as its last contribution has arrived, so that few are held in T at a time.
/// If the loss or the gradient norm is not finite, nothing is updated.
/// With a scaler, its scale is the seed of the backward pass.
/// With a scaler, a step with a finite loss and gradients that are not finite is `skipped`.
/// With a reducer, this process computes its share of the micro-batches, and the reducer joins them. `loss_of(0)` also
/// runs for the plan, in every process. Without a reducer the micro-batches are added one after the other.
/// With a reducer that shares state among processes, each updates what it owns, and all get the new values.
/// Errors: no micro-batches; the errors of the tape, the optimiser and the reducer. Test: tests/train/step_test.cpp
template <class T, class Optimiser, class LossOf>
[[nodiscard]] StepResult take_step(Tape<T>& tape, Optimiser& optimiser, std::size_t micro_batches, LossOf&& loss_of,
                                   double learning_rate, optim::LossScaler* scaler = nullptr,
                                   StepReducer<T>* reducer = nullptr) {
    check(micro_batches >= 1, "take_step: no micro-batches; expected at least 1");
    StepResult result{};
    optimiser.clear_gradients();
    typename StepReducer<T>::Share share{0, micro_batches};
    const double seed = scaler != nullptr ? scaler->scale() : 1.0;
    optim::SumOfProcesses sum;
    set_owned<T>(optimiser, reducer);
    if (reducer != nullptr) {
        sum = [reducer](std::span<double> numbers) { reducer->sum(numbers); };
        share = reducer->begin(tape, optimiser.parameters(), micro_batches, seed);
    }
    tape.plan([&] { return loss_of(std::size_t{0}); }, {.micro_batches = micro_batches});
    const Storage& storage = tape.recipe().storage;
    const auto quantise = [&](Parameter<T>& parameter) {
        optim::quantise_weight_gradient(tape.execution(), parameter, storage,
                                        {tape.state().seed(), tape.state().step()}, tape.pool());
    };
    // Micro-batch 0 begins a step of the state, wherever it is computed.
    if (share.first > 0) tape.state().set_step(tape.state().step() + 1);
    for (std::size_t i = share.first; i < share.last; ++i) {
        tape.begin_step({.micro_batches = micro_batches, .micro_batch = i});
        const Variable<T> loss = loss_of(i);
        const double value = loss.item();
        const bool last = i + 1 == micro_batches;
        GradientSink<T> complete;
        if (reducer != nullptr) complete = [=](Parameter<T>& parameter) { reducer->add_gradient(i, parameter); };
        else if (last) complete = quantise;
        tape.backward(loss, static_cast<Accum<T>>(seed), complete);
        if (reducer != nullptr) reducer->add_loss(i, value);
        else result.loss += value;
    }
    if (reducer != nullptr) result.loss = reducer->finish();
    if (!std::isfinite(result.loss)) return result;
    // Weights that the last micro-batch has not reached.
    for (Parameter<T>* parameter : optimiser.parameters()) quantise(*parameter);
    if (scaler != nullptr) {
        scaler->template unscale<T>(optimiser.parameters());
        scaler->template measure<T>(tape.execution(), optimiser.parameters(), sum);
        result.gradient_norm = optim::gradient_norm<T>(tape.execution(), optimiser.parameters(), sum);
        result.skipped = !scaler->update(std::isfinite(result.gradient_norm));
        if (result.skipped) return result;
    }
    if (tape.recipe().clip_norm > 0.0) {
        result.gradient_norm =
            optim::clip_gradients<T>(tape.execution(), optimiser.parameters(), tape.recipe().clip_norm, sum);
        if (!std::isfinite(result.gradient_norm)) return result;
    }
    optimiser.step(tape.execution(), learning_rate);
    if (reducer != nullptr) reducer->share_values();
    result.updated = true;
    return result;
}

/// Fixes the forward factors of a language model under `unit` (Tape::plan).
/// It makes a dry forward pass over one of the step's micro-batches.
/// It does nothing if nothing is scaled or a plan exists.
template <class T>
void plan_factors(nn::Decoder<T>& model, Tape<T>& tape, const Batch& batch, std::size_t micro_batches = 1) {
    tape.plan([&] { return ops::softmax_cross_entropy(model(tape, batch.ids), batch.labels); },
              {.micro_batches = micro_batches});
}

/// `take_step` of a language model.
/// Test: tests/train/step_test.cpp
template <class T, class Optimiser>
[[nodiscard]] StepResult train_step(nn::Decoder<T>& model, Tape<T>& tape, Optimiser& optimiser,
                                    std::span<const Batch> micro_batches, double learning_rate,
                                    optim::LossScaler* scaler = nullptr) {
    check(!micro_batches.empty(), "train_step: no batches");
    return take_step(
        tape, optimiser, micro_batches.size(),
        [&](std::size_t i) {
            return ops::softmax_cross_entropy(model(tape, micro_batches[i].ids), micro_batches[i].labels);
        },
        learning_rate, scaler);
}

}  // namespace unitscale::train
