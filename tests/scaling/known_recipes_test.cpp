// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

using namespace unitscale;

TEST_CASE("recipes are found by name and an unknown name lists them") {
    REQUIRE(find_recipe("unit-fp8").name == "unit-fp8");
    REQUIRE_THROWS_WITH(
        find_recipe("fp9"),
        "recipe: unknown name 'fp9'; expected one of fp32, fp16, fp16-loss-scaled, "
        "fp16-auto-loss-scaled, fp16-histogram-loss-scaled, fp16-log-normal-loss-scaled, "
        "bf16, unit-fp32, unit-fp16, unit-fp8, us-fp32, us-fp16, us-fp8, umup-fp32, umup-bf16, "
        "umup-fp8, umup-fp8-e5m2, umup-fp8-amax, mup-fp32, scalify-fp16-static, "
        "scalify-fp16-1, scalify-fp16-2, scalify-fp8-3, scalify-fp8-4, aligned-fp32, aligned-fp16, aligned-fp8, "
        "fp8-amax, fp8-amax-fp16, fp8-cscale, fp8-delayed, "
        "mxfp8, mxfp8-hybrid, mxfp6, mxfp4, nvfp4, fp8-tiles, fp8-tiles-hopper, fp8-tensorwise, fp8-rowwise, "
        "fp8-rowwise-hp, unit-mxfp4, unit-fp4");
    std::set<std::string> names;
    for (const Recipe& recipe : known_recipes()) {
        REQUIRE(names.insert(recipe.name).second);
        REQUIRE_FALSE(recipe.description.empty());
        REQUIRE(recipe.description.size() <= 100);
        REQUIRE(recipe.learning_rate > 0.0);
        REQUIRE_NOTHROW(recipe.storage.validate());
    }
}

