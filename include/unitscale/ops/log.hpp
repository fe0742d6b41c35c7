// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <cmath>

namespace unitscale::ops {

/// ln(s v) = ln v + ln s, whose slope is 1 / v times 1 / s.
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
/// Scale under `propagate`, x = s a: 1, of ln a + ln s, which also holds where s a is no number of T; gradients: dy's / s.
/// ln(0) is -infinity, of a negative number NaN.
/// Error: scaling `unit` without `.unit`. Test: tests/ops/log_test.cpp
template <class T>
[[nodiscard]] Variable<T> log(Variable<T> x, const UnruledOptions& options = {}) {
    const UnitRule factors = stated_factors("log", x.tape("log"), options);
    const double scale = x.scaled().scale();
    if (scale == 1.0) return record_pointwise("log", x, factors, kernels::LogFunction{});
    return record_pointwise("log", x, factors, UnaryScales{.slope = 1.0 / scale}, LogOfScaled{std::log(scale)});
}

}  // namespace unitscale::ops
