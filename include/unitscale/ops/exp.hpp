// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

namespace unitscale::ops {

/// Exponential function.
///   y = alpha exp(x)     dx = beta_x dy exp(x)     x, y [any shape]
/// No rule under `unit`: the result is log-normal, and its largest elements alone make its variance. State the factors
/// with `.unit`, or normalise with an op that has a rule.
/// Beyond the range of T the value is 0 or infinity.
/// Scale under `propagate`: 1; gradients keep dy's.
/// Error: scaling `unit` without `.unit`. Test: tests/ops/exp_test.cpp
template <class T>
[[nodiscard]] Variable<T> exp(Variable<T> x, const UnruledOptions& options = {}) {
    auto op = begin_op("exp", x);
    op.set_factors(op.stated(options.unit), options.constraint);
    return record_pointwise(op, kernels::ExpFunction{});
}

}  // namespace unitscale::ops
