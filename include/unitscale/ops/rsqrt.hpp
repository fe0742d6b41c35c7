// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/ops/unary.hpp>

namespace unitscale::ops {

/// Reciprocal square root.
///   y = alpha x^-1/2     dx = beta_x dy (-1/2) x^-3/2     x, y [any shape]
/// No rule under `unit`: unit-normal inputs are outside its domain. State the factors with `.unit`.
/// NaN for a negative number, infinity for 0.
/// Error: scaling `unit` without `.unit`. Test: tests/ops/rsqrt_test.cpp
template <class T>
[[nodiscard]] Variable<T> rsqrt(Variable<T> x, const UnruledOptions& options = {}) {
    return record_pointwise("rsqrt", x, stated_factors("rsqrt", x.tape("rsqrt"), options), kernels::RsqrtFunction{});
}

}  // namespace unitscale::ops
