// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/conv1d.hpp>
#include <unitscale/record/bias.hpp>
#include <unitscale/record/conv1d_shape.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/operand_rounding.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// Ideal factors of a convolution under `unit`, for x, weight and bias, and `positions` output positions in all: see
/// `conv1d`.
[[nodiscard]] inline Factors<3> conv1d_unit_factors(std::size_t in, std::size_t out, std::size_t taps,
                                                    std::size_t stride, std::size_t groups,
                                                    std::size_t positions) noexcept {
    const double beta_x =
        out == 0 ? 1.0 : std::sqrt(static_cast<double>(stride * groups) / static_cast<double>(out * taps));
    return {.alpha = rsqrt_count(taps * in / groups),
            .betas = {beta_x, rsqrt_count(positions), rsqrt_count(positions)}};
}

/// Unit-scaled convolution along the last axis.
///   y[b,o,l] = alpha (sum over c, t of weight[o,c,t] x[b,c,l stride + t dilation - left] + bias[o])
///   x [B,in,L]   weight [out,in/groups,k]   bias [out]   y [B,out,L']
///   L' = (L + left + right - (k-1) dilation - 1) / stride + 1
///   dx = beta_x times the gradient of the unscaled op; dweight = beta_w times it
///   dbias = beta_w sum over b and l of dy
/// Channels are in `groups` equal groups; outputs of a group see its inputs only. x is 0 outside [0,L).
/// Factors under `unit`, entries independent unit normals: an output sums k in/groups products, hence
/// alpha = (k in/groups)^-1/2; an input stands in k/stride positions of out/groups channels, hence
/// beta_x = (stride groups / (out k))^1/2; a weight meets the N = B L' positions of the whole step, hence N^-1/2, for
/// the bias too. Padding makes sums near the ends shorter, which the factors leave out. Alpha and beta_x share one
/// value (the constraint), weight and bias are cut-edges. A recipe without `bias_inside_alpha` adds the bias behind
/// alpha, as in `linear`.
/// Scale under `propagate`: s_x s_w / alpha; gradients: dy's times s_w / beta_x, s_x / beta_w, 1 / beta_w; 1 / factor
/// rounded.
/// Rounding: by the recipe, kind `linear`: x as activation, weight as weight, dy as gradient, in all three products.
/// The bias is not rounded.
/// Errors: sizes and groups that do not fit; stride, dilation or k of 0; padded x shorter than the kernel; padding
/// beside `causal`.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5 and their library. Test: tests/ops/conv1d_test.cpp
template <class T>
[[nodiscard]] Variable<T> conv1d(Variable<T> x, Variable<T> weight, OptionalVariable<T> bias = {},
                                 const Conv1dOptions& options = {}) {
    auto op = begin_op("conv1d", x, weight, bias);
    const Tensor<T>&input = op.input(0), &w = op.input(1);
    const kernels::Conv1dShape s = conv1d_shape(input.shape(), w.shape(), options);
    const std::size_t out = w.dim(0), positions = input.dim(0) * static_cast<std::size_t>(s.out_length);
    if (bias)
        check(bias->shape() == Shape{out}, "conv1d: bias ", shape_text(bias->shape()), " does not fit weight ",
              shape_text(w.shape()), "; expected [", out, "]");
    const OperandRounding rounding(op.tape(), op.site(), ProductKind::linear);
    rounding.check_by_tensor("conv1d");
    const auto x_rounding = rounding.quantiser(op.execution(), OperandSlot::forward_x, input),
               w_rounding = rounding.quantiser(op.execution(), OperandSlot::forward_w, w);
    const RandomKey x_key = op.random_key(activation_part), w_key = op.random_key(weight_part),
                    dy_key = op.random_key(gradient_part), result_key = op.random_key(result_part);
    const auto show = [=](const auto& source, OperandSlot slot, const Tensor<T>& tensor,
                          const std::optional<Quantiser>& quantiser) {
        const OperandRole role = role_of(slot);
        const RandomKey key = role == OperandRole::activation ? x_key : role == OperandRole::weight ? w_key : dy_key;
        rounding.show(source, slot, &tensor, tensor.dim(-1), key, quantiser, /*contracts_rows=*/false);
    };
    show(op.tape(), OperandSlot::forward_x, input, x_rounding);
    show(op.tape(), OperandSlot::forward_w, w, w_rounding);
    set_product_factors(op,
                        conv1d_unit_factors(input.dim(1), out, w.dim(2), options.stride, options.groups,
                                            op.tape().step_rows(positions)),
                        options.constraint);
    const double scales = input.scale() * w.scale();
    const Scaled scaled = op.scaled_alpha(scales);
    const ProductBias<T> vector(op, scales);
    Tensor<T> output = op.make(Shape{input.dim(0), out, static_cast<std::size_t>(s.out_length)});
    kernels::conv1d_forward<T>(op.execution(), s, {{input.data()}, x_rounding, x_key}, {{w.data()}, w_rounding, w_key},
                               vector.data(), output.data(), static_cast<Accum<T>>(scaled.factor));
    round_result(op.execution(), rounding.formats(), result_key, output);
    const bool has_bias = op.has(2);
    const double bias_factor = vector.factor();
    return op.record(
        std::move(output), scaled.scale, {.reads = reads_inputs, .multiply_adds = positions * w.size()},
        [=](BackwardContext<T>& g) {
            const Tensor<T>& gradient = g.output_gradient();
            const auto dy_rounding = rounding.quantiser(g.execution(), OperandSlot::input_gradient_dy, gradient);
            if (g.needs(0)) {
                const Scaled dx_scaled = g.scaled_beta(0, g.input_scale(1));
                Tensor<T> dx = g.make(g.input_shape(0));
                const auto w_again = rounding.quantiser(g.execution(), OperandSlot::input_gradient_w, g.input(1),
                                                        OperandSlot::forward_w, w_rounding);
                show(g, OperandSlot::input_gradient_dy, gradient, dy_rounding);
                show(g, OperandSlot::input_gradient_w, g.input(1), w_again);
                kernels::conv1d_backward_x<T>(g.execution(), s, {{gradient.data()}, dy_rounding, dy_key},
                                              {{g.input(1).data()}, w_again, w_key}, dx.data(),
                                              static_cast<Accum<T>>(dx_scaled.factor));
                round_result(g.execution(), rounding.formats(), result_key, dx);
                g.add(0, std::move(dx), dx_scaled.scale);
            }
            if (g.needs(1)) {
                const Scaled dw_scaled = g.scaled_beta(1, g.input_scale(0));
                Tensor<T> dw = g.make(g.input_shape(1));
                const auto x_again = rounding.quantiser(g.execution(), OperandSlot::weight_gradient_x, g.input(0),
                                                        OperandSlot::forward_x, x_rounding);
                const auto dy_again = rounding.quantiser(g.execution(), OperandSlot::weight_gradient_dy, gradient,
                                                         OperandSlot::input_gradient_dy, dy_rounding);
                show(g, OperandSlot::weight_gradient_dy, gradient, dy_again);
                show(g, OperandSlot::weight_gradient_x, g.input(0), x_again);
                kernels::conv1d_backward_weight<T>(g.execution(), s, {{gradient.data()}, dy_again, dy_key},
                                                   {{g.input(0).data()}, x_again, x_key}, dw.data(),
                                                   static_cast<Accum<T>>(dw_scaled.factor));
                round_result(g.execution(), rounding.formats(), result_key, dw);
                g.add(1, std::move(dw), dw_scaled.scale);
            }
            if (has_bias && g.needs(2)) {
                const Scaled db_scaled = g.scaled_beta(2);
                Tensor<T> db = g.make(Shape{out});
                kernels::conv1d_backward_bias<T>(g.execution(), s, gradient.data(), db.data(),
                                                 static_cast<Accum<T>>(db_scaled.factor * bias_factor));
                g.add(2, std::move(db), db_scaled.scale);
            }
        });
}
template <class T>
[[nodiscard]] Variable<T> conv1d(Variable<T> x, Variable<T> weight, const Conv1dOptions& options) {
    return conv1d(x, weight, std::optional<Variable<T>>{}, options);
}

}  // namespace unitscale::ops
