// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/attention.hpp>
#include <unitscale/ops/dynamic_rescale.hpp>
#include <unitscale/record/attention_formats.hpp>
#include <unitscale/record/attention_sizes.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/softmax_factors.hpp>

#include <cmath>
#include <cstddef>
#include <utility>

namespace unitscale::ops {

/// Unit-scaled dot-product attention.
///   y = alpha softmax(m q k^T / d + bias) v      q, y [B,T,H d]   k, v [B,S,G d]   softmax over S
///   dq, dk, dv = beta times the gradients of the unscaled op
/// Head h is columns h d to (h+1) d; query head h uses key head h G / H. Causal: query i sees the keys j <= i + S - T,
/// so the last query sees every key. With a window w it sees the last w of them only. The logits are divided by d, not
/// by its root: q and k become correlated in training (µP). With m = sqrt d the softmax is the textbook one. The rows
/// of a padded batch with `mask.lengths` have the bits of the rows alone. Dropout multiplies weights by keep / (1 - p),
/// keep: 0 with probability p, else 1.
/// Factors under `unit`: with flat logits (m small) the output averages s values of unit variance. Its standard
/// deviation is s^-1/2, or (ln s / s)^1/2 over all positions of causal attention. With peaked logits it copies one
/// value, and the deviation is 1. Between them it is logint with weight 1 / (1 + 4 d / m^2). alpha is the inverse, and
/// all betas equal alpha by construction. s is the mean number of keys that lengths and bias leave. `factor_length`
/// fixes s: a model trained at length s keeps that factor when it generates. A window w < s leaves the variance
/// (ln w + s / w - 1) / s. Dropout multiplies the variance by 1 / (1 - p), hence alpha by (1 - p)^1/2, in all steps.
/// Gradients of q and k have a standard deviation of about m d^-1/2, by design. T x S is never stored for the batch.
/// Scale under `propagate`: m s_q s_k is the multiplier of the data's logits, in the factors too. y: s_v / alpha,
/// rounded; dv: dy's over alpha, rounded; dq: dy's times s_v / s_q times L / alpha, rounded, dk likewise with s_k. L is
/// the size that `unit` leaves in dq and dk. For flat logits L = l = m s_q s_k d^-1/2, their standard deviation. For
/// peaked ones L = l^1/2: the gradient comes from the rows, 1 in l, in which the two largest logits are within 1 of
/// each other. logint between them. Measured rms of data: 0.64 to 1.15 of the factor's.
/// All of q, k, v and dy outgrow their scales in training. `PropagateRule::rescale_gradients` measures them: the rms of
/// data, as a power of two, goes with its scale in these rules, and dy, dq, dk and dv are brought to unit data.
/// Rounding: by the recipe, kind `attention` (record/attention_formats.hpp). Without a rule nothing is rounded.
/// Errors: as `attention_sizes`.
/// Reference: Blake et al. 2024, arXiv:2407.17465, table 8. Test: tests/ops/attention_test.cpp
template <class T>
[[nodiscard]] Variable<T> attention(Variable<T> q, Variable<T> k, Variable<T> v, const AttentionOptions& options) {
    Tape<T>& tape = q.tape("attention");
    for (Variable<T>* input : {&q, &k, &v}) *input = record_rescaled_gradient(*input, tape);
    auto op = begin_op("attention", q, k, v);
    const Tensor<T>&query = op.input(0), &key = op.input(1), &value = op.input(2);
    AttentionSizes sizes = attention_sizes("attention", query.shape(), key.shape(), value.shape(), options);
    if (tape.step_options().training) sizes.dropout = options.dropout;
    sizes.dropout_key = op.random_key();
    const double mult = options.mult * query.scale() * key.scale();  // of the logits of data
    // The size of data, 1 unless it is measured.
    const double query_size = measured_size(tape, op.site(), 0, query),
                 key_size = measured_size(tape, op.site(), 1, key),
                 value_size = measured_size(tape, op.site(), 2, value);
    const double unit_mult = mult * query_size * key_size;
    double factor = attention_unit_factor(unit_mult, sizes.depth, sizes.factor_length, sizes.causal, sizes.window) *
                    std::sqrt(1.0 - options.dropout);
    if (tape.unit_scaled()) factor = tape.forward_factor("attention", op.site(), factor);
    const double logit_factor = tape.propagates() ? attention_logit_factor(unit_mult, sizes.depth) / value_size : 1.0;
    op.set_factors(
        {.alpha = factor, .betas = {factor * logit_factor * query_size, factor * logit_factor * key_size, factor}});
    // Scores and weighted values.
    const std::size_t multiply_adds = 2 * sizes.depth * seen_pairs(sizes);
    if (rounds_attention(tape, op.site()))
        return record_rescaled_gradient(
            record_attention_in_formats(op, sizes, query_size * key_size, value_size, multiply_adds), tape);
    const Scaled scaled = op.scaled_alpha(value.scale());

    const auto d = static_cast<std::ptrdiff_t>(sizes.depth), t = static_cast<std::ptrdiff_t>(sizes.queries),
               s = static_cast<std::ptrdiff_t>(sizes.keys), heads = static_cast<std::ptrdiff_t>(sizes.heads),
               groups = static_cast<std::ptrdiff_t>(sizes.groups), wide = d * heads, narrow = d * groups;
    Tensor<T> output = op.make(query.shape());
    Tensor<Accum<T>> log_sum({sizes.batch, sizes.heads, sizes.queries}, tape.pool());
    const auto arguments = [=](const Tensor<T>& qt, const Tensor<T>& kt, const Tensor<T>& vt, T* out,
                               Accum<T>* log_sums) {
        return kernels::AttentionArguments<T>{.batch = static_cast<std::ptrdiff_t>(sizes.batch),
                                              .heads = heads,
                                              .groups = groups,
                                              .queries = t,
                                              .keys = s,
                                              .depth = d,
                                              .q = {qt.data(), t * wide, wide, d},
                                              .k = {kt.data(), s * narrow, narrow, d},
                                              .v = {vt.data(), s * narrow, narrow, d},
                                              .out = {out, t * wide, wide, d},
                                              .log_sum = log_sums,
                                              .logit_scale = static_cast<Accum<T>>(mult / static_cast<double>(d)),
                                              .out_scale = static_cast<Accum<T>>(scaled.factor),
                                              .causal = sizes.causal,
                                              .mask = view_mask(sizes)};
    };
    kernels::attention_forward<T>(tape.execution(), arguments(query, key, value, output.data(), log_sum.data()));
    Variable<T> y = op.record(
        std::move(output), scaled.scale, {.reads = reads_inputs, .multiply_adds = multiply_adds},
        [=, log_sum = std::move(log_sum)](BackwardContext<T>& g) mutable {
            const double value_scale = g.input_scale(2);
            const Scaled dq_scaled = g.scaled_beta(0, value_scale / g.input_scale(0)),
                         dk_scaled = g.scaled_beta(1, value_scale / g.input_scale(1)), dv_scaled = g.scaled_beta(2);
            Tensor<T> dq = g.make(g.input_shape(0)), dk = g.make(g.input_shape(1)), dv = g.make(g.input_shape(2));
            kernels::attention_backward<T>(
                g.execution(), {.forward = arguments(g.input(0), g.input(1), g.input(2), nullptr, log_sum.data()),
                                .dout = {g.output_gradient().data(), t * wide, wide, d},
                                .dq = {dq.data(), t * wide, wide, d},
                                .dk = {dk.data(), s * narrow, narrow, d},
                                .dv = {dv.data(), s * narrow, narrow, d},
                                .dq_scale = static_cast<Accum<T>>(dq_scaled.factor),
                                .dk_scale = static_cast<Accum<T>>(dk_scaled.factor),
                                .dv_scale = static_cast<Accum<T>>(dv_scaled.factor)});
            g.add(0, std::move(dq), dq_scaled.scale);
            g.add(1, std::move(dk), dk_scaled.scale);
            g.add(2, std::move(dv), dv_scaled.scale);
        });
    return record_rescaled_gradient(std::move(y), tape);
}

}  // namespace unitscale::ops
