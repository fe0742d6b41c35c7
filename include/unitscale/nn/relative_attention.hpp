// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/dynamic_rescale.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/pad.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/select.hpp>
#include <unitscale/ops/slice.hpp>
#include <unitscale/ops/softmax.hpp>
#include <unitscale/ops/split.hpp>
#include <unitscale/ops/transpose.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::nn {

struct RelativeAttentionConfig {
    std::size_t width = 1;
    std::size_t heads = 1;
    std::size_t head_size = 0;  ///< d; 0: width / heads
    std::size_t frequencies = 128;
    bool bias = true;  ///< of the queries and of the layer `out`
    /// m of softmax(m (q k^T + q r^T) / d). Empty: the recipe's multiplier, as in AttentionConfig.
    std::optional<double> mult{};
    std::size_t factor_length = 0;           ///< length that fixes the forward factors; 0: the length of each call
    std::size_t depth = 0;                   ///< blocks of the trunk
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x} of `qkv` and `out`; empty: the recipe's rule
};

/// Fixed features of the distances T-1, T-2, ..., 0 between positions, one row for each. `features` [T,frequencies]
///   E[s,f] = amplitude sin(w_f s + phase_f)     w_f = pi (2/1024)^(floor(f/2) / (frequencies/2 - 1))
/// phase_f is 0 for even f and pi/2 for odd f, so each w_f has a sine and a cosine. A row has the mean square
/// amplitude^2 / 2. Test: tests/nn/relative_attention_test.cpp
template <class T>
void fill_distance_features(Tensor<T>& features, double amplitude) {
    const std::size_t length = features.dim(0), frequencies = features.dim(1);
    for (std::size_t pair = 0; pair < frequencies / 2; ++pair) {
        const double share = static_cast<double>(pair) / static_cast<double>(frequencies / 2 - 1),
                     w = std::numbers::pi * std::pow(2.0 / 1024.0, share);
        for (std::size_t s = 0; s < length; ++s) {
            T* const row = features.data() + (length - 1 - s) * frequencies;
            const double angle = w * static_cast<double>(s);
            row[2 * pair] = element_cast<T>(amplitude * std::sin(angle));
            row[2 * pair + 1] = element_cast<T>(amplitude * std::cos(angle));
        }
    }
}

/// Causal self-attention with relative positions, as in the character language models of Unit Scaling.
///   [q, k, v] = x qkv^T     q += query_bias     r = E positions^T           x, y [B,T,width]
///   y = out(softmax(m (q_i k_j + q_i r_{i-j}) / d) v)                       softmax over j <= i, for each head
/// E are the sines and cosines of `fill_distance_features`. Under `unit` their amplitude is 2^1/2, else 1: the
/// published models differ there.
/// Parameters: `path/qkv/weight` [3 heads d,width], in the order q, k, v; `path/query_bias` [heads d];
/// `path/positions/weight` [heads d,frequencies]; `path/out/weight` [width,heads d] and `path/out/bias`.
///
/// Factors under `unit`. Linear layers follow ops::linear, so r has alpha = frequencies^-1/2. The logits are the
/// textbook's, because they are part of the non-linearity, as in ops::attention.
///   Logits: q_i k_j and q_i r_{i-j} have variance d each. Times (2 d)^-1/2 their sum has unit variance. This is alpha
///     and beta of both products. The softmax has the rest, M = m (2/d)^1/2, as its multiplier.
///   Softmax and p v: together they have F = attention_unit_factor(M d^1/2, d, s, causal), over s = T keys. It is the
///     factor of ops::attention for logits with the standard deviation M. p v takes s^-1/2, as every product over s
///     terms does, and the softmax takes F s^1/2. Flat causal p have the mean square ln s / s^2, and there F is
///     (s / ln s)^1/2. Peaked p have 1 / s, and there F is 1. So the data of p has unit size in both limits.
///   Gradients of p are sums over d terms with the factor s^-1/2. Their size is (d / s)^1/2; the logits' is near it.
///   Gradients of k have the size L / 2^1/2, with L = 1 / attention_logit_factor(M d^1/2, d). L is their size in
///     ops::attention, where q k^T has all of the logits' variance; here it has half. Gradients of q come from both
///     products and have the size L. For flat p, L is M.
///   Gradient of r: it sums over the queries of all B sequences, where a gradient of k sums over one sequence. So
///     beta_r = (d B)^-1/2 / L gives it unit size. r may have its own beta, because E has no gradient: r is a cut-edge.
///     The gradient of `positions` then has unit scale by ops::linear. That rule counts the T rows of E in all
///     micro-batches, so B is the batch of one micro-batch.
/// Measured at T from 64 to 256, M = 2^1/2: p 0.9 to 1.0; gradients of q 0.8 to 1.0, of r 0.6 to 0.8, of `positions`
/// 0.44 to 0.67. The last is small because the gradients of a query's logits sum to 0, and slow features hardly differ
/// between near distances.
/// The plan fixes these forward factors at its own T, unless `factor_length` does. T x T logits are stored.
/// Scale under `propagate`: the ops' rules, with these factors as ideal ones.
/// Rounding: by the recipe, kind `matmul` for the products of q, k, r, p and v, kind `linear` for the layers.
/// Errors: no heads; heads that do not divide the width, without a head_size; frequencies odd or below 4; x is not
/// [B,T,width] with T at least 1.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, appendix J.1, and the code of their experiments. Shift of
/// logits: Dai et al. 2019, arXiv:1901.02860, appendix B. The factors of logits, softmax and r are derived here.
/// Test: tests/nn/relative_attention_test.cpp
template <class T>
class RelativeAttention {
public:
    RelativeAttention(const std::string& path, const RelativeAttentionConfig& config)
        : name_(last_name(path)),
          config_(checked(config)),
          qkv_(path + "/qkv", layer(config.width, 3 * columns(), false)),
          // The features' number does not grow with the width: their own number stands for the stream's.
          positions_(path + "/positions",
                     {.in = config.frequencies, .out = columns(), .depth = config.depth, .stream = config.frequencies}),
          out_(path + "/out", layer(columns(), config.width, config.bias)) {
        if (config.bias)
            query_bias_ = std::make_unique<Parameter<T>>(path + "/query_bias", Shape{columns()},
                                                         ParameterFacts{.role = ParameterRole::bias,
                                                                        .fan_in = 1,
                                                                        .fan_out = columns(),
                                                                        .depth = config.depth,
                                                                        .width = config.width});
    }

