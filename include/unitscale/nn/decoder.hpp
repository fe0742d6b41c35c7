// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/embedding.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/transformer_block.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/readout.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::nn {

/// learned: a trained vector per position, added to the token's. rotary: queries and keys are rotated.
enum class Positions { learned, rotary };

struct DecoderConfig {
    std::size_t vocabulary = 256;
    std::size_t width = 128;
    std::size_t depth = 4;  ///< blocks
    std::size_t heads = 2;
    std::size_t groups = 0;     ///< key and value heads; 0: as many as heads
    std::size_t length = 128;   ///< positions of a training sequence: fixes attention's forward factor
    double hidden_ratio = 4.0;  ///< feed-forward width over width
    FeedForwardKind feed_forward = FeedForwardKind::gelu;
    NormConfig norm{};
    NormPlacement placement = NormPlacement::pre;
    Positions positions = Positions::learned;
    std::optional<ResidualRule> residual{};  ///< empty: the recipe's rule
    std::optional<double> attention_mult{};  ///< empty: sqrt(head size)
    double dropout = 0.0;
    bool bias = false;
    bool tied = false;  ///< the readout's weight is the token table
};

/// A transformer language model: token ids [B,T] to logits [B,T,vocabulary] of the next token. Its code names no method:
/// the tape's recipe decides factors, formats, residual rule and initial values.
/// Errors: sizes of 0; heads that do not divide the width; sequences longer than `length` with learned positions.
/// Test: tests/nn/decoder_test.cpp
template <class T>
class Decoder {
public:
    explicit Decoder(const DecoderConfig& config)
        : config_(checked(config)), tokens_("decoder/tokens", config.vocabulary, config.width) {
        if (config.positions == Positions::learned)
            positions_ = std::make_unique<Embedding<T>>("decoder/positions", config.length, config.width);
        for (std::size_t i = 0; i < config.depth; ++i)
            blocks_.push_back(std::make_unique<TransformerBlock<T>>(concatenate("decoder/block", i), block(config, i)));
        NormConfig last = config.norm;
        last.width = config.width;
        if (config.placement == NormPlacement::pre) norm_ = std::make_unique<Norm<T>>("decoder/norm", last);
        if (!config.tied)
            readout_ = std::make_unique<Parameter<T>>(
                "decoder/readout/weight", Shape{config.vocabulary, config.width},
                ParameterFacts{.role = ParameterRole::readout, .fan_in = config.width, .fan_out = config.vocabulary});
    }

    [[nodiscard]] const DecoderConfig& config() const noexcept { return config_; }

    /// ids [B,T], each in [0, vocabulary).
    [[nodiscard]] Variable<T> operator()(Tape<T>& tape, const Tensor<std::int32_t>& ids) {
        check(ids.rank() == 2, "Decoder: ids ", to_string(ids.shape()), "; expected [B,T]");
        const auto scope = tape.scope("decoder");
        Variable<T> x = tokens_(tape, ids);
        if (positions_) {
            const std::size_t length = ids.dim(1);
            check(length <= config_.length, "Decoder: a sequence of ", length, " tokens; learned positions end at ",
                  config_.length);
            Tensor<std::int32_t> places({length}, tape.pool());
            for (std::size_t i = 0; i < length; ++i) places.data()[i] = static_cast<std::int32_t>(i);
            // One lookup per position and step: `add` repeats the result over the batch, in every micro-batch.
            x = ops::add(x, (*positions_)(tape, places, {.step_lookups = length}));
        }
        if (config_.dropout > 0.0) x = ops::dropout(x, {.p = config_.dropout});
        for (const auto& block : blocks_) x = (*block)(x);
        if (norm_) x = (*norm_)(x);
        const auto readout_scope = tape.scope("readout");
        return ops::readout(x, tape.parameter(config_.tied ? tokens_.weight() : *readout_));
    }

    /// Every parameter, in model order.
    [[nodiscard]] std::vector<Parameter<T>*> parameters() {
        std::vector<Parameter<T>*> result;
        tokens_.collect(result);
        if (positions_) positions_->collect(result);
        for (const auto& block : blocks_) block->collect(result);
        if (norm_) norm_->collect(result);
        if (readout_) result.push_back(readout_.get());
        return result;
    }

    /// Number of trained values.
    [[nodiscard]] std::size_t parameter_count() {
        std::size_t count = 0;
        for (const Parameter<T>* parameter : parameters()) count += parameter->size();
        return count;
    }

private:
    static const DecoderConfig& checked(const DecoderConfig& config) {
        check(config.vocabulary >= 1, "Decoder: vocabulary is 0; expected at least 1");
        check(config.width >= 1, "Decoder: width is 0; expected at least 1");
        check(config.depth >= 1, "Decoder: depth is 0; expected at least 1");
        check(config.heads >= 1, "Decoder: heads is 0; expected at least 1");
        check(config.length >= 1, "Decoder: length is 0; expected at least 1");
        check(config.width % config.heads == 0, "Decoder: width ", config.width, " is not divisible by ", config.heads, " heads");
        check(config.hidden_ratio * static_cast<double>(config.width) >= 1.0, "Decoder: hidden_ratio ", config.hidden_ratio,
              " of width ", config.width, " gives no hidden columns; expected at least one");
        return config;
    }

    static TransformerBlockConfig block(const DecoderConfig& config, std::size_t index) {
        const auto hidden = static_cast<std::size_t>(config.hidden_ratio * static_cast<double>(config.width));
        return {.attention = {.width = config.width,
                              .heads = config.heads,
                              .groups = config.groups,
                              .bias = config.bias,
                              .rotary = config.positions == Positions::rotary,
                              .mult = config.attention_mult,
                              .factor_length = config.length,
                              .depth = 2 * config.depth},
                .feed_forward = {.kind = config.feed_forward,
                                 .width = config.width,
                                 .hidden = hidden,
                                 .bias = config.bias,
                                 .depth = 2 * config.depth},
                .norm = config.norm,
                .placement = config.placement,
                .residual = config.residual,
                .dropout = config.dropout,
                .index = index,
                .count = config.depth};
    }

    DecoderConfig config_;
    Embedding<T> tokens_;
    std::unique_ptr<Embedding<T>> positions_{};
    std::vector<std::unique_ptr<TransformerBlock<T>>> blocks_{};
    std::unique_ptr<Norm<T>> norm_{};
    std::unique_ptr<Parameter<T>> readout_{};
};

}  // namespace unitscale::nn
