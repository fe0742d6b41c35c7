// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/norms.hpp>
#include <unitscale/ops/dynamic_rescale.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/same_scale.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct NormOptions {
    double epsilon = 1e-5;  ///< added to the biased variance (or mean square) inside the root
    /// Rows of the whole step that carry a gradient; empty: all, and micro-batches are alike. See `layer_norm`.
    std::optional<std::size_t> step_rows{};
};

/// Checks the arguments of a norm: at least one column, vectors of its length, an epsilon that makes sense.
template <class T>
void check_norm(const char* op, const Tensor<T>& x, const char* name, const std::optional<Variable<T>>& vector,
                const NormOptions& options) {
    check(last_extent(op, "x", x.shape()) >= 1, op, ": x ", shape_text(x.shape()), " has no columns");
    check(std::isfinite(options.epsilon) && options.epsilon >= 0.0, op, ": epsilon is ", options.epsilon,
          "; expected a finite number of at least 0");
    if (vector)
        check(vector->shape() == Shape{x.dim(-1)}, op, ": ", name, " ", shape_text(vector->shape()), " does not fit x ",
              shape_text(x.shape()), "; expected [", x.dim(-1), "]");
}

/// The epsilon of a norm of data: the options' epsilon, or this over s_x^2 if the recipe wants it to act on values
/// (`exact_norms`).
template <class T>
[[nodiscard]] double norm_epsilon(const Tape<T>& tape, const Tensor<T>& x, const NormOptions& options) noexcept {
    return tape.recipe().propagate.exact_norms ? options.epsilon / (x.scale() * x.scale()) : options.epsilon;
}

/// Layer normalisation over the last dimension.
///   y = h gain + shift, h = (x - mean) / sqrt(variance + epsilon)
///   x, y [...,n]   gain, shift [n], either may be absent
///   dx: the unscaled op's     dgain = beta_g sum over rows of dy h     dshift = beta_s sum over rows of dy
/// Factors under `unit`: h has unit variance by construction and gains are near 1, so alpha = beta_x = 1; gain and
/// shift gather N independent rows of the step, hence beta = N^-1/2. Rows with dy = 0 add nothing: `step_rows`, the
/// number of the other rows, replaces N.
/// Scale under `propagate`: the gain's, or 1; epsilon acts on data, or on values if the recipe says so (`exact_norms`).
/// dx: dy's times s_gain / s_x, then as `dynamic_rescale_l2_gradient` if the recipe says so (`rescale_gradients`).
/// dgain and dshift: dy's times N^1/2, rounded.
/// Statistics are exact also if squares of the numbers are outside the range of Accum<T>. A row that holds an infinity
/// or a NaN becomes NaN, as does a row of equal numbers with epsilon 0.
/// Errors: rank 0, no columns, gain or shift of another length, epsilon below 0.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/layer_norm_test.cpp
template <class T>
[[nodiscard]] Variable<T> layer_norm(Variable<T> x, OptionalVariable<T> gain = {}, OptionalVariable<T> shift = {},
                                     const NormOptions& options = {}) {
    x = record_rescaled_gradient(x, x.tape("layer_norm"));
    auto op = begin_op("layer_norm", x, gain, shift);
    const Tensor<T>& input = op.input(0);
    check_norm("layer_norm", input, "gain", gain, options);
    check_norm("layer_norm", input, "shift", shift, options);
    const std::size_t row_total = row_count(input.shape());
    const auto rows = static_cast<std::ptrdiff_t>(row_total), n = static_cast<std::ptrdiff_t>(input.dim(-1));
    const double beta = rsqrt_count(options.step_rows.value_or(op.tape().step_rows(row_total)));
    op.set_factors({.betas = {1.0, beta, beta}});

    const bool has_gain = op.has(1), has_shift = op.has(2);
    const std::size_t gain_at = op.index(1), shift_at = op.index(2);
    const double scale = has_gain ? op.input(gain_at).scale() : 1.0;
    const SameScale<T> moved(op.tape(), has_shift ? &op.input(shift_at) : nullptr, scale);
    Tensor<Accum<T>> mean({row_total}, op.tape().pool()), inverse({row_total}, op.tape().pool());
    Tensor<T> output = op.make(input.shape());
    kernels::layer_norm_forward<T>(op.execution(), input.data(), has_gain ? op.input(gain_at).data() : nullptr,
                                   moved.data(), output.data(), mean.data(), inverse.data(), rows, n,
                                   norm_epsilon(op.tape(), input, options));
    return op.record(std::move(output), scale, {.reads = reads_inputs},
                     [=, mean = std::move(mean), inverse = std::move(inverse)](BackwardContext<T>& g) {
                         const Scaled dx_scaled = g.scaled_beta(0, scale / g.input_scale(0));
                         const Scaled dgain_scaled = has_gain ? g.scaled_beta(gain_at) : Scaled{};
                         const Scaled dshift_scaled = has_shift ? g.scaled_beta(shift_at) : Scaled{};
                         Tensor<T> dx = g.needs(0) ? g.make(g.input_shape(0)) : Tensor<T>();
                         Tensor<T> dgain = has_gain ? g.make(g.input_shape(gain_at)) : Tensor<T>();
                         Tensor<T> dshift = has_shift ? g.make(g.input_shape(shift_at)) : Tensor<T>();
                         kernels::NormGradients<T> to{};
                         if (g.needs(0)) to.dx = dx.data();
                         if (has_gain && g.needs(gain_at)) to.dw = dgain.data();
                         if (has_shift && g.needs(shift_at)) to.dc = dshift.data();
                         to.beta_x = static_cast<Accum<T>>(dx_scaled.factor);
                         to.beta_w = static_cast<Accum<T>>(dgain_scaled.factor);
                         to.beta_c = static_cast<Accum<T>>(dshift_scaled.factor);
                         kernels::layer_norm_backward<T>(
                             g.execution(), g.input(0).data(), has_gain ? g.input(gain_at).data() : nullptr,
                             g.output_gradient().data(), mean.data(), inverse.data(), to, rows, n);
                         g.add(0, std::move(dx), dx_scaled.scale);
                         if (has_gain) g.add(gain_at, std::move(dgain), dgain_scaled.scale);
                         if (has_shift) g.add(shift_at, std::move(dshift), dshift_scaled.scale);
                     });
}

}  // namespace unitscale::ops
