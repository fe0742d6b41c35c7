// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/machine_memory.hpp>
#include <unitscale/nn/embedding.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/norm.hpp>
#include <unitscale/nn/transformer_block.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/gather.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/multiplier.hpp>
#include <unitscale/ops/readout.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/select.hpp>
#include <unitscale/ops/slice.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/ops/split.hpp>
#include <unitscale/ops/tanh.hpp>
#include <unitscale/ops/weighted_add.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::nn {

struct BertConfig {
    std::size_t vocabulary = 30522;
    std::size_t segments = 2;  ///< rows of the table of segments
    std::size_t width = 768;
    std::size_t depth = 12;  ///< blocks
    std::size_t heads = 12;
    std::size_t hidden = 3072;    ///< feed-forward width
    std::size_t length = 512;     ///< rows of the table of positions: the longest sequence
    std::size_t mean_length = 0;  ///< mean tokens without padding: fixes attention's factor; 0: the mean of each call
    /// Share of all positions, padding among them, that `masked_logits` reads in a training step. 1: a loss reads every
    /// position, as with `span_logits`. 0: it reads the first positions only, as with `pooled`. See Bert.
    double masked_share = 0.15;
    double epsilon = 1e-12;                  ///< of all norms
    double dropout = 0.0;                    ///< of the embedding and of each branch's output
    double attention_dropout = 0.0;          ///< of attention's weights
    std::optional<ResidualRule> residual{};  ///< empty: the recipe's rule
    bool pooler = true;                      ///< the layer of `pooled`
    bool pretraining = true;                 ///< the heads of `masked_logits` and `next_sentence`, and the pooler
    bool spans = false;                      ///< the head of `span_logits`
    bool recompute = false;                  ///< blocks keep their input only and run again backward: equal bits
};

/// A batch of token sequences.
struct BertInput {
    Tensor<std::int32_t> ids{};          ///< [B,T], each in [0, vocabulary)
    Tensor<std::int32_t> segments{};     ///< [B,T], each in [0, segments); empty: all 0
    std::vector<std::size_t> lengths{};  ///< [B], tokens without padding; empty: all T
};

/// Logits of a span's first and last position, [B,T] each.
template <class T>
struct SpanLogits {
    Variable<T> start, end;
};

/// BERT: an encoder of token sequences, with heads for pre-training and fine-tuning.
///   embedding = norm(words[ids] + segments[segments] + positions)
///   hidden    = blocks(embedding), post-norm, with gelu, biases and layer norms          [B,T,width]
///   masked_logits(hidden, rows) = words norm(gelu(linear(hidden[rows]))) + bias           [N,vocabulary]
///   pooled(hidden)              = tanh(linear(hidden[:, 0]))                              [B,width]
///   next_sentence(pooled)       = linear(pooled)                                          [B,2]
///   span_logits(hidden)         = linear(hidden), two columns                             2 of [B,T]
/// Its code names no method: the tape's recipe decides factors, formats, residual rule and initial values. Under `unit`
/// the sum of the three embeddings has the factor 3^-1/2. The word table is embedding and readout, so the embedding's
/// gradient and the readout's meet in it with one factor.
/// Sparse gradients: in pre-training, the rows that masked_logits reads and the first row of each sequence carry a
/// gradient. That is the share masked_share + 1 / length of the last block's rows. The betas of its weights count these
/// rows (`TransformerBlock`). The heads compute on their own rows only, and count them.
/// Rows of a padded batch have the bits of the rows alone, if `mean_length` is set and dropout is 0.
/// Errors: sizes of 0; heads that do not divide the width; a masked_share outside [0, 1]; blocks that take more than
/// the machine's memory; inputs of other shapes; a head that the config leaves out.
/// References: Devlin et al. 2019, arXiv:1810.04805; Blake, Orr, Luschi 2023, arXiv:2303.11257, section 6.2.
/// Test: tests/nn/bert_test.cpp
template <class T>
class Bert {
public:
    explicit Bert(const BertConfig& config);

    [[nodiscard]] const BertConfig& config() const noexcept { return config_; }

    /// The last block's output [B,T,width].
    [[nodiscard]] Variable<T> operator()(Tape<T>& tape, const BertInput& input);

    /// The logits of the tokens at `rows` [N], which are numbers b T + t of positions.
    /// `step_rows`: rows of the whole step, for micro-batches with different N; empty: micro-batches are alike.
    [[nodiscard]] Variable<T> masked_logits(Variable<T> hidden, const Tensor<std::int32_t>& rows,
                                            std::optional<std::size_t> step_rows = {});

    /// A summary of each sequence.
    [[nodiscard]] Variable<T> pooled(Variable<T> hidden);

    /// Whether the second segment follows the first in the text: logits of two classes.
    [[nodiscard]] Variable<T> next_sentence(Variable<T> pooled);

