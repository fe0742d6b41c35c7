// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/record_linear.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct LinearOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Unit-scaled linear layer.
///   y = alpha (x weight^T + bias)    x [...,in]   weight [out,in]   bias [out]   y [...,out]
///   dx = beta_x dy weight            dweight = beta_w dy^T x        dbias = beta_w sum over rows of dy
/// Factors under `unit`, entries independent with zero mean and unit variance: a sum of r products has variance r, hence
/// alpha = in^-1/2, beta_x = out^-1/2, beta_w = N^-1/2 for the N rows of the whole step; alpha and beta_x share one value
/// (the constraint), weight and bias are cut-edges. Under `none` all factors are 1.
/// Rounding: by the recipe, kind `linear`: x as activation, weight as weight, dy as gradient, in all three products.
/// Errors: weight not a matrix; x and weight do not contract; bias of another length.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/linear_test.cpp
template <class T>
[[nodiscard]] Variable<T> linear(Variable<T> x, Variable<T> weight, std::optional<Variable<T>> bias = {},
                                 const LinearOptions& options = {}) {
    const auto factors_of = [&](Site site, std::size_t in, std::size_t out, std::size_t rows) {
        LinearFactors factors = linear_unit_factors(in, out, rows);
        factors.joined_by =
            join_factors("linear", site, x.tape("linear"), options.constraint, factors.alpha, factors.beta_x);
        return factors;
    };
    return record_linear("linear", ProductKind::linear, x, weight, bias, factors_of);
}
template <class T>
[[nodiscard]] Variable<T> linear(Variable<T> x, Variable<T> weight, const LinearOptions& options) {
    return linear(x, weight, std::optional<Variable<T>>{}, options);
}

}  // namespace unitscale::ops
