// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/activations.hpp>
#include <unitscale/ops/dynamic_rescale.hpp>
#include <unitscale/record/unary.hpp>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>

namespace unitscale::ops {

struct ReluOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Ideal factors of relu under `unit`: see `relu`.
[[nodiscard]] inline Factors<1> relu_unit_factors() noexcept {
    return {.alpha = std::sqrt(2.0 / (1.0 - 1.0 / std::numbers::pi)), .betas = {std::numbers::sqrt2}};
}

/// Unit-scaled rectifier.
///   y = alpha max(x, 0)     dx = beta_x dy where x > 0, else 0     x, y [any shape]
/// Factors under `unit`, x unit normal: max(x, 0) has the mean square 1/2 and the mean (2 pi)^-1/2, hence the variance
/// (1 - 1/pi) / 2; half of the gradient passes. So alpha = sqrt(2 / (1 - 1/pi)), beta_x = sqrt 2; they share one value
/// by the constraint. At a standard deviation of 1 the value's rms is 1.21, since its mean is not zero.
/// Scale under `propagate`: s_x; gradients keep dy's.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/relu_test.cpp
template <class T>
[[nodiscard]] Variable<T> relu(Variable<T> x, const ReluOptions& options = {}) {
    x = record_rescaled_activation("relu", x);
    auto op = begin_op("relu", x);
    op.set_factors(relu_unit_factors(), options.constraint);
    return record_unary(
        op, UnaryScale::activation,
        [](const Execution& execution, const T* from, T* y, std::ptrdiff_t n, Accum<T> alpha, Accum<T>) {
            kernels::relu_forward<T>(execution, from, y, n, alpha);
        },
        [](const Execution& execution, const T* from, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta, Accum<T>) {
            kernels::relu_backward<T>(execution, from, dy, dx, n, beta);
        });
}

}  // namespace unitscale::ops
