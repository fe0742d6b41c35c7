// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/communication.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/scaling/factors.hpp>
#include <unitscale/scaling/loss_scaling.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/product_rule.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/residual.hpp>
#include <unitscale/scaling/storage.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale {

/// How scale is treated along the graph.
///   none: nothing is done; the model is the textbook one.
///   unit: every op applies its factors, so that activations, weights and gradients have unit scale at initialisation.
///   propagate: tensors carry a scale, which every op works out; the model is the textbook one (scaling/propagate.hpp).
enum class Scaling { none, unit, propagate };

[[nodiscard]] constexpr std::string_view name(Scaling scaling) noexcept {
    return scaling == Scaling::unit ? "unit" : scaling == Scaling::propagate ? "propagate" : "none";
}

/// A published low-precision method as one immutable value: a point in the product of the four axes scaling, matmul
/// precision, storage and parametrisation. A model's code never asks for it.
/// Test: tests/scaling/recipe_test.cpp
struct Recipe {
    std::string name = "fp32";
    std::string description = "standard model in 32-bit floating point";
    Scaling scaling = Scaling::none;
    Constraint constraint = Constraint::automatic;            ///< for ops with options that name none
    Constraint automatic_rule = Constraint::to_output_scale;  ///< how `automatic` joins factors: this, or a mean
    PropagateRule propagate{};                                ///< how `propagate` treats scales
    std::vector<ProductRule> products{};
    Storage storage{};
    std::optional<Communication> communication{};  ///< of gradients between micro-batches; empty: not rounded
    LossScaling loss_scaling{};
    Parametrisation parametrisation = Parametrisation::standard;
    Hyperparameters hyperparameters{};
    double readout_exponent = 1.0;  ///< under `unit` the readout's alpha is in^-this: 1/2 Unit Scaling, 1 u-µP
    ResidualRule residual{};        ///< how residual layers join, where a model names no rule of its own
    GeluConstants gelu_constants = GeluConstants::fitted;  ///< source of gelu's factors under `unit`
    /// Under `unit`: y = alpha (x w^T + b), else y = alpha x w^T + b. Convolutions likewise.
    bool bias_inside_alpha = true;
    /// Under the parametrisation `unit`: biases and gains learn at width^-1/2 times the rate (`parameter_scaling`).
    bool vector_learning_rate = false;
    EmbeddingRate embedding_rate = EmbeddingRate::fan_out;                   ///< of the parametrisation `umup`
    InitialDistribution initial_distribution = InitialDistribution::normal;  ///< of initial weights
    double learning_rate = 6e-3;  ///< default of the program `train_transformer` on its character model, with Adam
    double clip_norm = 0.0;       ///< largest norm of the whole gradient; 0: no clipping

    [[nodiscard]] ParametrisationRule parametrisation_rule() const noexcept {
        return {.kind = parametrisation,
                .hyperparameters = hyperparameters,
                .vector_learning_rate = vector_learning_rate,
                .embedding = embedding_rate};
    }

    /// The formats of a product of this kind in the module at `path`, or at `alias`, its path counted from the end.
    [[nodiscard]] ProductFormats formats(ProductKind kind, std::string_view path, std::string_view alias = {}) const {
        for (std::size_t i = products.size(); i-- > 0;)
            if (products[i].applies(kind, path, alias)) return products[i].formats;
        return {};
    }
};

/// Error, naming the field: inconsistent rules of a recipe; rules of unit scaling under another scaling.
[[gnu::cold, gnu::noinline]] inline void check_recipe(const Recipe& recipe) {
    recipe.loss_scaling.validate();
    recipe.storage.validate();
    if (recipe.communication) recipe.communication->validate();
    check_hyperparameters(recipe.hyperparameters);
    check(
        recipe.scaling == Scaling::unit || (recipe.gelu_constants == GeluConstants::fitted && recipe.bias_inside_alpha),
        "recipe: gelu_constants and bias_inside_alpha are for the scaling unit; it is ", name(recipe.scaling));
    check_residual(recipe.residual);
    check(!recipe.propagate.measured || recipe.scaling == Scaling::propagate,
          "recipe: propagate.measured is for the scaling propagate; it is ", name(recipe.scaling));
    check(!recipe.storage.carries_scales() || recipe.scaling == Scaling::propagate,
          "recipe: storage.rescale_every and moments with propagated scales are for the scaling propagate; it is ",
          name(recipe.scaling));
    check(!recipe.vector_learning_rate || recipe.parametrisation == Parametrisation::unit,
          "recipe: vector_learning_rate is for the parametrisation unit; it is ", name(recipe.parametrisation));
    check(recipe.embedding_rate == EmbeddingRate::fan_out || recipe.parametrisation == Parametrisation::umup,
          "recipe: embedding_rate is for the parametrisation umup; it is ", name(recipe.parametrisation));
    check(recipe.hyperparameters.embedding_rate == 1.0 || recipe.parametrisation == Parametrisation::mup,
          "recipe: hyperparameters.embedding_rate is for the parametrisation mup; it is ",
          name(recipe.parametrisation));
    check(recipe.gelu_constants == GeluConstants::fitted || recipe.hyperparameters.alpha_ffn_act == 1.0,
          "recipe: gelu_constants: the constants of the Unit Scaling paper hold for alpha_ffn_act 1 only; it is ",
          recipe.hyperparameters.alpha_ffn_act);
    for (std::size_t i = 0; i < recipe.products.size(); ++i)
        check_product_rule(concatenate("recipe: products.", i, '.'), recipe.products[i]);
}

}  // namespace unitscale
