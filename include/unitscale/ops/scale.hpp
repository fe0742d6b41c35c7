// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/operands.hpp>

#include <cstddef>

namespace unitscale::ops {

/// y = forward x, dx = backward dy: the common part of `scale_forward` and `scale_backward`.
template <class T>
[[nodiscard]] Variable<T> record_scale(const char* op, Variable<T> x, double forward, double backward) {
    Tape<T>& tape = x.tape(op);
    check_positive(op, "factor", forward * backward);  // one of them is 1
    if (!tape.uses_factors()) forward = backward = 1.0;
    const Tensor<T>& input = x.scaled();
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    const Site site = tape.next_site(op);
    const Scaled scaled = tape.scaled_alpha(site, forward, input.scale());
    Tensor<T> output = tape.make(input.shape());
    kernels::scale<T>(tape.execution(), input.data(), output.data(), count, static_cast<Accum<T>>(scaled.factor));
    output.set_scale(scaled.scale);
    output.set_any_scale(tape.propagates() && input.any_scale());
    const JoinedBy joined_by = tape.recipe().constraint == Constraint::automatic ? JoinedBy::plan : JoinedBy::hand;
    return tape.record({.name = op,
                        .site = site,
                        .alpha = forward,
                        .betas = {backward},
                        .joined_by = joined_by,
                        .reads = reads_nothing,
                        .propagates = true},
                       {x}, std::move(output), [=](BackwardContext<T>& g) {
                           const Scaled dx_scaled = g.scaled_beta(0);
                           Tensor<T> dx = g.take_output_gradient();
                           kernels::scale<T>(g.execution(), dx.data(), dx.data(), count,
                                             static_cast<Accum<T>>(dx_scaled.factor));
                           g.add(0, std::move(dx), dx_scaled.scale);
                       });
}

/// Multiplies the value and leaves the gradient alone: y = factor x, dx = dy. For the alpha of an op of one's own: apply
/// it to the op's output. Changes values under `unit` only; under `none` both directions are the identity, so a model that uses it
/// is the unscaled model there. Not for a model's meaning: multiply for that. Where the plan finds x to be no cut-edge the
/// gradient is the true one, dx = factor dy (and dx = dy for `scale_backward`): separate factors are for cut-edges.
/// Scale under `propagate`, where both are the identity in value: s / factor, rounded, as an op with that alpha would have; gradients
/// keep dy's (`scale_backward`: the other way round).
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
