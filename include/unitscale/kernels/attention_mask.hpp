// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/random_words.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace unitscale::kernels {

/// The keys that a query of attention sees beside causality, numbers added to its logits, and the dropout of its
/// weights. A row belongs to query i of head h in batch item b, with one element for each key. A causal query sees a
/// range of keys, [first(limit), seen(b, limit)), of which the bias may hide some. `limit` is the end by causality.
/// Test: tests/kernels/attention_mask_test.cpp
struct AttentionMask {
    const std::size_t* lengths = nullptr;  ///< [batch]: the keys of an item end there; null: at the last key
    std::ptrdiff_t window = 0;             ///< a causal query sees its last `window` keys; 0: all of them
    /// A number that is added to each logit; -infinity hides the key. Keys are next to each other. A stride of 0
    /// repeats the numbers. Null: none.
    const float* bias = nullptr;
    std::ptrdiff_t batch_stride = 0, head_stride = 0, query_stride = 0;
    double dropout = 0.0;  ///< probability that a weight becomes 0; the others are divided by 1 - dropout
    RandomKey key{};       ///< of dropout

    /// The keys that are seen of the first `limit`, without the bias.
    [[nodiscard]] std::ptrdiff_t seen(std::ptrdiff_t b, std::ptrdiff_t limit) const noexcept {
        return lengths == nullptr ? limit : std::min(limit, static_cast<std::ptrdiff_t>(lengths[b]));
    }
    /// The first key that is seen.
    [[nodiscard]] std::ptrdiff_t first(std::ptrdiff_t limit) const noexcept {
        return window > 0 && limit > window ? limit - window : 0;
    }
    [[nodiscard]] bool hides() const noexcept { return lengths != nullptr || bias != nullptr; }
    [[nodiscard]] const float* row(std::ptrdiff_t b, std::ptrdiff_t h, std::ptrdiff_t i) const noexcept {
        return bias + b * batch_stride + h * head_stride + i * query_stride;
    }
    /// Whether no key of [begin, end) is seen: there is none, or the bias hides all of them.
    [[nodiscard]] bool hides_all(std::ptrdiff_t b, std::ptrdiff_t h, std::ptrdiff_t i, std::ptrdiff_t begin,
                                 std::ptrdiff_t end) const noexcept {
        if (bias == nullptr || begin >= end) return begin >= end;
        const float* const numbers = row(b, h, i);
        return std::all_of(numbers + begin, numbers + end, [](float x) { return x == hidden; });
    }
    /// x[j] += factor times the bias of key j; -infinity for a hidden key.   x [count]
    template <class X, class P>
    void add_bias(X* x, std::ptrdiff_t b, std::ptrdiff_t h, std::ptrdiff_t i, std::ptrdiff_t count, P factor) const {
        if (bias == nullptr) return;
        const float* const numbers = row(b, h, i);
        for (std::ptrdiff_t j = 0; j < count; ++j)
            x[j] = numbers[j] == hidden
                       ? static_cast<X>(static_cast<P>(hidden))
                       : static_cast<X>(multiply_add(static_cast<P>(numbers[j]), factor, static_cast<P>(x[j])));
    }
    /// x[j] = value where the bias hides key j.   x [count]
    template <class X>
    void replace_hidden(X* x, std::ptrdiff_t b, std::ptrdiff_t h, std::ptrdiff_t i, std::ptrdiff_t count,
                        X value) const {
        if (bias == nullptr) return;
        const float* const numbers = row(b, h, i);
        for (std::ptrdiff_t j = 0; j < count; ++j) x[j] = numbers[j] == hidden ? value : x[j];
    }
    /// x[j] *= kept, or 0 where the weight of key j is dropped.   x [count]; `row`: number of the row among all;
    /// `keys`: length of all rows, which counts the random words.
    template <class X, class P>
    void drop(Isa isa, X* x, std::ptrdiff_t row, std::ptrdiff_t keys, std::ptrdiff_t count, P kept) const {
        constexpr std::ptrdiff_t at_once = 256;
        const auto first = static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>((keys + 3) / 4 * 4);
        const auto threshold = static_cast<std::uint32_t>(std::ceil(dropout * 0x1p24));
        std::array<std::uint32_t, static_cast<std::size_t>(at_once)> words;
        for (std::ptrdiff_t begin = 0; begin < count; begin += at_once) {
            const std::ptrdiff_t part = std::min(at_once, count - begin);
            random_words(isa, key, first + static_cast<std::uint64_t>(begin),
                         std::span(words).first(static_cast<std::size_t>(part)));
            for (std::ptrdiff_t j = 0; j < part; ++j)
                x[begin + j] = words[static_cast<std::size_t>(j)] >> 8 < threshold
                                   ? X(0)
                                   : static_cast<X>(static_cast<P>(x[begin + j]) * kept);
        }
    }

    static constexpr float hidden = -std::numeric_limits<float>::infinity();
};

}  // namespace unitscale::kernels