    /// The logit multiplier under a recipe.
    [[nodiscard]] double mult(const Recipe& recipe) const {
        return config_.mult.value_or(attention_multiplier(recipe.parametrisation_rule(), config_.head_size));
    }

    [[nodiscard]] Variable<T> operator()(Variable<T> x) {
        const Shape shape = x.shape();
        check(shape.size() == 3 && shape[1] >= 1 && shape[2] == config_.width, "RelativeAttention: x ",
              shape_text(shape), "; expected [B,T,", config_.width, "] with T at least 1");
        Tape<T>& tape = x.tape("RelativeAttention");
        const auto scope = tape.scope(name_);
        std::vector<Variable<T>> parts = ops::split(qkv_(std::move(x)), 3, -1);
        if (query_bias_)
            parts[0] = ops::add(parts[0], tape.parameter(*query_bias_),
                                {.unit = ops::Factors<2>{}, .constraint = Constraint::automatic});
        const Variable<T> q = by_head(tape, parts[0], {2, 0, 1, 3}), k = by_head(tape, parts[1], {2, 0, 3, 1}),
                          v = by_head(tape, parts[2], {2, 0, 1, 3});
        parts.clear();
        Variable<T> y = weighted(tape, masked_logits(tape, q, k), v);  // [heads,B,T,d]
        y = ops::reshape(ops::transpose(y, {1, 2, 0, 3}), {shape[0], shape[1], columns()});
        return out_(ops::record_rescaled_gradient(y, tape));
    }

    void collect(std::vector<Parameter<T>*>& parameters) {
        qkv_.collect(parameters);
        if (query_bias_) parameters.push_back(query_bias_.get());
        positions_.collect(parameters);
        out_.collect(parameters);
    }

private:
    static RelativeAttentionConfig checked(RelativeAttentionConfig config) {
        check(config.heads >= 1, "RelativeAttention: 0 heads; expected at least 1");
        check(config.head_size >= 1 || (config.width >= config.heads && config.width % config.heads == 0),
              "RelativeAttention: width ", config.width, " is not divisible by ", config.heads,
              " heads; state head_size");
        check(config.frequencies >= 4 && config.frequencies % 2 == 0, "RelativeAttention: ", config.frequencies,
              " frequencies; expected an even number, at least 4");
        if (config.head_size == 0) config.head_size = config.width / config.heads;
        return config;
    }
    [[nodiscard]] std::size_t columns() const { return config_.heads * config_.head_size; }
    [[nodiscard]] LinearConfig layer(std::size_t in, std::size_t out, bool bias) const {
        return {.in = in,
                .out = out,
                .bias = bias,
                .depth = config_.depth,
                .stream = config_.width,
                .constraint = config_.constraint};
    }

    /// [B,T,heads d], as [B,T,heads,d] with its axes permuted.
    [[nodiscard]] Variable<T> by_head(Tape<T>& tape, const Variable<T>& x, const Shape& axes) const {
        const Shape shape = x.shape();
        const Variable<T> rows = ops::reshape(x, {shape[0], shape[1], config_.heads, config_.head_size});
        return ops::record_rescaled_gradient(ops::transpose(rows, axes), tape);
    }

