// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/gated_silu.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/relu.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::nn {

/// gelu: down(gelu(up(x))). gated_silu: down(up(x) silu(gate(x))) (SwiGLU). gelu_tanh: gelu in its tanh form (GPT-2).
/// relu: down(relu(up(x))), without a multiplier: relu(m z) is m relu(z).
enum class FeedForwardKind { gelu, gated_silu, gelu_tanh, relu };

struct FeedForwardConfig {
    FeedForwardKind kind = FeedForwardKind::gelu;
    std::size_t width = 1;
    std::size_t hidden = 4;
    bool bias = false;
    std::optional<double> mult{};  ///< multiplier before gelu or silu; empty: the recipe's alpha_ffn_act
    std::size_t depth = 0;         ///< blocks of the trunk
    /// Joins {alpha, beta_x} of the linear layers and of gelu or relu; empty: the recipe's rule. See FeedForward.
    std::optional<Constraint> constraint{};
    double gradient_share = 1.0;  ///< as in LinearConfig, for all layers
};

/// The feed-forward part of a transformer block. x, y [...,width]; layers `up`, `gate` (gated_silu only), `down`.
/// gelu has the constants of the recipe (Recipe::gelu_constants).
/// Inside a residual branch the automatic constraint joins alpha and beta_x of every layer. So under `to_output_scale`
/// the gradients of `up` and `gate` have (width/hidden)^1/2 in place of 1. With gated silu, `.constraint = none` gives
/// mirrored factors: (width/hidden)^1/2 at `up` and `gate` and its inverse at `down` cancel, all three gradients have
/// unit scale, and the audit finds them valid. With gelu and relu it would find a fault.
/// Errors: a multiplier beside relu, of the config or, in a call, of the recipe.
/// Test: tests/nn/feed_forward_test.cpp
template <class T>
class FeedForward {
public:
    FeedForward(const std::string& path, const FeedForwardConfig& config);

    [[nodiscard]] Variable<T> operator()(Variable<T> x);

    void collect(std::vector<Parameter<T>*>& parameters);

private:
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
    FeedForwardConfig config_;
    Linear<T> up_, down_;
    std::optional<Linear<T>> gate_{};
};

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
FeedForward<T>::FeedForward(const std::string& path, const FeedForwardConfig& config)
    : name_(last_name(path)),
      config_(config),
      up_(path + "/up", layer(config.width, config.hidden)),
      down_(path + "/down", layer(config.hidden, config.width)) {
    check(config.kind != FeedForwardKind::relu || !config.mult, "FeedForward ", path, ": mult is ",
          config.mult.value_or(1.0), "; relu has none");
    if (config.kind == FeedForwardKind::gated_silu) gate_.emplace(path + "/gate", layer(config.width, config.hidden));
}

template <class T>
Variable<T> FeedForward<T>::operator()(Variable<T> x) {
    const double mult = config_.mult.value_or(x.tape("FeedForward").recipe().hyperparameters.alpha_ffn_act);
    check(config_.kind != FeedForwardKind::relu || mult == 1.0, "FeedForward ", name_,
          ": the recipe's alpha_ffn_act is ", mult, "; relu has none, expected 1");
    const auto scope = x.tape("FeedForward").scope(name_);
    if (config_.kind == FeedForwardKind::relu) return down_(ops::relu(up_(x), {.constraint = config_.constraint}));
    const auto form = config_.kind == FeedForwardKind::gelu_tanh ? ops::GeluForm::tanh : ops::GeluForm::erf;
    if (!gate_) return down_(ops::gelu(up_(x), {.mult = mult, .form = form, .constraint = config_.constraint}));
    const Variable<T> up = up_(x);
    return down_(ops::gated_silu(up, (*gate_)(x), {.mult = mult}));
}

template <class T>
void FeedForward<T>::collect(std::vector<Parameter<T>*>& parameters) {
    up_.collect(parameters);
    if (gate_) gate_->collect(parameters);
    down_.collect(parameters);
}

}  // namespace unitscale::nn
