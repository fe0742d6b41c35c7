// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/ops/unary.hpp>

namespace unitscale::ops {

/// Natural logarithm.
///   y = alpha ln(x)     dx = beta_x dy / x     x, y [any shape]
/// No rule under `unit`: unit-normal inputs are outside its domain. State the factors with `.unit`.
/// ln(0) is -infinity, of a negative number NaN.
/// Error: scaling `unit` without `.unit`. Test: tests/ops/log_test.cpp
template <class T>
[[nodiscard]] Variable<T> log(Variable<T> x, const UnruledOptions& options = {}) {
    return record_pointwise("log", x, stated_factors("log", x.tape("log"), options), kernels::LogFunction{});
}

}  // namespace unitscale::ops
