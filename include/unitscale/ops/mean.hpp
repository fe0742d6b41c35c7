// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/reduced_axes.hpp>

#include <algorithm>
#include <cstddef>

namespace unitscale::ops {

/// Ideal factors of a mean of n elements under `unit`, of the `step_count` of the whole step: see `mean`.
[[nodiscard]] inline Factors<1> mean_unit_factors(std::size_t n, std::size_t step_count) noexcept {
    const auto elements = static_cast<double>(std::max<std::size_t>(n, 1));
    return {.alpha = elements * rsqrt_count(step_count), .betas = {elements}};
}

/// Unit-scaled mean over axes, or over all elements.
///   y = alpha / n sum over n elements of x     dx = beta_x dy / n, repeated
///   x [any shape], y [x without the axes; [1] if none is left]
/// Factors under `unit`: the mean of n independent terms of unit variance has variance 1/n, hence alpha = n^1/2; its
/// gradient is dy / n, hence beta_x = n, which passes dy on unchanged. The scaled function equals `sum`, micro-batches
/// included: if the first axis, the batch, is reduced and the step has N >= n elements in all, alpha = n N^-1/2. Under
/// `none` the mean is over the micro-batch. They share one value, alpha, unless the constraint says otherwise.
/// Scale under `propagate`, n = 2^e m with m in [1,2): s n^1/2 / 2^e, the root rounded; gradients: dy's / n, rounded.
/// Accumulated in Accum<T>. Errors: an axis that x has not, or named twice; results that would be the mean of no
/// elements.
/// Test: tests/ops/mean_test.cpp
template <class T>
[[nodiscard]] Variable<T> mean(Variable<T> x, const ReductionOptions& options = {}) {
    auto op = begin_op("mean", x);
    const ReducedAxes axes = reduced_axes("mean", x.shape(), options.axes, options.keep_axes);
    check_elements("mean", x.shape(), axes);
    const std::size_t step_count = axes.over_rows ? op.tape().step_rows(axes.count) : axes.count;
    op.set_factors(mean_unit_factors(axes.count, step_count), options.constraint);
    return record_reduced_sum(op, axes, 1.0 / static_cast<double>(std::max<std::size_t>(axes.count, 1)));
}

}  // namespace unitscale::ops
