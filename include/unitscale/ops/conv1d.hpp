// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/conv1d.hpp>
#include <unitscale/ops/operands.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>

namespace unitscale::ops {

struct Conv1dOptions {
    std::size_t stride = 1, dilation = 1, groups = 1;
    std::size_t padding_left = 0, padding_right = 0;  ///< zeros beside x
    bool causal = false;                              ///< pads (k-1) dilation zeros on the left: y[l] sees x up to l stride
    std::optional<Constraint> constraint{};           ///< joins {alpha, beta_x}; empty: the recipe's rule
};

struct Conv1dFactors {
    double alpha = 1.0, beta_x = 1.0, beta_weight = 1.0;
};

/// Ideal factors of a convolution under `unit`, for `positions` output positions in all: see `conv1d`.
[[nodiscard]] inline Conv1dFactors conv1d_unit_factors(std::size_t in, std::size_t out, std::size_t taps, std::size_t stride,
                                                       std::size_t groups, std::size_t positions) noexcept {
    return {.alpha = rsqrt_count(taps * in / groups),
            .beta_x = out == 0 ? 1.0 : std::sqrt(static_cast<double>(stride * groups) / static_cast<double>(out * taps)),
            .beta_weight = rsqrt_count(positions)};
}

/// The sizes of a convolution. Errors: as `conv1d`.
[[nodiscard]] inline kernels::Conv1dShape conv1d_shape(const Shape& x, const Shape& weight, const Conv1dOptions& options) {
    check(x.size() == 3, "conv1d: x ", to_string(x), " is not [B,C,L]");
    check(weight.size() == 3, "conv1d: weight ", to_string(weight), " is not [out,in/groups,k]");
    const std::size_t in = x[1], length = x[2], out = weight[0], taps = weight[2], groups = options.groups;
    check(taps >= 1, "conv1d: weight ", to_string(weight), " has no taps");
    check(options.stride >= 1 && options.dilation >= 1, "conv1d: stride is ", options.stride, " and dilation ", options.dilation,
          "; expected at least 1");
    check(groups >= 1 && in % groups == 0 && out % groups == 0, "conv1d: groups is ", groups, "; expected a divisor of ", in,
          " input and ", out, " output channels");
    check(in / groups == weight[1], "conv1d: x ", to_string(x), " and weight ", to_string(weight), " do not fit in ", groups,
          groups == 1 ? " group: " : " groups: ", in / groups, " != ", weight[1]);
    check(!options.causal || (options.padding_left == 0 && options.padding_right == 0), "conv1d: causal with padding ",
          options.padding_left, " and ", options.padding_right, "; expected none, causal pads by itself");
    const std::size_t reach = (taps - 1) * options.dilation + 1, left = options.causal ? reach - 1 : options.padding_left;
    const std::size_t padded = length + left + options.padding_right;
    check(padded >= reach, "conv1d: x ", to_string(x), " with padding is ", padded, " long; the kernel reaches over ", reach);
    const auto size = [](std::size_t n) { return static_cast<std::ptrdiff_t>(n); };
    return {.batch = size(x[0]),
            .in_channels = size(in),
            .length = size(length),
            .out_channels = size(out),
            .out_length = size((padded - reach) / options.stride + 1),
            .taps = size(taps),
            .stride = size(options.stride),
            .dilation = size(options.dilation),
            .left = size(left),
            .groups = size(groups)};
}

/// Unit-scaled convolution along the last axis.
///   y[b,o,l] = alpha (sum over c, t of weight[o,c,t] x[b,c,l stride + t dilation - left] + bias[o])
///   x [B,in,L]   weight [out,in/groups,k]   bias [out]   y [B,out,L'],  L' = (L + left + right - (k-1) dilation - 1) / stride + 1
///   dx = beta_x times the gradient of the unscaled op; dweight = beta_w times it; dbias = beta_w sum over b and l of dy
/// Channels are in `groups` equal groups; outputs of a group see its inputs only. x is 0 outside [0,L).
/// Factors under `unit`, entries independent unit normals: an output sums k in/groups products, hence alpha = that ^-1/2; an
/// input stands in k/stride positions of out/groups channels, hence beta_x = (stride groups / (out k))^1/2; a weight meets the N = B L'
/// positions of the whole step, hence N^-1/2, for the bias too. Padding makes sums near the ends shorter, which the factors leave out.
/// Alpha and beta_x share one value (the constraint), weight and bias are cut-edges.
/// Rounding: by the recipe, kind `linear`: x as activation, weight as weight, dy as gradient, in all three products; bias not.
/// Errors: ranks, channels and groups that do not fit; stride, dilation or k of 0; padded x shorter than the kernel's reach; padding
/// beside `causal`; bias of another length.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5 and their library. Test: tests/ops/conv1d_test.cpp
template <class T>
[[nodiscard]] Variable<T> conv1d(Variable<T> x, Variable<T> weight, std::optional<Variable<T>> bias = {},
                                 const Conv1dOptions& options = {}) {
    const char* const op = "conv1d";
    Tape<T>& tape = x.tape(op);
    const Tensor<T>&input = x.value(), &w = weight.value();
    const kernels::Conv1dShape s = conv1d_shape(input.shape(), w.shape(), options);
    const std::size_t out = w.dim(0), positions = input.dim(0) * static_cast<std::size_t>(s.out_length);
    if (bias)
        check(bias->shape() == Shape{out}, op, ": bias ", to_string(bias->shape()), " does not fit weight ", to_string(w.shape()),
              "; expected [", out, "]");
    const Site site = tape.next_site(op);
    const ProductFormats formats = tape.state().formats(site, ProductKind::linear, tape.recipe());
    const RandomKey activation_key = tape.random_key(site, activation_part), weight_key = tape.random_key(site, weight_part),
                    gradient_key = tape.random_key(site, gradient_part);
    Conv1dFactors factors{};
    JoinedBy joined_by = JoinedBy::plan;
    if (tape.unit_scaled()) {
        factors = conv1d_unit_factors(input.dim(1), out, w.dim(2), options.stride, options.groups, tape.step_rows(positions));
        joined_by = join_factors(op, site, tape, options.constraint, factors.alpha, factors.beta_x);
    }
    Tensor<T> output = tape.make(Shape{input.dim(0), out, static_cast<std::size_t>(s.out_length)});
    kernels::conv1d_forward<T>(tape.execution(), s, {input.data(), pointer(formats.activation), activation_key},
                               {w.data(), pointer(formats.weight), weight_key}, bias ? bias->value().data() : nullptr,
                               output.data(), static_cast<Accum<T>>(factors.alpha));

    const std::array<double, 3> betas = {factors.beta_x, factors.beta_weight, factors.beta_weight};
    const std::array<Variable<T>, 3> operands = {x, weight, bias.value_or(x)};
    const std::size_t inputs = bias ? 3 : 2;
    const std::size_t multiply_adds = positions * w.size();
    return tape.record(
        {.name = op,
         .site = site,
         .alpha = factors.alpha,
         .betas = std::span(betas).first(inputs),
         .joined_by = joined_by,
         .multiply_adds = multiply_adds,
         .reads = reads_inputs},
        std::span(operands).first(inputs), std::move(output), [=](BackwardContext<T>& g) {
            const kernels::Conv1dOperand<T> dy{g.output_gradient().data(), pointer(formats.gradient), gradient_key};
            if (g.needs(0)) {
                Tensor<T> dx = g.make(g.input_shape(0));
                kernels::conv1d_backward_x<T>(g.execution(), s, dy, {g.input(1).data(), pointer(formats.weight), weight_key},
                                              dx.data(), static_cast<Accum<T>>(g.beta(0)));
                g.add(0, std::move(dx));
            }
            if (g.needs(1)) {
                Tensor<T> dw = g.make(g.input_shape(1));
                kernels::conv1d_backward_weight<T>(g.execution(), s, dy,
                                                   {g.input(0).data(), pointer(formats.activation), activation_key}, dw.data(),
                                                   static_cast<Accum<T>>(g.beta(1)));
                g.add(1, std::move(dw));
            }
            if (inputs == 3 && g.needs(2)) {
                Tensor<T> db = g.make(Shape{out});
                kernels::conv1d_backward_bias<T>(g.execution(), s, dy.data, db.data(), static_cast<Accum<T>>(g.beta(2)));
                g.add(2, std::move(db));
            }
        });
}
template <class T>
[[nodiscard]] Variable<T> conv1d(Variable<T> x, Variable<T> weight, const Conv1dOptions& options) {
    return conv1d(x, weight, std::optional<Variable<T>>{}, options);
}

}  // namespace unitscale::ops
