// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <cmath>

namespace unitscale::ops {

/// A scale s = share root^2 for functions of the square root: root a power of two, share in [1, 4), 1 or 2 for a power of two.
struct RootOfScale {
    double share = 1.0, root = 1.0;
};
[[nodiscard]] inline RootOfScale root_of_scale(double scale) {
    const int exponent = binary_parts("sqrt", scale).exponent, half = (exponent - (exponent & 1)) / 2;
    return {.share = std::ldexp(scale, -2 * half), .root = std::ldexp(1.0, half)};
}

/// Square root.
///   y = alpha x^1/2     dx = beta_x dy / (2 x^1/2)     x, y [any shape]
/// No rule under `unit`: unit-normal inputs are outside its domain. State the factors with `.unit`.
/// Scale under `propagate`, x = 2^e a: 2^(e/2) of a^1/2 for an even e, 2^((e-1)/2) of (2 a)^1/2 for an odd one; gradients: dy's
/// divided by it.
/// NaN for a negative number; the gradient at 0 is infinite.
/// Error: scaling `unit` without `.unit`. Test: tests/ops/sqrt_test.cpp
template <class T>
[[nodiscard]] Variable<T> sqrt(Variable<T> x, const UnruledOptions& options = {}) {
    const UnitRule factors = stated_factors("sqrt", x.tape("sqrt"), options);
    const RootOfScale s = root_of_scale(x.scaled().scale());
    const UnaryScales scales{.value = s.root, .slope = 1.0 / s.root};
    if (s.share == 1.0) return record_pointwise("sqrt", x, factors, scales, kernels::SqrtFunction{});
    return record_pointwise("sqrt", x, factors, scales, OfScaled<kernels::SqrtFunction>{{}, s.share});
}

}  // namespace unitscale::ops
