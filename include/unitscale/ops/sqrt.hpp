// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/ops/unary.hpp>

namespace unitscale::ops {

/// Square root.
///   y = alpha x^1/2     dx = beta_x dy / (2 x^1/2)     x, y [any shape]
/// No rule under `unit`: unit-normal inputs are outside its domain. State the factors with `.unit`.
/// NaN for a negative number; the gradient at 0 is infinite.
/// Error: scaling `unit` without `.unit`. Test: tests/ops/sqrt_test.cpp
template <class T>
[[nodiscard]] Variable<T> sqrt(Variable<T> x, const UnruledOptions& options = {}) {
    return record_pointwise("sqrt", x, stated_factors("sqrt", x.tape("sqrt"), options), kernels::SqrtFunction{});
}

}  // namespace unitscale::ops
