// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The recipes that have a name: published methods, each a change of another recipe.
namespace unitscale {

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

/// Appends a rule for linear layers of all modules: inputs and weights by `forward`, gradients by `backward`.
[[gnu::cold, gnu::noinline]] inline void round_linear_layers(Recipe& recipe, const OperandRule& forward,
                                                             const OperandRule& backward) {
    add_linear_rule(recipe, "*",
                    {.activation = forward.element,
                     .weight = forward.element,
                     .gradient = backward.element,
                     .activation_scale = forward.scale,
                     .weight_scale = forward.scale,
                     .gradient_scale = backward.scale});
}
inline void round_linear_layers(Recipe& r, const FloatFormat& x, const FloatFormat& dy, const ScaleRule& rule = {}) {
    round_linear_layers(r, {Quantiser{.format = x}, rule}, {Quantiser{.format = dy}, rule});
}
/// Appends rules for linear layers, products of activations and attention, in all modules.
[[gnu::cold, gnu::noinline]] inline void round_all_products(Recipe& recipe, const FloatFormat& x,
                                                            const FloatFormat& dy) {
    round_linear_layers(recipe, x, dy);
    for (const ProductKind kind : {ProductKind::matmul, ProductKind::attention})
        recipe.products.push_back(
            {.kind = kind, .formats = {.activation = Quantiser{.format = x}, .gradient = Quantiser{.format = dy}}});
}
inline void round_in_blocks(Recipe& recipe, const BlockFormat& forward, const BlockFormat& backward) {
    round_linear_layers(recipe, OperandRule::in_blocks(forward), OperandRule::in_blocks(backward));
}
/// `format` with exponents of scales rounded up to the least that keeps amax.
[[nodiscard]] constexpr BlockFormat exponents_rounded_up(BlockFormat format) {
    format.exponent = ExponentRounding::rceil;
    return make_block_format(format);
}

/// The table of recipes; a base stands before what is derived from it. Learning rates were chosen on seeds 100 and up.
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
        {"fp16-histogram-loss-scaled", "fp16-auto-loss-scaled", "fp16, loss scale by the share of large gradients",
         [](Recipe& r) {
             r.loss_scaling.kind = LossScaleKind::histogram;
             r.loss_scaling.interval = 1;  // as published: every step doubles the scale or halves it
         }},
        {"fp16-log-normal-loss-scaled", "fp16-auto-loss-scaled", "fp16, loss scale by the largest gradients so far",
         [](Recipe& r) { r.loss_scaling.kind = LossScaleKind::log_normal; }},
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

        // Unit Scaling as published (docs/recipes.md has the differences to the three above). FP16 holds the weights
        // themselves and the first moment; FP8 is for the operands of all products but the vocabulary's.
        {"us-fp32", "unit-fp32", "Unit Scaling as published, in 32-bit floating point",
         [](Recipe& r) {
             r.automatic_rule = Constraint::gmean;
             r.residual.scheme = ResidualScheme::running_mean;
             r.gelu_constants = GeluConstants::unit_scaling_paper;
             r.bias_inside_alpha = false;
             r.vector_learning_rate = true;
             r.initial_distribution = InitialDistribution::uniform;
         }},
        {"us-fp16", "us-fp32", "Unit Scaling as published, in FP16: weights without FP32 master, first moment",
         [](Recipe& r) {
             r.storage.element = ElementType::float16;
             r.storage.first_moment = {.format = fp16, .scaled = false};
         }},
        {"us-fp8", "us-fp16", "us-fp16 with all products but the vocabulary's in FP8: E4M3, E5M2 gradients",
         [](Recipe& r) { round_all_products(r, e4m3, e5m2); }},

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
        // The two ways of rounding these layers, too: a wider range, or a scale that is measured.
        {"umup-fp8-e5m2", "umup-fp8", "umup-fp8 with attention's and the feed-forward's last layers in E5M2",
         [](Recipe& r) {
             for (const std::size_t last : {r.products.size() - 2, r.products.size() - 1})
                 r.products[last].formats = {.activation = Quantiser{.format = e5m2},
                                             .weight = Quantiser{.format = e4m3},
                                             .gradient = Quantiser{.format = e5m2}};
         }},
        {"umup-fp8-amax", "umup-fp8-e5m2",
         "umup-fp8 with attention's and the feed-forward's last layers in FP8, their inputs scaled by amax",
         [](Recipe& r) {
             for (const std::size_t last : {r.products.size() - 2, r.products.size() - 1}) {
                 r.products[last].formats.activation->format = e4m3;
                 r.products[last].formats.activation_scale.source = ScaleSource::amax;
             }
         }},
        {"mup-fp32", "fp32", "µP in 32-bit floating point, standard at width 128 and depth 4",
         [](Recipe& r) { r.parametrisation = Parametrisation::mup; }},

