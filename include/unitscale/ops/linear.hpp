// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/bias.hpp>
#include <unitscale/record/linear_products.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct LinearOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
    std::size_t uses = 1;  ///< calls that share weight and bias, as in a recurrence; above 1 see `joined_at_once`
    /// Rows of the whole step that carry a gradient; empty: all, and micro-batches are alike. See `linear`.
    std::optional<std::size_t> step_rows{};
};

/// Ideal factors of a linear layer under `unit`, for x, weight and bias: see `linear`. `rows`: of the whole step.
[[nodiscard]] inline Factors<3> linear_unit_factors(std::size_t in, std::size_t out, std::size_t rows) noexcept {
    return {.alpha = rsqrt_count(in), .betas = {rsqrt_count(out), rsqrt_count(rows), rsqrt_count(rows)}};
}

/// Unit-scaled linear layer.
///   y = alpha (x weight^T + bias)    x [...,in]   weight [out,in]   bias [out]   y [...,out]
///   dx = beta_x dy weight            dweight = beta_w dy^T x        dbias = beta_w sum over rows of dy
/// Factors under `unit`, entries independent with zero mean and unit variance: a sum of r products has variance r,
/// hence alpha = in^-1/2, beta_x = out^-1/2, beta_w = N^-1/2 for the N rows of the whole step, in all `uses`; alpha and
/// beta_x share one value (the constraint), weight and bias are cut-edges. Under `none` all factors are 1.
/// Sparse gradients: where dy is 0 in all but M of the N rows, the sums of dweight and dbias have M terms, hence
/// beta_w = M^-1/2. M is `step_rows`.
/// A recipe without `bias_inside_alpha` has y = alpha x weight^T + bias, with equal gradients.
/// Rounding: by the recipe, kind `linear`: x as activation, weight as weight, dy as gradient, in all three products.
/// Errors: weight not a matrix; x and weight do not contract; bias of another length; no uses.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/linear_test.cpp
template <class T>
[[nodiscard]] Variable<T> linear(Variable<T> x, Variable<T> weight, OptionalVariable<T> bias = {},
                                 const LinearOptions& options = {}) {
    auto op = begin_op("linear", x, weight, bias);
    const LinearSizes size = linear_sizes(op);
    check(options.uses >= 1, "linear: 0 uses; expected at least 1");
    set_product_factors(op,
                        linear_unit_factors(size.in, size.out,
                                            options.step_rows.value_or(op.tape().step_rows(size.rows)) * options.uses),
                        options.uses > 1 ? joined_at_once(op.tape(), options.constraint) : options.constraint);
    return record_linear(op, ProductKind::linear, size);
}
template <class T>
[[nodiscard]] Variable<T> linear(Variable<T> x, Variable<T> weight, const LinearOptions& options) {
    return linear(x, weight, std::optional<Variable<T>>{}, options);
}

}  // namespace unitscale::ops
