// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/attention.hpp>
#include <unitscale/nn/convolution.hpp>
#include <unitscale/nn/recurrent.hpp>
#include <unitscale/nn/relative_attention.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace unitscale::nn {

/// The layer of a block that carries information from position to position; all are causal.
///   attention           nn::Attention: keys, values, optionally rotary positions
///   relative_attention  nn::RelativeAttention: the logits also depend on the distance
///   convolution         nn::CausalConvolution
///   recurrence          nn::JointHighway
/// The last three are those of the Unit Scaling experiments.
enum class ContextKind { attention, relative_attention, convolution, recurrence };

inline constexpr std::array<std::string_view, 4> context_kind_names = {"attention", "relative_attention", "convolution",
                                                                       "recurrence"};

[[nodiscard]] constexpr std::string_view name(ContextKind kind) noexcept {
    return context_kind_names[static_cast<std::size_t>(kind)];
}

struct ContextConfig {
    ContextKind kind = ContextKind::attention;
    std::size_t kernel = 7;               ///< positions that a convolution sees
    std::size_t convolution_groups = 16;  ///< of channels
    double gate_shift = 1.0;              ///< keeps a recurrence's gate shut at first
};

/// The context layer of a block, x, y [B,T,width]. The kinds with attention read all of `attention`. The others read
/// its width, depth and constraint; a convolution also reads `bias`, and a recurrence always has one.
/// Parameters: those of the layer, under `path` and the layer's name: attention, convolution or recurrence.
/// Errors: past keys and values, or a mask, for another kind than `attention`; a multiplier of logits, of the config
/// or, in a call, of the recipe (alpha_attn), for a kind without logits; the layer's own.
/// Test: tests/nn/context_test.cpp
template <class T>
class Context {
public:
    /// The last part of the layer's name.
    [[nodiscard]] static std::string_view layer_name(ContextKind kind) noexcept {
        return kind == ContextKind::relative_attention ? name(ContextKind::attention) : name(kind);
    }

    Context(const std::string& path, const ContextConfig& config, const AttentionConfig& attention)
        : kind_(config.kind), layer_(make(concatenate(path, '/', layer_name(config.kind)), config, attention)) {
        check(has_logits() || !attention.mult, "Context ", path, ": mult is ", attention.mult.value_or(1.0),
              "; a layer of kind ", name(kind_), " has no logits");
    }

    [[nodiscard]] Variable<T> operator()(Variable<T> x, const ops::KeyValueRows<T>* past = nullptr) {
        if (Attention<T>* const attention = std::get_if<Attention<T>>(&layer_)) return (*attention)(std::move(x), past);
        check(past == nullptr, "Context: keys and values of past positions; a layer of kind ", name(kind_),
              " has none");
        return without_mask(std::move(x));
    }
    [[nodiscard]] Variable<T> operator()(Variable<T> x, const ops::AttentionMask& mask) {
        if (Attention<T>* const attention = std::get_if<Attention<T>>(&layer_)) return (*attention)(std::move(x), mask);
        check(!mask.hides(), "Context: a mask; a layer of kind ", name(kind_), " takes none");
        return without_mask(std::move(x));
    }

    void collect(std::vector<Parameter<T>*>& parameters) {
        std::visit([&](auto& layer) { layer.collect(parameters); }, layer_);
    }

private:
    using Layer = std::variant<Attention<T>, RelativeAttention<T>, CausalConvolution<T>, JointHighway<T>>;

    [[nodiscard]] bool has_logits() const noexcept {
        return kind_ == ContextKind::attention || kind_ == ContextKind::relative_attention;
    }

    [[nodiscard]] Variable<T> without_mask(Variable<T> x) {
        const double alpha = x.tape("Context").recipe().hyperparameters.alpha_attn;
        check(has_logits() || alpha == 1.0, "Context: the recipe's alpha_attn is ", alpha, "; a layer of kind ",
              name(kind_), " has no logits, expected 1");
        return std::visit([&](auto& layer) { return layer(std::move(x)); }, layer_);
    }
    [[nodiscard]] static Layer make(const std::string& path, const ContextConfig& config,
                                    const AttentionConfig& attention) {
        const std::size_t width = attention.width;
        switch (config.kind) {
            case ContextKind::relative_attention:
                return Layer(std::in_place_type<RelativeAttention<T>>, path,
                             RelativeAttentionConfig{.width = width,
                                                     .heads = attention.heads,
                                                     .bias = attention.bias,
                                                     .mult = attention.mult,
                                                     .factor_length = attention.factor_length,
                                                     .depth = attention.depth,
                                                     .constraint = attention.constraint});
            case ContextKind::convolution:
                return Layer(std::in_place_type<CausalConvolution<T>>, path,
                             CausalConvolutionConfig{.in = width,
                                                     .out = width,
                                                     .kernel = config.kernel,
                                                     .groups = config.convolution_groups,
                                                     .bias = attention.bias,
                                                     .depth = attention.depth,
                                                     .constraint = attention.constraint});
            case ContextKind::recurrence:
                return Layer(std::in_place_type<JointHighway<T>>, path,
                             JointHighwayConfig{.in = width,
                                                .hidden = width,
                                                .shift = config.gate_shift,
                                                .depth = attention.depth,
                                                .constraint = attention.constraint});
            case ContextKind::attention:
                break;
        }
        return Layer(std::in_place_type<Attention<T>>, path, attention);
    }

    ContextKind kind_;
    Layer layer_;
};

}  // namespace unitscale::nn
