// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/attention.hpp>
#include <unitscale/nn/context.hpp>
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
    ContextConfig context{};  ///< the kind of the first layer, and what kinds other than attention need
    FeedForwardConfig feed_forward{};
    NormConfig norm{};
    NormPlacement placement = NormPlacement::pre;
    std::optional<ResidualRule> residual{};  ///< empty: the recipe's rule
    double dropout = 0.0;                    ///< on each branch's output
    bool recompute = false;                  ///< keep x only and run the block again backward (Tape::recompute)
    /// Share of the rows of y that carry a gradient, in the last block of a model with sparse losses: see
    /// TransformerBlock.
    double gradient_share = 1.0;
    std::size_t index = 0;  ///< this block's place among `count` blocks
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
        // In front of attention, the norm's output feeds keys and values: all its rows carry a gradient.
        if (placement != NormPlacement::pre || part > 0) config.norm.gradient_share = gradient_share;
        return config;
    }
    /// With `gradient_share` for the linear layers too. Errors: a share outside (0, 1]; a share below 1 for
    /// another context layer than attention.
    [[nodiscard]] TransformerBlockConfig with_shares() const {
        check(gradient_share > 0.0 && gradient_share <= 1.0, "TransformerBlock: gradient_share is ", gradient_share,
              "; expected a number above 0, at most 1");
        check(gradient_share == 1.0 || context.kind == ContextKind::attention, "TransformerBlock: gradient_share is ",
              gradient_share, " with a context layer of kind ", name(context.kind), "; expected attention");
        TransformerBlockConfig config = *this;
        config.attention.gradient_share = config.feed_forward.gradient_share = gradient_share;
        return config;
    }
    /// The block's name counted from the end, for the patterns of recipes.
    [[nodiscard]] std::string alias() const { return concatenate("block-", count - std::min(index, count)); }
};

/// A transformer block: two residual layers, attention and feed-forward. x, y [B,T,width]. Without causal attention it
/// is the block of an encoder; `mask` then holds the lengths of padded rows. `mask` and `past` as in Attention.
/// `.context` puts another layer in the place of attention (nn::Context), with a norm named after it.
/// Sparse gradients: if only a share r of the N rows of y carries a gradient, so do the rows of every op after
/// attention. A sum over rows has r N terms, and the betas of weights and gains are (r N)^-1/2 (`gradient_share`).
/// Attention passes the gradient on to the keys and values of all N rows. Each of them gathers r times as many terms as
/// it would without zeros, and has the variance r. The variance of the sum is r N again.
/// The share changes no forward value and no proportion of one parameter's gradients.
/// Test: tests/nn/transformer_block_test.cpp
template <class T>
class TransformerBlock {
public:
    TransformerBlock(const std::string& path, const TransformerBlockConfig& config);

    [[nodiscard]] Variable<T> operator()(Variable<T> x, const ops::KeyValueRows<T>* past = nullptr);
    [[nodiscard]] Variable<T> operator()(Variable<T> x, const ops::AttentionMask& mask);

    void collect(std::vector<Parameter<T>*>& parameters);

private:
    template <class Mix>
    [[nodiscard]] Variable<T> layers(Variable<T> x, const Mix& mix) {
        const auto scope = x.tape("TransformerBlock").scope(name_, config_.alias());
        return ffn_layer_(context_layer_(std::move(x), mix), ffn_);
    }

    std::string name_;
    TransformerBlockConfig config_;
    ResidualLayer<T> context_layer_;
    Context<T> context_;
    ResidualLayer<T> ffn_layer_;
    FeedForward<T> ffn_;
};

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
TransformerBlock<T>::TransformerBlock(const std::string& path, const TransformerBlockConfig& config)
    : name_(last_name(path)),
      config_(config.with_shares()),
      context_layer_(concatenate(path, '/', Context<T>::layer_name(config.context.kind), "_norm"), config.layer(0, 2)),
      context_(path, config.context, config_.attention),
      ffn_layer_(path + "/ffn_norm", config.layer(1, 2)),
      ffn_(path + "/ffn", config_.feed_forward) {}

template <class T>
Variable<T> TransformerBlock<T>::operator()(Variable<T> x, const ops::KeyValueRows<T>* past) {
    if (past == nullptr) return (*this)(std::move(x), ops::AttentionMask{});
    return layers(std::move(x), [&](Variable<T> inner) { return context_(std::move(inner), past); });
}

template <class T>
Variable<T> TransformerBlock<T>::operator()(Variable<T> x, const ops::AttentionMask& mask) {
    const auto run = [this, mask](Variable<T> again) {
        return layers(std::move(again), [&](Variable<T> inner) { return context_(std::move(inner), mask); });
    };
    return config_.recompute ? x.tape("TransformerBlock").recompute(x, run) : run(x);
}

template <class T>
void TransformerBlock<T>::collect(std::vector<Parameter<T>*>& parameters) {
    context_layer_.collect(parameters);
    context_.collect(parameters);
    ffn_layer_.collect(parameters);
    ffn_.collect(parameters);
}

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
    EncoderDecoderBlock(const std::string& path, const EncoderDecoderBlockConfig& config);

    [[nodiscard]] Variable<T> operator()(Variable<T> x, Variable<T> context,
                                         const ops::AttentionMask& context_mask = {},
                                         const ops::AttentionMask& mask = {});

    void collect(std::vector<Parameter<T>*>& parameters);

private:
    static EncoderDecoderBlockConfig checked(const std::string& path, EncoderDecoderBlockConfig config) {
        check(config.block.attention.width == config.cross.width, "EncoderDecoderBlock ", path,
              ": self-attention of width ", config.block.attention.width, " and attention to the context of width ",
              config.cross.width, "; expected equal widths");
        check(!config.block.recompute, "EncoderDecoderBlock ", path,
              ": recompute keeps one input only, and the block has two; expected false");
        config.block = config.block.with_shares();
        config.cross.gradient_share = config.block.gradient_share;
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

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
EncoderDecoderBlock<T>::EncoderDecoderBlock(const std::string& path, const EncoderDecoderBlockConfig& config)
    : name_(last_name(path)),
      config_(checked(path, config)),
      attention_layer_(path + "/attention_norm", config.block.layer(0, 3)),
      attention_(path + "/attention", config_.block.attention),
      cross_layer_(path + "/cross_norm", config.block.layer(1, 3)),
      cross_(path + "/cross", config_.cross),
      ffn_layer_(path + "/ffn_norm", config.block.layer(2, 3)),
      ffn_(path + "/ffn", config_.block.feed_forward) {}

template <class T>
Variable<T> EncoderDecoderBlock<T>::operator()(Variable<T> x, Variable<T> context,
                                               const ops::AttentionMask& context_mask, const ops::AttentionMask& mask) {
    const auto scope = x.tape("EncoderDecoderBlock").scope(name_, config_.block.alias());
    x = attention_layer_(std::move(x), [&](Variable<T> inner) { return attention_(std::move(inner), mask); });
    x = cross_layer_(std::move(x), [&](Variable<T> inner) { return cross_(std::move(inner), context, context_mask); });
    return ffn_layer_(std::move(x), ffn_);
}

template <class T>
void EncoderDecoderBlock<T>::collect(std::vector<Parameter<T>*>& parameters) {
    attention_layer_.collect(parameters);
    attention_.collect(parameters);
    cross_layer_.collect(parameters);
    cross_.collect(parameters);
    ffn_layer_.collect(parameters);
    ffn_.collect(parameters);
}

}  // namespace unitscale::nn
