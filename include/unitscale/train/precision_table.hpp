// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/format.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/scaling/state.hpp>

#include <optional>
#include <string>
#include <vector>

namespace unitscale::train {

/// The text of a quantiser in tables: its format, its settings that are not the default, and the rule of its bias.
/// The text is `-` without a quantiser.
[[nodiscard]] inline std::string quantiser_text(const std::optional<Quantiser>& quantiser, const ScaleRule& rule = {}) {
    if (!quantiser) return "-";
    std::string text(rule.blocks ? name(*rule.blocks) : name(quantiser->format));
    if (quantiser->rounding != Rounding::nearest_even) (text += ' ') += name(quantiser->rounding);
    if (quantiser->rounding == Rounding::stochastic && quantiser->bits != Quantiser{}.bits)
        text += concatenate(" with ", quantiser->bits, " bits");
    if (quantiser->overflow != Overflow::saturate) text += " overflowing";
    if (rule.source == ScaleSource::constant) text += concatenate(" 2^", rule.bias);
    if ((rule.source == ScaleSource::amax && !rule.blocks) || rule.source == ScaleSource::delayed) {
        (text += ' ') += name(rule.source);
        if (rule.margin != 0) text += concatenate(" margin ", rule.margin);
        if (rule.source == ScaleSource::delayed)
            text += concatenate(rule.latest ? " latest of " : " largest of ", rule.history);
        if (rule.granularity != ScaleGranularity::tensor) (text += " by ") += name(rule.granularity);
    }
    return text;
}

/// A recipe's other axes in words: scaling, parametrisation, loss scale, and the norm at which gradients are clipped.
[[nodiscard]] inline std::string scaling_text(const Recipe& recipe) {
    std::string text(name(recipe.scaling));
    if (recipe.scaling == Scaling::propagate)
        text += concatenate(", scales rounded ", name(recipe.propagate.rounding),
                            recipe.propagate.measured ? ", measured" : "",
                            recipe.propagate.exact_norms ? ", exact norms" : "");
    text += concatenate(", parametrisation ", name(recipe.parametrisation));
    if (recipe.scaling == Scaling::unit && recipe.automatic_rule != Constraint::to_output_scale)
        text += concatenate(", factors joined by ", name(recipe.automatic_rule));
    if (recipe.gelu_constants != GeluConstants::fitted) text += ", gelu's constants of the Unit Scaling paper";
    if (!recipe.bias_inside_alpha) text += ", biases beside alpha";
    if (recipe.loss_scaling.kind != LossScaleKind::none)
        text += concatenate(", loss scale ", name(recipe.loss_scaling.kind), " from ", recipe.loss_scaling.initial);
    if (recipe.communication) {
        const Communication& rule = *recipe.communication;
        text += concatenate(
            ", gradients sent as ", name(rule.element.format),
            !rule.scales()    ? ""
            : rule.block == 0 ? " scaled by tensor"
                              : concatenate(" scaled by ", rule.block),
            rule.element.rounding == Rounding::nearest_even ? "" : concatenate(' ', name(rule.element.rounding)),
            rule.error_feedback ? " with error feedback" : "");
    }
    if (recipe.clip_norm > 0.0) text += concatenate(", gradients clipped at ", recipe.clip_norm);
    return text;
}

/// Storage of a master copy or a moment, in words: `as computed`, or format, extent of a scale, and rounding.
[[nodiscard]] inline std::string state_text(const StateFormat& how) {
    if (!how.format) return "as computed";
    std::string text(name(*how.format));
    if (how.propagated) text += " with a propagated scale";
    else if (how.scaled) text += how.block == 0 ? " scaled by tensor" : concatenate(" scaled by ", how.block);
    if (how.rounding != Rounding::nearest_even) (text += ' ') += name(how.rounding);
    return text;
}

/// A recipe's storage in words.
[[nodiscard]] inline std::string storage_text(const Storage& storage) {
    std::string text = concatenate(name(storage.element), ", master weights ",
                                   storage.master ? state_text(*storage.master) : std::string("none"), ", moments ");
    text += state_text(storage.first_moment);
    if (storage.second_moment != storage.first_moment) (text += " and ") += state_text(storage.second_moment);
    if (storage.weight_gradient)
        (text += ", weight gradients ") += quantiser_text(storage.weight_gradient, storage.weight_gradient_scale);
    if (storage.rescale_every > 0) text += concatenate(", rescaled every ", storage.rescale_every, " updates");
    return text;
}

/// A recipe's parametrisation in words: its name, and the hyperparameters that differ from 1.
[[nodiscard]] inline std::string parametrisation_text(const Recipe& recipe) {
    const Hyperparameters& h = recipe.hyperparameters;
    std::string text(name(recipe.parametrisation));
    if (recipe.parametrisation == Parametrisation::mup)
        text += concatenate(", base width ", h.base_width, ", base depth ", h.base_depth);
    if (recipe.embedding_rate == EmbeddingRate::constant) text += ", embedding at the whole rate";
    if (recipe.vector_learning_rate) text += ", vectors at width^-1/2 times the rate";
    if (recipe.initial_distribution != InitialDistribution::normal)
        text += concatenate(", ", name(recipe.initial_distribution), " initial weights");
    const auto say = [&text](const char* field, double value) {
        if (value != 1.0) text += concatenate(", ", field, ' ', value);
    };
    say("alpha_attn", h.alpha_attn);
    say("alpha_ffn_act", h.alpha_ffn_act);
    say("alpha_res", recipe.residual.multiplier);
    say("alpha_res_attn_ratio", recipe.residual.attention_ratio);
    say("alpha_loss_softmax", h.alpha_loss_softmax);
    say("init_sigma", h.init_sigma);
    say("alpha_emb", h.alpha_emb);
    say("alpha_out", h.alpha_out);
    say("embedding_rate", h.embedding_rate);
    return text;
}

/// A table of the products that a tape has recorded, a line each: path, kind, and the format of each role's operand.
/// `-` is an operand that is not rounded. Where the two products of a role round it differently, the formats follow in
/// the order of y, dx and dw, with a slash. Attention with rounded operands has two lines: q, k and ds of the logits,
/// then p, v and dy of the output.
/// The table reads the state that the products themselves read, so that it agrees with them. Run a step first.
/// Test: tests/train/precision_table_test.cpp
[[nodiscard]] inline std::string precision_table(const ScalingState& state) {
    std::vector<std::vector<std::string>> rows = {{"product", "kind", "activation", "weight", "gradient"}};
    for (const ScalingState::Product& product : state.products()) {
        const auto text = [&](OperandSlot slot) {
            const OperandRule own = product.rule(slot);
            const auto rotation = product.formats.rotation(slot);
            const auto sums = product.formats.sums(slot);
            return concatenate(quantiser_text(own.element, own.scale),
                               rotation ? concatenate(" rotated by ", rotation->size) : "",
                               rotation && rotation->drawn ? ", drawn signs" : "",
                               sums ? concatenate(" summed in ", name(*sums)) : "");
        };
        const auto both = [&](OperandSlot first, OperandSlot second) {
            const OperandRule a = product.rule(first), b = product.rule(second);
            const bool alike = ((!a.element && !b.element) ||
                                (a == b && product.formats.rotation(first) == product.formats.rotation(second))) &&
                               product.formats.sums(first) == product.formats.sums(second);
            return alike ? text(first) : concatenate(text(first), " / ", text(second));
        };
        using enum OperandSlot;
        if (product.kind == ProductKind::attention) {
            rows.push_back({state.path(product.site), "attention, logits", both(logits_q, key_gradient_q),
                            both(logits_k, query_gradient_k), both(query_gradient_ds, key_gradient_ds)});
            rows.push_back({state.path(product.site), "attention, output", both(output_p, value_gradient_p),
                            both(output_v, probability_gradient_v), both(probability_gradient_dy, value_gradient_dy)});
            continue;
        }
        rows.push_back({state.path(product.site), std::string(name(product.kind)), both(forward_x, weight_gradient_x),
                        both(forward_w, input_gradient_w), both(input_gradient_dy, weight_gradient_dy)});
    }
    return io::text_table(rows);
}

}  // namespace unitscale::train
