// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/scaling/loss_scaling.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/residual.hpp>
#include <unitscale/scaling/storage.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
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

/// Kinds of matrix products that a recipe distinguishes. `linear`: activations times a weight. `readout`: the last
/// linear layer, onto the vocabulary. `matmul`: two activations. Attention's own products are never rounded.
enum class ProductKind { linear, readout, matmul };

[[nodiscard]] constexpr std::string_view name(ProductKind kind) noexcept {
    return kind == ProductKind::linear ? "linear" : kind == ProductKind::readout ? "readout" : "matmul";
}

/// The roles of a product's operands.
enum class OperandRole : std::uint8_t { activation, weight, gradient };

inline constexpr std::array<std::string_view, 3> operand_role_names = {"activation", "weight", "gradient"};
[[nodiscard]] constexpr std::string_view name(OperandRole role) noexcept {
    return operand_role_names[static_cast<std::size_t>(role)];
}

/// The formats that a product's operands are rounded to, by role; empty: not rounded. For y = x w the three products
/// are Q_a(x) Q_w(w), dx = Q_g(dy) Q_w(w)^T and dw = Q_a(x)^T Q_g(dy). A matmul of two activations uses `activation`
/// twice. Each operand may be multiplied by a power of two before it is rounded (ScaleRule). `result` rounds the
/// results of the products.
struct ProductFormats {
    std::optional<Quantiser> activation{};
    std::optional<Quantiser> weight{};
    std::optional<Quantiser> gradient{};
    ScaleRule activation_scale{};
    ScaleRule weight_scale{};
    ScaleRule gradient_scale{};
    std::optional<Quantiser> result{};

    [[nodiscard]] const std::optional<Quantiser>& of(OperandRole role) const noexcept {
        return role == OperandRole::activation ? activation : role == OperandRole::weight ? weight : gradient;
    }
    [[nodiscard]] const ScaleRule& scale(OperandRole role) const noexcept {
        return role == OperandRole::activation ? activation_scale
               : role == OperandRole::weight   ? weight_scale
                                               : gradient_scale;
    }

    friend bool operator==(const ProductFormats&, const ProductFormats&) = default;
};

/// One rule of a recipe: the formats of products of this kind in modules with a path that matches `pattern` (`*` stands
/// for any text). Of several matching rules the last one holds.
struct ProductRule {
    ProductKind kind = ProductKind::linear;
    std::string pattern = "*";
    ProductFormats formats{};
};

