// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/kernels/attention_mask.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace unitscale::ops {

/// Numbers that are added to the logits m q k^T / d: see `attention_bias`.
struct AttentionBias {
    Tensor<float> numbers{};  ///< [T,S], [B,T,S] or [B,H,T,S]; extents of 1 repeat
    double seen = 1.0;        ///< the share of numbers that are not -infinity
};

/// The keys that queries of attention see, beside causality, and numbers added to the logits. A copy shares the bias.
///   {.lengths = {5, 3}}                                     the keys of batch item 0 end at 5, of item 1 at 3
///   {.bias = attention_bias(Tensor<float>({T, S}, ...))}    numbers added to the logits
///   {.bias = attention_bias(Tensor<bool>({B, 1, T, S}))}    hides the keys where the tensor is false
/// Keys beyond a length, and keys with a bias of -infinity, have weight 0 and gradient 0 to the bit. The bias is data:
/// it has no gradient. A query that sees no key has the value 0.
/// Test: tests/record/attention_sizes_test.cpp
struct AttentionMask {
    std::vector<std::size_t> lengths{};           ///< [B], each at most S; empty: all S keys
    std::shared_ptr<const AttentionBias> bias{};  ///< null: none

    [[nodiscard]] bool hides() const noexcept { return !lengths.empty() || bias != nullptr; }
};

/// The bias of a mask: numbers to add to the logits. Error: NaN or +infinity among them.
[[nodiscard]] inline std::shared_ptr<const AttentionBias> attention_bias(Tensor<float> numbers) {
    std::size_t hidden = 0;
    for (const float number : numbers.span()) {
        check(number <= std::numeric_limits<float>::max(), "attention_bias: holds ", number,
              "; expected finite numbers or -infinity");
        if (number == kernels::AttentionMask::hidden) ++hidden;
    }
    const double share = numbers.empty() ? 0.0 : static_cast<double>(hidden) / static_cast<double>(numbers.size());
    return std::make_shared<const AttentionBias>(AttentionBias{std::move(numbers), 1.0 - share});
}
/// The bias that hides the keys where `seen` is 0 or false.
template <std::integral C>
[[nodiscard]] std::shared_ptr<const AttentionBias> attention_bias(const Tensor<C>& seen) {
    Tensor<float> numbers(seen.shape());
    std::transform(seen.data(), seen.data() + seen.size(), numbers.data(),
                   [](C c) { return c == C(0) ? kernels::AttentionMask::hidden : 0.0f; });
    return attention_bias(std::move(numbers));
}

struct AttentionOptions {
    std::size_t heads = 1;                       ///< H, query heads
    std::size_t groups = 0;                      ///< G, key and value heads, each serving H/G query heads; 0: H
    double mult = 1.0;                           ///< m, the logit multiplier (alpha_attn in u-µP)
    bool causal = true;                          ///< a query sees the keys up to its own position
    std::optional<std::size_t> factor_length{};  ///< s in the factor; empty: the mean number of keys
    /// A causal query sees the last `window` keys up to its own position; 0: all of them.
    std::size_t window = 0;
    AttentionMask mask{};  ///< lengths of keys, and numbers added to the logits
    double dropout = 0.0;  ///< probability that a weight becomes 0, in steps that train
};

/// q, y [B,T,H d]   k, v [B,S,G d]
struct AttentionSizes {
    std::size_t batch = 1, heads = 1, groups = 1, queries = 0, keys = 0, depth = 0;
    bool causal = true;
    double mult = 1.0;           ///< m
    double factor_length = 0.0;  ///< s in the factors
    std::size_t window = 0;      ///< as in AttentionOptions
    AttentionMask mask{};
    double dropout = 0.0;  ///< of weights
    RandomKey dropout_key{};

    [[nodiscard]] Shape query_rows() const { return {batch, heads, queries, depth}; }
    [[nodiscard]] Shape key_rows() const { return {batch, groups, keys, depth}; }
};

/// Errors, in the name of `op`: lengths that are not one per batch item, or beyond the keys; lengths under causal
/// attention with T other than S; a bias that does not broadcast to [B,H,T,S].
inline void check_mask(const char* op, const AttentionSizes& sizes) {
    const AttentionMask& mask = sizes.mask;
    if (!mask.lengths.empty()) {
        check(mask.lengths.size() == sizes.batch, op, ": ", mask.lengths.size(), " lengths; expected one for each of ",
              sizes.batch, " batch items");
        for (const std::size_t length : mask.lengths)
            check(length <= sizes.keys, op, ": length ", length, "; expected at most ", sizes.keys, " keys");
        check(!sizes.causal || sizes.queries == sizes.keys, op, ": ", sizes.queries, " queries and ", sizes.keys,
              " keys; causal attention with lengths needs as many keys as queries");
    }
    if (!mask.bias) return;
    const Shape &shape = mask.bias->numbers.shape(), full{sizes.batch, sizes.heads, sizes.queries, sizes.keys};
    bool fits = shape.size() >= 2 && shape.size() <= 4 && shape.back() == sizes.keys;
    const auto fits_axis = [&](std::size_t axis, std::size_t in_full) {
        fits = fits && (shape[axis] == full[in_full] || shape[axis] == 1);
    };
    if (fits) {
        fits_axis(shape.size() - 2, 2);
        if (shape.size() >= 3) fits_axis(0, 0);
        if (shape.size() == 4) fits_axis(1, 1);
    }
    check(fits, op, ": bias ", shape_text(shape), "; expected [T,S], [B,T,S] or [B,H,T,S] of ", shape_text(full),
          ", where all extents but S may be 1");
}

