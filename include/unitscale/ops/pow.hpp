// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <cmath>

namespace unitscale::ops {

/// Power with a constant exponent p.
///   y = alpha x^p     dx = beta_x dy p x^(p-1)     x, y [any shape]
/// No rule under `unit`: for most p unit-normal inputs are outside its domain. State the factors with `.unit`; for p =
/// 2 and unit-normal x they are 2^-1/2 (the variance of x^2 is 2) and 1/2.
/// Scale under `propagate`: s^p for an integer p, gradients dy's times s^(p-1). For other p, and where s^p leaves
/// double's range: 1, gradients dy's.
/// NaN for a negative number and an exponent that is not an integer.
/// Errors: scaling `unit` without `.unit`; p = 0, for which y is a constant; p not finite. Test: tests/ops/pow_test.cpp
template <class T>
[[nodiscard]] Variable<T> pow(Variable<T> x, double exponent, const UnruledOptions& options = {}) {
    auto op = begin_op("pow", x);
    check(std::isfinite(exponent) && exponent != 0.0, "pow: exponent is ", exponent,
          "; expected a finite number other than 0");
    op.set_factors(op.stated(options.unit), options.constraint);
    const double s = op.input(0).scale();
    const UnaryScales scales{.value = std::pow(s, exponent), .slope = std::pow(s, exponent - 1.0)};
    const bool apart = exponent == std::trunc(exponent) && std::isnormal(scales.value) && std::isnormal(scales.slope);
    const auto record = [&](auto f) { return apart ? record_pointwise(op, scales, f) : record_pointwise(op, f); };
    return exponent == 2.0 ? record(kernels::SquareFunction{}) : record(kernels::PowFunction<double>{exponent});
}

}  // namespace unitscale::ops
