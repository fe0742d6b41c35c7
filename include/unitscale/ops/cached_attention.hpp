// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/attention.hpp>
#include <unitscale/ops/attention.hpp>
#include <unitscale/record/attention_sizes.hpp>
#include <unitscale/record/op.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace unitscale::ops {

/// Keys and values that one attention layer has seen, in buffers that the caller owns: [batch, groups, capacity,
/// columns / groups] each, so that a head reads memory in order. The first `length` positions of each head are written.
template <class T>
struct KeyValueRows {
    T* keys = nullptr;
    T* values = nullptr;
    std::size_t batch = 0, capacity = 0, columns = 0, length = 0;
};

/// Attention of the tokens that follow those in a buffer, for generation.
///   y = alpha softmax(m q K^T / d) V      q, y [B,T,H d]   k, v [B,T,G d]   K, V [B,past.length + T,G d]
/// k and v are copied behind the `past.length` positions that the buffers hold. K and V are the buffers up to there,
/// read in place. `past` itself does not grow: its owner counts, once all layers have run. The rows of y are, to the
/// bit, the last T rows of `attention` over the whole sequence: generation with and without a cache agrees.
/// Factors under `unit`: alpha as for `attention`, at its site, with the length that `factor_length` fixes; there is no
/// gradient. Without `factor_length` alpha would change from token to token, hence an error.
/// Scale under `propagate`: as for `attention`; the buffers hold plain numbers.
/// Rounding: as for `attention`, by its rules. A rule that measures tensors measures the q, K, V and p of this call, so
/// the rows differ from `attention`'s by rounding. So do blocks along positions.
/// Errors: a step that records gradients; not causal; a mask; as `attention_sizes`; more or fewer keys than queries;
/// buffers of other sizes than k's, or too short for it; dropout in a step that trains.
/// Test: tests/ops/cached_attention_test.cpp
template <class T>
[[nodiscard]] Variable<T> cached_attention(Variable<T> q, Variable<T> k, Variable<T> v, const KeyValueRows<T>& past,
                                           const AttentionOptions& options) {
    Tape<T>& tape = q.tape("cached_attention");
    const Tensor<T>&query = q.value(), &key = k.value(), &value = v.value();
    check(!tape.step_options().gradients,
          "cached_attention: this step records gradients; begin it with gradients = false");
    check(options.causal, "cached_attention: causal is false; tokens to come would change the outputs of those before");
    check(!options.mask.hides(), "cached_attention: has no masks; expected an empty mask");
    AttentionSizes sizes = attention_sizes("cached_attention", query.shape(), key.shape(), value.shape(), options);
    const std::size_t batch = sizes.batch, heads = sizes.heads, groups = sizes.groups, depth = sizes.depth,
                      added = sizes.queries, columns = groups * depth;
    check(sizes.keys == added, "cached_attention: ", added, " queries and ", sizes.keys,
          " keys; expected one key for each query");
    check(past.batch == batch && past.columns == columns, "cached_attention: buffers for ", past.batch, " x ",
          past.columns, " columns do not fit k ", shape_text(key.shape()));
    check(past.length + added <= past.capacity, "cached_attention: ", past.length, " positions and ", added,
          " more; the buffers end at ", past.capacity);
    check(!tape.unit_scaled() || options.factor_length.has_value(),
          "cached_attention: no factor_length; under unit scaling the factor would change from token to token");
    check(options.dropout == 0.0 || !tape.step_options().training,
          "cached_attention: dropout of weights in a step that trains; begin it with training = false");
    sizes.keys = past.length + added;
    if (!options.factor_length) sizes.factor_length = static_cast<double>(sizes.keys);
    const Site site = tape.next_site("attention");  // of the layer's factor: the op of training
    const double mult = options.mult * q.scaled().scale() * k.scaled().scale(), value_scale = v.scaled().scale();
    const double own_factor =
        attention_unit_factor(mult, depth, sizes.factor_length, true) * std::sqrt(1.0 - options.dropout);
    double factor = tape.propagates() ? own_factor : 1.0;
    if (tape.unit_scaled()) factor = tape.forward_factor("attention", site, own_factor);
    Scaled scaled = tape.scaled_alpha(site, factor, value_scale);
    if (tape.propagates()) scaled = tape.carried(site, value_scale, scaled.scale);

    const std::size_t head = past.capacity * depth;
    for (std::size_t b = 0; b < batch; ++b)
        for (std::size_t i = 0; i < added; ++i)
            for (std::size_t group = 0; group < groups; ++group) {
                const std::size_t from = (b * added + i) * columns + group * depth,
                                  to = (b * groups + group) * head + (past.length + i) * depth;
                std::copy_n(key.data() + from, depth, past.keys + to);
                std::copy_n(value.data() + from, depth, past.values + to);
            }
    const auto record = [&](Tensor<T>&& output) {
        output.set_scale(scaled.scale);
        return tape.record({.name = "cached_attention",
                            .site = site,
                            .alpha = factor,
                            .betas = {factor, factor, factor},
                            .multiply_adds = 2 * depth * seen_pairs(sizes),
                            .reads = reads_nothing,
                            .propagates = true},
                           {q, k, v}, std::move(output), [](BackwardContext<T>&) {});
    };
    if (rounds_attention(tape, site))
        return record(cached_attention_in_formats(
            tape, site, sizes, q.scaled(), {past.keys, k.scaled().scale(), past.capacity},
            {past.values, value_scale, past.capacity},
            measured_size(tape, site, 0, q.scaled()) * measured_size(tape, site, 1, k.scaled()), scaled));
    Tensor<T> output = tape.make(query.shape());
    Tensor<Accum<T>> log_sum({batch, heads, added}, tape.pool());  // for a backward pass that never comes
    const auto d = static_cast<std::ptrdiff_t>(depth), wide = static_cast<std::ptrdiff_t>(query.dim(2)),
               t = static_cast<std::ptrdiff_t>(added), head_stride = static_cast<std::ptrdiff_t>(head),
               batch_stride = static_cast<std::ptrdiff_t>(groups * head);
    kernels::attention_forward<T>(tape.execution(),
                                  {.batch = static_cast<std::ptrdiff_t>(batch),
                                   .heads = static_cast<std::ptrdiff_t>(heads),
                                   .groups = static_cast<std::ptrdiff_t>(groups),
                                   .queries = t,
                                   .keys = static_cast<std::ptrdiff_t>(sizes.keys),
                                   .depth = d,
                                   .q = {query.data(), t * wide, wide, d},
                                   .k = {past.keys, batch_stride, d, head_stride},
                                   .v = {past.values, batch_stride, d, head_stride},
                                   .out = {output.data(), t * wide, wide, d},
                                   .log_sum = log_sum.data(),
                                   .logit_scale = static_cast<Accum<T>>(options.mult / static_cast<double>(depth)),
                                   .out_scale = static_cast<Accum<T>>(scaled.factor / value_scale),
                                   .causal = true});
    return record(std::move(output));
}

}  // namespace unitscale::ops
