// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/attention.hpp>
#include <unitscale/nn/feed_forward.hpp>
#include <unitscale/nn/norm.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/multiplier.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/residual.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::nn {

/// The place of a residual layer's normalisation. pre: f(norm(x)). post: norm(x + f(x)). none: no normalisation.
enum class NormPlacement { pre, post, none };

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
};

/// A transformer block: two residual layers, attention and feed-forward. x, y [B,T,width]; `past` as in Attention.
/// Test: tests/nn/transformer_block_test.cpp
template <class T>
class TransformerBlock {
public:
    TransformerBlock(const std::string& path, const TransformerBlockConfig& config)
        : name_(last_name(path)),
          alias_(concatenate("block-", config.count - std::min(config.index, config.count))),
          config_(config),
          attention_norm_(path + "/attention_norm", norm(config)),
          attention_(path + "/attention", config.attention),
          ffn_norm_(path + "/ffn_norm", norm(config)),
          ffn_(path + "/ffn", config.feed_forward) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x, const ops::KeyValueRows<T>* past = nullptr) {
        if (!config_.recompute || past != nullptr) return layers(std::move(x), past);
        return x.tape("TransformerBlock").recompute(x, [this](Variable<T> again) { return layers(std::move(again)); });
    }

    void collect(std::vector<Parameter<T>*>& parameters) {
        attention_norm_.collect(parameters);
        attention_.collect(parameters);
        ffn_norm_.collect(parameters);
        ffn_.collect(parameters);
    }

private:
    static NormConfig norm(const TransformerBlockConfig& config) {
        NormConfig norm = config.norm;
        norm.width = config.attention.width;
        if (config.placement == NormPlacement::pre) norm.depth = config.count;
        if (config.placement == NormPlacement::none) norm.gains = false;
        return norm;
    }

    [[nodiscard]] Variable<T> layers(Variable<T> x, const ops::KeyValueRows<T>* past = nullptr) {
        const auto scope = x.tape("TransformerBlock").scope(name_, alias_);
        x = residual_layer(std::move(x), 0, attention_norm_,
                           [&](Variable<T> inner) { return attention_(std::move(inner), past); });
        return residual_layer(std::move(x), 1, ffn_norm_, ffn_);
    }

    template <class Branch>
    [[nodiscard]] Variable<T> residual_layer(Variable<T> x, std::size_t part, Norm<T>& norm, Branch&& branch) {
        const ResidualRule rule = config_.residual.value_or(x.tape("TransformerBlock").recipe().residual);
        std::optional<double> tau;
        if (rule.scheme != ResidualScheme::plain) tau = residual_tau(rule, 2 * config_.index + part, 2 * config_.count);
        auto [inner, stream] = ops::residual_split(x, tau);
        if (config_.placement == NormPlacement::pre) inner = norm(inner);
        inner = branch(inner);
        if (config_.dropout > 0.0) inner = ops::dropout(inner, {.p = config_.dropout});
        inner = ops::multiplier(
            inner, branch_multiplier(x.tape("TransformerBlock").recipe().parametrisation_rule(), config_.count));
        const Variable<T> sum = ops::residual_add(inner, stream, tau);
        return config_.placement == NormPlacement::post ? norm(sum) : sum;
    }

    std::string name_;
    std::string alias_;  ///< the name counted from the end, for the patterns of recipes
    TransformerBlockConfig config_;
    Norm<T> attention_norm_;
    Attention<T> attention_;
    Norm<T> ffn_norm_;
    FeedForward<T> ffn_;
};

}  // namespace unitscale::nn
