// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/cached_attention.hpp>
#include <unitscale/ops/rotary.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::nn {

struct AttentionConfig {
    std::size_t width = 1;
    std::size_t heads = 1;
    std::size_t groups = 0;     ///< key and value heads; 0: as many as heads
    std::size_t head_size = 0;  ///< d; 0: width / heads
    bool bias = false;
    bool query_key_value_bias = false;  ///< biases of `query`, `key` and `value`, without `bias` too
    bool causal = true;
    std::size_t window = 0;               ///< a position sees the last `window` positions up to itself; 0: all of them
    bool rotary = false;                  ///< rotates queries and keys by their positions
    double rotary_base = 10000.0;         ///< base of the angles: ops::rotary
    ops::RotaryScaling rotary_scaling{};  ///< slower angles
    /// m of softmax(m q k^T / d). Empty: the recipe's multiplier, alpha_attn times the textbook's sqrt d or times 1.
    std::optional<double> mult{};
    std::size_t factor_length = 0;           ///< length that fixes the forward factor; 0: the mean length of each call
    double dropout = 0.0;                    ///< probability that a weight becomes 0, in steps that train
    std::size_t depth = 0;                   ///< blocks of the trunk
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x} of the linear layers; empty: the recipe's rule
    double gradient_share = 1.0;             ///< of the rows of y: as in LinearConfig, for all layers

    /// d, the number of columns of a head.
    [[nodiscard]] std::size_t head_columns() const noexcept { return head_size > 0 ? head_size : width / heads; }
};

/// The common part of attention modules: linear layers `query`, `key`, `value`, `out` around ops::attention. Keys and
/// values are of rows with `context_width` columns.
/// Error: heads that do not divide the width, without a head size.
template <class T>
class AttentionLayers {
public:
    /// The logit multiplier under a recipe.
    [[nodiscard]] double mult(const Recipe& recipe) const {
        return config_.mult.value_or(attention_multiplier(recipe.parametrisation_rule(), config_.head_columns()));
    }

    void collect(std::vector<Parameter<T>*>& parameters) {
        for (Linear<T>* linear : {&query_, &key_, &value_, &out_}) linear->collect(parameters);
    }

protected:
    AttentionLayers(const std::string& path, const AttentionConfig& config, std::size_t context_width)
        : name_(last_name(path)),
          config_(checked(config)),
          query_(path + "/query", input_layer(config.width, config.heads * config.head_columns())),
          key_(path + "/key", input_layer(context_width, narrow(config))),
          value_(path + "/value", input_layer(context_width, narrow(config))),
          out_(path + "/out", layer(config.heads * config.head_columns(), config.width)) {}

    /// Attention of x to `context`, which `past` precedes.
    [[nodiscard]] Variable<T> attend(Variable<T> x, Variable<T> context, const ops::AttentionMask& mask,
                                     const ops::KeyValueRows<T>* past) {
        const auto scope = x.tape("Attention").scope(name_);
        const std::size_t groups = config_.groups == 0 ? config_.heads : config_.groups;
        Variable<T> q = query_(x), k = key_(context);
        if (config_.rotary) {
            ops::RotaryOptions rotary{
                .heads = config_.heads, .base = config_.rotary_base, .scaling = config_.rotary_scaling};
            if (past != nullptr) {
                rotary.first_position = past->length;
                for (const kernels::CachedSpan& span : past->spans)
                    rotary.first_positions.push_back(static_cast<std::size_t>(span.past));
            }
            q = ops::rotary(q, rotary);
            rotary.heads = groups;
            k = ops::rotary(k, rotary);
        }
        ops::AttentionOptions options{.heads = config_.heads,
                                      .groups = groups,
                                      .mult = mult(x.tape("Attention").recipe()),
                                      .causal = config_.causal,
                                      .window = config_.window,
                                      .mask = mask,
                                      .dropout = config_.dropout};
        if (config_.factor_length > 0) options.factor_length = config_.factor_length;
        const Variable<T> v = value_(context);
        return out_(past != nullptr ? ops::cached_attention(q, k, v, *past, options)
                                    : ops::attention(q, k, v, options));
    }

private:
    static const AttentionConfig& checked(const AttentionConfig& config) {
        check(config.heads >= 1 && (config.head_size > 0 || config.width % config.heads == 0), "attention: width ",
              config.width, " is not divisible by ", config.heads, " heads");
        check(config.groups == 0 || config.heads % config.groups == 0, "attention: ", config.heads,
              " heads are not divisible by ", config.groups, " groups");
        check(config.causal || config.window == 0, "attention: a window of ", config.window,
              " positions without causality; expected 0");
        check(!config.rotary || config.head_columns() % 2 == 0, "attention: heads of size ", config.head_columns(),
              "; rotary positions need an even size");
        return config;
    }
    static std::size_t narrow(const AttentionConfig& config) {
        return config.head_columns() * (config.groups == 0 ? config.heads : config.groups);
    }
    LinearConfig input_layer(std::size_t in, std::size_t out) const {
        LinearConfig config = layer(in, out);
        config.bias = config_.bias || config_.query_key_value_bias;
        return config;
    }
    LinearConfig layer(std::size_t in, std::size_t out) const {
        return {.in = in,
                .out = out,
                .bias = config_.bias,
                .depth = config_.depth,
                .stream = config_.width,
                .constraint = config_.constraint,
                .gradient_share = config_.gradient_share};
    }

