// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/attention.hpp>
#include <unitscale/kernels/cached_attention.hpp>
#include <unitscale/ops/attention.hpp>
#include <unitscale/record/attention_sizes.hpp>
#include <unitscale/record/key_value_rows.hpp>
#include <unitscale/record/op.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace unitscale::ops {

/// Attention of the tokens that follow those in a buffer, for generation.
///   y = alpha softmax(m q K^T / d) V      q, y [B,T,H d]   k, v [B,T,G d]   K, V [B,past.length + T,G d]
/// k and v are written behind the `past.length` positions that the buffers hold. K and V are the buffers up to there,
/// read in place. `past` itself does not grow: its owner counts, once all layers have run. The rows of y are, to the
/// bit, the last T rows of `attention` over the whole sequence: generation with and without a cache agrees.
/// Buffers of a narrower format than T round k and v once, line by line (kernels::LineElement). The rows are then, to
/// the bit, those of `attention` over keys and values rounded by that rule, also for the tokens of this call. So they
/// depend neither on how a sequence is divided into calls, nor on other rows.
/// With a window w, buffers of w - 1 + n positions are enough for any sequence: at most n tokens are written, then
/// read, at a time.
/// Factors under `unit`: alpha as for `attention`, at its site, with the length that `factor_length` fixes; there is no
/// gradient. Without `factor_length` alpha would change from token to token, hence an error.
/// Scale under `propagate`: as for `attention`; the buffers hold plain numbers.
/// Rounding: as for `attention`, by its rules. A rule that measures tensors measures the q, K, V and p of this call, so
/// the rows differ from `attention`'s by rounding. So do blocks along positions.
/// Errors: a step that records gradients; not causal; a mask; as `attention_sizes`; more or fewer keys than queries;
/// buffers of other sizes than k's, or too short for it; spans that fit neither; dropout in a step that trains.
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
                      added = sizes.queries;
    check(sizes.keys == added, "cached_attention: ", added, " queries and ", sizes.keys,
          " keys; expected one key for each query");
    const CachedCall<T> call(past, sizes);
    check(!tape.unit_scaled() || options.factor_length.has_value(),
          "cached_attention: no factor_length; under unit scaling the factor would change from token to token");
    check(options.dropout == 0.0 || !tape.step_options().training,
          "cached_attention: dropout of weights in a step that trains; begin it with training = false");
    sizes.keys = call.longest();
    if (!options.factor_length) sizes.factor_length = static_cast<double>(sizes.keys);
    const Site site = tape.next_site("attention");  // of the layer's factor: the op of training
    const double mult = options.mult * q.scaled().scale() * k.scaled().scale(), value_scale = v.scaled().scale();
    const double own_factor =
        attention_unit_factor(mult, depth, sizes.factor_length, true, sizes.window) * std::sqrt(1.0 - options.dropout);
    double factor = tape.propagates() ? own_factor : 1.0;
    if (tape.unit_scaled()) factor = tape.forward_factor("attention", site, own_factor);
    Scaled scaled = tape.scaled_alpha(site, factor, value_scale);
    if (tape.propagates()) scaled = tape.carried(site, value_scale, scaled.scale);

    const auto d = static_cast<std::ptrdiff_t>(depth), wide = static_cast<std::ptrdiff_t>(query.dim(2)),
               t = static_cast<std::ptrdiff_t>(added), capacity = static_cast<std::ptrdiff_t>(past.capacity);
    const auto record = [&](Tensor<T>&& output) {
        output.set_scale(scaled.scale);
        return tape.record({.name = "cached_attention",
                            .site = site,
                            .alpha = factor,
                            .betas = {factor, factor, factor},
                            .multiply_adds = 2 * depth * call.pairs(),
                            .reads = reads_nothing,
                            .propagates = true},
                           {q, k, v}, std::move(output), [](BackwardContext<T>&) {});
    };
    if (rounds_attention(tape, site)) {
        const double size = measured_size(tape, site, 0, q.scaled()) * measured_size(tape, site, 1, k.scaled());
        return record(cached_attention_in_formats<T>(tape, site, sizes, q.scaled(), call, key, value,
                                                     {past.keys, k.scaled().scale(), past.capacity},
                                                     {past.values, value_scale, past.capacity}, size, scaled));
    }
    Tensor<T> output = tape.make(query.shape());
    const auto logit_scale = static_cast<Accum<T>>(options.mult / static_cast<double>(depth)),
               out_scale = static_cast<Accum<T>>(scaled.factor / value_scale);
    // Elements of T, all in one piece, are read in place by the kernel of training.
    if (call.together() && sizes.keys <= past.capacity && past.keys.coder == nullptr) {
        call.write(key, value, 0, added);
        Tensor<Accum<T>> log_sum({batch, heads, added}, tape.pool());  // for a backward pass that never comes
        const std::ptrdiff_t head_stride = capacity * d,
                             batch_stride = static_cast<std::ptrdiff_t>(groups) * head_stride;
        kernels::attention_forward<T>(
            tape.execution(), {.batch = static_cast<std::ptrdiff_t>(batch),
                               .heads = static_cast<std::ptrdiff_t>(heads),
                               .groups = static_cast<std::ptrdiff_t>(groups),
                               .queries = t,
                               .keys = static_cast<std::ptrdiff_t>(sizes.keys),
                               .depth = d,
                               .q = {query.data(), t * wide, wide, d},
                               .k = {reinterpret_cast<const T*>(past.keys.data), batch_stride, d, head_stride},
                               .v = {reinterpret_cast<const T*>(past.values.data), batch_stride, d, head_stride},
                               .out = {output.data(), t * wide, wide, d},
                               .log_sum = log_sum.data(),
                               .logit_scale = logit_scale,
                               .out_scale = out_scale,
                               .causal = true,
                               .mask = view_mask(sizes)});
        return record(std::move(output));
    }
    std::fill_n(output.data(), output.size(), T(0));  // of padding
    for (std::size_t begin = 0; begin < added; begin += call.part()) {
        const std::size_t end = std::min(added, begin + call.part());
        call.write(key, value, begin, end);
        kernels::cached_attention_forward<T>(tape.execution(), {.heads = static_cast<std::ptrdiff_t>(heads),
                                                                .groups = static_cast<std::ptrdiff_t>(groups),
                                                                .depth = d,
                                                                .capacity = capacity,
                                                                .window = static_cast<std::ptrdiff_t>(sizes.window),
                                                                .first_query = static_cast<std::ptrdiff_t>(begin),
                                                                .last_query = static_cast<std::ptrdiff_t>(end),
                                                                .spans = call.spans(),
                                                                .q = {query.data(), t * wide, wide, d},
                                                                .out = {output.data(), t * wide, wide, d},
                                                                .keys = past.keys,
                                                                .values = past.values,
                                                                .logit_scale = logit_scale,
                                                                .out_scale = out_scale});
    }
    return record(std::move(output));
}

}  // namespace unitscale::ops
