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

namespace unitscale::train {

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

/// One training step of any model: forward and backward over the micro-batches, then one update.
/// `loss_of(i)` runs the model on the tape for micro-batch i and returns its loss, a Variable<T>.
/// The micro-batches together are the step's batch: losses and gradients are sums over the micro-batches.
/// The first step plans the forward factors, by a dry pass over micro-batch 0 (Tape::plan).
/// Where the recipe asks for it, weight gradients are quantised and all gradients clipped before the update. A weight's
/// gradient is quantised as soon as its last contribution has arrived, so that few are held in T at a time.
/// If the loss or the gradient norm is not finite, nothing is updated.
/// With a scaler, its scale is the seed of the backward pass.
/// With a scaler, a step with a finite loss and gradients that are not finite is `skipped`.
/// Errors: no micro-batches; the errors of the tape and of the optimiser. Test: tests/train/step_test.cpp
template <class T, class Optimiser, class LossOf>
[[nodiscard]] StepResult take_step(Tape<T>& tape, Optimiser& optimiser, std::size_t micro_batches, LossOf&& loss_of,
                                   double learning_rate, optim::LossScaler* scaler = nullptr) {
    check(micro_batches >= 1, "take_step: no micro-batches; expected at least 1");
    StepResult result{};
    optimiser.clear_gradients();
    tape.plan([&] { return loss_of(std::size_t{0}); }, {.micro_batches = micro_batches});
    const Storage& storage = tape.recipe().storage;
    const auto quantise = [&](Parameter<T>& parameter) {
        optim::quantise_weight_gradient(tape.execution(), parameter, storage,
                                        {tape.state().seed(), tape.state().step()}, tape.pool());
    };
    for (std::size_t i = 0; i < micro_batches; ++i) {
        tape.begin_step({.micro_batches = micro_batches, .micro_batch = i});
        const Variable<T> loss = loss_of(i);
        result.loss += loss.item();
        const bool last = i + 1 == micro_batches;
        tape.backward(loss, static_cast<Accum<T>>(scaler != nullptr ? scaler->scale() : 1.0),
                      last ? GradientSink<T>(quantise) : GradientSink<T>());
    }
    if (!std::isfinite(result.loss)) return result;
    // Weights that the last micro-batch has not reached.
    for (Parameter<T>* parameter : optimiser.parameters()) quantise(*parameter);
    if (scaler != nullptr) {
        scaler->template unscale<T>(optimiser.parameters());
        scaler->template measure<T>(tape.execution(), optimiser.parameters());
        result.gradient_norm = optim::gradient_norm<T>(tape.execution(), optimiser.parameters());
        result.skipped = !scaler->update(std::isfinite(result.gradient_norm));
        if (result.skipped) return result;
    }
    if (tape.recipe().clip_norm > 0.0) {
        result.gradient_norm =
            optim::clip_gradients<T>(tape.execution(), optimiser.parameters(), tape.recipe().clip_norm);
        if (!std::isfinite(result.gradient_norm)) return result;
    }
    optimiser.step(tape.execution(), learning_rate);
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
