// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/multiply_add.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/same_scale.hpp>
#include <unitscale/tensor/fill.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// The two weights of a residual layer: branch tau/d and stream 1/d, d = sqrt(tau^2 + 1); both 1 without tau.
/// Under an infinite tau the branch replaces the stream: 1 and 0.
struct ResidualWeights {
    double branch = 1.0, stream = 1.0;
};

[[nodiscard]] inline ResidualWeights residual_weights(std::optional<double> tau) {
    if (!tau) return {};
    check(*tau > 0.0, "residual: tau is ", *tau, "; expected a positive number");
    if (std::isinf(*tau)) return {.branch = 1.0, .stream = 0.0};
    const double d = std::sqrt(multiply_add(*tau, *tau, 1.0));
    return {.branch = *tau / d, .stream = 1.0 / d};
}

/// The start of a residual layer y = (tau f(x) + x) / d: the branch and the stream, both equal to x.
///   [branch, stream] = [x, x]          dx = w dbranch + dstream          all [any shape]
/// w is tau/d under `unit`, where `residual_add` sends the branch an unweighted gradient, so that gradients inside the
/// branch keep unit scale and the sum is the plain layer's; otherwise w = 1. Without tau: y = x + f(x), w = 1.
/// Scale under `propagate`: s_x; dx: the root of the sum of both gradients' squares, rounded.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5.3. Test: tests/ops/residual_test.cpp
template <class T>
[[nodiscard]] std::array<Variable<T>, 2> residual_split(Variable<T> x, std::optional<double> tau = {}) {
    auto op = begin_op("residual_split", x);
    const double weight = op.tape().unit_scaled() ? residual_weights(tau).branch : 1.0;
    return op.template record_repeats<2>({.reads = reads_nothing, .output_weights = {weight, 1.0}},
                                         [propagates = op.tape().propagates()](BackwardContext<T>& g) {
                                             if (propagates) {
                                                 g.add(0, g.take_output_gradient(1));
                                                 g.add(0, g.take_output_gradient(0));
                                                 return;
                                             }
                                             Tensor<T> dx = g.take_output_gradient(1);
                                             dx.set_any_scale(false);  // zeros of the stream do not stay zeros
                                             kernels::add_scaled<T>(g.execution(), g.output_gradient(0).data(),
                                                                    static_cast<Accum<T>>(g.output_weight(0)),
                                                                    dx.data(), Accum<T>(1), dx.data(),
                                                                    static_cast<std::ptrdiff_t>(dx.size()));
                                             g.add(0, std::move(dx));
                                         });
}

/// The scale of a weighted sum of a branch and a stream; 1 but under `propagate`.
template <class T>
[[nodiscard]] double residual_scale(const Op<T, 2>& op, const ResidualWeights& weights) {
    const Tensor<T>&branch = op.input(0), &stream = op.input(1);
    if (weights.stream == 0.0) return branch.scale();
    if (branch.any_scale() && stream.any_scale()) return stream.scale();
    return op.tape().scaled_sum(op.site(), branch.any_scale() ? 0.0 : weights.branch * branch.scale(),
                                stream.any_scale() ? 0.0 : weights.stream * stream.scale());
}

/// The end of a residual layer.
///   y = (tau branch + stream) / d, d = sqrt(tau^2 + 1)     branch, stream, y [one shape]
///   dbranch = dy under `unit`, else dy tau / d             dstream = dy / d
/// Without tau: y = branch + stream. Use the tau of the layer's `residual_split`.
/// Factors under `unit`: independent branch and stream of unit variance give y unit variance; the gradient factor of
/// the branch is applied at the split instead.
/// Scale under `propagate`: the root of the sum of the squares of s_branch tau / d and s_stream / d, rounded;
/// gradients: dy's times tau / d and 1 / d, rounded.
/// An infinite tau gives y = branch, whatever the stream holds, and a gradient of zeros for the stream: the running
/// mean's first layer.
/// Errors: shapes that differ; tau not positive.
/// Reference: as `residual_split`. Test: tests/ops/residual_test.cpp
template <class T>
[[nodiscard]] Variable<T> residual_add(Variable<T> branch, Variable<T> stream, std::optional<double> tau = {}) {
    auto op = begin_op("residual_add", branch, stream);
    const Tensor<T>&left = op.input(0), &right = op.input(1);
    check(left.shape() == right.shape(), "residual_add: branch ", shape_text(left.shape()), " and stream ",
          shape_text(right.shape()), " differ in shape");
    const ResidualWeights weights = residual_weights(tau);
    const bool replaces = weights.stream == 0.0;  // the stream
    const double stream_beta = op.tape().propagates() && !replaces ? 1.0 / weights.stream : 1.0;
    op.set_factors(
        {.betas = {1.0 / weights.branch, stream_beta}});  // undo the weights; under `unit` the split has them
    op.set_joined_by(JoinedBy::branch);
    const double scale = residual_scale(op, weights);
    const auto count = static_cast<std::ptrdiff_t>(left.size());
    Tensor<T> output = op.make(left.shape());
    const ScaledOperand<T> u(op.tape(), left, scale, weights.branch);
    if (replaces) {
        kernels::scale<T>(op.execution(), u.data(), output.data(), count, u.factor());
    } else {
        const ScaledOperand<T> v(op.tape(), right, scale, weights.stream);
        kernels::add_scaled<T>(op.execution(), u.data(), u.factor(), v.data(), v.factor(), output.data(), count);
    }
    const Recording recording{.reads = reads_nothing, .any_scale = left.any_scale() && (replaces || right.any_scale())};
    return op.record(std::move(output), scale, recording, [=](BackwardContext<T>& g) {
        const Scaled branch_scaled = g.scaled_beta(0), stream_scaled = g.scaled_beta(1);
        Tensor<T> dbranch = g.make(g.input_shape(0));
        kernels::scale<T>(g.execution(), g.output_gradient().data(), dbranch.data(), count,
                          static_cast<Accum<T>>(branch_scaled.factor * weights.branch));
        g.add(0, std::move(dbranch), branch_scaled.scale);
        Tensor<T> dstream = g.take_output_gradient();
        if (replaces) fill_zero(dstream);
        else
            kernels::scale<T>(g.execution(), dstream.data(), dstream.data(), count,
                              static_cast<Accum<T>>(stream_scaled.factor * weights.stream));
        g.add(1, std::move(dstream), stream_scaled.scale);
    });
}

}  // namespace unitscale::ops