    /// The logits of spans. Those beyond a sequence's length are -infinity: softmax_cross_entropy gives them
    /// probability 0 and gradient 0.
    [[nodiscard]] SpanLogits<T> span_logits(Variable<T> hidden, const std::vector<std::size_t>& lengths = {});

    /// Every parameter, in model order.
    [[nodiscard]] std::vector<Parameter<T>*> parameters();

private:
    /// The shape of hidden states. Error: another shape.
    [[nodiscard]] const Shape& checked_shape(const Variable<T>& hidden) const {
        const Shape& shape = hidden.shape();
        check(shape.size() == 3 && shape[2] == config_.width, "Bert: hidden ", shape_text(shape), "; expected [B,T,",
              config_.width, "]");
        return shape;
    }

    /// Error: `depth` blocks like the first, the only one so far, take more than the machine's memory.
    void check_depth() {
        std::vector<Parameter<T>*> parameters;
        blocks_.front()->collect(parameters);
        double values = 0.0;
        for (const Parameter<T>* parameter : parameters) values += static_cast<double>(parameter->size());
        check_memory("Bert: depth ", std::to_string(config_.depth),
                     values * sizeof(T) * static_cast<double>(config_.depth));
    }

    static const BertConfig& checked(const BertConfig& config) {
        const std::array<std::pair<const char*, std::size_t>, 7> sizes{{{"vocabulary", config.vocabulary},
                                                                        {"segments", config.segments},
                                                                        {"width", config.width},
                                                                        {"depth", config.depth},
                                                                        {"heads", config.heads},
                                                                        {"hidden", config.hidden},
                                                                        {"length", config.length}}};
        for (const auto& [name, size] : sizes) check(size >= 1, "Bert: ", name, " is 0; expected at least 1");
        check(config.width % config.heads == 0, "Bert: width ", config.width, " is not divisible by ", config.heads,
              " heads");
        check(config.mean_length <= config.length, "Bert: mean_length ", config.mean_length,
              "; expected at most the length ", config.length);
        check(config.masked_share >= 0.0 && config.masked_share <= 1.0, "Bert: masked_share is ", config.masked_share,
              "; expected a number in [0,1]");
        return config;
    }

    static NormConfig norm(const BertConfig& config) {
        return {.kind = NormKind::layer, .width = config.width, .gains = true, .epsilon = config.epsilon};
    }

    static TransformerBlockConfig block(const BertConfig& config, std::size_t index) {
        const double read = config.masked_share + 1.0 / static_cast<double>(config.length);
        return {.attention = {.width = config.width,
                              .heads = config.heads,
                              .bias = true,
                              .causal = false,
                              .factor_length = config.mean_length,
                              .dropout = config.attention_dropout,
                              .depth = config.depth},
                .feed_forward = {.kind = FeedForwardKind::gelu,
                                 .width = config.width,
                                 .hidden = config.hidden,
                                 .bias = true,
                                 .depth = config.depth},
                .norm = norm(config),
                .placement = NormPlacement::post,
                .residual = config.residual,
                .dropout = config.dropout,
                .recompute = config.recompute,
                .gradient_share = index + 1 == config.depth ? std::min(1.0, read) : 1.0,
                .index = index,
                .count = config.depth};
    }

    BertConfig config_;
    Embedding<T> tokens_, segments_, positions_;
    Norm<T> embedding_norm_;
    std::vector<std::unique_ptr<TransformerBlock<T>>> blocks_{};
    std::unique_ptr<Linear<T>> pooler_{}, transform_{}, next_sentence_{}, spans_{};
    std::unique_ptr<Norm<T>> transform_norm_{};
    std::unique_ptr<Parameter<T>> readout_bias_{};
};

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
Bert<T>::Bert(const BertConfig& config)
    : config_(checked(config)),
      tokens_("bert/tokens", config.vocabulary, config.width),
      segments_("bert/segments", config.segments, config.width),
      positions_("bert/positions", config.length, config.width),
      embedding_norm_("bert/embedding_norm", norm(config)) {
    for (std::size_t i = 0; i < config.depth; ++i) {
        blocks_.push_back(std::make_unique<TransformerBlock<T>>(concatenate("bert/block", i), block(config, i)));
        if (i == 0) check_depth();
    }
    const auto head = [&](const char* path, std::size_t out) {
        return std::make_unique<Linear<T>>(path, LinearConfig{.in = config.width, .out = out, .bias = true});
    };
    if (config.pooler || config.pretraining) pooler_ = head("bert/pooler", config.width);
    if (config.pretraining) {
        transform_ = head("bert/transform", config.width);
        transform_norm_ = std::make_unique<Norm<T>>("bert/transform_norm", norm(config));
        readout_bias_ = std::make_unique<Parameter<T>>(
            "bert/readout/bias", Shape{config.vocabulary},
            ParameterFacts{
                .role = ParameterRole::bias, .fan_in = 1, .fan_out = config.vocabulary, .width = config.width});
        next_sentence_ = head("bert/next_sentence", 2);
    }
    if (config.spans) spans_ = head("bert/spans", 2);
}