namespace {

/// How operands are rounded: the format, then every deviation from the usual rounding and saturation. "-" if they are
/// not rounded.
std::string text_of(const std::optional<Quantiser>& quantiser) {
    if (!quantiser) return "-";
    const Quantiser usual{
        .format = quantiser->format, .rounding = Rounding::nearest_even, .overflow = Overflow::saturate};
    return name(quantiser->format) + (*quantiser == usual ? "" : ", rounded in another way");
}

/// The source of the powers of two of operands.
std::string text_of(const ScaleRule& rule) {
    if (rule == ScaleRule{}) return "none";
    if (rule.blocks) {
        const bool usual = rule == ScaleRule{.source = ScaleSource::amax, .blocks = rule.blocks};
        return name(*rule.blocks) + (usual ? "" : ", found in another way");
    }
    std::string text(name(rule.source));
    if (rule.source == ScaleSource::constant) return text + ' ' + std::to_string(rule.bias);
    text += " margin " + std::to_string(rule.margin);
    if (rule.source == ScaleSource::delayed)
        text += " history " + std::to_string(rule.history) + (rule.latest ? " latest" : "");
    return rule.granularity == ScaleGranularity::tensor ? text : text + " by " + std::string(name(rule.granularity));
}

/// Formats of a product: activation, weight, gradient; then the rule of their scales and the rounding of the result, if
/// any.
std::string text_of(const ProductFormats& formats) {
    std::string text = text_of(formats.activation) + ' ' + text_of(formats.weight) + ' ' + text_of(formats.gradient);
    if (formats == ProductFormats{}) return text;
    const std::string scale = text_of(formats.activation_scale);
    if (text_of(formats.weight_scale) != scale || text_of(formats.gradient_scale) != scale)
        text += ", " + scale + ' ' + text_of(formats.weight_scale) + ' ' + text_of(formats.gradient_scale);
    else if (scale != "none") text += ", " + scale;
    for (std::size_t i = 0; i < slot_count; ++i)
        if (const auto& own = formats.slots[i])
            text += concatenate(", ", slot_names[i], ' ', text_of(own->element), ' ', text_of(own->scale));
    for (std::size_t i = 0; i < formats.rotations.size(); ++i)
        if (const auto& rotation = formats.rotations[i])
            text += concatenate(", ", slot_names[2 * i], " rotated by ", rotation->size, " signs ", rotation->signs);
    for (std::size_t i = 0; i < formats.accumulate.size(); ++i)
        if (const auto& sums = formats.accumulate[i]) text += concatenate(", ", product_names[i], " in ", name(*sums));
    return formats.result ? text + ", result " + text_of(formats.result) : text;
}

/// A tensor of the optimiser: "fp32" if it is kept as computed.
std::string text_of(const StateFormat& format) {
    if (!format.format) return "fp32";
    const StateFormat usual{
        .format = format.format, .scaled = true, .propagated = false, .block = 0, .rounding = Rounding::nearest_even};
    return name(*format.format) + (format == usual ? "" : ", kept in another way");
}

/// Element type, master weights, both moments; the rounding of weights' gradients, if any.
std::string text_of(const Storage& storage) {
    std::string text = std::string(name(storage.element)) + ", master " +
                       (storage.master ? text_of(*storage.master) : "none") + ", moments " +
                       text_of(storage.first_moment) + ' ' + text_of(storage.second_moment);
    if (storage.weight_gradient) text += ", weight gradient " + text_of(storage.weight_gradient);
    if (storage.weight_gradient_scale != ScaleRule{}) text += ", " + text_of(storage.weight_gradient_scale);
    if (storage.rescale_every > 0) text += ", rescaled every " + std::to_string(storage.rescale_every);
    return text;
}

std::string text_of(const LossScaling& scaling) {
    if (scaling.kind == LossScaleKind::none) return "none";
    LossScaling usual{.kind = scaling.kind,
                      .initial = scaling.initial,
                      .growth = 2.0,
                      .backoff = 0.5,
                      .interval = 2000,
                      .edge = 0.125,
                      .most = 1e-7,
                      .deviations = 3.09,
                      .mean_decay = 0.99,
                      .variance_decay = 0.999};
    if (scaling.kind == LossScaleKind::histogram) usual.interval = 1;
    return concatenate(name(scaling.kind), ' ', scaling.initial, scaling == usual ? "" : ", changing in another way");
}

std::string text_of(const ResidualRule& rule) {
    const bool usual = rule.tau == 0.5 && !rule.share && rule.multiplier == 1.0 && rule.attention_ratio == 1.0;
    return std::string(name(rule.scheme)) + (usual ? "" : ", with other numbers");
}

/// A recipe as the table below writes it.
struct RecipeRow {
    std::string name{};
    std::string scaling{}, parametrisation{}, residual{};
    std::string linear{};     ///< most products of a block: formats of activation, weight and gradient
    std::string unrounded{};  ///< products of a block that are not rounded although the others are
    std::string storage{}, loss_scaling{};
    double readout_exponent = 1.0, learning_rate = 0.0, clip_norm = 0.0;
    std::string last{};  ///< formats of attention's and the feed-forward's last layers, where they differ from `linear`
};

const std::string fp32_state = ", master none, moments fp32 fp32", with_master = ", master fp32, moments fp32 fp32";
const std::string often = ", rescaled every 20";
const std::string fp8 = "e4m3 e4m3 e5m2", fnuz = "e4m3fnuz e4m3fnuz e5m2fnuz", unrounded = "- - -";

// The first moment is plain FP16, without a power of two.
const std::string us_fp16 = "fp16, master none, moments fp16, kept in another way fp32";

/// The fields of every recipe. In words: docs/recipes.md.
const std::vector<RecipeRow>& table() {
    static const std::vector<RecipeRow> rows = {
        {"fp32", "none", "standard", "plain", unrounded, "", "fp32" + fp32_state, "none", 1.0, 6e-3, 1.0},
        {"fp16", "none", "standard", "plain", unrounded, "", "fp16" + with_master, "none", 1.0, 6e-3, 1.0},
        {"fp16-loss-scaled", "none", "standard", "plain", unrounded, "", "fp16" + with_master, "constant 4096", 1.0,
         6e-3, 1.0},
        {"fp16-auto-loss-scaled", "none", "standard", "plain", unrounded, "", "fp16" + with_master, "automatic 65536",
         1.0, 6e-3, 1.0},
        {"fp16-histogram-loss-scaled", "none", "standard", "plain", unrounded, "", "fp16" + with_master,
         "histogram 65536", 1.0, 6e-3, 1.0},
        {"fp16-log-normal-loss-scaled", "none", "standard", "plain", unrounded, "", "fp16" + with_master,
         "log_normal 65536", 1.0, 6e-3, 1.0},
        {"bf16", "none", "standard", "plain", unrounded, "", "bf16" + with_master, "none", 1.0, 6e-3, 1.0},
        {"unit-fp32", "unit", "unit", "depth", unrounded, "", "fp32" + fp32_state, "none", 0.5, 0.06, 0.0},
        {"unit-fp16", "unit", "unit", "depth", unrounded, "", "fp16" + with_master, "none", 0.5, 0.06, 0.0},
        {"unit-fp8", "unit", "unit", "depth", fp8, "", "fp32" + fp32_state, "none", 0.5, 0.06, 0.0},
        {"us-fp32", "unit", "unit", "running_mean", unrounded, "", "fp32" + fp32_state, "none", 0.5, 0.06, 0.0},
        {"us-fp16", "unit", "unit", "running_mean", unrounded, "", us_fp16, "none", 0.5, 0.06, 0.0},
        {"us-fp8", "unit", "unit", "running_mean", fp8, "", us_fp16, "none", 0.5, 0.06, 0.0},
        {"umup-fp32", "unit", "umup", "depth", unrounded, "", "fp32" + fp32_state, "none", 1.0, 1.0, 0.0},
        {"umup-bf16", "unit", "umup", "depth", unrounded, "", "bf16" + with_master, "none", 1.0, 1.0, 0.0},
        {"umup-fp8", "unit", "umup", "depth", fp8, "attention/out ffn/down", "fp32" + fp32_state, "none", 1.0, 1.0,
         0.0},
        {"umup-fp8-e5m2", "unit", "umup", "depth", fp8, "", "fp32" + fp32_state, "none", 1.0, 1.0, 0.0,
         "e5m2 e4m3 e5m2"},
        {"umup-fp8-amax", "unit", "umup", "depth", fp8, "", "fp32" + fp32_state, "none", 1.0, 1.0, 0.0,
         "e4m3 e4m3 e5m2, amax margin 0 none none"},
        {"mup-fp32", "none", "mup", "plain", unrounded, "", "fp32" + fp32_state, "none", 1.0, 6e-3, 1.0},
        {"scalify-fp16-static", "propagate", "standard", "plain", unrounded, "", "fp16" + with_master, "none", 1.0,
         2e-4, 1.0},
        {"scalify-fp16-1", "propagate", "standard", "plain", unrounded, "", "fp16" + with_master + often, "none", 1.0,
         6e-3, 1.0},
        {"scalify-fp16-2", "propagate", "standard", "plain", unrounded, "", "fp16" + fp32_state + often, "none", 1.0,
         6e-3, 1.0},
        {"scalify-fp8-3", "propagate", "standard", "plain", fp8, "",
         "fp16" + fp32_state + ", weight gradient e5m2" + often, "none", 1.0, 6e-3, 1.0},
        {"scalify-fp8-4", "propagate", "standard", "plain", fp8, "",
         "fp16, master none, moments fp16 fp16, weight gradient e5m2, amax margin 0" + often, "none", 1.0, 6e-3, 1.0},
        {"aligned-fp32", "propagate", "standard", "plain", unrounded, "", "fp32" + fp32_state, "none", 1.0, 6e-3, 1.0},
        {"aligned-fp16", "propagate", "standard", "plain", unrounded, "", us_fp16, "none", 1.0, 6e-3, 1.0},
        {"aligned-fp8", "propagate", "standard", "plain", fp8, "", us_fp16, "none", 1.0, 6e-3, 1.0},
        {"fp8-amax", "none", "standard", "plain", fnuz + ", amax margin 3", "", "fp32" + fp32_state, "none", 1.0, 6e-3,
         1.0},
        {"fp8-amax-fp16", "none", "standard", "plain",
         fnuz + ", amax margin 3 amax margin 3 amax margin 12, forward in fp16, input_gradient in fp16, "
                "weight_gradient in fp16",
         "", "fp16" + fp32_state, "automatic 65536", 1.0, 6e-3, 1.0},
        {"fp8-cscale", "none", "standard", "plain", fnuz + ", constant 0", "", "fp32" + fp32_state, "constant 32768",
         1.0, 6e-3, 1.0},
        {"fp8-delayed", "none", "standard", "plain", fnuz + ", delayed margin 0 history 16", "", "fp32" + fp32_state,
         "none", 1.0, 6e-3, 1.0},
        {"mxfp8", "none", "standard", "plain", "e4m3 e4m3 e4m3, mxfp8_e4m3_rceil", "", "fp32" + fp32_state, "none", 1.0,
         6e-3, 1.0},
        {"mxfp8-hybrid", "none", "standard", "plain",
         "e4m3 e4m3 e5m2, mxfp8_e4m3_rceil mxfp8_e4m3_rceil mxfp8_e5m2_rceil", "", "fp32" + fp32_state, "none", 1.0,
         6e-3, 1.0},
        {"mxfp6", "none", "standard", "plain", "e2m3 e2m3 e3m2, mxfp6_e2m3 mxfp6_e2m3 mxfp6_e3m2", "",
         "fp32" + fp32_state, "none", 1.0, 6e-3, 1.0},
        {"mxfp4", "none", "standard", "plain", "e2m1 e2m1 e2m1, mxfp4", "", "fp32" + fp32_state, "none", 1.0, 6e-3,
         1.0},
        {"nvfp4", "none", "standard", "plain",
         "e2m1 e2m1 e2m1, rounded in another way, nvfp4, forward.w e2m1 nvfp4_square, input_gradient.w e2m1 "
         "nvfp4_square, weight_gradient.dy rotated by 16 signs 55272",
         "", "fp32" + fp32_state, "none", 1.0, 6e-3, 1.0},
        {"fp8-tiles", "none", "standard", "plain",
         "e4m3 e4m3 e4m3, fp8_tile, forward.w e4m3 fp8_square, input_gradient.w e4m3 fp8_square", "",
         "fp32" + fp32_state, "none", 1.0, 6e-3, 1.0},
        {"fp8-tiles-hopper", "none", "standard", "plain",
         "e4m3 e4m3 e4m3, fp8_tile, forward.w e4m3 fp8_square, input_gradient.w e4m3 fp8_square, forward in "
         "hopper_promoted, input_gradient in hopper_promoted, weight_gradient in hopper_promoted",
         "", "fp32" + fp32_state, "none", 1.0, 6e-3, 1.0},
        {"fp8-tensorwise", "none", "standard", "plain",
         "e4m3 e4m3 e5m2, float8_tensor float8_tensor e5m2_wholexwhole_fp32", "", "fp32" + fp32_state, "none", 1.0,
         6e-3, 1.0},
        {"fp8-rowwise", "none", "standard", "plain", "e4m3 e4m3 e4m3, float8_line", "", "fp32" + fp32_state, "none",
         1.0, 6e-3, 1.0},
        {"fp8-rowwise-hp", "none", "standard", "plain",
         "e4m3 e4m3 e4m3, float8_line, input_gradient.w e4m3 e4m3_wholexwhole_power_of_two, weight_gradient.dy - "
         "none, weight_gradient.x - none",
         "", "fp32" + fp32_state, "none", 1.0, 6e-3, 1.0},
        {"unit-mxfp4", "unit", "unit", "depth", "e2m1 e2m1 e2m1, mxfp4", "", "fp32" + fp32_state, "none", 0.5, 0.06,
         0.0},
        {"unit-fp4", "unit", "unit", "depth", "e2m1 e2m1 e2m1", "", "fp32" + fp32_state, "none", 0.5, 0.06, 0.0},
    };
    return rows;
}

}  // namespace

