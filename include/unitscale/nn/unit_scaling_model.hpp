// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <cmath>
#include <cstddef>
#include <utility>

namespace unitscale::nn {

struct UnitScalingConfig {
    std::size_t vocabulary = 256;
    std::size_t width = 128;
    std::size_t depth = 8;
    std::size_t head_size = 64;
    std::size_t length = 256;
    ContextKind context = ContextKind::relative_attention;
    NormPlacement placement = NormPlacement::pre;
};

/// The character language model of the Unit Scaling paper: norms with gains and shifts behind the embedding, in the
/// blocks and in front of the readout; one of three context layers; relu feed-forward of 4 times the width; biases
/// everywhere, the readout included. The paper shifts the readout's scores by one place and trains a vector for the
/// first; here the labels are shifted, and no token is predicted from nothing.
/// Errors: a head size that does not divide the width; the errors of Decoder.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, appendix J.1. Test: tests/nn/unit_scaling_model_test.cpp
[[nodiscard]] inline DecoderConfig unit_scaling_config(const UnitScalingConfig& config) {
    check(config.head_size >= 1 && config.width % config.head_size == 0, "unit_scaling_config: width ", config.width,
          " is not divisible by heads of size ", config.head_size);
    return {.vocabulary = config.vocabulary,
            .width = config.width,
            .depth = config.depth,
            .heads = config.width / config.head_size,
            .length = config.length,
            .feed_forward = FeedForwardKind::relu,
            .norm = {.kind = NormKind::layer, .gains = true, .epsilon = 1e-3},
            .placement = config.placement,
            .context = {.kind = config.context},
            .positions = Positions::none,
            .bias = true,
            .readout_bias = true,
            .final_norm = true,
            .embedding_norm = true};
}

/// The initial values of that model's regular form, uniform: Glorot's for all layers; 1 for the embedding; in relative
/// attention width^-1/2 for queries, keys and values, frequencies^-1/2 for positions. A recipe with another
/// parametrisation than `standard` has its own standard deviations; the values are uniform there, too.
[[nodiscard]] inline InitialOptions unit_scaling_initial(const DecoderConfig& config, const Recipe& recipe) {
    InitialOptions options{.standard = InitialScale::glorot, .distribution = InitialDistribution::uniform};
    if (recipe.parametrisation == Parametrisation::standard && config.context.kind == ContextKind::relative_attention)
        for (const auto& [pattern, inputs] : {std::pair("*/attention/qkv/weight", config.width),
                                              {"*/attention/positions/weight", RelativeAttentionConfig{}.frequencies}})
            options.rules.push_back({.pattern = pattern, .stddev = 1.0 / std::sqrt(static_cast<double>(inputs))});
    return options;
}

}  // namespace unitscale::nn