    /// The multiplier of logits of data with the given scale.
    [[nodiscard]] double logit_mult(const Tape<T>& tape, double scale) const {
        return mult(tape.recipe()) * scale / (head_size() * (tape.unit_scaled() ? logit_factor() : 1.0));
    }
    [[nodiscard]] double head_size() const { return static_cast<double>(config_.head_size); }
    [[nodiscard]] double logit_factor() const { return 1.0 / std::sqrt(2.0 * head_size()); }

    /// q_i k_j + q_i r_{i-j} where j <= i, else -infinity.   q [heads,B,T,d]   k [heads,B,d,T]   [heads,B,T,T]
    [[nodiscard]] Variable<T> masked_logits(Tape<T>& tape, const Variable<T>& q, const Variable<T>& k) {
        const double factor = logit_factor();
        const Variable<T> content = ops::matmul(
            q, k,
            {.unit = ops::Factors<2>{.alpha = factor, .betas = {factor, factor}}, .constraint = Constraint::automatic});
        const Variable<T> logits =
            ops::add(content, position_logits(tape, q, logit_mult(tape, content.scaled().scale())),
                     {.unit = ops::Factors<2>{}, .constraint = Constraint::none});
        const std::size_t length = q.shape()[2];
        Tensor<std::uint8_t> seen({length, length}, tape.pool());
        for (std::size_t i = 0; i < length; ++i)
            for (std::size_t j = 0; j < length; ++j) seen.data()[i * length + j] = j <= i;
        return ops::select(seen, logits, -std::numeric_limits<double>::infinity(), {.constraint = Constraint::none});
    }

    /// q_i r_{i-j} where j <= i, other numbers elsewhere.   q [heads,B,T,d]   [heads,B,T,T]
    /// Row i of the product is [0, q_i r_{T-1}, ..., q_i r_0]: T+1 numbers, of which q_i r_{i-j} is number T - i + j.
    /// The rows behind each other have it at i (T+1) + T - i + j = (i+1) T + j. Read as rows of T numbers, it stands in
    /// column j of row i + 1.
    [[nodiscard]] Variable<T> position_logits(Tape<T>& tape, const Variable<T>& q, double mult_of_data) {
        const Shape shape = q.shape();
        const std::size_t heads = shape[0], batch = shape[1], length = shape[2], d = shape[3];
        Tensor<T> features = tape.make({length, config_.frequencies});
        fill_distance_features(features, tape.unit_scaled() ? std::numbers::sqrt2 : 1.0);
        Variable<T> r = positions_(tape.input(std::move(features)), {.constraint = Constraint::automatic});
        r = ops::pad(ops::record_rescaled_gradient(r, tape), {1, 0}, {0, 0});
        r = ops::transpose(ops::reshape(r, {length + 1, heads, d}), {1, 2, 0});
        const double factor = logit_factor(),
                     beta_r = rsqrt_count(d) * rsqrt_count(batch) *
                              ops::attention_logit_factor(mult_of_data * std::sqrt(head_size()), d);
        const Variable<T> products = ops::matmul(ops::reshape(q, {heads, batch * length, d}), r,
                                                 {.unit = ops::Factors<2>{.alpha = factor, .betas = {factor, beta_r}},
                                                  .constraint = Constraint::automatic});  // [heads,B T,T+1]
        return ops::slice(ops::reshape(products, {heads, batch, length + 1, length}), {0, 0, 1, 0},
                          {heads, batch, length + 1, length});
    }

    /// softmax(m logits / d) v.   logits [heads,B,T,T]   v, result [heads,B,T,d]
    [[nodiscard]] Variable<T> weighted(Tape<T>& tape, const Variable<T>& logits, const Variable<T>& v) const {
        const std::size_t keys = config_.factor_length > 0 ? config_.factor_length : v.shape()[2];
        const double s = static_cast<double>(keys), mult_of_data = logit_mult(tape, logits.scaled().scale());
        const double factor = ops::attention_unit_factor(mult_of_data * std::sqrt(head_size()), config_.head_size, s,
                                                         /*causal=*/true) *
                              std::sqrt(s),
                     mean = rsqrt_count(keys);
        const Variable<T> p = ops::softmax(logits, {.mult = logit_mult(tape, 1.0),
                                                    .unit = ops::Factors<1>{.alpha = factor, .betas = {factor}},
                                                    .constraint = Constraint::automatic});
        return ops::matmul(
            p, v, {.unit = ops::Factors<2>{.alpha = mean, .betas = {mean, mean}}, .constraint = Constraint::automatic});
    }

    std::string name_;
    RelativeAttentionConfig config_;
    Linear<T> qkv_, positions_, out_;
    std::unique_ptr<Parameter<T>> query_bias_{};
};

}  // namespace unitscale::nn
