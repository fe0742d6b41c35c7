// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>
#include <unitscale/scaling/power_of_two.hpp>

#include <cmath>

namespace unitscale::ops {

/// A scale s = rest root^2 for functions of the square root: root a power of two, rest in [1, 4), 1 or 2 for a power of
/// two.
struct RootOfScale {
    double rest = 1.0, root = 1.0;
};
[[nodiscard]] inline RootOfScale root_of_scale(double scale) {
    const int exponent = binary_parts("sqrt", scale).exponent, half = (exponent - (exponent & 1)) / 2;
    return {.rest = std::ldexp(scale, -2 * half), .root = std::ldexp(1.0, half)};
}

/// Square root.
///   y = alpha x^1/2     dx = beta_x dy / (2 x^1/2)     x, y [any shape]
/// No rule under `unit`: unit-normal inputs are outside its domain. State the factors with `.unit`.
/// Scale under `propagate`, x = 2^e a: 2^(e/2) of a^1/2 for an even e, 2^((e-1)/2) of (2 a)^1/2 for an odd one.
/// Gradients: dy's divided by this scale.
/// NaN for a negative number; the gradient at 0 is infinite.
/// Error: scaling `unit` without `.unit`. Test: tests/ops/sqrt_test.cpp
template <class T>
[[nodiscard]] Variable<T> sqrt(Variable<T> x, const UnruledOptions& options = {}) {
    auto op = begin_op("sqrt", x);
    op.set_factors(op.stated(options.unit), options.constraint);
    const RootOfScale s = root_of_scale(op.input(0).scale());
    const UnaryScales scales{.value = s.root, .slope = 1.0 / s.root};
    if (s.rest == 1.0) return record_pointwise(op, scales, kernels::SqrtFunction{});
    return record_pointwise(op, scales, OfScaled<kernels::SqrtFunction>{{}, s.rest});
}

}  // namespace unitscale::ops
