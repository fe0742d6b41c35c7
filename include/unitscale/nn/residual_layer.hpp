// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/norm.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/multiplier.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/residual.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::nn {

/// The place of a residual layer's normalisation. pre: f(norm(x)). post: norm(x + f(x)). none: no normalisation.
enum class NormPlacement { pre, post, none };

struct ResidualLayerConfig {
    NormConfig norm{};  ///< with its width
    NormPlacement placement = NormPlacement::pre;
    std::optional<ResidualRule> residual{};  ///< empty: the recipe's rule
    double dropout = 0.0;                    ///< on the branch's output
    std::size_t index = 0;                   ///< the layer's place among `count` residual layers
    std::size_t count = 1;
    std::size_t blocks = 1;  ///< of `count / blocks` layers each, the last one feed-forward
};

/// A residual layer with its normalisation, y = x + branch(norm(x)) by the recipe's residual rule. Parameters: the
/// norm's, with names from `path`. x, y [...,width].
/// Error: layers that are not of whole blocks. Test: tests/nn/residual_layer_test.cpp
template <class T>
class ResidualLayer {
public:
    ResidualLayer(const std::string& path, const ResidualLayerConfig& config)
        : config_(config), norm_(path, norm(config)) {
        check(config.blocks >= 1 && config.count % config.blocks == 0, "ResidualLayer ", path, ": ", config.count,
              " layers in ", config.blocks, " blocks; expected equal numbers in each");
    }

    /// `branch` turns a Variable into one of its shape.
    template <class Branch>
    [[nodiscard]] Variable<T> operator()(Variable<T> x, Branch&& branch) {
        const Recipe& recipe = x.tape("ResidualLayer").recipe();
        const ResidualRule rule = config_.residual.value_or(recipe.residual);
        std::optional<double> tau;
        if (rule.scheme != ResidualScheme::plain)
            tau = residual_tau(rule, config_.index, config_.count, config_.count / config_.blocks);
        auto [inner, stream] = ops::residual_split(x, tau);
        if (config_.placement == NormPlacement::pre) inner = norm_(inner);
        inner = branch(inner);
        if (config_.dropout > 0.0) inner = ops::dropout(inner, {.p = config_.dropout});
        inner = ops::multiplier(inner, branch_multiplier(recipe.parametrisation_rule(), config_.blocks));
        const Variable<T> sum = ops::residual_add(inner, stream, tau);
        return config_.placement == NormPlacement::post ? norm_(sum) : sum;
    }

    void collect(std::vector<Parameter<T>*>& parameters) { norm_.collect(parameters); }

private:
    static NormConfig norm(const ResidualLayerConfig& config) {
        NormConfig norm = config.norm;
        if (config.placement == NormPlacement::pre) norm.depth = config.blocks;
        if (config.placement == NormPlacement::none) norm.gains = false;
        return norm;
    }

    ResidualLayerConfig config_;
    Norm<T> norm_;
};

}  // namespace unitscale::nn
