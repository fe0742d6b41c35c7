// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/ops/operands.hpp>

#include <cstddef>

namespace unitscale::ops {

/// y = forward x, dx = backward dy: the common part of `scale_forward` and `scale_backward`.
template <class T>
[[nodiscard]] Variable<T> record_scale(const char* op, Variable<T> x, double forward, double backward) {
    Tape<T>& tape = x.tape(op);
    check_positive(op, "factor", forward * backward);  // one of them is 1
    if (!tape.unit_scaled()) forward = backward = 1.0;
    const auto count = static_cast<std::ptrdiff_t>(x.value().size());
    Tensor<T> output = tape.make(x.shape());
    kernels::scale<T>(tape.execution(), x.value().data(), output.data(), count, static_cast<Accum<T>>(forward));
    const JoinedBy joined_by = tape.recipe().constraint == Constraint::automatic ? JoinedBy::plan : JoinedBy::hand;
    return tape.record({.name = op,
                        .site = tape.next_site(op),
                        .alpha = forward,
                        .betas = {backward},
                        .joined_by = joined_by,
                        .reads = reads_nothing},
                       {x}, std::move(output), [=](BackwardContext<T>& g) {
                           Tensor<T> dx = g.take_output_gradient();
                           kernels::scale<T>(g.execution(), dx.data(), dx.data(), count, static_cast<Accum<T>>(g.beta(0)));
                           g.add(0, std::move(dx));
                       });
}

/// Multiplies the value and leaves the gradient alone: y = factor x, dx = dy. For the alpha of an op of one's own: apply
/// it to the op's output. Acts under `unit` only; under `none` both directions are the identity, so a model that uses it
/// is the unscaled model there. Not for a model's meaning: multiply for that. Where the plan finds x to be no cut-edge the
/// gradient is the true one, dx = factor dy (and dx = dy for `scale_backward`): separate factors are for cut-edges.
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
