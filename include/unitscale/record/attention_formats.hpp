// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/kernels/attention_products.hpp>
#include <unitscale/kernels/cached_lines.hpp>
#include <unitscale/kernels/layout.hpp>
#include <unitscale/record/attention_rounding.hpp>
#include <unitscale/record/attention_sizes.hpp>
#include <unitscale/record/key_value_rows.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/softmax_factors.hpp>
#include <unitscale/scaling/factors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

// Attention with products that round their operands, for `attention` and `cached_attention`. It has the bits of these
// ops, under a recipe with the same formats for products of kind `matmul`:
//   s = matmul(q [B,G,H/G T,d], k^T [B,G,d,S])       the rows of the H/G heads that share a k stand below each other
//   p = softmax(select(seen, s, -infinity), m / d)   seen: true, or where a causal query sees the key
//   y = matmul(p, v [B,G,S,d])
// Under `unit` s has the factor d^-1/2, so that softmax's multiplier is m d^-1/2, and p has softmax's factor. The
// product with v takes the rest of alpha, and every beta inside is the alpha of its op. Under `propagate` s, p and
// their gradients have the scales of these ops; y, dq, dk and dv keep the scales that `attention` states.
namespace unitscale::ops {

/// x [B,L,heads d] as the rows of each head: `out` [B,heads,L,d].
template <class T>
[[nodiscard]] Tensor<T> rows_of_heads(const Execution& execution, const Tensor<T>& x, Tensor<T> out) {
    const Shape& rows = out.shape();
    kernels::transpose<T>(execution, x.data(), {rows[0], rows[2], rows[1], rows[3]}, {0, 2, 1, 3}, out.data());
    out.set_scale(x.scale());
    return out;
}
/// Likewise for keys or values. Rows beyond a length become 0: they enter no product, and no measured magnitude.
template <class T>
[[nodiscard]] Tensor<T> rows_of_heads(const Execution& execution, const Tensor<T>& x, const AttentionMask& mask,
                                      Tensor<T> out) {
    out = rows_of_heads(execution, x, std::move(out));
    const std::size_t heads = out.dim(1), head = out.dim(2) * out.dim(3);
    for (std::size_t item = 0; item < mask.lengths.size() * heads; ++item)
        std::fill(out.data() + item * head + mask.lengths[item / heads] * out.dim(3), out.data() + (item + 1) * head,
                  T(0));
    return out;
}
/// The rows of each head, [B,heads,L,d], as `out` [B,L,heads d].
template <class T>
[[nodiscard]] Tensor<T> columns_of_heads(const Execution& execution, const Tensor<T>& rows, Tensor<T> out) {
    kernels::transpose<T>(execution, rows.data(), rows.shape(), {0, 2, 1, 3}, out.data());
    return out;
}

/// Data factors and scales of s and p, and of their gradients.
struct AttentionFactors {
    Scaled logits{}, probabilities{};
    double slope = 1.0;    ///< the softmax's multiplier of plain logits
    double dlogits = 1.0;  ///< ideal factor of the gradient of plain logits
};

/// `scales`: s_q s_k. `size`: the measured size of q's data times the measured size of k's data; 1 if not measured.
template <class T>
[[nodiscard]] AttentionFactors attention_factors(const Tape<T>& tape, Site site, const AttentionSizes& sizes,
                                                 double scales, double size) {
    AttentionFactors factors;
    const double ideal = tape.uses_factors() ? rsqrt_count(sizes.depth) : 1.0;
    factors.logits = tape.scaled_alpha(site, ideal, scales);
    factors.slope = sizes.mult / (static_cast<double>(sizes.depth) * (tape.unit_scaled() ? ideal : 1.0));
    if (!tape.uses_factors()) return factors;
    const double data = factors.logits.scale * size;
    const Factors<1> softmax = softmax_unit_factors(
        factors.slope * data,
        sizes.window > 0 ? std::min(sizes.factor_length, static_cast<double>(sizes.window)) : sizes.factor_length,
        SoftmaxRule::fitted);
    factors.probabilities = tape.scaled_alpha(site, softmax.alpha, 1.0);
    factors.dlogits = softmax.betas[0] * data;
    return factors;
}

/// The factor of p v for a value with `scaled`. Under `unit`: alpha over the factor of p. Otherwise: the ratio of the
/// scales, 1 or a power of two.
template <class T>
[[nodiscard]] double attention_out_factor(const Tape<T>& tape, const AttentionFactors& factors, const Scaled& scaled,
                                          double value_scale) {
    return tape.unit_scaled() ? scaled.factor / factors.probabilities.factor
                              : factors.probabilities.scale * value_scale / scaled.scale;
}

/// The arguments of the products for q, k and v as rows of heads, without rounding.
template <class T>
[[nodiscard]] kernels::AttentionProductArguments<T> attention_arguments(const AttentionSizes& sizes,
                                                                        const AttentionFactors& factors,
                                                                        const Tensor<T>& q, const Tensor<T>& k,
                                                                        const Tensor<T>& v) {
    kernels::AttentionProductArguments<T> args;
    args.items = static_cast<std::ptrdiff_t>(sizes.batch * sizes.groups);
    args.heads = static_cast<std::ptrdiff_t>(sizes.heads / sizes.groups);
    args.queries = static_cast<std::ptrdiff_t>(sizes.queries);
    args.keys = static_cast<std::ptrdiff_t>(sizes.keys);
    args.depth = static_cast<std::ptrdiff_t>(sizes.depth);
    args.groups = static_cast<std::ptrdiff_t>(sizes.groups);
    args.causal = sizes.causal;
    args.mask = view_mask(sizes);
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.logit_factor = static_cast<Accum<T>>(factors.logits.factor);
    args.mult = static_cast<Accum<T>>(factors.slope * factors.logits.scale);
    args.probability_factor = static_cast<Accum<T>>(factors.probabilities.factor);
    args.slope = static_cast<Accum<T>>(factors.slope);
    return args;
}

/// A function that measures the largest magnitude of x, which must outlive it.
template <class T>
[[nodiscard]] auto measure(const Execution& execution, const Tensor<T>& x) {
    return [&execution, &x] { return kernels::amax(execution, x.data(), static_cast<std::ptrdiff_t>(x.size())); };
}

/// The rounding of the operands of the forward pass.
struct AttentionOperands {
    kernels::AttentionOperand q{}, k{}, p{}, v{};
};

/// rows = factor p v [B,H,T,d], and how the operands were rounded.
template <class T>
[[nodiscard]] AttentionOperands attention_value(const Tape<T>& tape, const AttentionRounding& rounding,
                                                const AttentionSizes& sizes, const AttentionFactors& factors,
                                                const Tensor<T>& q, const Tensor<T>& k, const Tensor<T>& v,
                                                double factor, Tensor<T>& rows) {
    const Execution execution = tape.execution();
    AttentionOperands operands{.q = rounding.operand(OperandSlot::logits_q, measure(execution, q)),
                               .k = rounding.operand(OperandSlot::logits_k, measure(execution, k)),
                               .v = rounding.operand(OperandSlot::output_v, measure(execution, v))};
    const std::size_t matrices = sizes.batch * sizes.groups;
    rounding.show(tape, OperandSlot::logits_q, q, matrices, operands.q);
    rounding.show(tape, OperandSlot::logits_k, k, matrices, operands.k);
    rounding.show(tape, OperandSlot::output_v, v, matrices, operands.v);
    auto args = attention_arguments(sizes, factors, q, k, v);
    args.logits_q = operands.q;
    args.logits_k = operands.k;
    kernels::AttentionProducts<T> products(execution, args);
    operands.p = rounding.operand(OperandSlot::output_p, [&] { return products.largest().p; });
    products.forward(operands.p, operands.v, static_cast<Accum<T>>(factor), rows.data());
    return operands;
}

/// Scales and random words inside the backward pass under `propagate`.
struct AttentionGradientScales {
    bool propagates = false;
    ScaleRounding rounding = ScaleRounding::down;
    RandomKey key{};