template <class T>
Variable<T> Bert<T>::operator()(Tape<T>& tape, const BertInput& input) {
    const Shape& shape = input.ids.shape();
    check(shape.size() == 2, "Bert: ids ", shape_text(shape), "; expected [B,T]");
    check(shape[1] <= config_.length, "Bert: sequences of ", shape[1], " tokens; positions end at ", config_.length);
    check(input.segments.empty() || input.segments.shape() == shape, "Bert: segments ",
          shape_text(input.segments.shape()), " do not fit ids ", shape_text(shape));
    const auto scope = tape.scope("bert");
    Tensor<std::int32_t> places(shape, tape.pool()), zeros;
    for (std::size_t i = 0; i < places.size(); ++i) places.data()[i] = static_cast<std::int32_t>(i % shape[1]);
    if (input.segments.empty()) {
        zeros = Tensor<std::int32_t>(shape, tape.pool());
        std::fill_n(zeros.data(), zeros.size(), 0);
    }
    const Variable<T> words = tokens_(tape, input.ids),
                      kinds = segments_(tape, input.segments.empty() ? zeros : input.segments),
                      order = positions_(tape, places);
    Variable<T> x = embedding_norm_(ops::weighted_add({words, kinds, order}, {1.0, 1.0, 1.0}));
    if (config_.dropout > 0.0) x = ops::dropout(x, {.p = config_.dropout});
    const ops::AttentionMask mask{.lengths = input.lengths};
    for (const auto& block : blocks_) x = (*block)(std::move(x), mask);
    return x;
}

template <class T>
Variable<T> Bert<T>::masked_logits(Variable<T> hidden, const Tensor<std::int32_t>& rows,
                                   std::optional<std::size_t> step_rows) {
    check(transform_ != nullptr, "Bert: masked_logits without its head; expected BertConfig::pretraining");
    const Shape& shape = checked_shape(hidden);
    Tape<T>& tape = hidden.tape("Bert");
    const auto scope = tape.scope("bert");
    Variable<T> x = ops::gather(ops::reshape(hidden, {shape[0] * shape[1], shape[2]}), rows);
    x = (*transform_norm_)(ops::gelu((*transform_)(x, {.step_rows = step_rows})), step_rows);
    const auto readout_scope = tape.scope("readout");
    const ParameterFacts facts{.role = ParameterRole::readout, .fan_in = config_.width, .fan_out = config_.vocabulary};
    const std::optional<Variable<T>> bias = tape.parameter(*readout_bias_);
    return ops::multiplier(ops::readout(x, tape.parameter(tokens_.weight()), bias, {.step_rows = step_rows}),
                           model_multiplier(tape.recipe().parametrisation_rule(), facts));
}

template <class T>
Variable<T> Bert<T>::pooled(Variable<T> hidden) {
    check(pooler_ != nullptr, "Bert: pooled without its layer; expected BertConfig::pooler");
    const Shape& shape = checked_shape(hidden);
    const auto scope = hidden.tape("Bert").scope("bert");
    const Variable<T> first = ops::slice(hidden, {0, 0, 0}, {shape[0], 1, shape[2]});
    return ops::tanh((*pooler_)(ops::reshape(first, {shape[0], shape[2]})));
}

template <class T>
Variable<T> Bert<T>::next_sentence(Variable<T> pooled) {
    check(next_sentence_ != nullptr, "Bert: next_sentence without its head; expected BertConfig::pretraining");
    const auto scope = pooled.tape("Bert").scope("bert");
    return (*next_sentence_)(std::move(pooled));
}

template <class T>
SpanLogits<T> Bert<T>::span_logits(Variable<T> hidden, const std::vector<std::size_t>& lengths) {
    check(spans_ != nullptr, "Bert: span_logits without its head; expected BertConfig::spans");
    const Shape& shape = checked_shape(hidden);
    const std::size_t batch = shape[0], length = shape[1];
    check(lengths.empty() || lengths.size() == batch, "Bert: ", lengths.size(), " lengths for hidden ",
          shape_text(shape), "; expected ", batch);
    const auto scope = hidden.tape("Bert").scope("bert");
    const std::vector<Variable<T>> columns = ops::split((*spans_)(hidden), 2, -1);
    Tensor<std::int32_t> seen;
    if (!lengths.empty()) {
        seen = Tensor<std::int32_t>({batch, length});
        for (std::size_t i = 0; i < seen.size(); ++i) seen.data()[i] = i % length < lengths[i / length];
    }
    const auto logits = [&](const Variable<T>& column) {
        const Variable<T> flat = ops::reshape(column, {batch, length});
        return lengths.empty() ? flat : ops::select(seen, flat, -std::numeric_limits<double>::infinity());
    };
    Variable<T> start = logits(columns[0]);
    return {std::move(start), logits(columns[1])};
}

