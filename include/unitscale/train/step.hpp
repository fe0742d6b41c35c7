// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/round_gradients.hpp>
#include <unitscale/train/batches.hpp>

#include <cmath>
#include <cstddef>
#include <span>

namespace unitscale::train {

/// The result of one training step.
struct StepResult {
    double loss = 0.0;           ///< mean over the step's tokens, in nats
    double gradient_norm = 0.0;  ///< before clipping; 0 without clipping and without a scaler
    bool updated = false;        ///< false: loss or gradient norm was not finite, and parameters are unchanged
    bool skipped = false;  ///< no update: the loss scale was too large; only `automatic` lowers it for the next step
};

/// Fixes the forward factors of a language model under `unit` (Tape::plan).
/// It makes a dry forward pass over one of the step's micro-batches.
/// It does nothing if nothing is scaled or a plan exists.
template <class T>
void plan_factors(nn::Decoder<T>& model, Tape<T>& tape, const Batch& batch, std::size_t micro_batches = 1) {
    tape.plan([&] { return ops::softmax_cross_entropy(model(tape, batch.ids), batch.labels); },
              {.micro_batches = micro_batches});
}

/// One training step of a language model: forward and backward over the micro-batches, then one update.
/// Before the update, weight gradients are quantised and all gradients clipped, where the recipe asks for it.
/// The micro-batches together are the step's batch: losses and gradients are sums over the micro-batches.
/// If the loss or the gradient norm is not finite, nothing is updated.
/// The first step plans the forward factors.
/// With a scaler, its scale is the seed of the backward pass.
/// With a scaler, a step with a finite loss and gradients that are not finite is `skipped`.
/// Test: tests/train/step_test.cpp
template <class T, class Optimiser>
[[nodiscard]] StepResult train_step(nn::Decoder<T>& model, Tape<T>& tape, Optimiser& optimiser,
                                    std::span<const Batch> micro_batches, double learning_rate,
                                    optim::LossScaler* scaler = nullptr) {
    check(!micro_batches.empty(), "train_step: no batches");
    StepResult result{};
    optimiser.clear_gradients();
    plan_factors(model, tape, micro_batches.front(), micro_batches.size());
    for (std::size_t i = 0; i < micro_batches.size(); ++i) {
        tape.begin_step({.micro_batches = micro_batches.size(), .micro_batch = i});
        const Variable<T> logits = model(tape, micro_batches[i].ids);
        const Variable<T> loss = ops::softmax_cross_entropy(logits, micro_batches[i].labels);
        result.loss += loss.item();
        tape.backward(loss, static_cast<Accum<T>>(scaler != nullptr ? scaler->scale() : 1.0));
    }
    if (!std::isfinite(result.loss)) return result;
    optim::round_weight_gradients<T>(tape.execution(), optimiser.parameters(), tape.recipe().storage,
                                     {tape.state().seed(), tape.state().step()});
    if (scaler != nullptr) {
        scaler->template unscale<T>(optimiser.parameters());
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

}  // namespace unitscale::train