/// Whether `text` matches `pattern`, in which `*` stands for any run of characters, empty ones included.
[[nodiscard]] inline bool matches(std::string_view pattern, std::string_view text) noexcept {
    std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
    while (t < text.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            resume = t;
        } else if (p < pattern.size() && pattern[p] == text[t]) {
            ++p;
            ++t;
        } else if (star != std::string_view::npos) {
            p = star + 1;
            t = ++resume;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*') ++p;
    return p == pattern.size();
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
    LossScaling loss_scaling{};
    Parametrisation parametrisation = Parametrisation::standard;
    Hyperparameters hyperparameters{};
    double readout_exponent = 1.0;  ///< under `unit` the readout's alpha is in^-this: 1/2 Unit Scaling, 1 u-µP
    ResidualRule residual{};        ///< how residual layers join, where a model names no rule of its own
    double learning_rate = 6e-3;    ///< default of the program `train_transformer` on its character model, with Adam
    double clip_norm = 0.0;         ///< largest norm of the whole gradient; 0: no clipping

    [[nodiscard]] ParametrisationRule parametrisation_rule() const noexcept {
        return {parametrisation, hyperparameters};
    }

    /// The formats of a product of this kind in the module at `path`.
    [[nodiscard]] ProductFormats formats(ProductKind kind, std::string_view path) const {
        for (std::size_t i = products.size(); i-- > 0;)
            if (products[i].kind == kind && matches(products[i].pattern, path)) return products[i].formats;
        return {};
    }
};

/// Error, naming the field: inconsistent rules of a recipe.
[[gnu::cold, gnu::noinline]] inline void check_recipe(const Recipe& recipe) {
    recipe.loss_scaling.validate();
    recipe.storage.validate();
    check_hyperparameters(recipe.hyperparameters);
    for (std::size_t i = 0; i < recipe.products.size(); ++i)
        for (const OperandRole role : {OperandRole::activation, OperandRole::weight, OperandRole::gradient})
            check_rule(concatenate("recipe: products.", i, '.', name(role), "_scale"),
                       recipe.products[i].formats.scale(role));
}

/// A recipe known by name. It starts as the recipe called `base` (empty: the default recipe), takes this name and
/// description, and then is changed by `change`.
struct KnownRecipe {
    std::string_view name;
    std::string_view base;
    std::string_view description;
    void (*change)(Recipe& recipe);
};

/// Appends a rule: linear layers in modules that match `pattern` round their operands, if there are formats.
[[gnu::cold, gnu::noinline]] inline void add_linear_rule(Recipe& recipe, std::string_view pattern,
                                                         const ProductFormats& formats = {}) {
    recipe.products.push_back({.kind = ProductKind::linear, .pattern = std::string(pattern), .formats = formats});
}

/// Appends a rule for linear layers of all modules: inputs and weights in `forward`, gradients in `backward`, every
/// operand scaled by `rule`.
[[gnu::cold, gnu::noinline]] inline void round_linear_layers(Recipe& recipe, const FloatFormat& forward,
                                                             const FloatFormat& backward, const ScaleRule& rule = {}) {
    add_linear_rule(recipe, "*",
                    {.activation = Quantiser{.format = forward},
                     .weight = Quantiser{.format = forward},
                     .gradient = Quantiser{.format = backward},
                     .activation_scale = rule,
                     .weight_scale = rule,
                     .gradient_scale = rule});
}

/// The table of recipes; a base stands before the recipes derived from it. The learning rates were chosen on seeds 100
/// and up.
[[nodiscard]] inline std::span<const KnownRecipe> recipe_table() noexcept {
    static constexpr KnownRecipe table[] = {
        {"fp32", "", "standard model in 32-bit floating point", [](Recipe& r) { r.clip_norm = 1.0; }},

        // 16-bit activations and gradients, 32-bit master weights and optimiser state.
        {"fp16", "fp32", "standard model in FP16, FP32 master weights; shows that gradients underflow",
         [](Recipe& r) {
             r.storage.element = ElementType::float16;
             r.storage.master = StateFormat{};
         }},
        {"fp16-loss-scaled", "fp16", "standard model in FP16, FP32 master weights, constant loss scale",
         [](Recipe& r) {
             r.loss_scaling.kind = LossScaleKind::constant;
             r.loss_scaling.initial = 0x1p12;
         }},
        {"fp16-auto-loss-scaled", "fp16", "standard model in FP16, FP32 master weights, automatic loss scale",
         [](Recipe& r) {
             r.loss_scaling.kind = LossScaleKind::automatic;
             r.loss_scaling.initial = 0x1p16;
         }},
        {"bf16", "fp16", "standard model in BF16, FP32 master weights",
         [](Recipe& r) { r.storage.element = ElementType::bfloat16; }},

        // Unit Scaling.
        {"unit-fp32", "", "Unit Scaling in 32-bit floating point",
         [](Recipe& r) {
             r.scaling = Scaling::unit;
             r.parametrisation = Parametrisation::unit;
             r.readout_exponent = 0.5;
             r.residual.scheme = ResidualScheme::depth;
             r.learning_rate = 0.06;
         }},
        {"unit-fp16", "unit-fp32", "Unit Scaling in FP16, FP32 master weights",
         [](Recipe& r) {
             r.storage.element = ElementType::float16;
             r.storage.master = StateFormat{};
         }},
        {"unit-fp8", "unit-fp32",
         "Unit Scaling, linear layers in FP8: E4M3 inputs and weights, E5M2 gradients; readout in FP32",
         [](Recipe& r) { round_linear_layers(r, e4m3, e5m2); }},

        // u-µP. The inputs of attention's and the feed-forward's last layer grow during training, so these layers are
        // not rounded to FP8 (section 4.2 of the paper). Nor is the readout.
        {"umup-fp32", "unit-fp32", "u-µP in 32-bit floating point",
         [](Recipe& r) {
             r.parametrisation = Parametrisation::umup;
             r.readout_exponent = 1.0;
             r.learning_rate = 1.0;
         }},
        {"umup-bf16", "umup-fp32", "u-µP in BF16, FP32 master weights",
         [](Recipe& r) {
             r.storage.element = ElementType::bfloat16;
             r.storage.master = StateFormat{};
         }},
        {"umup-fp8", "umup-fp32",
         "u-µP, linear layers but attention's and the feed-forward's last in FP8: E4M3, E5M2 gradients",
         [](Recipe& r) {
             round_linear_layers(r, e4m3, e5m2);
             add_linear_rule(r, "*/attention/out");
             add_linear_rule(r, "*/ffn/down");
         }},
        {"mup-fp32", "fp32", "µP in 32-bit floating point, standard at width 128 and depth 4",
         [](Recipe& r) { r.parametrisation = Parametrisation::mup; }},

        // The four runs of Scalify's table 3, each with all changes of the one before it.
        {"scalify-fp16-1", "fp16", "scale propagation in FP16, FP32 master weights (Scalify #1)",
         [](Recipe& r) {
             r.scaling = Scaling::propagate;
             r.propagate.rescale_gradients = true;  // the paper rescales gradients of norms only, and not in #1
         }},
        {"scalify-fp16-2", "scalify-fp16-1", "scale propagation in FP16, FP16 master weights (Scalify #2)",
         [](Recipe& r) { r.storage.master.reset(); }},  // the FP16 weights themselves are updated, with their scale
        {"scalify-fp8-3", "scalify-fp16-2",
         "scalify-fp16-2 with linear layers and their weight gradients in FP8 (Scalify #3)",
         [](Recipe& r) {
             round_linear_layers(r, e4m3, e5m2);
             r.storage.weight_gradient = Quantiser{.format = e5m2};
         }},
        {"scalify-fp8-4", "scalify-fp8-3",
         "scalify-fp8-3 with FP16 optimiser state and rescaled weight gradients (Scalify #4)",
         [](Recipe& r) {
             r.storage.first_moment.format = r.storage.second_moment.format = fp16;
             r.storage.weight_gradient_scale.source = ScaleSource::amax;
         }},

        // FP8-AMAX and similar methods: the standard model, with every linear layer of its blocks in FP8 and a power of
        // two per tensor.
        {"fp8-amax", "fp32",
         "standard model, linear layers in FP8 with a bias per tensor from its largest magnitude (FP8-AMAX)",
         [](Recipe& r) { round_linear_layers(r, e4m3fnuz, e5m2fnuz, {.source = ScaleSource::amax, .margin = 3}); }},
        {"fp8-cscale", "fp32", "standard model, linear layers in FP8 with one constant bias (FP8-CSCALE), loss scaled",
         [](Recipe& r) {
             round_linear_layers(r, e4m3fnuz, e5m2fnuz, {.source = ScaleSource::constant, .bias = 0});
             r.loss_scaling.kind = LossScaleKind::constant;
             r.loss_scaling.initial = 0x1p15;
         }},
        {"fp8-delayed", "fp32",
         "standard model, linear layers in FP8 with a bias per tensor from the magnitudes of past steps",
         [](Recipe& r) {
             round_linear_layers(r, e4m3fnuz, e5m2fnuz, {.source = ScaleSource::delayed, .margin = 0, .history = 16});
         }},
    };
    return table;
}

/// Turns `recipe`, which has default values, into the recipe called `name`. False if there is no such recipe.
[[gnu::cold, gnu::noinline]] inline bool make_recipe(std::string_view name, Recipe& recipe) {
    for (const KnownRecipe& known : recipe_table()) {
        if (known.name != name) continue;
        if (!known.base.empty()) make_recipe(known.base, recipe);
        recipe.name = known.name;
        recipe.description = known.description;
        known.change(recipe);
        return true;
    }
    return false;
}

/// The recipes known by name, in the order of the table.
[[nodiscard]] inline std::vector<Recipe> known_recipes() {
    std::vector<Recipe> recipes(recipe_table().size());
    for (std::size_t i = 0; i < recipes.size(); ++i) make_recipe(recipe_table()[i].name, recipes[i]);
    return recipes;
}

/// The recipe with the given name. Error: an unknown name; the message lists the known ones.
[[nodiscard]] inline Recipe find_recipe(std::string_view wanted) {
    Recipe recipe;
    if (make_recipe(wanted, recipe)) return recipe;
    std::string known;
    for (const KnownRecipe& entry : recipe_table()) (known += known.empty() ? "" : ", ") += entry.name;
    fail("recipe: unknown name '", wanted, "'; expected one of ", known);
}

}  // namespace unitscale