/// The mean number of keys that lengths and bias leave to a query, without causality. With lengths and a bias, the
/// share that the bias leaves is counted over all S keys.
[[nodiscard]] inline double mean_keys(const AttentionSizes& sizes) {
    auto keys = static_cast<double>(sizes.keys);
    if (const auto& lengths = sizes.mask.lengths; !lengths.empty())
        keys = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0})) /
               static_cast<double>(lengths.size());
    return sizes.mask.bias ? keys * sizes.mask.bias->seen : keys;
}

/// The pairs of a query and a key, over all batch items and heads, that causality, a window and lengths leave.
[[nodiscard]] inline std::size_t seen_pairs(const AttentionSizes& sizes) {
    const std::size_t window = sizes.window == 0 ? sizes.keys : sizes.window;
    const auto pairs = [&](std::size_t length) {
        std::size_t sum = 0;
        for (std::size_t i = 0; i < sizes.queries; ++i) {
            const std::size_t end = sizes.causal ? i + 1 + sizes.keys - sizes.queries : length,
                              first = end - std::min(end, window);
            sum += std::max(std::min(length, end), first) - first;
        }
        return sum;
    };
    if (sizes.mask.lengths.empty()) return sizes.heads * sizes.batch * pairs(sizes.keys);
    std::size_t sum = 0;
    for (const std::size_t length : sizes.mask.lengths) sum += pairs(length);
    return sizes.heads * sum;
}

/// The sizes of attention of q to k and v, checked. Dropout and its key are left to the op.
/// Errors, in the name of `op`: ranks other than 3, shapes that do not fit, heads that do not divide, causal with more
/// queries than keys, a window without causality, m not positive, dropout outside [0, 1); as `check_mask`.
[[nodiscard]] inline AttentionSizes attention_sizes(const char* op, const Shape& q, const Shape& k, const Shape& v,
                                                    const AttentionOptions& options) {
    const std::size_t heads = options.heads, groups = options.groups == 0 ? heads : options.groups;
    check(q.size() == 3 && k.size() == 3 && v.size() == 3, op, ": q ", shape_text(q), ", k ", shape_text(k), " and v ",
          shape_text(v), "; expected [B,T,H d], [B,S,G d] and [B,S,G d]");
    check(heads >= 1 && heads % groups == 0, op, ": ", heads, " heads and ", groups,
          " groups; expected groups to divide heads");
    check(q[2] % heads == 0, op, ": q ", shape_text(q), " is not divisible by ", heads, " heads");
    const std::size_t depth = q[2] / heads, keys = k[1], queries = q[1];
    check(k == v && k[0] == q[0] && k[2] == groups * depth, op, ": q ", shape_text(q), ", k ", shape_text(k), " and v ",
          shape_text(v), " do not fit; expected k and v [", q[0], ",S,", groups * depth, "]");
    check(!options.causal || queries <= keys, op, ": ", queries, " queries and ", keys,
          " keys; causal attention needs at least as many keys as queries");
    check(options.causal || options.window == 0, op, ": a window of ", options.window,
          " keys without causality; expected 0");
    check_positive(op, "mult", options.mult);
    check(options.dropout >= 0.0 && options.dropout < 1.0, op, ": dropout is ", options.dropout,
          "; expected a number in [0,1)");
    AttentionSizes sizes{.batch = q[0],
                         .heads = heads,
                         .groups = groups,
                         .queries = queries,
                         .keys = keys,
                         .depth = depth,
                         .causal = options.causal,
                         .mult = options.mult,
                         .window = options.window,
                         .mask = options.mask};
    check_mask(op, sizes);
    sizes.factor_length = options.factor_length ? static_cast<double>(*options.factor_length) : mean_keys(sizes);
    return sizes;
}

/// The mask as the kernels read it. It refers to the mask of `sizes`.
[[nodiscard]] inline kernels::AttentionMask view_mask(const AttentionSizes& sizes) {
    kernels::AttentionMask view{
        .window = static_cast<std::ptrdiff_t>(sizes.window), .dropout = sizes.dropout, .key = sizes.dropout_key};
    if (!sizes.mask.lengths.empty()) view.lengths = sizes.mask.lengths.data();
    if (!sizes.mask.bias) return view;
    const Tensor<float>& numbers = sizes.mask.bias->numbers;
    const auto extent = [&](std::size_t axis) { return static_cast<std::ptrdiff_t>(numbers.shape()[axis]); };
    const std::size_t rank = numbers.rank();
    std::ptrdiff_t step = extent(rank - 1);
    const auto stride = [&](std::size_t axis) {
        const std::ptrdiff_t own = extent(axis) == 1 ? 0 : step;
        step *= extent(axis);
        return own;
    };
    view.bias = numbers.data();
    view.query_stride = stride(rank - 2);
    if (rank == 4) view.head_stride = stride(1);
    if (rank >= 3) view.batch_stride = stride(0);
    return view;
}

}  // namespace unitscale::ops
