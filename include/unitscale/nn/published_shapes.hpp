// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/nn/decoder.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace unitscale::nn {

/// gpt: learned positions, LayerNorm, gelu, biases, the token table as readout.
/// llama: rotary positions, RMSNorm, gated silu, no biases, a readout of its own.
enum class DecoderFamily { gpt, llama };

inline constexpr std::array<std::string_view, 2> decoder_family_names = {"gpt", "llama"};

[[nodiscard]] constexpr std::string_view name(DecoderFamily family) noexcept {
    return decoder_family_names[static_cast<std::size_t>(family)];
}

/// The sizes of a published decoder.
struct PublishedShape {
    std::string_view name;
    DecoderFamily family;
    std::size_t width, depth, heads;
    std::size_t kv_heads;  ///< key and value heads
    std::size_t hidden;    ///< feed-forward width
    std::size_t vocabulary;
    std::size_t length;  ///< positions of training
};

/// Cerebras-GPT and Llama 2, the models of the FP8 LLM paper and their siblings.
/// Reference: Dey et al. 2023, arXiv:2304.03208, table 1, with the 32 heads that the model card of 2.7B has; Touvron et
/// al. 2023, arXiv:2307.09288; Perez et al. 2023, arXiv:2309.17224, table 1.
inline constexpr std::array<PublishedShape, 10> published_shapes = {{
    {"gpt-111m", DecoderFamily::gpt, 768, 10, 12, 12, 3072, 50257, 2048},
    {"gpt-256m", DecoderFamily::gpt, 1088, 14, 17, 17, 4352, 50257, 2048},
    {"gpt-590m", DecoderFamily::gpt, 1536, 18, 12, 12, 6144, 50257, 2048},
    {"gpt-1.3b", DecoderFamily::gpt, 2048, 24, 16, 16, 8192, 50257, 2048},
    {"gpt-2.7b", DecoderFamily::gpt, 2560, 32, 32, 32, 10240, 50257, 2048},
    {"gpt-6.7b", DecoderFamily::gpt, 4096, 32, 32, 32, 16384, 50257, 2048},
    {"gpt-13b", DecoderFamily::gpt, 5120, 40, 40, 40, 20480, 50257, 2048},
    {"llama2-7b", DecoderFamily::llama, 4096, 32, 32, 32, 11008, 32000, 4096},
    {"llama2-13b", DecoderFamily::llama, 5120, 40, 40, 40, 13824, 32000, 4096},
    {"llama2-70b", DecoderFamily::llama, 8192, 80, 64, 8, 28672, 32000, 4096},
}};

/// All names, separated by commas.
[[nodiscard]] inline std::string published_shape_names() {
    std::string names;
    for (const PublishedShape& shape : published_shapes) (names += names.empty() ? "" : ", ") += shape.name;
    return names;
}

/// The shape of that name. Error: an unknown name; the message lists the known names.
[[nodiscard]] inline const PublishedShape& published_shape(std::string_view name) {
    const auto found = std::find_if(published_shapes.begin(), published_shapes.end(),
                                    [name](const PublishedShape& shape) { return shape.name == name; });
    check(found != published_shapes.end(), "shape: unknown name '", name, "'; expected one of ",
          published_shape_names());
    return *found;
}

/// The published model of that shape, with all that belongs to its family: norms with gains and an epsilon of 1e-5,
/// biases, positions, feed-forward, readout. Cerebras-GPT's gelu is z Phi(z).
/// Error: an unknown name. Test: tests/nn/published_shapes_test.cpp
[[nodiscard]] inline DecoderConfig published_config(std::string_view name) {
    const PublishedShape& shape = published_shape(name);
    const bool gpt = shape.family == DecoderFamily::gpt;
    return {.vocabulary = shape.vocabulary,
            .width = shape.width,
            .depth = shape.depth,
            .heads = shape.heads,
            .groups = shape.kv_heads == shape.heads ? 0 : shape.kv_heads,
            .length = shape.length,
            .hidden = shape.hidden,
            .feed_forward = gpt ? FeedForwardKind::gelu : FeedForwardKind::gated_silu,
            .norm = {.kind = gpt ? NormKind::layer : NormKind::rms, .gains = true, .epsilon = 1e-5},
            .positions = gpt ? Positions::learned : Positions::rotary,
            .bias = gpt,
            .tied = gpt};
}

/// The number of trained values of a decoder, from its configuration alone: nothing is allocated.
/// With V tokens, L positions, width d, keys of k columns, hidden columns f and N blocks, it is
///   V d + L d + N (2 d q + 2 d k + (2 or, with a gate, 3) d f + biases + norms) + the last norm + V d
/// Queries have q columns: d, or heads times the head size. Only learned positions have the second term, and only a
/// readout of its own has the last one.
/// Errors: context layers other than attention; heads that do not divide the width.
/// Test: tests/nn/published_shapes_test.cpp
[[nodiscard]] inline std::size_t parameter_count(const DecoderConfig& config) {
    check(config.context.kind == ContextKind::attention, "parameter_count: context layers of kind ",
          name(config.context.kind), "; expected attention");
    check(config.heads >= 1 && (config.head_size > 0 || config.width % config.heads == 0), "parameter_count: width ",
          config.width, " is not divisible by ", config.heads, " heads");
    const std::size_t width = config.width, hidden = config.hidden_columns(), keys = config.key_columns();
    const auto linear = [&](std::size_t in, std::size_t out) { return in * out + (config.bias ? out : 0); };
    const std::size_t norm = !config.norm.gains ? 0 : config.norm.kind == NormKind::layer ? 2 * width : width;
    const std::size_t queries = config.heads * config.head_columns();
    std::size_t attention = linear(width, queries) + linear(queries, width) + 2 * linear(width, keys);
    if (config.query_key_value_bias && !config.bias) attention += queries + 2 * keys;
    const std::size_t inner = config.feed_forward == FeedForwardKind::gated_silu ? 2 : 1;
    const std::size_t feed_forward = inner * linear(width, hidden) + linear(hidden, width);
    const std::size_t norms = config.placement == NormPlacement::none ? 0 : 2 * norm;
    std::size_t count = config.vocabulary * width + config.depth * (attention + feed_forward + norms);
    if (config.positions == Positions::learned) count += config.length * width;
    if (config.embedding_norm) count += norm;
    if (config.placement == NormPlacement::pre || config.final_norm) count += norm;
    if (!config.tied) count += config.vocabulary * width;
    if (config.readout_bias) count += config.vocabulary;
    return count;
}

}  // namespace unitscale::nn
