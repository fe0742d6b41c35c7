// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace unitscale::train {

/// Tokens and the tokens that follow them: labels[b,t] is the successor of ids[b,t]. Both [B,T].
struct Batch {
    Tensor<std::int32_t> ids{};
    Tensor<std::int32_t> labels{};
};

/// The label that `ops::softmax_cross_entropy` does not count, unless its options name another one.
inline constexpr std::int32_t ignored_label = -1;

/// The share of a token sequence that is for training; the rest, at its end, is for validation.
inline constexpr double training_share = 0.9;

/// The parts of a token sequence: the first nine tenths for training, the last tenth for validation and test.
struct Split {
    std::span<const std::int32_t> training{};
    std::span<const std::int32_t> validation{};
    std::span<const std::int32_t> test{};  ///< empty unless asked for
};

/// Cuts a token sequence in two: training and validation. With `test` the last tenth is halved: its first half is for
/// validation, its second half for the test. The training tokens are the same. `unit` is a token's name in errors.
/// Error: a part is not longer than `length` tokens. Test: tests/train/batches_test.cpp
[[nodiscard]] inline Split split(std::span<const std::int32_t> tokens, std::size_t length, bool test = false,
                                 std::string_view unit = "characters") {
    const auto border = static_cast<std::size_t>(static_cast<double>(tokens.size()) * training_share);
    const std::span<const std::int32_t> held_out = tokens.subspan(border);
    const auto validation = held_out.first(test ? held_out.size() / 2 : held_out.size());
    check(validation.size() > length && border > length, "data: ", tokens.size(), ' ', unit,
          " are too few; sequences of ", length, " need at least ", (test ? 20 : 10) * length + (test ? 11 : 1),
          ", so that ", test ? "each half of " : "", "the last tenth holds one");
    return {tokens.first(border), validation, held_out.subspan(validation.size())};
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

/// Takes the first `count` labels of each row out of the loss: they become `ignored_label`.
inline void mask_first(Batch& batch, std::size_t count) {
    const std::size_t rows = batch.ids.shape()[0], length = batch.ids.shape()[1];
    for (std::size_t row = 0; row < rows; ++row)
        std::fill_n(batch.labels.data() + row * length, std::min(count, length), ignored_label);
}

/// The number of disjoint windows of `length` tokens, each with its successor.
[[nodiscard]] inline std::size_t window_count(std::size_t tokens, std::size_t length) noexcept {
    return tokens == 0 ? 0 : (tokens - 1) / length;
}

}  // namespace unitscale::train
