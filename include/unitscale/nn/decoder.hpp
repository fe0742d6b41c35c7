// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/machine_memory.hpp>
#include <unitscale/nn/embedding.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/key_value_cache.hpp>
#include <unitscale/nn/transformer_block.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/multiplier.hpp>
#include <unitscale/ops/readout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unitscale::nn {

/// learned: a trained vector per position, added to the token's vector. rotary: queries and keys are rotated.
/// none: the context layers find the order themselves.
enum class Positions { learned, rotary, none };

struct DecoderConfig {
    std::size_t vocabulary = 256;
    std::size_t width = 128;
    std::size_t depth = 4;  ///< blocks
    std::size_t heads = 2;
    std::size_t groups = 0;     ///< key and value heads; 0: as many as heads
    std::size_t head_size = 0;  ///< columns of a head, for context layers of kind attention; 0: width / heads
    std::size_t length = 128;   ///< positions of a training sequence: fixes attention's forward factor
    double hidden_ratio = 4.0;  ///< feed-forward width over width
    std::size_t hidden = 0;     ///< feed-forward width; 0: hidden_ratio times the width
    FeedForwardKind feed_forward = FeedForwardKind::gelu;
    NormConfig norm{};
    NormPlacement placement = NormPlacement::pre;
    ContextConfig context{};  ///< the layer of each block that mixes positions
    /// Attention sees the last `window` positions up to a token's own, as in Mistral 7B (Jiang et al. 2023,
    /// arXiv:2310.06825); 0: all positions.
    std::size_t window = 0;
    Positions positions = Positions::learned;
    double rotary_base = 10000.0;            ///< base of rotary positions' angles
    ops::RotaryScaling rotary_scaling{};     ///< slower angles, for texts longer than those of the first training
    std::optional<ResidualRule> residual{};  ///< empty: the recipe's rule
    std::optional<double> attention_mult{};  ///< empty: the recipe's multiplier
    double dropout = 0.0;
    bool bias = false;
    bool query_key_value_bias = false;  ///< biases of queries, keys and values, without `bias` too
    bool readout_bias = false;          ///< a trained bias of the logits
    /// A norm in front of the readout for the placements post and none, too, as in the Unit Scaling experiments.
    /// The placement pre always has it.
    bool final_norm = false;
    bool embedding_norm = false;  ///< a norm behind the embedding, in front of the first block
    bool tied = false;            ///< the readout's weight is the token table
    /// Blocks keep their input only and run again in the backward pass: less memory, equal bits.
    bool recompute = false;
    std::optional<Constraint> constraint{};  ///< joins the factors of blocks' linear layers; empty: the recipe's rule

    /// The feed-forward width.
    [[nodiscard]] std::size_t hidden_columns() const noexcept {
        return hidden > 0 ? hidden : static_cast<std::size_t>(hidden_ratio * static_cast<double>(width));
    }
    [[nodiscard]] std::size_t head_columns() const noexcept { return head_size > 0 ? head_size : width / heads; }
    /// The number of columns of a layer's keys, and of its values.
    [[nodiscard]] std::size_t key_columns() const noexcept { return head_columns() * (groups == 0 ? heads : groups); }
};

/// A row of token ids that continues an item of a cache by its first `count` tokens. The rest of the row is padding.
struct CacheRow {
    std::size_t item = 0, count = 0;
};

/// A transformer language model: token ids [B,T] to logits [B,T,vocabulary] of the next token.
/// Its code names no method: the tape's recipe decides factors, formats, residual rule and initial values.
/// Errors: sizes of 0; heads that do not divide the width, without a head size; rotary positions, a window, a head size
/// or biases of queries, keys and values without attention; blocks that take more than the machine's memory; sequences
/// longer than `length` with learned positions.
/// Test: tests/nn/decoder_test.cpp
template <class T>
class Decoder {
public:
    explicit Decoder(const DecoderConfig& config);

    [[nodiscard]] const DecoderConfig& config() const noexcept { return config_; }

    /// ids [B,T], each in [0, vocabulary).
    [[nodiscard]] Variable<T> operator()(Tape<T>& tape, const Tensor<std::int32_t>& ids);

    /// The logits of tokens that follow the cache's positions. The call adds T positions to each item of the cache. A
    /// prompt takes one call.
    /// The logits equal, to the bit, the logits of the whole sequence without a cache, for any division into parts.
    /// Reasons: every kernel forms a row by one order of operations, among few rows and among many.
    /// Forward factors are fixed.
    /// Where a BLAS forms large products, the logits are equal up to rounding only.
    /// They differ where operands are rounded stochastically or by a whole tensor's amax.
    /// A cache in a narrower format rounds keys and values once: the logits equal those of a model that attends to
    /// rounded keys and values (ops::cached_attention), for any division too.
    /// A throw leaves the cache unchanged.
    /// Errors: a model without `has_cache`; a step that records gradients; a cache of another model's sizes, of
    /// another batch, or too short.
    [[nodiscard]] Variable<T> operator()(Tape<T>& tape, const Tensor<std::int32_t>& ids, KeyValueCache<T>& cache);

