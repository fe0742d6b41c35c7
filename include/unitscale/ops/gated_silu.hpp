// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/activations.hpp>
#include <unitscale/ops/operands.hpp>

#include <cmath>
#include <cstddef>
#include <numbers>

namespace unitscale::ops {

struct GatedSiluOptions {
    double mult = 1.0;  ///< m, the multiplier of the gate (alpha_ffn_act in u-µP)
};

/// The factor of a gated silu under `unit`, for the value and both gradients: see `gated_silu`.
[[nodiscard]] inline double gated_silu_unit_factor(double m) noexcept {
    return logint(1.0 / (1.0 + 1.0 / (m * m)), 2.0, std::numbers::sqrt2);
}

/// Unit-scaled gated silu (SwiGLU without its linear layers).
///   y = alpha x g sigmoid(m g)     x, g, y [the same shape]
///   dx = beta dy g sigmoid(m g)    dg = beta dy x (sigmoid(m g) + m g sigmoid'(m g))
/// Factors under `unit`, x and g independent unit normals: for m -> 0 the gate is g/2, hence 2; for m -> infinity it is
/// relu(g) of mean square 1/2, hence sqrt 2; between them logint with weight 1 / (1 + 1/m^2). alpha = beta by
/// construction, so no constraint is needed. Standard deviations are within 4 % of 1 for m in 0.25 to 4.
/// Errors: shapes that differ; mult not positive.
/// Reference: Blake et al. 2024, arXiv:2407.17465, table 8. Test: tests/ops/gated_silu_test.cpp
template <class T>
[[nodiscard]] Variable<T> gated_silu(Variable<T> x, Variable<T> gate, const GatedSiluOptions& options = {}) {
    Tape<T>& tape = x.tape("gated_silu");
    check(x.shape() == gate.shape(), "gated_silu: x ", to_string(x.shape()), " and gate ", to_string(gate.shape()),
          " differ in shape");
    check_positive("gated_silu", "mult", options.mult);
    const double factor = tape.unit_scaled() ? gated_silu_unit_factor(options.mult) : 1.0;
    const auto count = static_cast<std::ptrdiff_t>(x.value().size());
    const auto m = static_cast<Accum<T>>(options.mult);
    Tensor<T> output = tape.make(x.shape());
    kernels::gated_silu_forward<T>(tape.execution(), x.value().data(), gate.value().data(), output.data(), count, m,
                                   static_cast<Accum<T>>(factor));
    return tape.record({.name = "gated_silu",
                        .site = tape.next_site("gated_silu"),
                        .alpha = factor,
                        .betas = {factor, factor},
                        .reads = reads_inputs},
                       {x, gate}, std::move(output), [=](BackwardContext<T>& g) {
                           Tensor<T> dx = g.make(g.input_shape(0));
                           Tensor<T> dgate = g.make(g.input_shape(1));
                           kernels::gated_silu_backward<T>(g.execution(), g.input(0).data(), g.input(1).data(),
                                                           g.output_gradient().data(), dx.data(), dgate.data(), count, m,
                                                           static_cast<Accum<T>>(g.beta(0)));
                           g.add(0, std::move(dx));
                           g.add(1, std::move(dgate));
                       });
}

}  // namespace unitscale::ops
