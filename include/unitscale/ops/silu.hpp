// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/activations.hpp>
#include <unitscale/ops/dynamic_rescale.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/unary.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>

namespace unitscale::ops {

struct SiluOptions {
    double mult = 1.0;                       ///< m, the multiplier of the gate (alpha_ffn_act in u-µP)
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Ideal factors of silu under `unit`: see `silu`.
[[nodiscard]] inline Factors<1> silu_unit_factors(double m) noexcept {
    const double square = m * m;
    return {.alpha = logint(1.0 / (1.0 + 0.25 / square), 2.0, std::sqrt(2.0 / (1.0 - 1.0 / std::numbers::pi))),
            .betas = {logint(1.0 / (1.0 + 1.0 / square), 2.0, std::numbers::sqrt2)}};
}

/// Unit-scaled sigmoid linear unit (swish).
///   y = alpha x sigmoid(m x)     dx = beta_x dy s (1 + m x (1 - s)), s = sigmoid(m x)     x, y [any shape]
/// Factors under `unit`, x unit normal: for m -> 0 silu is x/2, hence 2 and 2; for m -> infinity it is a relu, hence
/// sqrt(2 / (1 - 1/pi)) and sqrt 2; between them logint with weight 1 / (1 + 1/(4 m^2)) for alpha and 1 / (1 + 1/m^2)
/// for beta_x, fits that put the standard deviations within 4 % of 1 for m in 0.25 to 4. They share one value by the
/// constraint.
/// Scale under `propagate`: s_x; m s_x is the multiplier of the data. Gradients keep dy's.
/// Errors: mult not positive.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/silu_test.cpp
template <class T>
[[nodiscard]] Variable<T> silu(Variable<T> x, const SiluOptions& options = {}) {
    x = record_rescaled_activation("silu", x);
    auto op = begin_op("silu", x);
    check_positive("silu", "mult", options.mult);
    op.set_factors(silu_unit_factors(options.mult), options.constraint);
    const auto m = static_cast<Accum<T>>(options.mult);
    return record_unary(
        op, UnaryScale::activation,
        [m](const Execution& execution, const T* from, T* y, std::ptrdiff_t n, Accum<T> alpha, Accum<T> s) {
            kernels::silu_forward<T>(execution, from, y, n, m * s, alpha);
        },
        [m](const Execution& execution, const T* from, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta,
            Accum<T> s) { kernels::silu_backward<T>(execution, from, dy, dx, n, m * s, beta); });
}

}  // namespace unitscale::ops
