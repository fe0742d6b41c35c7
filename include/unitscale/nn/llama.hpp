// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/decoder.hpp>

#include <cstddef>

namespace unitscale::nn {

struct LlamaConfig {
    std::size_t vocabulary = 256;
    std::size_t width = 128;
    std::size_t depth = 4;
    std::size_t head_size = 64;
    std::size_t key_value_heads = 0;  ///< each serves heads / key_value_heads query heads; 0: as many as query heads
    std::size_t length = 128;
};

/// The decoder that the u-µP paper trains: RMSNorm without gains, gated silu of 2.75 times the width, rotary positions,
/// optionally grouped queries, an untied readout, no biases. The recipe gives its residual rule and multipliers.
/// Errors: a head size that does not divide the width; the errors of Decoder.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix; Touvron et al. 2023, arXiv:2302.13971.
/// Test: tests/nn/llama_test.cpp
[[nodiscard]] inline DecoderConfig llama_config(const LlamaConfig& config) {
    check(config.head_size >= 1 && config.width % config.head_size == 0, "llama_config: width ", config.width,
          " is not divisible by heads of size ", config.head_size);
    return {.vocabulary = config.vocabulary,
            .width = config.width,
            .depth = config.depth,
            .heads = config.width / config.head_size,
            .groups = config.key_value_heads,
            .length = config.length,
            .hidden_ratio = 2.75,
            .feed_forward = FeedForwardKind::gated_silu,
            .norm = {.kind = NormKind::rms, .gains = false},
            .placement = NormPlacement::pre,
            .positions = Positions::rotary};
}

}  // namespace unitscale::nn
