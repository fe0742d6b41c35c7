// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/scaling/loss_scaling.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/residual.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale {

/// What happens to scale along the graph.
///   none: nothing; the model is the textbook one.
///   unit: every op applies its factors, so that activations, weights and gradients have unit scale at initialisation.
///   propagate: tensors carry a scale, which every op works out; the model is the textbook one (scaling/propagate.hpp).
enum class Scaling { none, unit, propagate };

[[nodiscard]] constexpr std::string_view name(Scaling scaling) noexcept {
    return scaling == Scaling::unit ? "unit" : scaling == Scaling::propagate ? "propagate" : "none";
}

/// Kinds of matrix products that a recipe distinguishes. `linear`: activations times a weight; `readout`: the last
/// linear layer, onto the vocabulary; `matmul`: two activations. Attention's own products are never rounded.
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

/// What the operands of a product are rounded to, by role; nothing: not rounded. For y = x w the three products are
/// Q_a(x) Q_w(w), dx = Q_g(dy) Q_w(w)^T and dw = Q_a(x)^T Q_g(dy). A matmul of two activations uses `activation` twice.
/// Each operand may be multiplied by a power of two before it is rounded (ScaleRule); `result` rounds what the products give.
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
        return role == OperandRole::activation ? activation_scale : role == OperandRole::weight ? weight_scale : gradient_scale;
    }

    friend bool operator==(const ProductFormats&, const ProductFormats&) = default;
};

/// One rule of a recipe: products of this kind in modules whose path matches `pattern` (`*` stands for any text) get
/// these formats. Of several matching rules the last one holds.
struct ProductRule {
    ProductKind kind = ProductKind::linear;
    std::string pattern = "*";
    ProductFormats formats{};
};

/// How parameters are initialised and where multipliers sit.
///   standard: weights normal with standard deviation 0.02, residual branches added plainly.
///   unit: weights unit normal (the ops' factors do the rest), residual branches weighted to keep unit scale.
enum class Parametrisation { standard, unit };

[[nodiscard]] constexpr std::string_view name(Parametrisation p) noexcept {
    return p == Parametrisation::unit ? "unit" : "standard";
}

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
/// precision, storage and parametrisation (storage is float in the recipes so far). A model's code never asks for it.
/// Test: tests/scaling/recipe_test.cpp
struct Recipe {
    std::string name = "fp32";
    std::string description = "standard model in 32-bit floating point";
    Scaling scaling = Scaling::none;
    Constraint constraint = Constraint::automatic;            ///< for ops whose options name none
    Constraint automatic_rule = Constraint::to_output_scale;  ///< how `automatic` joins factors: this, or a mean
    PropagateRule propagate{};                                ///< what `propagate` does with scales
    std::vector<ProductRule> products{};
    LossScaling loss_scaling{};
    Parametrisation parametrisation = Parametrisation::standard;
    double readout_exponent = 1.0;  ///< under `unit` the readout's alpha is in^-this: 1/2 Unit Scaling, 1 u-µP
    ResidualRule residual{};        ///< how residual layers join, where a model names no rule of its own
    double learning_rate = 6e-3;    ///< the default of the character model of `train_transformer`, Adam
    double clip_norm = 0.0;         ///< largest norm of the whole gradient; 0: no clipping

    /// The formats of a product of this kind in the module at `path`.
    [[nodiscard]] ProductFormats formats(ProductKind kind, std::string_view path) const {
        for (std::size_t i = products.size(); i-- > 0;)
            if (products[i].kind == kind && matches(products[i].pattern, path)) return products[i].formats;
        return {};
    }
};

/// The recipes known by name. The learning rates were chosen on seeds 100 and up.
[[nodiscard]] inline std::vector<Recipe> known_recipes() {
    const Recipe fp32_recipe{.learning_rate = 6e-3, .clip_norm = 1.0};
    Recipe unit{.name = "unit-fp32",
                .description = "Unit Scaling in 32-bit floating point",
                .scaling = Scaling::unit,
                .parametrisation = Parametrisation::unit,
                .readout_exponent = 0.5,
                .residual = {.scheme = ResidualScheme::depth},
                .learning_rate = 0.06};

    Recipe unit_fp16 = unit;
    unit_fp16.name = "unit-fp16";
    unit_fp16.description = "Unit Scaling, every linear layer's products in FP16";
    const Quantiser half{.format = fp16};
    for (const ProductKind kind : {ProductKind::linear, ProductKind::readout})
        unit_fp16.products.push_back({.kind = kind, .formats = {.activation = half, .weight = half, .gradient = half}});

    Recipe unit_fp8 = unit;
    unit_fp8.name = "unit-fp8";
    unit_fp8.description = "Unit Scaling, linear layers in FP8: E4M3 inputs and weights, E5M2 gradients; readout in FP32";
    unit_fp8.products.push_back({.kind = ProductKind::linear,
                                 .formats = {.activation = Quantiser{.format = e4m3},
                                             .weight = Quantiser{.format = e4m3},
                                             .gradient = Quantiser{.format = e5m2}}});

    // FP8-AMAX and its kin: the standard model, every linear layer of its blocks in FP8 with a power of two per tensor.
    Recipe fp8_amax = fp32_recipe;
    fp8_amax.name = "fp8-amax";
    fp8_amax.description = "standard model, linear layers in FP8 with a bias per tensor from its largest magnitude (FP8-AMAX)";
    const ScaleRule amax{.source = ScaleSource::amax, .margin = 3};
    fp8_amax.products.push_back({.kind = ProductKind::linear,
                                 .formats = {.activation = Quantiser{.format = e4m3fnuz},
                                             .weight = Quantiser{.format = e4m3fnuz},
                                             .gradient = Quantiser{.format = e5m2fnuz},
                                             .activation_scale = amax,
                                             .weight_scale = amax,
                                             .gradient_scale = amax}});

    const auto with_rule = [&](const char* name, const char* description, const ScaleRule& rule) {
        Recipe recipe = fp8_amax;
        recipe.name = name;
        recipe.description = description;
        ProductFormats& formats = recipe.products.back().formats;
        formats.activation_scale = formats.weight_scale = formats.gradient_scale = rule;
        return recipe;
    };
    Recipe fp8_cscale =
        with_rule("fp8-cscale", "standard model, linear layers in FP8 with one constant bias (FP8-CSCALE), loss scaled",
                  {.source = ScaleSource::constant, .bias = 0});
    fp8_cscale.loss_scaling = {.kind = LossScaleKind::constant, .initial = 0x1p15};
    const Recipe fp8_delayed =
        with_rule("fp8-delayed", "standard model, linear layers in FP8 with a bias per tensor from the magnitudes of past steps",
                  {.source = ScaleSource::delayed, .margin = 0, .history = 16});
    return {fp32_recipe, unit, unit_fp16, unit_fp8, fp8_amax, fp8_cscale, fp8_delayed};
}

/// The recipe of that name; Error lists the known ones.
[[nodiscard]] inline Recipe find_recipe(std::string_view wanted) {
    std::string known;
    for (const Recipe& recipe : known_recipes()) {
        if (recipe.name == wanted) return recipe;
        if (!known.empty()) known += ", ";
        known += recipe.name;
    }
    fail("recipe: unknown name '", wanted, "'; expected one of ", known);
}

}  // namespace unitscale
