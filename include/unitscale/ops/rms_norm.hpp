// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/norms.hpp>
#include <unitscale/ops/layer_norm.hpp>
#include <unitscale/record/operands.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace unitscale::ops {

/// Root-mean-square normalisation over the last dimension.
///   y = h gain, h = x / sqrt(mean(x^2) + epsilon)      x, y [...,n]   gain [n], may be absent
///   dx: that of the unscaled op     dgain = beta sum over rows of dy h
/// Factors under `unit`: h has a root mean square of 1 by construction, so alpha = beta_x = 1; the gains gather N rows of
/// the step, hence beta = N^-1/2.
/// Scale under `propagate`: as in `layer_norm`.
/// As in `layer_norm`, rows of very large or small numbers have their statistics; a row that holds an infinity or a NaN becomes NaN.
/// Errors: rank 0, no columns, a gain of another length, epsilon below 0.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/rms_norm_test.cpp
template <class T>
[[nodiscard]] Variable<T> rms_norm(Variable<T> x, std::optional<Variable<T>> gain = {},
                                   const NormOptions& options = {}) {
    Tape<T>& tape = x.tape("rms_norm");
    x = record_rescaled_gradient(x, tape);
    const Tensor<T>& input = x.scaled();
    check_norm("rms_norm", input, "gain", gain, options);
    const std::size_t row_total = row_count(input.shape());
    const auto rows = static_cast<std::ptrdiff_t>(row_total), n = static_cast<std::ptrdiff_t>(input.dim(-1));
    const bool has_gain = gain.has_value();
    const double scale = has_gain ? gain->scaled().scale() : 1.0;

    Tensor<Accum<T>> inverse({row_total}, tape.pool());
    Tensor<T> output = tape.make(input.shape());
    kernels::rms_norm_forward<T>(tape.execution(), input.data(), has_gain ? gain->scaled().data() : nullptr,
                                 output.data(), inverse.data(), rows, n, norm_epsilon(tape, input, options));
    output.set_scale(scale);
    const std::array<Variable<T>, 2> inputs = {x, gain.value_or(x)};
    const std::array<double, 2> betas = {1.0, tape.uses_factors() ? rsqrt_count(tape.step_rows(row_total)) : 1.0};
    const std::size_t used = has_gain ? 2 : 1;
    return tape.record({.name = "rms_norm",
                        .site = tape.next_site("rms_norm"),
                        .alpha = 1.0,
                        .betas = std::span<const double>(betas.data(), used),
                        .reads = reads_inputs,
                        .propagates = true},
                       std::span<const Variable<T>>(inputs.data(), used), std::move(output),
                       [=, inverse = std::move(inverse)](BackwardContext<T>& g) {
                           const Scaled dx_scaled = g.scaled_beta(0, scale / g.input_scale(0));
                           const Scaled dgain_scaled = has_gain ? g.scaled_beta(1) : Scaled{};
                           Tensor<T> dx = g.needs(0) ? g.make(g.input_shape(0)) : Tensor<T>();
                           Tensor<T> dgain = has_gain ? g.make(g.input_shape(1)) : Tensor<T>();
                           kernels::NormGradients<T> to{};
                           if (g.needs(0)) to.dx = dx.data();
                           if (has_gain && g.needs(1)) to.dw = dgain.data();
                           to.beta_x = static_cast<Accum<T>>(dx_scaled.factor);
                           to.beta_w = static_cast<Accum<T>>(dgain_scaled.factor);
                           kernels::rms_norm_backward<T>(g.execution(), g.input(0).data(),
                                                         has_gain ? g.input(1).data() : nullptr,
                                                         g.output_gradient().data(), inverse.data(), to, rows, n);
                           g.add(0, std::move(dx), dx_scaled.scale);
                           if (has_gain) g.add(1, std::move(dgain), dgain_scaled.scale);
                       });
}

}  // namespace unitscale::ops