TEST_CASE("every recipe agrees with the table, and every recipe is in the table") {
    const std::vector<Recipe> recipes = known_recipes();
    std::vector<std::string> names, rows;
    for (const Recipe& recipe : recipes) names.push_back(recipe.name);
    for (const RecipeRow& row : table()) rows.push_back(row.name);
    REQUIRE(names == rows);  // a new recipe needs a row
    for (std::size_t i = 0; i < recipes.size(); ++i) {
        const Recipe& recipe = recipes[i];
        const RecipeRow& row = table()[i];
        INFO(recipe.name);
        CHECK(name(recipe.scaling) == row.scaling);
        CHECK(name(recipe.parametrisation) == row.parametrisation);
        CHECK(text_of(recipe.residual) == row.residual);
        CHECK(text_of(recipe.storage) == row.storage);
        CHECK(text_of(recipe.loss_scaling) == row.loss_scaling);
        CHECK(recipe.readout_exponent == row.readout_exponent);
        CHECK(recipe.learning_rate == row.learning_rate);
        CHECK(recipe.clip_norm == row.clip_norm);
        // The products of the first block and of a later one, and products outside of blocks.
        for (const std::string block : {"decoder/block0/", "decoder/block11/"}) {
            std::string left_alone;
            for (const std::string product : {"attention/query", "attention/key", "attention/value", "attention/out",
                                              "ffn/gate", "ffn/up", "ffn/down"}) {
                INFO(block + product);
                const std::string text = text_of(recipe.formats(ProductKind::linear, block + product));
                const bool last = product == "attention/out" || product == "ffn/down";
                if (text == (last && !row.last.empty() ? row.last : row.linear)) continue;
                CHECK(text == unrounded);
                left_alone += (left_alone.empty() ? "" : " ") + product;
            }
            CHECK(left_alone == row.unrounded);
        }
        // The last block, by its path counted from the end.
        const std::string last =
            text_of(recipe.formats(ProductKind::linear, "decoder/block3/ffn/up", "decoder/block-1/ffn/up"));
        CHECK(last == (row.name == "nvfp4" ? unrounded : row.linear));
        CHECK(recipe.formats(ProductKind::readout, "decoder/readout") == ProductFormats{});
        const bool all = row.name == "us-fp8" || row.name == "aligned-fp8";  // every product but the readout's
        const ProductFormats of_activations =
            all ? ProductFormats{.activation = Quantiser{.format = e4m3}, .gradient = Quantiser{.format = e5m2}}
                : ProductFormats{};
        CHECK(recipe.formats(ProductKind::matmul, "decoder/block0/attention") == of_activations);
        CHECK(recipe.formats(ProductKind::attention, "decoder/block0/attention") == of_activations);
        // Unit Scaling as published.
        const bool published = row.name.starts_with("us-");
        CHECK(recipe.gelu_constants == (published ? GeluConstants::unit_scaling_paper : GeluConstants::fitted));
        CHECK(recipe.bias_inside_alpha == !published);
        CHECK(recipe.vector_learning_rate == published);
        CHECK(recipe.parametrisation_rule().vector_learning_rate == published);
        CHECK(recipe.initial_distribution == (published ? InitialDistribution::uniform : InitialDistribution::normal));
        CHECK(recipe.automatic_rule == (published ? Constraint::gmean : Constraint::to_output_scale));
        // Fields that no recipe changes, and the rule of scale propagation.
        CHECK(recipe.constraint == Constraint::automatic);
        CHECK(recipe.hyperparameters == Hyperparameters{.alpha_attn = 1.0,
                                                        .alpha_ffn_act = 1.0,
                                                        .alpha_loss_softmax = 1.0,
                                                        .init_sigma = 1.0,
                                                        .alpha_emb = 1.0,
                                                        .alpha_out = 1.0,
                                                        .embedding_rate = 1.0,
                                                        .base_width = 128,
                                                        .base_depth = 4});
        const bool aligned = row.name.starts_with("aligned-");
        CHECK(recipe.propagate ==
              PropagateRule{.rounding = aligned ? ScaleRounding::none : ScaleRounding::down,
                            .exact_norms = aligned,
                            .rescale_gradients = row.name.starts_with("scalify-") && row.name != "scalify-fp16-static",
                            .rescale_activation_gradients = false,
                            .delayed_sizes = false,
                            .measured = aligned});
        CHECK(recipe.embedding_rate == EmbeddingRate::fan_out);
    }
}