template <class T>
std::vector<Parameter<T>*> Bert<T>::parameters() {
    std::vector<Parameter<T>*> result;
    tokens_.collect(result);
    segments_.collect(result);
    positions_.collect(result);
    embedding_norm_.collect(result);
    for (const auto& block : blocks_) block->collect(result);
    if (pooler_) pooler_->collect(result);
    if (transform_) transform_->collect(result);
    if (transform_norm_) transform_norm_->collect(result);
    if (readout_bias_) result.push_back(readout_bias_.get());
    if (next_sentence_) next_sentence_->collect(result);
    if (spans_) spans_->collect(result);
    return result;
}

/// BERT's loss in pre-training: the mean cross-entropy of the masked tokens, plus `next_weight` times the mean
/// cross-entropy of the next sentences. The published weight is 1.
///   masked [N,vocabulary]   labels [N]   next [B,2]   next_labels [B]
///   const auto hidden = bert(tape, input);
///   const auto next = bert.next_sentence(bert.pooled(hidden));
///   const auto loss = nn::bert_loss(bert.masked_logits(hidden, rows), labels, next, next_labels);
/// Under `unit` the two gradients meet in the model, so they have one factor: `joint_cross_entropy_beta`. The rms of
/// the masked logits' gradient is then q^1/2 in place of 1, and of the other logits' gradient q^-1/2. q is the ratio of
/// the ideal betas, 2 B over N s (s - 1)^-1/2 for a vocabulary of s.
/// `step_rows`: N of the whole step, for micro-batches with different N; empty: micro-batches are alike.
/// `next_weight`: the first row of a sequence has a larger gradient than a masked row, since B is less than N. In a new
/// model with unit-scaled weights the ratio is larger than in the regular one, so a smaller weight may train better.
/// Errors: the errors of softmax_cross_entropy, add and multiplier. Test: tests/nn/bert_test.cpp
template <class T>
[[nodiscard]] Variable<T> bert_loss(Variable<T> masked, const Tensor<std::int32_t>& labels, Variable<T> next,
                                    const Tensor<std::int32_t>& next_labels, std::optional<std::size_t> step_rows = {},
                                    double next_weight = 1.0) {
    const Tape<T>& tape = masked.tape("bert_loss");
    const std::size_t rows = step_rows.value_or(tape.step_rows(labels.size()));
    const double mult = tape.recipe().hyperparameters.alpha_loss_softmax;
    const double beta = ops::joint_cross_entropy_beta(std::max<std::size_t>(rows, 1), masked.shape().back(),
                                                      tape.step_rows(next_labels.size()), next.shape().back()) /
                        mult;
    Variable<T> pairs = ops::softmax_cross_entropy(next, next_labels, {.beta = beta});
    if (next_weight != 1.0) pairs = ops::multiplier(pairs, next_weight);
    return ops::add(ops::softmax_cross_entropy(masked, labels, {.step_rows = rows, .beta = beta}), pairs);
}

/// BERT's loss for spans: the mean of the cross-entropies of the spans' first and last positions.
///   logits: 2 of [B,T]   starts [B]   ends [B], positions in [0,T)
///   const auto loss = nn::span_loss(bert.span_logits(bert(tape, input), input.lengths), starts, ends);
/// It is one cross-entropy of 2 B rows of T classes, so both gradients have one factor, T (T - 1)^-1/2 under `unit`.
/// A row of L < T tokens has L finite logits. If they are flat, the mean square of its gradient over all T columns is
/// (1 - 1/L) / (1 - 1/T), near 1. The span head counts all B T positions too, so its betas fit.
/// Errors: as `softmax_cross_entropy`; other numbers of starts and ends.
/// Reference: Devlin et al. 2019, arXiv:1810.04805, section 4.2. Test: tests/nn/bert_test.cpp
template <class T>
[[nodiscard]] Variable<T> span_loss(const SpanLogits<T>& logits, const Tensor<std::int32_t>& starts,
                                    const Tensor<std::int32_t>& ends) {
    check(starts.size() == ends.size(), "span_loss: ", starts.size(), " starts and ", ends.size(), " ends");
    Tensor<std::int32_t> labels({starts.size() + ends.size()});
    std::copy_n(ends.data(), ends.size(), std::copy_n(starts.data(), starts.size(), labels.data()));
    return ops::softmax_cross_entropy(ops::concatenate({logits.start, logits.end}, 0), labels);
}

}  // namespace unitscale::nn
