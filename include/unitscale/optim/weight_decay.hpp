// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/scaling/parametrisation.hpp>

#include <cmath>

namespace unitscale::optim {

using unitscale::WeightDecay;

/// The factor of weight_decay in an update's decay; 0 for `gradient`.
[[nodiscard]] constexpr double decay_rate(WeightDecay kind, double learning_rate, double schedule_share) noexcept {
    return kind == WeightDecay::coupled ? learning_rate : kind == WeightDecay::independent ? schedule_share : 0.0;
}

/// The share of a parameter p that an update's decay takes away: (1 - share) p stays.
/// It is 0 for `gradient`, because that decay is part of the gradient.
/// `learning_rate` is the parameter's own, group factor included. `schedule_share` is lr_t / lr_peak.
/// Test: tests/optim/weight_decay_test.cpp
[[nodiscard]] constexpr double decay_share(WeightDecay kind, double weight_decay, double learning_rate,
                                           double schedule_share) noexcept {
    return weight_decay * decay_rate(kind, learning_rate, schedule_share);
}

/// 1 - decay_share.
[[nodiscard]] inline double kept_share(WeightDecay kind, double weight_decay, double learning_rate,
                                       double schedule_share) noexcept {
    return multiply_add(-weight_decay, decay_rate(kind, learning_rate, schedule_share), 1.0);
}

/// lr_t / lr_peak under `independent` decay, else 1.
/// Error, with `op` (the optimiser) in front: no peak given, or a learning rate above it.
[[nodiscard]] inline double schedule_share(const char* op, WeightDecay kind, double learning_rate,
                                           double peak_learning_rate) {
    if (kind != WeightDecay::independent) return 1.0;
    check(learning_rate <= peak_learning_rate * (1.0 + 1e-12), op, ": learning rate ", learning_rate,
          " is above peak_learning_rate ", peak_learning_rate, ", which independent weight decay divides by");
    return learning_rate / peak_learning_rate;
}

}  // namespace unitscale::optim
