// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/cumulate.hpp>
#include <unitscale/ops/gather.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

namespace unitscale::ops {

struct CumsumOptions {
    std::optional<std::size_t> factor_length{};  ///< n in the factors; empty: x's extent
    std::optional<Constraint> constraint{};      ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Ideal factors of cumulative sums over n elements under `unit`: see `cumsum`.
[[nodiscard]] inline Factors<1> cumsum_unit_factors(std::size_t n) noexcept {
    const double factor = std::sqrt(2.0 / (static_cast<double>(n) + 1.0));
    return {.alpha = factor, .betas = {factor}};
}

/// Unit-scaled cumulative sums along an axis: for axis 1
///   y[a,i,c] = alpha sum over j <= i of x[a,j,c]     dx[a,j,c] = beta_x sum over i >= j of dy[a,i,c]
///   x, y [A,n,C]; negative axes count from the end
/// Factors under `unit`, our derivation: y_i sums i + 1 independent terms of unit variance, for i from 0 to n - 1. The
/// mean of these variances is (n + 1)/2, and for gradients too. So alpha = beta_x = (2 / (n + 1))^1/2. They share one
/// value by the constraint. If n differs between training and use, fix it by `factor_length`.
/// Scale under `propagate`: s_x ((n + 1)/2)^1/2; gradients: dy's times that root; the roots rounded.
/// Accumulated in Accum<T>, and each y rounded once. Errors: an axis that x has not. Test: tests/ops/cumsum_test.cpp
template <class T>
[[nodiscard]] Variable<T> cumsum(Variable<T> x, std::ptrdiff_t axis, const CumsumOptions& options = {}) {
    auto op = begin_op("cumsum", x);
    const Tensor<T>& input = op.input(0);
    const std::size_t at = front_axis("cumsum", "x", input.shape(), axis), extent = input.shape()[at];
    op.set_factors(cumsum_unit_factors(options.factor_length.value_or(extent)), options.constraint);
    const std::ptrdiff_t outer = extent_product(input.shape(), 0, at),
                         inner = extent_product(input.shape(), at + 1, input.rank());
    const auto n = static_cast<std::ptrdiff_t>(extent);
    const Scaled scaled = op.scaled_alpha(input.scale());
    Tensor<T> output = op.make(input.shape());
    kernels::cumulative_sum<T>(op.execution(), input.data(), output.data(), outer, n, inner,
                               static_cast<Accum<T>>(scaled.factor));
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [=](BackwardContext<T>& g) {
                         const Scaled dx_scaled = g.scaled_beta(0);
                         Tensor<T> dx = g.take_output_gradient();
                         kernels::cumulative_sum<T>(g.execution(), dx.data(), dx.data(), outer, n, inner,
                                                    static_cast<Accum<T>>(dx_scaled.factor), true);
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

}  // namespace unitscale::ops
