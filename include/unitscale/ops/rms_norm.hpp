// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/norms.hpp>
#include <unitscale/ops/layer_norm.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// Root-mean-square normalisation over the last dimension.
///   y = h gain, h = x / sqrt(mean(x^2) + epsilon)      x, y [...,n]   gain [n], may be absent
///   dx: the unscaled op's     dgain = beta sum over rows of dy h
/// Factors under `unit`: h has a root mean square of 1 by construction, so alpha = beta_x = 1; the gains gather N rows
/// of the step, hence beta = N^-1/2; `step_rows` as in `layer_norm`.
/// Scale under `propagate`: as in `layer_norm`.
/// Statistics of rows of very large or small numbers are exact, as in `layer_norm`. A row that holds an infinity or a
/// NaN becomes NaN.
/// Errors: rank 0, no columns, a gain of another length, epsilon below 0.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/rms_norm_test.cpp
template <class T>
[[nodiscard]] Variable<T> rms_norm(Variable<T> x, OptionalVariable<T> gain = {}, const NormOptions& options = {}) {
    x = record_rescaled_gradient(x, x.tape("rms_norm"));
    auto op = begin_op("rms_norm", x, gain);
    const Tensor<T>& input = op.input(0);
    check_norm("rms_norm", input, "gain", gain, options);
    const std::size_t row_total = row_count(input.shape());
    const auto rows = static_cast<std::ptrdiff_t>(row_total), n = static_cast<std::ptrdiff_t>(input.dim(-1));
    op.set_factors({.betas = {1.0, rsqrt_count(options.step_rows.value_or(op.tape().step_rows(row_total)))}});
    const bool has_gain = op.has(1);
    const double scale = has_gain ? op.input(1).scale() : 1.0;
    Tensor<Accum<T>> inverse({row_total}, op.tape().pool());
    Tensor<T> output = op.make(input.shape());
    kernels::rms_norm_forward<T>(op.execution(), input.data(), has_gain ? op.input(1).data() : nullptr, output.data(),
                                 inverse.data(), rows, n, norm_epsilon(op.tape(), input, options));
    return op.record(
        std::move(output), scale, {.reads = reads_inputs}, [=, inverse = std::move(inverse)](BackwardContext<T>& g) {
            const Scaled dx_scaled = g.scaled_beta(0, scale / g.input_scale(0));
            const Scaled dgain_scaled = has_gain ? g.scaled_beta(1) : Scaled{};
            Tensor<T> dx = g.needs(0) ? g.make(g.input_shape(0)) : Tensor<T>();
            Tensor<T> dgain = has_gain ? g.make(g.input_shape(1)) : Tensor<T>();
            kernels::NormGradients<T> to{};
            if (g.needs(0)) to.dx = dx.data();
            if (has_gain && g.needs(1)) to.dw = dgain.data();
            to.beta_x = static_cast<Accum<T>>(dx_scaled.factor);
            to.beta_w = static_cast<Accum<T>>(dgain_scaled.factor);
            kernels::rms_norm_backward<T>(g.execution(), g.input(0).data(), has_gain ? g.input(1).data() : nullptr,
                                          g.output_gradient().data(), inverse.data(), to, rows, n);
            g.add(0, std::move(dx), dx_scaled.scale);
            if (has_gain) g.add(1, std::move(dgain), dgain_scaled.scale);
        });
}

}  // namespace unitscale::ops