    /// The logits of tokens that follow those of some items of the cache, each by its own length. rows [B]: the item
    /// that a row of ids continues, and how many of its tokens count. Their logits equal, to the bit, those of a call
    /// with the row alone. The logits of padding mean nothing.
    /// Errors: as above; rows that are not one for each row of ids, or name an item twice.
    [[nodiscard]] Variable<T> operator()(Tape<T>& tape, const Tensor<std::int32_t>& ids, KeyValueCache<T>& cache,
                                         std::span<const CacheRow> rows);

    /// Whether the model runs with a cache: its context layers are attention.
    [[nodiscard]] bool has_cache() const noexcept { return config_.context.kind == ContextKind::attention; }

    /// A cache for this model. capacity 0: config().length positions. `format`: as in KeyValueCacheConfig. Error: a
    /// model without `has_cache`.
    [[nodiscard]] KeyValueCache<T> make_cache(std::size_t batch = 1, std::size_t capacity = 0,
                                              const std::optional<FloatFormat>& format = {}) const;

    /// Every parameter, in model order.
    [[nodiscard]] std::vector<Parameter<T>*> parameters();

    /// Number of trained values.
    [[nodiscard]] std::size_t parameter_count() {
        std::size_t count = 0;
        for (const Parameter<T>* parameter : parameters()) count += parameter->size();
        return count;
    }

private:
    [[nodiscard]] std::size_t key_groups() const noexcept {
        return config_.groups == 0 ? config_.heads : config_.groups;
    }

    [[nodiscard]] Variable<T> run(Tape<T>& tape, const Tensor<std::int32_t>& ids, KeyValueCache<T>* cache,
                                  std::span<const CacheRow> rows = {}) {
        check(ids.rank() == 2, "Decoder: ids ", shape_text(ids.shape()), "; expected [B,T]");
        const auto scope = tape.scope("decoder");
        // One length for all rows, which are the items in their order and have no padding: no spans.
        const std::size_t past = cache != nullptr ? cache->length() : 0;
        std::vector<kernels::CachedSpan> spans;
        bool ragged = cache != nullptr && rows.size() != cache->config().batch;
        for (std::size_t b = 0; b < rows.size(); ++b) {
            const std::size_t length = cache->length(rows[b].item);
            ragged = ragged || rows[b].item != b || rows[b].count != ids.dim(1) || length != past;
            spans.push_back({static_cast<std::ptrdiff_t>(rows[b].item), static_cast<std::ptrdiff_t>(length),
                             static_cast<std::ptrdiff_t>(rows[b].count)});
        }
        if (!ragged) spans.clear();
        Variable<T> x = tokens_(tape, ids);
        if (positions_) {
            const std::size_t length = ids.dim(1);
            const bool together = spans.empty();
            Tensor<std::int32_t> places(together ? Shape{length} : Shape{rows.size(), length}, tape.pool());
            for (std::size_t b = 0; b < (together ? 1 : rows.size()); ++b) {
                const std::size_t first = together ? past : cache->length(rows[b].item),
                                  end = first + (together ? length : rows[b].count);
                check(end <= config_.length, "Decoder: a sequence of ", end, " tokens; learned positions end at ",
                      config_.length);
                for (std::size_t i = 0; i < length; ++i)  // padding may stand behind the last position
                    places.data()[b * length + i] = static_cast<std::int32_t>(std::min(first + i, config_.length - 1));
            }
            // One lookup per position and step: `add` repeats the result over the batch, in every micro-batch.
            x = ops::add(x, (*positions_)(tape, places, {.step_lookups = length}));
        }
        if (embedding_norm_) x = (*embedding_norm_)(x);
        if (config_.dropout > 0.0) x = ops::dropout(x, {.p = config_.dropout});
        for (std::size_t i = 0; i < blocks_.size(); ++i) {
            ops::KeyValueRows<T> layer;
            if (cache != nullptr) {
                layer = cache->layer(i);
                layer.spans = spans;
            }
            x = (*blocks_[i])(x, cache != nullptr ? &layer : nullptr);
        }
        if (norm_) x = (*norm_)(x);
        const auto readout_scope = tape.scope("readout");
        const ParameterFacts facts{
            .role = ParameterRole::readout, .fan_in = config_.width, .fan_out = config_.vocabulary};
        std::optional<Variable<T>> bias;
        if (readout_bias_) bias = tape.parameter(*readout_bias_);
        return ops::multiplier(ops::readout(x, tape.parameter(config_.tied ? tokens_.weight() : *readout_), bias),
                               model_multiplier(tape.recipe().parametrisation_rule(), facts));
    }

