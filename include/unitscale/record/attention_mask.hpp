// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/kernels/attention_mask.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace unitscale::ops {

/// Numbers that are added to the logits m q k^T / d: see `attention_bias`.
struct AttentionBias {
    Tensor<float> numbers{};  ///< [T,S], [B,T,S] or [B,H,T,S]; extents of 1 repeat
    double seen = 1.0;        ///< the share of numbers that are not -infinity
};

/// What queries of attention see, beside causality. A copy shares the bias.
///   {.lengths = {5, 3}}                                     the keys of batch item 0 end at 5, of item 1 at 3
///   {.bias = attention_bias(Tensor<float>({T, S}, ...))}    numbers added to the logits
///   {.bias = attention_bias(Tensor<bool>({B, 1, T, S}))}    hides the keys where the tensor is false
/// Keys beyond a length, and keys with a bias of -infinity, have weight 0 and gradient 0 to the bit. The bias is data: it
/// has no gradient. A query that sees no key has the value 0.
/// Test: tests/record/attention_mask_test.cpp
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

/// The sizes of attention that a mask must fit.
struct AttentionMaskSizes {
    std::size_t batch = 1, heads = 1, queries = 0, keys = 0;
    bool causal = true;
};

/// Errors, in the name of `op`: lengths that are not one per batch item, or beyond the keys; lengths under causal
/// attention with T other than S; a bias that does not broadcast to [B,H,T,S].
inline void check_mask(const char* op, const AttentionMask& mask, const AttentionMaskSizes& sizes) {
    if (!mask.lengths.empty()) {
        check(mask.lengths.size() == sizes.batch, op, ": ", mask.lengths.size(), " lengths; expected one for each of ",
              sizes.batch, " batch items");
        for (const std::size_t length : mask.lengths)
            check(length <= sizes.keys, op, ": length ", length, "; expected at most ", sizes.keys, " keys");
        check(!sizes.causal || sizes.queries == sizes.keys, op, ": ", sizes.queries, " queries and ", sizes.keys,
              " keys; causal attention with lengths needs as many keys as queries");
    }
    if (!mask.bias) return;
    const Shape& shape = mask.bias->numbers.shape();
    const Shape full{sizes.batch, sizes.heads, sizes.queries, sizes.keys};
    bool fits = shape.size() >= 2 && shape.size() <= 4;
    const auto fits_axis = [&](std::size_t axis, std::size_t in_full) {
        fits = fits && (shape[axis] == full[in_full] || shape[axis] == 1);
    };
    if (fits) {
        fits = shape.back() == sizes.keys;
        fits_axis(shape.size() - 2, 2);
        if (shape.size() >= 3) fits_axis(0, 0);
        if (shape.size() == 4) fits_axis(1, 1);
    }
    check(fits, op, ": bias ", shape_text(shape), "; expected [T,S], [B,T,S] or [B,H,T,S] of ", shape_text(full),
          ", where all extents but S may be 1");
}

/// The mask as the kernels read it. It refers to `mask`. Causality, lengths and bias fit.
[[nodiscard]] inline kernels::AttentionMask view_mask(const AttentionMask& mask) {
    kernels::AttentionMask view;
    if (!mask.lengths.empty()) view.lengths = mask.lengths.data();
    if (!mask.bias) return view;
    const Shape& shape = mask.bias->numbers.shape();
    const auto extent = [&](std::size_t axis) { return static_cast<std::ptrdiff_t>(shape[axis]); };
    const std::size_t rank = shape.size();
    std::ptrdiff_t step = extent(rank - 1);
    const auto stride = [&](std::size_t axis) {
        const std::ptrdiff_t own = extent(axis) == 1 ? 0 : step;
        step *= extent(axis);
        return own;
    };
    view.bias = mask.bias->numbers.data();
    view.query_stride = stride(rank - 2);
    if (rank == 4) view.head_stride = stride(1);
    if (rank >= 3) view.batch_stride = stride(0);
    return view;
}

/// The mean number of keys that lengths and bias leave to a query, without causality. With lengths and a bias, the share
/// that the bias leaves is counted over all S keys.
[[nodiscard]] inline double mean_keys(const AttentionMask& mask, const AttentionMaskSizes& sizes) {
    auto keys = static_cast<double>(sizes.keys);
    if (!mask.lengths.empty()) {
        std::size_t sum = 0;
        for (const std::size_t length : mask.lengths) sum += length;
        keys = static_cast<double>(sum) / static_cast<double>(mask.lengths.size());
    }
    return mask.bias ? keys * mask.bias->seen : keys;
}

/// The pairs of a query and a key, over all batch items and heads, that causality and lengths leave.
[[nodiscard]] inline std::size_t seen_pairs(const AttentionMask& mask, const AttentionMaskSizes& sizes) {
    const auto pairs = [&](std::size_t length) {
        std::size_t sum = 0;
        for (std::size_t i = 0; i < sizes.queries; ++i)
            sum += std::min(length, sizes.causal ? i + 1 + sizes.keys - sizes.queries : length);
        return sum;
    };
    if (mask.lengths.empty()) return sizes.heads * sizes.batch * pairs(sizes.keys);
    std::size_t sum = 0;
    for (const std::size_t length : mask.lengths) sum += pairs(length);
    return sizes.heads * sum;
}

}  // namespace unitscale::ops
