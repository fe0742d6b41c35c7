// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/attention.hpp>
#include <unitscale/nn/feed_forward.hpp>
#include <unitscale/nn/residual_layer.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::nn {

struct TransformerBlockConfig {
    AttentionConfig attention{};
    FeedForwardConfig feed_forward{};
    NormConfig norm{};
    NormPlacement placement = NormPlacement::pre;
    std::optional<ResidualRule> residual{};  ///< empty: the recipe's rule
    double dropout = 0.0;                    ///< on each branch's output
    bool recompute = false;                  ///< keep x only and run the block again backward (Tape::recompute)
    std::size_t index = 0;                   ///< this block's place among `count` blocks
    std::size_t count = 1;

    /// Residual layer number `part` among `parts` of each block.
    [[nodiscard]] ResidualLayerConfig layer(std::size_t part, std::size_t parts) const {
        ResidualLayerConfig config{.norm = norm,
                                   .placement = placement,
                                   .residual = residual,
                                   .dropout = dropout,
                                   .index = parts * index + part,
                                   .count = parts * count,
                                   .blocks = count};
        config.norm.width = attention.width;
        return config;
    }
    /// The block's name counted from the end, for the patterns of recipes.
    [[nodiscard]] std::string alias() const { return concatenate("block-", count - std::min(index, count)); }
};

/// A transformer block: two residual layers, attention and feed-forward. x, y [B,T,width]. Without causal attention it
/// is the block of an encoder; `mask` then holds the lengths of padded rows. `mask` and `past` as in Attention.
/// Test: tests/nn/transformer_block_test.cpp
template <class T>
class TransformerBlock {
public:
    TransformerBlock(const std::string& path, const TransformerBlockConfig& config)
        : name_(last_name(path)),
          config_(config),
          attention_layer_(path + "/attention_norm", config.layer(0, 2)),
          attention_(path + "/attention", config.attention),
          ffn_layer_(path + "/ffn_norm", config.layer(1, 2)),
          ffn_(path + "/ffn", config.feed_forward) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x, const ops::KeyValueRows<T>* past = nullptr) {
        if (past == nullptr) return (*this)(std::move(x), ops::AttentionMask{});
        return layers(std::move(x), [&](Variable<T> inner) { return attention_(std::move(inner), past); });
    }
    [[nodiscard]] Variable<T> operator()(Variable<T> x, const ops::AttentionMask& mask) {
        const auto run = [this, mask](Variable<T> again) {
            return layers(std::move(again), [&](Variable<T> inner) { return attention_(std::move(inner), mask); });
        };
        return config_.recompute ? x.tape("TransformerBlock").recompute(x, run) : run(x);
    }

    void collect(std::vector<Parameter<T>*>& parameters) {
        attention_layer_.collect(parameters);
        attention_.collect(parameters);
        ffn_layer_.collect(parameters);
        ffn_.collect(parameters);
    }

private:
    template <class Attend>
    [[nodiscard]] Variable<T> layers(Variable<T> x, const Attend& attend) {
        const auto scope = x.tape("TransformerBlock").scope(name_, config_.alias());
        return ffn_layer_(attention_layer_(std::move(x), attend), ffn_);
    }

    std::string name_;
    TransformerBlockConfig config_;
    ResidualLayer<T> attention_layer_;
    Attention<T> attention_;
    ResidualLayer<T> ffn_layer_;
    FeedForward<T> ffn_;
};

struct EncoderDecoderBlockConfig {
    TransformerBlockConfig block{};  ///< its attention is the self-attention
    CrossAttentionConfig cross{};
};

/// The block of a decoder that reads an encoder's output: three residual layers, self-attention, attention to the
/// context, feed-forward. x, y [B,T,width], context [B,S,cross.context_width].
/// `mask` is the self-attention's; `context_mask` holds the lengths of the context's padded rows.
/// Errors: widths of the two attentions that differ; recompute, which keeps one input only.
/// Test: tests/nn/transformer_block_test.cpp
template <class T>
class EncoderDecoderBlock {
public:
    EncoderDecoderBlock(const std::string& path, const EncoderDecoderBlockConfig& config)
        : name_(last_name(path)),
          config_(checked(path, config)),
          attention_layer_(path + "/attention_norm", config.block.layer(0, 3)),
          attention_(path + "/attention", config.block.attention),
          cross_layer_(path + "/cross_norm", config.block.layer(1, 3)),
          cross_(path + "/cross", config.cross),
          ffn_layer_(path + "/ffn_norm", config.block.layer(2, 3)),
          ffn_(path + "/ffn", config.block.feed_forward) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x, Variable<T> context,
                                         const ops::AttentionMask& context_mask = {},
                                         const ops::AttentionMask& mask = {}) {
        const auto scope = x.tape("EncoderDecoderBlock").scope(name_, config_.block.alias());
        x = attention_layer_(std::move(x), [&](Variable<T> inner) { return attention_(std::move(inner), mask); });
        x = cross_layer_(std::move(x),
                         [&](Variable<T> inner) { return cross_(std::move(inner), context, context_mask); });
        return ffn_layer_(std::move(x), ffn_);
    }

    void collect(std::vector<Parameter<T>*>& parameters) {
        attention_layer_.collect(parameters);
        attention_.collect(parameters);
        cross_layer_.collect(parameters);
        cross_.collect(parameters);
        ffn_layer_.collect(parameters);
        ffn_.collect(parameters);
    }

private:
    static const EncoderDecoderBlockConfig& checked(const std::string& path, const EncoderDecoderBlockConfig& config) {
        check(config.block.attention.width == config.cross.width, "EncoderDecoderBlock ", path,
              ": self-attention of width ", config.block.attention.width, " and attention to the context of width ",
              config.cross.width, "; expected equal widths");
        check(!config.block.recompute, "EncoderDecoderBlock ", path,
              ": recompute keeps one input only, and the block has two; expected false");
        return config;
    }

    std::string name_;
    EncoderDecoderBlockConfig config_;
    ResidualLayer<T> attention_layer_;
    Attention<T> attention_;
    ResidualLayer<T> cross_layer_;
    CrossAttention<T> cross_;
    ResidualLayer<T> ffn_layer_;
    FeedForward<T> ffn_;
};

}  // namespace unitscale::nn
