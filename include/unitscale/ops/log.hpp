// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <cmath>

namespace unitscale::ops {

/// ln(s v) = ln v + ln s. Its slope in v is 1 / v, which is s times the slope of ln at s v.
struct LogOfScaled {
    double log_scale = 0.0;
    template <class A>
    [[nodiscard]] A value(A v) const noexcept {
        return kernels::LogFunction{}.value(v) + static_cast<A>(log_scale);
    }
    template <class A>
    [[nodiscard]] A slope(A v) const noexcept {
        return kernels::LogFunction{}.slope(v);
    }
};

/// Natural logarithm.
///   y = alpha ln(x)     dx = beta_x dy / x     x, y [any shape]
/// No rule under `unit`: unit-normal inputs are outside its domain. State the factors with `.unit`.
/// Scale under `propagate`, x = s a: 1. The value is ln a + ln s, also where s a is no number of T. Gradients: dy's /
/// s.
/// ln(0) is -infinity; the logarithm of a negative number is NaN.
/// Error: scaling `unit` without `.unit`. Test: tests/ops/log_test.cpp
template <class T>
[[nodiscard]] Variable<T> log(Variable<T> x, const UnruledOptions& options = {}) {
    auto op = begin_op("log", x);
    op.set_factors(op.stated(options.unit), options.constraint);
    const double scale = op.input(0).scale();
    if (scale == 1.0) return record_pointwise(op, kernels::LogFunction{});
    return record_pointwise(op, UnaryScales{.slope = 1.0 / scale}, LogOfScaled{std::log(scale)});
}

}  // namespace unitscale::ops
