// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/reduced_axes.hpp>

#include <cstddef>

namespace unitscale::ops {

/// Ideal factors of a sum of n elements under `unit`: see `sum`.
[[nodiscard]] inline Factors<1> sum_unit_factors(std::size_t n) noexcept { return {.alpha = rsqrt_count(n)}; }

/// Unit-scaled sum over axes, or over all elements.
///   y = alpha sum over n elements of x     dx = beta_x dy, repeated
///   x [any shape], y [x without the axes; [1] if none is left]
/// Factors under `unit`: a sum of n independent terms of unit variance has variance n, hence alpha = n^-1/2; the
/// gradient of each term is dy, hence beta_x = 1. If the first axis, the batch, is summed, n counts the rows of the
/// whole step, so that the sums of its micro-batches add up to the sum over the batch. They share one value, n^-1/2,
/// unless the constraint says otherwise.
/// Scale under `propagate`: s n^1/2, the root rounded; gradients keep dy's.
/// A sum of no elements is 0. Accumulated in Accum<T>. Errors: an axis that x has not, or named twice.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/sum_test.cpp
template <class T>
[[nodiscard]] Variable<T> sum(Variable<T> x, const ReductionOptions& options = {}) {
    auto op = begin_op("sum", x);
    const ReducedAxes axes = reduced_axes("sum", x.shape(), options.axes, options.keep_axes);
    const std::size_t step_count = axes.over_rows ? op.tape().step_rows(axes.count) : axes.count;
    op.set_factors(sum_unit_factors(step_count), options.constraint);
    return record_reduced_sum(op, axes, 1.0);
}

}  // namespace unitscale::ops
