// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/maximum.hpp>
#include <unitscale/record/reduced_axes.hpp>

#include <cstddef>
#include <optional>
#include <utility>

namespace unitscale::ops {

/// The common part of `max` and `min`.
template <class T>
[[nodiscard]] Variable<T> record_along_axes(Op<T, 1>& op, kernels::Extreme extreme,
                                            const UnruledReductionOptions& options) {
    const Tensor<T>& input = op.input(0);
    const ReducedAxes axes = reduced_axes(op.name(), input.shape(), options.axes, options.keep_axes);
    check_elements(op.name(), input.shape(), axes);
    op.set_factors(op.stated(options.unit), options.constraint);
    const Scaled scaled = op.scaled_alpha(input.scale());
    Tensor<T> output = op.make(axes.result);
    Tensor<std::ptrdiff_t> places(axes.result, op.tape().pool());
    kernels::maximum_forward<T>(op.execution(), input.data(), input.shape(), output.data(), places.data(), axes.kept,
                                static_cast<Accum<T>>(scaled.factor), extreme);
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [places = std::move(places)](BackwardContext<T>& g) {
                         const Scaled dx_scaled = g.scaled_beta(0);
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::maximum_backward<T>(g.output_gradient().data(), places.data(), dx.data(),
                                                      static_cast<std::ptrdiff_t>(places.size()),
                                                      static_cast<std::ptrdiff_t>(dx.size()),
                                                      static_cast<Accum<T>>(dx_scaled.factor));
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

/// The largest element along axes, or of all. Element by element of two inputs: `maximum`; its place: `argmax`.
///   y = alpha max over the axes of x     dx = beta_x dy at the first largest element in row-major order, else 0
///   x [any shape], y [x without the axes; [1] if none is left]
/// A NaN counts as the largest.
/// No rule under `unit`: the largest of n unit normals is near (2 ln n)^1/2, with a small variance around it, and one
/// in n elements has a gradient. State the factors with `.unit`.
/// Scale under `propagate`: s_x; gradients keep dy's. Stated factors change both, inverted and rounded.
/// Errors: an axis that x has not, or named twice; nothing to compare; scaling `unit` without `.unit`.
/// Test: tests/ops/max_test.cpp
template <class T>
[[nodiscard]] Variable<T> max(Variable<T> x, const UnruledReductionOptions& options = {}) {
    auto op = begin_op("max", x);
    return record_along_axes(op, kernels::Extreme::largest, options);
}

}  // namespace unitscale::ops
