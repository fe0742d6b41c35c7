// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unitscale::train {

/// Tokens and the tokens that follow them: labels[b,t] is the successor of ids[b,t]. Both [B,T].
struct Batch {
    Tensor<std::int32_t> ids{};
    Tensor<std::int32_t> labels{};
};

/// The share of a token sequence that is for training; the rest, at its end, is for validation.
inline constexpr double training_share = 0.9;

/// Training and validation tokens: the first nine tenths and the last tenth.
struct Split {
    std::span<const std::int32_t> training{};
    std::span<const std::int32_t> validation{};
};

/// Cuts a token sequence in two. Error: a part is not longer than `length` tokens.
/// Test: tests/train/batches_test.cpp
[[nodiscard]] inline Split split(std::span<const std::int32_t> tokens, std::size_t length) {
    const auto border = static_cast<std::size_t>(static_cast<double>(tokens.size()) * training_share);
    check(tokens.size() - border > length && border > length, "data: ", tokens.size(),
          " characters are too few; sequences of ", length, " need at least ", 10 * length + 1,
          ", so that the last tenth holds one");
    return {tokens.first(border), tokens.subspan(border)};
}

/// Allocates a batch of `rows` sequences of `length` tokens.
[[nodiscard]] inline Batch make_batch(std::size_t rows, std::size_t length) {
    return {Tensor<std::int32_t>(Shape{rows, length}), Tensor<std::int32_t>(Shape{rows, length})};
}

/// Copies the window that starts at `start` into row `row` of a batch.
inline void set_row(Batch& batch, std::size_t row, std::span<const std::int32_t> tokens, std::size_t start) {
    const std::size_t length = batch.ids.shape()[1];
    std::copy_n(tokens.data() + start, length, batch.ids.data() + row * length);
    std::copy_n(tokens.data() + start + 1, length, batch.labels.data() + row * length);
}

/// Fills the rows of a training batch with windows at random places.
/// Row r of the batch depends on (key, step, first_row + r) alone.
/// The micro-batches of one step (first_row = 0, B, 2B, ...) therefore hold the rows of the whole step's batch.
inline void fill_random(Batch& batch, std::span<const std::int32_t> tokens, RandomKey key, std::uint64_t step,
                        std::size_t first_row = 0) {
    const std::size_t rows = batch.ids.shape()[0], length = batch.ids.shape()[1];
    const std::uint64_t places = tokens.size() - length;
    const RandomKey stream{key.seed, mix(key.stream, step)};
    for (std::size_t row = 0; row < rows; ++row) {
        const auto block = random_block(stream, first_row + row);
        const std::uint64_t word = (std::uint64_t{block[0]} << 32) | block[1];
        set_row(batch, row, tokens, static_cast<std::size_t>(word % places));
    }
}

/// The number of disjoint windows of `length` tokens, each with its successor.
[[nodiscard]] inline std::size_t window_count(std::size_t tokens, std::size_t length) noexcept {
    return tokens == 0 ? 0 : (tokens - 1) / length;
}

}  // namespace unitscale::train
