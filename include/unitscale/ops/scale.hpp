// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>

#include <cstddef>

namespace unitscale::ops {

/// y = forward x, dx = backward dy: the common part of `scale_forward` and `scale_backward`.
template <class T>
[[nodiscard]] Variable<T> record_scale(const char* name, Variable<T> x, double forward, double backward) {
    auto op = begin_op(name, x);
    check_positive(name, "factor", forward * backward);  // one of them is 1
    op.set_factors({.alpha = forward, .betas = {backward}});
    if (op.tape().recipe().constraint != Constraint::automatic) op.set_joined_by(JoinedBy::hand);
    const Tensor<T>& input = op.input(0);
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    const Scaled scaled = op.scaled_alpha(input.scale());
    Tensor<T> output = op.make(input.shape());
    kernels::scale<T>(op.execution(), input.data(), output.data(), count, static_cast<Accum<T>>(scaled.factor));
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [=](BackwardContext<T>& g) {
                         if (g.pass_item(0, g.beta(0))) return;
                         const Scaled dx_scaled = g.scaled_beta(0);
                         Tensor<T> dx = g.take_output_gradient();
                         kernels::scale<T>(g.execution(), dx.data(), dx.data(), count,
                                           static_cast<Accum<T>>(dx_scaled.factor));
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

/// Multiplies the value and leaves the gradient alone: y = factor x, dx = dy. For the alpha of an op of one's own:
/// apply it to the op's output. Changes values under `unit` only; under `none` both directions are the identity, so
/// that a model with it is the unscaled model. A multiplier that is part of the model is `multiplier`. If the plan
/// finds that x is no cut-edge, the gradient is the true one, dx = factor dy (and dx = dy for `scale_backward`):
/// separate factors are for cut-edges.
/// Scale under `propagate`, where both are the identity in value: s / factor, rounded, as for an op with that alpha;
/// gradients keep dy's (`scale_backward`: the other way round).
/// Error: a factor that is not positive and finite. Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5.
/// Test: tests/ops/scale_test.cpp
template <class T>
[[nodiscard]] Variable<T> scale_forward(Variable<T> x, double factor) {
    return record_scale("scale_forward", x, factor, 1.0);
}

/// Multiplies the gradient and leaves the value alone: y = x, dx = factor dy. For the beta of an op of one's own: apply
/// it to the op's input. Otherwise as `scale_forward`.
template <class T>
[[nodiscard]] Variable<T> scale_backward(Variable<T> x, double factor) {
    return record_scale("scale_backward", x, 1.0, factor);
}

}  // namespace unitscale::ops
