// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/factors.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cmath>
#include <cstddef>

// Factors under `unit` of softmax, and of attention, which contains one.
// Test: tests/record/softmax_factors_test.cpp
namespace unitscale::ops {

/// Which factors `softmax` takes under `unit`.
///   fitted: between flat and peaked probabilities, by m
///   flat: factors of flat probabilities, as in the Unit Scaling paper
enum class SoftmaxRule { fitted, flat };

/// Ideal factors of a softmax over s elements under `unit`: see `softmax`.
[[nodiscard]] inline Factors<1> softmax_unit_factors(double m, double s, SoftmaxRule rule) noexcept {
    if (s <= 0.0) return {};
    if (rule == SoftmaxRule::flat) return {.alpha = s, .betas = {s / m}};
    const double a = 1.0 / (1.0 + 4.0 / (m * m));
    return {.alpha = logint(a, s, std::sqrt(s)), .betas = {logint(a, s / m, std::sqrt(s / m))}};
}

/// The factor of attention under `unit` over s keys, for the value and all gradients, without dropout: see `attention`.
/// With a causal window of w < s keys, position i averages min(i, w) values: the mean variance over s positions is
/// (ln w + s / w - 1) / s, which is ln s / s at w = s.
[[nodiscard]] inline double attention_unit_factor(double m, std::size_t head_size, double s, bool causal,
                                                  std::size_t window = 0) noexcept {
    if (s <= 1.0 || window == 1) return 1.0;
    const auto w = static_cast<double>(window);
    const double c = !causal ? 1.0 : window > 0 && w < s ? std::log(w) + s / w - 1.0 : std::log(s);
    return 1.0 / logint(1.0 / (1.0 + 4.0 * static_cast<double>(head_size) / (m * m)), std::sqrt(c / s), 1.0);
}

/// The ideal factor of the gradients of q and k, over the value's factor: see `attention`.
[[nodiscard]] inline double attention_logit_factor(double m, std::size_t head_size) noexcept {
    const double logit = m / std::sqrt(static_cast<double>(head_size)), a = 1.0 / (1.0 + 4.0 / (logit * logit));
    return std::pow(logit, a / 2.0 - 1.0);
}

}  // namespace unitscale::ops
