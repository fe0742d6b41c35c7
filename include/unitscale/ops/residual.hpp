// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/ops/operands.hpp>

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
    const double d = std::sqrt(*tau * *tau + 1.0);
    return {.branch = *tau / d, .stream = 1.0 / d};
}

/// The start of a residual layer y = (tau f(x) + x) / d: the branch and the stream, both equal to x.
///   [branch, stream] = [x, x]          dx = w dbranch + dstream          all [any shape]
/// w is tau/d under `unit`, where `residual_add` sends the branch an unweighted gradient, so that gradients inside the
/// branch keep unit scale and the sum is that of the plain layer; otherwise w = 1. Without tau: y = x + f(x), w = 1.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5.3. Test: tests/ops/residual_test.cpp
template <class T>
[[nodiscard]] std::array<Variable<T>, 2> residual_split(Variable<T> x, std::optional<double> tau = {}) {
    Tape<T>& tape = x.tape("residual_split");
    const double weight = tape.unit_scaled() ? residual_weights(tau).branch : 1.0;
    return tape.template record_repeats<2>(
        {.name = "residual_split",
         .site = tape.next_site("residual_split"),
         .betas = {1.0},
         .output_weights = {weight, 1.0},
         .reads = reads_nothing},
        {x}, [](BackwardContext<T>& g) {
            Tensor<T> dx = g.take_output_gradient(1);
            kernels::add_scaled<T>(g.execution(), g.output_gradient(0).data(), static_cast<Accum<T>>(g.output_weight(0)),
                                   dx.data(), Accum<T>(1), dx.data(), static_cast<std::ptrdiff_t>(dx.size()));
            g.add(0, std::move(dx));
        });
}

/// The end of a residual layer.
///   y = (tau branch + stream) / d, d = sqrt(tau^2 + 1)     branch, stream, y [the same shape]
///   dbranch = dy under `unit`, else dy tau / d             dstream = dy / d
/// Without tau: y = branch + stream. Use the tau of the layer's `residual_split`.
/// Factors under `unit`: independent branch and stream of unit variance give y unit variance; the gradient factor of
/// the branch is applied at the split instead. Errors: shapes that differ; tau not positive.
/// Reference: as `residual_split`. Test: tests/ops/residual_test.cpp
template <class T>
[[nodiscard]] Variable<T> residual_add(Variable<T> branch, Variable<T> stream, std::optional<double> tau = {}) {
    Tape<T>& tape = branch.tape("residual_add");
    check(branch.shape() == stream.shape(), "residual_add: branch ", to_string(branch.shape()), " and stream ",
          to_string(stream.shape()), " differ in shape");
    const ResidualWeights weights = residual_weights(tau);
    const double branch_gradient = tape.unit_scaled() ? 1.0 : weights.branch;
    const auto count = static_cast<std::ptrdiff_t>(branch.value().size());
    Tensor<T> output = tape.make(branch.shape());
    kernels::add_scaled<T>(tape.execution(), branch.value().data(), static_cast<Accum<T>>(weights.branch), stream.value().data(),
                           static_cast<Accum<T>>(weights.stream), output.data(), count);
    return tape.record({.name = "residual_add",
                        .site = tape.next_site("residual_add"),
                        .alpha = 1.0,
                        .betas = {branch_gradient / weights.branch, 1.0},
                        .joined_by = JoinedBy::branch,
                        .reads = reads_nothing},
                       {branch, stream}, std::move(output), [=](BackwardContext<T>& g) {
                           Tensor<T> dbranch = g.make(g.input_shape(0));
                           kernels::scale<T>(g.execution(), g.output_gradient().data(), dbranch.data(), count,
                                             static_cast<Accum<T>>(g.beta(0) * weights.branch));
                           g.add(0, std::move(dbranch));
                           Tensor<T> dstream = g.take_output_gradient();
                           kernels::scale<T>(g.execution(), dstream.data(), dstream.data(), count,
                                             static_cast<Accum<T>>(g.beta(1) * weights.stream));
                           g.add(1, std::move(dstream));
                       });
}

}  // namespace unitscale::ops
