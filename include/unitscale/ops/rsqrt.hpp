// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/sqrt.hpp>

namespace unitscale::ops {

/// Reciprocal square root.
///   y = alpha x^-1/2     dx = beta_x dy (-1/2) x^-3/2     x, y [any shape]
/// No rule under `unit`: unit-normal inputs are outside its domain. State the factors with `.unit`.
/// Scale under `propagate`: the inverse of the scale of `sqrt`, of a^-1/2 or (2 a)^-1/2; gradients: dy's times its
/// cube.
/// NaN for a negative number, infinity for 0.
/// Error: scaling `unit` without `.unit`. Test: tests/ops/rsqrt_test.cpp
template <class T>
[[nodiscard]] Variable<T> rsqrt(Variable<T> x, const UnruledOptions& options = {}) {
    auto op = begin_op("rsqrt", x);
    op.set_factors(op.stated(options.unit), options.constraint);
    const RootOfScale s = root_of_scale(op.input(0).scale());
    const UnaryScales scales{.value = 1.0 / s.root, .slope = 1.0 / (s.root * s.root * s.root)};
    if (s.rest == 1.0) return record_pointwise(op, scales, kernels::RsqrtFunction{});
    return record_pointwise(op, scales, OfScaled<kernels::RsqrtFunction>{{}, s.rest});
}

}  // namespace unitscale::ops