    std::string name_;
    AttentionConfig config_;
    Linear<T> query_, key_, value_, out_;
};

/// Self-attention: y = out(ops::attention(query(x), key(x), value(x))). x, y [B,T,width].
/// `mask` holds lengths of rows that are padded, or hides keys. With `past`, x follows the positions in `past`, and
/// ops::cached_attention runs instead.
/// Errors: heads that do not divide the width; as the ops. Test: tests/nn/attention_test.cpp
template <class T>
class Attention : public AttentionLayers<T> {
public:
    Attention(const std::string& path, const AttentionConfig& config)
        : AttentionLayers<T>(path, config, config.width) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x, const ops::KeyValueRows<T>* past = nullptr) {
        return this->attend(x, x, {}, past);
    }
    [[nodiscard]] Variable<T> operator()(Variable<T> x, const ops::AttentionMask& mask) {
        return this->attend(x, x, mask, nullptr);
    }
};

struct CrossAttentionConfig {
    std::size_t width = 1;
    std::size_t context_width = 0;  ///< 0: as `width`
    std::size_t heads = 1;
    std::size_t groups = 0;  ///< key and value heads; 0: as many as heads
    bool bias = false;
    std::optional<double> mult{};            ///< as in AttentionConfig
    std::size_t factor_length = 0;           ///< as in AttentionConfig, of the context
    double dropout = 0.0;                    ///< probability that a weight becomes 0, in steps that train
    std::size_t depth = 0;                   ///< blocks of the trunk
    std::optional<Constraint> constraint{};  ///< as in AttentionConfig
    double gradient_share = 1.0;             ///< as in AttentionConfig
};

/// Attention to another sequence: y = out(ops::attention(query(x), key(context), value(context))), every query sees all
/// of the context. x, y [B,T,width], context [B,S,context_width]. `mask` holds the context's lengths, or hides keys.
/// Errors: heads that do not divide the width; as the ops. Test: tests/nn/attention_test.cpp
template <class T>
class CrossAttention : public AttentionLayers<T> {
public:
    CrossAttention(const std::string& path, const CrossAttentionConfig& config)
        : AttentionLayers<T>(path,
                             {.width = config.width,
                              .heads = config.heads,
                              .groups = config.groups,
                              .bias = config.bias,
                              .causal = false,
                              .mult = config.mult,
                              .factor_length = config.factor_length,
                              .dropout = config.dropout,
                              .depth = config.depth,
                              .constraint = config.constraint,
                              .gradient_share = config.gradient_share},
                             config.context_width == 0 ? config.width : config.context_width) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x, Variable<T> context, const ops::AttentionMask& mask = {}) {
        return this->attend(std::move(x), std::move(context), mask, nullptr);
    }
};

}  // namespace unitscale::nn
