// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/scaling/loss_scaling.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace unitscale::optim {

/// The factor of the loss from step to step. `scale()` is the seed of the backward pass.
/// `unscale` divides the gradients by it, in their scales alone: the gradients' data stays.
/// `update` says whether the step may be taken, and prepares the next step.
///   tape.backward(loss, static_cast<float>(scaler.scale()));
///   scaler.unscale<float>(parameters);
///   if (scaler.update(std::isfinite(norm))) optimiser.step(execution, rate);
/// Test: tests/optim/loss_scaler_test.cpp
class LossScaler {
public:
    explicit LossScaler(const LossScaling& how = {})
        : how_(how), scale_(how.kind == LossScaleKind::none ? 1.0 : how.initial) {
        how.validate();
    }

    [[nodiscard]] double scale() const noexcept { return scale_; }
    /// Skipped steps: all of them, and the number since the last step that was taken.
    [[nodiscard]] std::uint64_t skipped() const noexcept { return skipped_; }
    [[nodiscard]] std::uint64_t skipped_in_a_row() const noexcept { return skipped_in_a_row_; }

    /// Divides the gradients by the scale of the step that made them.
    /// Call it once per step, when all gradients of the step are complete.
    template <class T>
    void unscale(std::span<Parameter<T>* const> parameters) const {
        for (Parameter<T>* parameter : parameters) parameter->mark(GradientStep::unscale);
        if (scale_ == 1.0) return;
        for (Parameter<T>* parameter : parameters)
            if (is_updated(*parameter)) parameter->set_gradient_scale(parameter->gradient_scale() / scale_);
    }

    /// Reports whether a step's gradients were finite, and returns whether to take the step.
    /// Under `none` every step is taken, so that the caller sees a broken step; else a finite step is taken.
    /// Only `automatic` changes the scale, within [2^-126, 2^127].
    bool update(bool finite) noexcept {
        if (how_.kind == LossScaleKind::none) return true;
        skipped_ += finite ? 0 : 1;
        skipped_in_a_row_ = finite ? 0 : skipped_in_a_row_ + 1;
        if (how_.kind == LossScaleKind::automatic) {
            good_ = finite ? good_ + 1 : 0;
            if (!finite) scale_ *= how_.backoff;
            if (good_ == how_.interval) {
                scale_ *= how_.growth;
                good_ = 0;
            }
            scale_ = std::clamp(scale_, static_cast<double>(std::numeric_limits<float>::min()), 0x1p127);
        }
        return finite;
    }

    /// Names the state to a visitor: visitor.number(name, double&), visitor.scalar(name, std::uint64_t&).
    template <class Visitor>
    void visit_state(Visitor&& visitor) {
        visitor.number("loss_scale", scale_);
        visitor.scalar("loss_scale/good", good_);
        visitor.scalar("loss_scale/skipped", skipped_);
        visitor.scalar("loss_scale/skipped_in_a_row", skipped_in_a_row_);
    }

private:
    LossScaling how_;
    double scale_;
    std::uint64_t good_ = 0, skipped_ = 0, skipped_in_a_row_ = 0;
};

}  // namespace unitscale::optim
