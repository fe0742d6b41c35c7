// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/train/batches.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>

namespace unitscale::train {

/// Multiply nats by it to get bits.
inline constexpr double bits_per_nat = 1.0 / std::numbers::ln2;

/// Mean loss of a language model over disjoint windows of a token sequence, in bits per token.
/// It runs without gradients and dropout; forward factors are the factors of training.
/// At most `most` windows are used, spread evenly over the sequence.
/// The first `masked` predictions of each window, which see little text, do not count.
/// The batches' means are formed in Accum<T> and summed in double: no sum is rounded to T.
/// Test: tests/train/evaluate_test.cpp
template <class T>
[[nodiscard]] double evaluate(nn::Decoder<T>& model, Tape<T>& tape, std::span<const std::int32_t> tokens,
                              std::size_t length, std::size_t rows,
                              std::size_t most = std::numeric_limits<std::size_t>::max(), std::size_t masked = 0) {
    check(rows >= 1 && length >= 1, "evaluate: ", rows, " rows of sequences of ", length,
          " tokens; expected at least 1 of each");
    check(masked < length, "evaluate: ", masked, " masked predictions; expected fewer than the sequence's ", length);
    const std::size_t windows = window_count(tokens.size(), length);
    check(windows >= 1, "evaluate: ", tokens.size(), " tokens; expected more than one sequence of ", length);
    const std::size_t used = std::min(windows, std::max<std::size_t>(most, 1));
    double sum = 0.0;
    for (std::size_t first = 0; first < used; first += rows) {
        const std::size_t count = std::min(rows, used - first);
        Batch batch = make_batch(count, length);
        for (std::size_t row = 0; row < count; ++row)
            set_row(batch, row, tokens, (first + row) * windows / used * length);
        mask_first(batch, masked);
        tape.begin_step({.training = false, .gradients = false});
        const Variable<T> logits = model(tape, batch.ids);
        sum += static_cast<double>(count * (length - masked)) * ops::softmax_cross_entropy(logits, batch.labels).item();
    }
    return sum / static_cast<double>(used * (length - masked)) * bits_per_nat;
}

}  // namespace unitscale::train
