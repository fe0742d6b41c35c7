// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/operands.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// The two weights of a residual layer: branch tau/d and stream 1/d, d = sqrt(tau^2 + 1); both 1 without tau.
struct ResidualWeights {
    double branch = 1.0, stream = 1.0;
};

[[nodiscard]] inline ResidualWeights residual_weights(std::optional<double> tau) {
    if (!tau) return {};
    check_positive("residual", "tau", *tau);
    const double d = std::sqrt(multiply_add(*tau, *tau, 1.0));
    return {.branch = *tau / d, .stream = 1.0 / d};
}

/// The start of a residual layer y = (tau f(x) + x) / d: the branch and the stream, both equal to x.
///   [branch, stream] = [x, x]          dx = w dbranch + dstream          all [any shape]
/// w is tau/d under `unit`, where `residual_add` sends the branch an unweighted gradient, so that gradients inside the
/// branch keep unit scale and the sum is that of the plain layer; otherwise w = 1. Without tau: y = x + f(x), w = 1.
/// Scale under `propagate`: that of x; dx: the root of the sum of both gradients' squares, rounded.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5.3. Test: tests/ops/residual_test.cpp
template <class T>
[[nodiscard]] std::array<Variable<T>, 2> residual_split(Variable<T> x, std::optional<double> tau = {}) {
    Tape<T>& tape = x.tape("residual_split");
    const double weight = tape.unit_scaled() ? residual_weights(tau).branch : 1.0;
    return tape.template record_repeats<2>({.name = "residual_split",
                                            .site = tape.next_site("residual_split"),
                                            .betas = {1.0},
                                            .output_weights = {weight, 1.0},
                                            .reads = reads_nothing,
                                            .propagates = true},
                                           {x}, [propagates = tape.propagates()](BackwardContext<T>& g) {
                                               if (propagates) {
                                                   g.add(0, g.take_output_gradient(1));
                                                   g.add(0, g.take_output_gradient(0));
                                                   return;
                                               }
                                               Tensor<T> dx = g.take_output_gradient(1);
                                               kernels::add_scaled<T>(g.execution(), g.output_gradient(0).data(),
                                                                      static_cast<Accum<T>>(g.output_weight(0)),
                                                                      dx.data(), Accum<T>(1), dx.data(),
                                                                      static_cast<std::ptrdiff_t>(dx.size()));
                                               g.add(0, std::move(dx));
                                           });
}

/// The scale of a weighted sum of a branch and a stream; 1 but under `propagate`.
template <class T>
[[nodiscard]] double residual_scale(const Tape<T>& tape, Site site, const Tensor<T>& branch, const Tensor<T>& stream,
                                    const ResidualWeights& weights) {
    if (branch.any_scale() && stream.any_scale()) return stream.scale();
    return tape.scaled_sum(site, branch.any_scale() ? 0.0 : weights.branch * branch.scale(),
                           stream.any_scale() ? 0.0 : weights.stream * stream.scale());
}

/// Factors of the gradients: `unit` leaves the branch's weight to the split; ideal ones undo the weights.
template <class T>
[[nodiscard]] ResidualWeights residual_betas(const Tape<T>& tape, const ResidualWeights& weights) noexcept {
    return {.branch = tape.uses_factors() ? 1.0 / weights.branch : 1.0,
            .stream = tape.propagates() ? 1.0 / weights.stream : 1.0};
}

/// The end of a residual layer.
///   y = (tau branch + stream) / d, d = sqrt(tau^2 + 1)     branch, stream, y [the same shape]
///   dbranch = dy under `unit`, else dy tau / d             dstream = dy / d
/// Without tau: y = branch + stream. Use the tau of the layer's `residual_split`.
/// Factors under `unit`: independent branch and stream of unit variance give y unit variance; the gradient factor of
/// the branch is applied at the split instead.
/// Scale under `propagate`: the root of the sum of the squares of s_branch tau / d and s_stream / d, rounded; gradients: dy's times
/// tau / d and 1 / d, rounded.
/// Errors: shapes that differ; tau not positive.
/// Reference: as `residual_split`. Test: tests/ops/residual_test.cpp
template <class T>
[[nodiscard]] Variable<T> residual_add(Variable<T> branch, Variable<T> stream, std::optional<double> tau = {}) {
    Tape<T>& tape = branch.tape("residual_add");
    check(branch.shape() == stream.shape(), "residual_add: branch ", shape_text(branch.shape()), " and stream ",
          shape_text(stream.shape()), " differ in shape");
    const ResidualWeights weights = residual_weights(tau);
    const Tensor<T>&left = branch.scaled(), &right = stream.scaled();
    const Site site = tape.next_site("residual_add");
    const double scale = residual_scale(tape, site, left, right, weights);
    const auto count = static_cast<std::ptrdiff_t>(left.size());
    Tensor<T> output = tape.make(branch.shape());
    kernels::add_scaled<T>(tape.execution(), left.data(),
                           static_cast<Accum<T>>(weights.branch * (left.scale() / scale)), right.data(),
                           static_cast<Accum<T>>(weights.stream * (right.scale() / scale)), output.data(), count);
    output.set_scale(scale);
    output.set_any_scale(tape.propagates() && left.any_scale() && right.any_scale());
    const ResidualWeights betas = residual_betas(tape, weights);
    return tape.record({.name = "residual_add",
                        .site = site,
                        .alpha = 1.0,
                        .betas = {betas.branch, betas.stream},
                        .joined_by = JoinedBy::branch,
                        .reads = reads_nothing,
                        .propagates = true},
                       {branch, stream}, std::move(output), [=](BackwardContext<T>& g) {
                           const Scaled branch_scaled = g.scaled_beta(0), stream_scaled = g.scaled_beta(1);
                           Tensor<T> dbranch = g.make(g.input_shape(0));
                           kernels::scale<T>(g.execution(), g.output_gradient().data(), dbranch.data(), count,
                                             static_cast<Accum<T>>(branch_scaled.factor * weights.branch));
                           g.add(0, std::move(dbranch), branch_scaled.scale);
                           Tensor<T> dstream = g.take_output_gradient();
                           kernels::scale<T>(g.execution(), dstream.data(), dstream.data(), count,
                                             static_cast<Accum<T>>(stream_scaled.factor * weights.stream));
                           g.add(1, std::move(dstream), stream_scaled.scale);
                       });
}

}  // namespace unitscale::ops