TEST_CASE("a row of the table tells formats, scales and state that differ in any way") {
    const Quantiser usual{.format = e4m3};
    CHECK(text_of(std::optional<Quantiser>()) == "-");
    CHECK(text_of(std::optional(usual)) == "e4m3");
    for (const Quantiser& other :
         {Quantiser{.format = e4m3, .rounding = Rounding::toward_zero}, Quantiser{.format = e5m2},
          Quantiser{.format = e4m3, .overflow = Overflow::to_infinity}})
        CHECK(text_of(std::optional(other)) != "e4m3");
    CHECK(text_of(ScaleRule{.source = ScaleSource::amax, .granularity = ScaleGranularity::row}) ==
          "amax margin 0 by row");
    CHECK(text_of(ScaleRule{.source = ScaleSource::delayed, .history = 2, .latest = true}) ==
          "delayed margin 0 history 2 latest");
    CHECK(text_of(ProductFormats{.activation = usual, .result = usual}) == "e4m3 - -, result e4m3");
    CHECK(text_of(ProductFormats{.activation = usual, .weight_scale = {.source = ScaleSource::amax}}) ==
          "e4m3 - -, none amax margin 0 none");
    CHECK(text_of(StateFormat{.format = fp16, .scaled = false}) == "fp16, kept in another way");
    CHECK(text_of(LossScaling{.kind = LossScaleKind::automatic, .interval = 1}) ==
          "automatic 65536, changing in another way");
    CHECK(text_of(ResidualRule{.tau = 0.25}) == "plain, with other numbers");
    CHECK(text_of(ResidualRule{.scheme = ResidualScheme::fixed, .share = 0.5}) == "fixed, with other numbers");
}

TEST_CASE("aligned recipes have exact, measured scales, and measured scales are for propagate") {
    for (const char* name : {"aligned-fp32", "aligned-fp16", "aligned-fp8"})
        CHECK(find_recipe(name).propagate ==
              PropagateRule{.rounding = ScaleRounding::none, .exact_norms = true, .measured = true});
    CHECK_FALSE(find_recipe("scalify-fp16-1").propagate.measured);
    Recipe unit = find_recipe("us-fp32");
    unit.propagate.measured = true;
    CHECK_THROWS_WITH(check_recipe(unit), "recipe: propagate.measured is for the scaling propagate; it is unit");
}