        // The four runs of Scalify's table 3, each with all changes of the one before it. The paper's #1 rescales
        // nothing. The others rescale the gradients of norms, and state now and then (algorithm 1). Here all four do
        // both, and rescale gradients around attention, too: static scales bear low learning rates only.
        {"scalify-fp16-static", "fp16", "scale propagation in FP16, FP32 master weights; Scalify #1 as published",
         [](Recipe& r) {
             r.scaling = Scaling::propagate;
             r.learning_rate = 2e-4;  // the paper's; at 7.5e-4 gradients leave FP16's range within 150 steps
         }},
        {"scalify-fp16-1", "scalify-fp16-static",
         "scale propagation in FP16, FP32 master weights (Scalify #1), rescaled",
         [](Recipe& r) {
             r.propagate.rescale_gradients = true;
             r.storage.rescale_every = 20;
             r.learning_rate = 6e-3;
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

        // Unit Scaling aligned with the standard model (appendix H of its paper): the standard model's function, where
        // every tensor is unit data times a constant. docs/alignment.md says why this is scale propagation.
        {"aligned-fp32", "fp32", "the standard model in Unit Scaling's arithmetic, 32-bit floating point",
         [](Recipe& r) {
             r.scaling = Scaling::propagate;
             r.propagate = {.rounding = ScaleRounding::none, .exact_norms = true, .measured = true};
         }},
        {"aligned-fp16", "aligned-fp32", "aligned-fp32 in FP16: weights without FP32 master, first moment",
         [](Recipe& r) {
             r.storage.element = ElementType::float16;
             r.storage.first_moment = {.format = fp16, .scaled = false};
         }},
        {"aligned-fp8", "aligned-fp16",
         "aligned-fp16 with all products but the vocabulary's in FP8: E4M3, E5M2 gradients",
         [](Recipe& r) { round_all_products(r, e4m3, e5m2); }},

        // FP8-AMAX and similar methods: the standard model, with every linear layer of its blocks in FP8 and a power of
        // two per tensor.
        {"fp8-amax", "fp32",
         "standard model, linear layers in FP8 with a bias per tensor from its largest magnitude (FP8-AMAX)",
         [](Recipe& r) { round_linear_layers(r, e4m3fnuz, e5m2fnuz, {.source = ScaleSource::amax, .margin = 3}); }},
        {"fp8-amax-fp16", "fp16-auto-loss-scaled",
         "fp8-amax with sums, activations, gradients and weights in FP16 (no FP32 master), loss scaled",
         [](Recipe& r) {
             round_linear_layers(r, e4m3fnuz, e5m2fnuz, {.source = ScaleSource::amax, .margin = 3});
             ProductFormats& formats = r.products.back().formats;
             formats.accumulate.fill(mptorch_sums(fp16));
             // E5M2 reaches far beyond FP16's sums, and a weight's gradient is a sum over all rows of a batch.
             formats.gradient_scale.margin = 12;
             r.storage.master.reset();
         }},
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

        // Blocks of 32 along the contracted dimension that share a power of two (OCP MX). Every operand is rounded anew
        // for each of its products, because blocks run along another dimension there. Readout and attention in FP32.
        {"mxfp8", "fp32", "standard model, linear layers in MXFP8: E4M3 in blocks of 32, scales rounded up",
         [](Recipe& r) { round_in_blocks(r, exponents_rounded_up(mxfp8_e4m3), exponents_rounded_up(mxfp8_e4m3)); }},
        {"mxfp8-hybrid", "fp32", "standard model, linear layers in MXFP8: E4M3, gradients in E5M2, blocks of 32",
         [](Recipe& r) { round_in_blocks(r, exponents_rounded_up(mxfp8_e4m3), exponents_rounded_up(mxfp8_e5m2)); }},
        {"mxfp6", "fp32", "standard model, linear layers in MXFP6: E2M3, gradients in E3M2, blocks of 32",
         [](Recipe& r) { round_in_blocks(r, mxfp6_e2m3, mxfp6_e3m2); }},
        {"mxfp4", "fp32", "standard model, linear layers in MXFP4: E2M1 in blocks of 32",
         [](Recipe& r) { round_in_blocks(r, mxfp4, mxfp4); }},

        // Blocks of 16 with an E4M3 scale under the tensor's scale. Square blocks give a weight and its transpose equal
        // numbers. The last block of the model is not rounded: the paper keeps about 15 % of the linear layers in high
        // precision, most of them at the end, because training diverges otherwise.
        {"nvfp4", "fp32", "standard model, NVFP4 but in the last block: square weights, stochastic gradients, rotation",
         [](Recipe& r) {
             round_in_blocks(r, nvfp4, nvfp4);
             ProductFormats& formats = r.products.back().formats;
             for (const OperandSlot slot : {OperandSlot::forward_w, OperandSlot::input_gradient_w})
                 formats.set(slot, OperandRule::in_blocks(nvfp4_square));
             formats.gradient->rounding = Rounding::stochastic;
             formats.rotations.back() = transformer_engine_rotation;
             add_linear_rule(r, "*block-1/*");
         }},

        // Tiles of 128 in FP8, as DeepSeek-V3: inputs and gradients 1 x 128, weights 128 x 128.
        {"fp8-tiles", "fp32", "standard model, linear layers in E4M3 with a scale for each tile of 128",
         [](Recipe& r) {
             round_in_blocks(r, fp8_tile, fp8_tile);
             for (const OperandSlot slot : {OperandSlot::forward_w, OperandSlot::input_gradient_w})
                 r.products.back().formats.set(slot, OperandRule::in_blocks(fp8_square));
         }},
        {"fp8-tiles-hopper", "fp8-tiles", "fp8-tiles with Hopper's sums: 13 bits below the point, promoted every 128",
         [](Recipe& r) { r.products.back().formats.accumulate.fill(hopper_sums_promoted); }},

        // torchao's float8: one scale for a tensor, or a power of two for each line along the contracted dimension.
        {"fp8-tensorwise", "fp32", "standard model, linear layers in E4M3, gradients in E5M2, a float scale per tensor",
         [](Recipe& r) {
             BlockFormat gradient = float8_tensor;
             gradient.element = e5m2;
             round_in_blocks(r, float8_tensor, gradient);
         }},
        {"fp8-rowwise", "fp32", "standard model, linear layers in E4M3 with a power of two per line of each product",
         [](Recipe& r) { round_in_blocks(r, float8_line, float8_line); }},
        {"fp8-rowwise-hp", "fp8-rowwise", "fp8-rowwise with the weights' gradients in FP32",
         [](Recipe& r) {
             BlockFormat tensor = float8_tensor;
             tensor.form = ScaleForm::power_of_two;
             ProductFormats& formats = r.products.back().formats;
             formats.set(OperandSlot::input_gradient_w, OperandRule::in_blocks(tensor));
             formats.set(OperandSlot::weight_gradient_dy, {});
             formats.set(OperandSlot::weight_gradient_x, {});
         }},

        // Four bits under Unit Scaling: does unit scale replace scales of blocks?
        {"unit-mxfp4", "unit-fp32", "Unit Scaling, linear layers in MXFP4: E2M1 in blocks of 32; readout in FP32",
         [](Recipe& r) { round_in_blocks(r, mxfp4, mxfp4); }},
        {"unit-fp4", "unit-fp32", "Unit Scaling, linear layers in E2M1 without scales; readout in FP32",
         [](Recipe& r) { round_linear_layers(r, e2m1, e2m1); }},
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
