// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/linear.hpp>

#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct ReadoutOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's if `automatic`, else none
    std::optional<double> exponent{};        ///< e in alpha = in^-e; empty: the recipe's
    /// Rows of the whole step that carry a gradient; empty: all, and micro-batches are alike. See `linear`.
    std::optional<std::size_t> step_rows{};
};

/// Ideal factors of the readout under `unit`, for x, weight and an absent bias: see `readout`.
[[nodiscard]] inline Factors<3> readout_unit_factors(std::size_t in, std::size_t out, std::size_t rows,
                                                     double exponent) noexcept {
    Factors<3> factors = linear_unit_factors(in, out, rows);
    factors.alpha = in == 0 ? 1.0 : std::pow(static_cast<double>(in), -exponent);
    return factors;
}

/// The last linear layer, onto the vocabulary.
///   y = alpha (x weight^T + bias)     x [...,in]   weight [out,in]   bias [out]   y [...,out]
/// Factors under `unit`: alpha = in^-e, by the recipe's parametrisation. e = 1/2 (Unit Scaling) gives logits of unit
/// scale, as in `linear`. e = 1 (u-µP) starts them at in^-1/2 and keeps them from growing with the width in training,
/// where x and weight become correlated. beta_x = out^-1/2, beta_w = N^-1/2 as in `linear`, for the bias too. A recipe
/// without `bias_inside_alpha` has y = alpha x weight^T + bias. The input is a cut-edge
/// unless the weight is shared with the embedding, hence no constraint unless the recipe's is `automatic`.
/// Scale under `propagate`: as `linear`, whatever e is: the textbook product.
/// Rounding: by the recipe, kind `readout`. Errors: as `linear`; an exponent that is not finite.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2; Blake et al. 2024, arXiv:2407.17465, table 2.
/// Test: tests/ops/readout_test.cpp
template <class T>
[[nodiscard]] Variable<T> readout(Variable<T> x, Variable<T> weight, OptionalVariable<T> bias,
                                  const ReadoutOptions& options = {}) {
    auto op = begin_op("readout", x, weight, bias);
    const Recipe& recipe = op.tape().recipe();
    const double exponent = options.exponent.value_or(recipe.readout_exponent);
    check(std::isfinite(exponent), "readout: exponent is ", exponent, "; expected a finite number");
    const LinearSizes size = linear_sizes(op);
    const Constraint otherwise = recipe.constraint == Constraint::automatic ? Constraint::automatic : Constraint::none;
    set_product_factors(
        op,
        readout_unit_factors(size.in, size.out, options.step_rows.value_or(op.tape().step_rows(size.rows)),
                             op.tape().propagates() ? 0.5 : exponent),
        options.constraint.value_or(otherwise));
    return record_linear(op, ProductKind::readout, size);
}
template <class T>
[[nodiscard]] Variable<T> readout(Variable<T> x, Variable<T> weight, const ReadoutOptions& options = {}) {
    return readout(x, weight, std::optional<Variable<T>>{}, options);
}

}  // namespace unitscale::ops