    /// A gradient inside: its arriving scales, its ideal factor under `propagate`, its factor under other scalings.
    [[nodiscard]] Scaled operator()(double scales, double ideal, double otherwise, std::uint64_t word) const {
        if (!propagates) return {otherwise, 1.0};
        return product_scale(rounding, scales, ideal, static_cast<std::uint32_t>(random_word(key, word)));
    }
};

/// Records attention, for inputs that `attention` has checked and with the factors that it has set. `size`: as for
/// `attention_factors`. `value_size`: the measured size of the data of v; 1 if it is not measured.
/// Test: tests/record/attention_formats_test.cpp
template <class T>
[[nodiscard]] Variable<T> record_attention_in_formats(Op<T, 3>& op, const AttentionSizes& sizes, double size,
                                                      double value_size, std::uint64_t multiply_adds) {
    Tape<T>& tape = op.tape();
    const AttentionRounding rounding(tape, op.site());
    const Tensor<T>&query = op.input(0), &key = op.input(1), &value = op.input(2);
    const AttentionFactors factors = attention_factors(tape, op.site(), sizes, query.scale() * key.scale(), size);
    const Scaled scaled = op.scaled_alpha(value.scale());
    const double out_factor = attention_out_factor(tape, factors, scaled, value.scale());
    Tensor<T> output = op.make(query.shape());
    AttentionOperands operands;
    {
        const Execution execution = op.execution();
        const Tensor<T> q = rows_of_heads(execution, query, op.make(sizes.query_rows())),
                        k = rows_of_heads(execution, key, sizes.mask, op.make(sizes.key_rows())),
                        v = rows_of_heads(execution, value, sizes.mask, op.make(sizes.key_rows()));
        Tensor<T> rows = op.make(sizes.query_rows());
        operands = attention_value(tape, rounding, sizes, factors, q, k, v, out_factor, rows);
        output = columns_of_heads(execution, rows, std::move(output));
    }
    const AttentionGradientScales scales{tape.propagates(), tape.recipe().propagate.rounding,
                                         op.random_key(slot_count - linear_slot_count + 1)};
    const auto backward = [=, unit = tape.unit_scaled()](BackwardContext<T>& g) {
        const double query_scale = g.input_scale(0), key_scale = g.input_scale(1), value_scale = g.input_scale(2);
        const Scaled dq_scaled = g.scaled_beta(0, value_scale / query_scale),
                     dk_scaled = g.scaled_beta(1, value_scale / key_scale), dv_scaled = g.scaled_beta(2);
        const Tensor<T>& gradient = g.output_gradient();
        const Scaled dp = scales(gradient.scale() * value_scale, rsqrt_count(sizes.depth) / value_size,
                                 unit ? out_factor : 1.0, 0),
                     ds = scales(dp.scale, factors.dlogits, unit ? factors.probabilities.factor : 1.0, 1);
        // The factor of a product inside, where the op's beta asks for no other; else the ratio of the scales.
        const auto factor = [&](const Scaled& result, double inside, double of_operands) {
            return static_cast<Accum<T>>(unit ? inside * (result.factor / g.alpha()) : of_operands / result.scale);
        };
        const Execution& execution = g.execution();
        const Tensor<T> q = rows_of_heads(execution, g.input(0), g.make(sizes.query_rows())),
                        k = rows_of_heads(execution, g.input(1), sizes.mask, g.make(sizes.key_rows())),
                        v = rows_of_heads(execution, g.input(2), sizes.mask, g.make(sizes.key_rows())),
                        dy = rows_of_heads(execution, gradient, g.make(sizes.query_rows()));
        using enum OperandSlot;
        auto args = attention_arguments(sizes, factors, q, k, v);
        args.dout = dy.data();
        args.logits_q = operands.q;
        args.logits_k = operands.k;
        args.probability_gradient_dy = rounding.operand(probability_gradient_dy, measure(execution, dy));
        args.probability_gradient_v = rounding.operand(probability_gradient_v, operands.v, measure(execution, v));
        args.dprobability_factor = static_cast<Accum<T>>(dp.factor);
        args.dlogit_factor = static_cast<Accum<T>>(ds.factor);
        kernels::AttentionProducts<T> products(execution, args);

        Tensor<T> dq = g.make(sizes.query_rows()), dk = g.make(sizes.key_rows()), dv = g.make(sizes.key_rows());
        const auto measure_ds = [&] { return products.largest().ds; };
        const auto measure_p = [&] { return products.largest().p; };
        kernels::AttentionProductGradients<T> gradients;
        gradients.query_gradient_ds = rounding.operand(query_gradient_ds, measure_ds);
        gradients.query_gradient_k = rounding.operand(query_gradient_k, operands.k, measure(execution, k));
        gradients.key_gradient_ds = rounding.operand(key_gradient_ds, gradients.query_gradient_ds, measure_ds);
        gradients.key_gradient_q = rounding.operand(key_gradient_q, operands.q, measure(execution, q));
        gradients.value_gradient_p = rounding.operand(value_gradient_p, operands.p, measure_p);
        gradients.value_gradient_dy =
            rounding.operand(value_gradient_dy, args.probability_gradient_dy, measure(execution, dy));
        const std::size_t matrices = sizes.batch * sizes.groups;
        rounding.show(g, probability_gradient_dy, dy, matrices, args.probability_gradient_dy);
        rounding.show(g, probability_gradient_v, v, matrices, args.probability_gradient_v);
        rounding.show(g, query_gradient_k, k, matrices, gradients.query_gradient_k);
        rounding.show(g, key_gradient_q, q, matrices, gradients.key_gradient_q);
        rounding.show(g, value_gradient_dy, dy, matrices, gradients.value_gradient_dy);
        gradients.dq_factor = factor(dq_scaled, factors.logits.factor, ds.scale * key_scale);
        gradients.dk_factor = factor(dk_scaled, factors.logits.factor, ds.scale * query_scale);
        gradients.dv_factor = factor(dv_scaled, out_factor, factors.probabilities.scale * gradient.scale());
        gradients.dq = dq.data();
        gradients.dk = dk.data();
        gradients.dv = dv.data();
        products.backward(gradients);
        g.add(0, columns_of_heads(execution, dq, g.make(g.input_shape(0))), dq_scaled.scale);
        g.add(1, columns_of_heads(execution, dk, g.make(g.input_shape(1))), dk_scaled.scale);
        g.add(2, columns_of_heads(execution, dv, g.make(g.input_shape(2))), dv_scaled.scale);
    };
    return op.record(std::move(output), scaled.scale, {.reads = reads_inputs, .multiply_adds = multiply_adds},
                     backward);
}

/// Keys or values of a cache: lines of plain numbers, and the scale of data of which they are the numbers.
template <class T>
struct CachedRows {
    kernels::CachedLines<T> lines{};
    double scale = 1.0;
    std::size_t capacity = 0;
};

/// y [B,T,H d] of `cached_attention` as data, for B items of the cache that hold `sizes.keys` positions each. Row b
/// continues item `items[b]`. Data is rounded, as in `attention`, not plain numbers. Positions before the first
/// query's window stand as 0: they have weight 0, and the cache may hold them no longer.
template <class T>
[[nodiscard]] Tensor<T> cached_attention_in_formats(Tape<T>& tape, Site site, const AttentionSizes& sizes,
                                                    const Tensor<T>& query, std::span<const std::size_t> items,
                                                    const CachedRows<T>& keys, const CachedRows<T>& values, double size,
                                                    const Scaled& scaled) {
    using P = Accum<T>;
    const AttentionRounding rounding(tape, site);
    const auto first =
        static_cast<std::size_t>(view_mask(sizes).first(static_cast<std::ptrdiff_t>(sizes.keys - sizes.queries + 1)));
    const auto data = [&](const CachedRows<T>& cached) {
        Tensor<T> rows = tape.make(sizes.key_rows());
        const auto factor = static_cast<P>(1.0 / cached.scale);
        const std::size_t count = sizes.keys * sizes.depth, hidden = first * sizes.depth;
        Scratch<P> numbers(tape.execution(), count - hidden);
        for (std::size_t row = 0; row < sizes.batch * sizes.groups; ++row) {
            const std::size_t head = items[row / sizes.groups] * sizes.groups + row % sizes.groups;
            kernels::HeadLines<T>(cached.lines, static_cast<std::ptrdiff_t>(head),
                                  static_cast<std::ptrdiff_t>(cached.capacity),
                                  static_cast<std::ptrdiff_t>(sizes.depth))
                .load(active_isa(), static_cast<std::ptrdiff_t>(first), static_cast<std::ptrdiff_t>(sizes.keys),
                      numbers.data());
            T* const to = rows.data() + row * count;
            std::fill_n(to, hidden, T(0));
            std::transform(numbers.span().begin(), numbers.span().end(), to + hidden,
                           [factor](P x) { return static_cast<T>(factor * x); });
        }
        return rows;
    };
    const Tensor<T> q = rows_of_heads(tape.execution(), query, tape.make(sizes.query_rows())), k = data(keys),
                    v = data(values);
    const AttentionFactors factors = attention_factors(tape, site, sizes, query.scale() * keys.scale, size);
    Tensor<T> rows = tape.make(sizes.query_rows());
    static_cast<void>(attention_value(tape, rounding, sizes, factors, q, k, v,
                                      attention_out_factor(tape, factors, scaled, values.scale), rows));
    return columns_of_heads(tape.execution(), rows, tape.make(query.shape()));
}

/// Likewise for all rows of a call, whose keys and values it writes. Rows of several lengths, or in parts, are computed
/// one by one: a measured amax is then that of the row's part.
template <class T>
[[nodiscard]] Tensor<T> cached_attention_in_formats(Tape<T>& tape, Site site, const AttentionSizes& sizes,
                                                    const Tensor<T>& query, const CachedCall<T>& call,
                                                    const Tensor<T>& key, const Tensor<T>& value,
                                                    const CachedRows<T>& keys, const CachedRows<T>& values, double size,
                                                    const Scaled& scaled) {
    const std::size_t added = sizes.queries, part = call.part(), wide = query.dim(2);
    if (call.together()) {
        std::vector<std::size_t> items(sizes.batch);
        std::iota(items.begin(), items.end(), std::size_t{0});
        call.write(key, value, 0, added);
        return cached_attention_in_formats<T>(tape, site, sizes, query, items, keys, values, size, scaled);
    }
    Tensor<T> output = tape.make(query.shape());
    std::fill_n(output.data(), output.size(), T(0));  // of padding
    for (std::size_t begin = 0; begin < added; begin += part) {
        call.write(key, value, begin, begin + part);
        for (std::size_t b = 0; b < sizes.batch; ++b) {
            const kernels::CachedSpan& span = call.spans()[b];
            const std::size_t end = std::min(begin + part, static_cast<std::size_t>(span.count)),
                              item = static_cast<std::size_t>(span.item), at = (b * added + begin) * wide;
            if (end <= begin) continue;
            AttentionSizes own = sizes;
            own.batch = 1;
            own.queries = end - begin;
            own.keys = static_cast<std::size_t>(span.past) + end;
            Tensor<T> rows = tape.make({1, own.queries, wide});
            std::copy_n(query.data() + at, rows.size(), rows.data());
            rows.set_scale(query.scale());
            const Tensor<T> y =
                cached_attention_in_formats<T>(tape, site, own, rows, {&item, 1}, keys, values, size, scaled);
            std::copy_n(y.data(), y.size(), output.data() + at);
        }
    }
    return output;
}

}  // namespace unitscale::ops