    void check_has_cache() const {
        check(has_cache(), "Decoder: a cache; context layers of kind ", name(config_.context.kind), " have none");
    }

    /// Error: `depth` blocks like the first, the only one so far, take more than the machine's memory.
    void check_depth() {
        std::vector<Parameter<T>*> parameters;
        blocks_.front()->collect(parameters);
        double values = 0.0;
        for (const Parameter<T>* parameter : parameters) values += static_cast<double>(parameter->size());
        check_memory("Decoder: depth ", std::to_string(config_.depth),
                     values * sizeof(T) * static_cast<double>(config_.depth));
    }

    static const DecoderConfig& checked(const DecoderConfig& config) {
        check(config.vocabulary >= 1, "Decoder: vocabulary is 0; expected at least 1");
        check(config.width >= 1, "Decoder: width is 0; expected at least 1");
        check(config.depth >= 1, "Decoder: depth is 0; expected at least 1");
        check(config.heads >= 1, "Decoder: heads is 0; expected at least 1");
        check(config.length >= 1, "Decoder: length is 0; expected at least 1");
        check(config.head_size > 0 || config.width % config.heads == 0, "Decoder: width ", config.width,
              " is not divisible by ", config.heads, " heads");
        const bool attends = config.context.kind == ContextKind::attention;
        check(attends || config.head_size == 0, "Decoder: head_size is ", config.head_size,
              " with context layers of kind ", name(config.context.kind), "; expected attention");
        check(attends || !config.query_key_value_bias, "Decoder: query_key_value_bias with context layers of kind ",
              name(config.context.kind), "; expected attention");
        ops::check_rotary_scaling("Decoder: rotary_scaling", config.rotary_scaling);
        check(config.positions == Positions::rotary || config.rotary_scaling == ops::RotaryScaling{},
              "Decoder: rotary_scaling without rotary positions");
        check(config.positions != Positions::rotary || attends,
              "Decoder: rotary positions with context layers of kind ", name(config.context.kind),
              "; expected attention");
        check(config.window == 0 || attends, "Decoder: a window of ", config.window,
              " positions with context layers of kind ", name(config.context.kind), "; expected attention");
        check(config.hidden >= 1 || config.hidden_ratio * static_cast<double>(config.width) >= 1.0,
              "Decoder: hidden_ratio ", config.hidden_ratio, " of width ", config.width,
              " gives no hidden columns; expected at least one");
        return config;
    }

    static TransformerBlockConfig block(const DecoderConfig& config, std::size_t index) {
        return {.attention = {.width = config.width,
                              .heads = config.heads,
                              .groups = config.groups,
                              .head_size = config.head_size,
                              .bias = config.bias,
                              .query_key_value_bias = config.query_key_value_bias,
                              .window = config.window,
                              .rotary = config.positions == Positions::rotary,
                              .rotary_base = config.rotary_base,
                              .rotary_scaling = config.rotary_scaling,
                              .mult = config.attention_mult,
                              .factor_length = config.length,
                              .depth = config.depth,
                              .constraint = config.constraint},
                .context = config.context,
                .feed_forward = {.kind = config.feed_forward,
                                 .width = config.width,
                                 .hidden = config.hidden_columns(),
                                 .bias = config.bias,
                                 .depth = config.depth,
                                 .constraint = config.constraint},
                .norm = config.norm,
                .placement = config.placement,
                .residual = config.residual,
                .dropout = config.dropout,
                .recompute = config.recompute,
                .index = index,
                .count = config.depth};
    }

    DecoderConfig config_;
    Embedding<T> tokens_;
    std::unique_ptr<Embedding<T>> positions_{};
    std::unique_ptr<Norm<T>> embedding_norm_{};
    std::vector<std::unique_ptr<TransformerBlock<T>>> blocks_{};
    std::unique_ptr<Norm<T>> norm_{};
    std::unique_ptr<Parameter<T>> readout_{};
    std::unique_ptr<Parameter<T>> readout_bias_{};
};

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
Decoder<T>::Decoder(const DecoderConfig& config)
    : config_(checked(config)), tokens_("decoder/tokens", config.vocabulary, config.width) {
    if (config.positions == Positions::learned)
        positions_ = std::make_unique<Embedding<T>>("decoder/positions", config.length, config.width);
    for (std::size_t i = 0; i < config.depth; ++i) {
        blocks_.push_back(std::make_unique<TransformerBlock<T>>(concatenate("decoder/block", i), block(config, i)));
        if (i == 0) check_depth();
    }
    NormConfig norm = config.norm;
    norm.width = config.width;
    if (config.embedding_norm) embedding_norm_ = std::make_unique<Norm<T>>("decoder/embedding_norm", norm);
    if (config.placement == NormPlacement::pre || config.final_norm)
        norm_ = std::make_unique<Norm<T>>("decoder/norm", norm);
    if (!config.tied)
        readout_ = std::make_unique<Parameter<T>>(
            "decoder/readout/weight", Shape{config.vocabulary, config.width},
            ParameterFacts{.role = ParameterRole::readout, .fan_in = config.width, .fan_out = config.vocabulary});
    if (config.readout_bias)
        readout_bias_ = std::make_unique<Parameter<T>>(
            "decoder/readout/bias", Shape{config.vocabulary},
            ParameterFacts{
                .role = ParameterRole::bias, .fan_in = 1, .fan_out = config.vocabulary, .width = config.width});
}

template <class T>
Variable<T> Decoder<T>::operator()(Tape<T>& tape, const Tensor<std::int32_t>& ids) {
    return run(tape, ids, nullptr);
}

template <class T>
Variable<T> Decoder<T>::operator()(Tape<T>& tape, const Tensor<std::int32_t>& ids, KeyValueCache<T>& cache) {
    check(ids.rank() == 2, "Decoder: ids ", shape_text(ids.shape()), "; expected [B,T]");
    check(cache.config().batch == ids.dim(0), "Decoder: ids ", shape_text(ids.shape()), " and a cache for a batch of ",
          cache.config().batch);
    std::vector<CacheRow> rows(ids.dim(0));
    for (std::size_t b = 0; b < rows.size(); ++b) rows[b] = {b, ids.dim(1)};
    return (*this)(tape, ids, cache, rows);
}

template <class T>
Variable<T> Decoder<T>::operator()(Tape<T>& tape, const Tensor<std::int32_t>& ids, KeyValueCache<T>& cache,
                                   std::span<const CacheRow> rows) {
    check_has_cache();
    check(!tape.step_options().gradients,
          "Decoder: a cache in a step that records gradients; begin it with gradients = false");
    check(ids.rank() == 2, "Decoder: ids ", shape_text(ids.shape()), "; expected [B,T]");
    const KeyValueCacheConfig& sizes = cache.config();
    check(sizes.layers == config_.depth && sizes.columns == config_.key_columns(), "Decoder: a cache of ", sizes.layers,
          " layers of ", sizes.columns, " columns; expected ", config_.depth, " of ", config_.key_columns());
    check(sizes.window == config_.window && sizes.groups == key_groups(), "Decoder: a cache of ", sizes.groups,
          " groups with a window of ", sizes.window, "; expected ", key_groups(), " with ", config_.window);
    check(rows.size() == ids.dim(0), "Decoder: ids ", shape_text(ids.shape()), " and ", rows.size(),
          " rows of a cache; expected one for each row of ids");
    std::vector<bool> used(sizes.batch, false);
    for (const CacheRow& row : rows) {
        check(row.item < sizes.batch && !used[row.item], "Decoder: item ", row.item, " of a cache for a batch of ",
              sizes.batch, "; expected each item at most once");
        used[row.item] = true;
        check(row.count <= ids.dim(1), "Decoder: ", row.count, " tokens of a row; ids ", shape_text(ids.shape()),
              " have ", ids.dim(1));
        check(row.count <= cache.capacity() - cache.length(row.item), "Decoder: ", cache.length(row.item),
              " positions and ", row.count, " more; the cache ends at ", cache.capacity());
    }
    const Variable<T> logits = run(tape, ids, &cache, rows);
    for (const CacheRow& row : rows) cache.advance(row.item, row.count);
    return logits;
}

template <class T>
KeyValueCache<T> Decoder<T>::make_cache(std::size_t batch, std::size_t capacity,
                                        const std::optional<FloatFormat>& format) const {
    check_has_cache();
    return KeyValueCache<T>({.layers = config_.depth,
                             .batch = batch,
                             .capacity = capacity == 0 ? config_.length : capacity,
                             .columns = config_.key_columns(),
                             .groups = key_groups(),
                             .format = format,
                             .window = config_.window});
}

template <class T>
std::vector<Parameter<T>*> Decoder<T>::parameters() {
    std::vector<Parameter<T>*> result;
    tokens_.collect(result);
    if (positions_) positions_->collect(result);
    if (embedding_norm_) embedding_norm_->collect(result);
    for (const auto& block : blocks_) block->collect(result);
    if (norm_) norm_->collect(result);
    if (readout_) result.push_back(readout_.get());
    if (readout_bias_) result.push_back(readout_bias_.get());
    return result;
}

}  // namespace unitscale::nn
