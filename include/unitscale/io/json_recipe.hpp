// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/io/json_fields.hpp>
#include <unitscale/io/json_text.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/parameter_facts.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

// Recipes as JSON: whole recipes in files, and single fields as `key=value`.
//   {"base": "unit-fp8", "products": [{"kind": "linear", "gradient": {"format": "e4m3", "rounding": "stochastic"}}]}
//   matmul.gradient=e5m2fnuz      attention.output.p=e5m2      loss_scaling.kind=automatic
namespace unitscale::io {

inline constexpr std::array<std::string_view, 3> scaling_json_names = {"none", "unit", "propagate"};

/// The fields of a recipe, listed once for reading and writing.
template <class Visitor>
void describe_recipe(Visitor& visitor, Recipe& recipe) {
    const auto quantiser = [](auto& v, Quantiser& q) {
        v.format("format", q.format);
        v.choice("rounding", q.rounding, rounding_json_names);
        v.choice("overflow", q.overflow, overflow_json_names);
        v.field("bits", q.bits);
    };
    const auto scale = [](auto& v, ScaleRule& rule) {
        v.choice("source", rule.source, scale_source_names);
        v.field("bias", rule.bias);
        v.field("margin", rule.margin);
        v.field("history", rule.history);
        v.field("latest", rule.latest);
        v.choice("granularity", rule.granularity, scale_granularity_names);
        v.blocks("blocks", rule.blocks);
    };
    const auto operand = [&](auto& v, OperandRule& rule) {
        v.optional("element", rule.element, "format", quantiser);
        v.object("scale", rule.scale, scale);
    };
    const auto rotation = [](auto& v, HadamardRotation& how) {
        v.field("size", how.size);
        v.number_or("signs", how.signs, how.drawn, "drawn");
    };
    const auto state = [](auto& v, StateFormat& how) {
        v.format("format", how.format, "computed");
        v.field("scaled", how.scaled);
        v.added_field("propagated", how.propagated, false);
        v.field("block", how.block);
        v.choice("rounding", how.rounding, rounding_json_names);
    };
    const auto product = [&](auto& v, ProductRule& rule) {
        v.choice("kind", rule.kind, product_kind_names);
        v.field("pattern", rule.pattern);
        v.optional("activation", rule.formats.activation, "format", quantiser);
        v.optional("weight", rule.formats.weight, "format", quantiser);
        v.optional("gradient", rule.formats.gradient, "format", quantiser);
        v.optional("result", rule.formats.result, "format", quantiser);
        v.object("activation_scale", rule.formats.activation_scale, scale);
        v.object("weight_scale", rule.formats.weight_scale, scale);
        v.object("gradient_scale", rule.formats.gradient_scale, scale);
        using enum OperandSlot;
        const auto slots = [&](const char* name, OperandSlot left, const char* left_name, OperandSlot right,
                               const char* right_name) {
            v.group(name, rule.formats, [&](auto& inner, ProductFormats& formats) {
                const auto one = [&](const char* operand_name, OperandSlot slot) {
                    inner.operand(operand_name, formats.slots[static_cast<std::size_t>(slot)],
                                  formats.rule(role_of(slot)), operand);
                };
                one(left_name, left);
                one(right_name, right);
                if (is_of_attention(left)) return;
                inner.added("rotation", formats.rotations[static_cast<std::size_t>(left) / 2], rotation);
                inner.accumulate("accumulate", formats.accumulate[static_cast<std::size_t>(left) / 2]);
            });
        };
        if (rule.kind == ProductKind::attention) {
            slots("logits", logits_q, "q", logits_k, "k");
            slots("query_gradient", query_gradient_ds, "ds", query_gradient_k, "k");
            slots("key_gradient", key_gradient_ds, "ds", key_gradient_q, "q");
            slots("output", output_p, "p", output_v, "v");
            slots("probability_gradient", probability_gradient_dy, "dy", probability_gradient_v, "v");
            slots("value_gradient", value_gradient_p, "p", value_gradient_dy, "dy");
            return;
        }
        slots("forward", forward_x, "x", forward_w, "w");
        slots("input_gradient", input_gradient_dy, "dy", input_gradient_w, "w");
        slots("weight_gradient", weight_gradient_dy, "dy", weight_gradient_x, "x");
    };
    visitor.field("name", recipe.name);
    visitor.field("description", recipe.description);
    visitor.choice("scaling", recipe.scaling, scaling_json_names);
    visitor.choice("constraint", recipe.constraint, constraint_names);
    visitor.choice("automatic_rule", recipe.automatic_rule, constraint_names);
    visitor.object("propagate", recipe.propagate, [](auto& v, PropagateRule& rule) {
        v.choice("rounding", rule.rounding, scale_rounding_names);
        v.field("exact_norms", rule.exact_norms);
        v.field("rescale_gradients", rule.rescale_gradients);
        v.field("measured", rule.measured);
        v.added_field("rescale_activation_gradients", rule.rescale_activation_gradients, false);
        v.added_field("delayed_sizes", rule.delayed_sizes, false);
    });
    visitor.list("products", recipe.products, product);
    visitor.object("storage", recipe.storage, [&](auto& v, Storage& storage) {
        v.choice("element", storage.element, element_type_names);
        v.optional("master", storage.master, "format", state);
        v.object("first_moment", storage.first_moment, state, "format");
        v.object("second_moment", storage.second_moment, state, "format");
        v.optional("weight_gradient", storage.weight_gradient, "format", quantiser);
        v.object("weight_gradient_scale", storage.weight_gradient_scale, scale);
        v.added_field("rescale_every", storage.rescale_every, std::size_t{0});
    });
    visitor.added(
        "communication", recipe.communication,
        [&](auto& v, Communication& rule) {
            quantiser(v, rule.element);
            v.field("block", rule.block);
            v.field("margin", rule.margin);
            v.field("error_feedback", rule.error_feedback);
        },
        "format");
    visitor.object("loss_scaling", recipe.loss_scaling, [](auto& v, LossScaling& scaling) {
        v.choice("kind", scaling.kind, loss_scale_names);
        v.field("initial", scaling.initial);
        v.field("growth", scaling.growth);
        v.field("backoff", scaling.backoff);
        v.field("interval", scaling.interval);
        const LossScaling usual{};
        v.added_field("edge", scaling.edge, usual.edge);
        v.added_field("most", scaling.most, usual.most);
        v.added_field("deviations", scaling.deviations, usual.deviations);
        v.added_field("mean_decay", scaling.mean_decay, usual.mean_decay);
        v.added_field("variance_decay", scaling.variance_decay, usual.variance_decay);
    });
    visitor.choice("parametrisation", recipe.parametrisation, parametrisation_names);
    visitor.object("hyperparameters", recipe.hyperparameters, [](auto& v, Hyperparameters& h) {
        v.field("alpha_attn", h.alpha_attn);
        v.field("alpha_ffn_act", h.alpha_ffn_act);
        v.field("alpha_loss_softmax", h.alpha_loss_softmax);
        v.field("init_sigma", h.init_sigma);
        v.field("alpha_emb", h.alpha_emb);
        v.field("alpha_out", h.alpha_out);
        v.added_field("embedding_rate", h.embedding_rate, 1.0);
        v.field("base_width", h.base_width);
        v.field("base_depth", h.base_depth);
    });
    visitor.field("readout_exponent", recipe.readout_exponent);
    visitor.object("residual", recipe.residual, [](auto& v, ResidualRule& rule) {
        v.choice("scheme", rule.scheme, residual_scheme_names);
        v.field("tau", rule.tau);
        v.field("multiplier", rule.multiplier);
        v.field("attention_ratio", rule.attention_ratio);
        v.added_number("share", rule.share);
    });
    visitor.added_choice("gelu_constants", recipe.gelu_constants, GeluConstants::fitted, gelu_constants_names);
    visitor.added_field("bias_inside_alpha", recipe.bias_inside_alpha, true);
    visitor.added_field("vector_learning_rate", recipe.vector_learning_rate, false);
    visitor.added_choice("embedding_rate", recipe.embedding_rate, EmbeddingRate::fan_out, embedding_rate_names);
    visitor.added_choice("initial_distribution", recipe.initial_distribution, InitialDistribution::normal,
                         initial_distribution_names);
    visitor.field("learning_rate", recipe.learning_rate);
    visitor.field("clip_norm", recipe.clip_norm);
}

/// All fields of a recipe as JSON. Test: tests/io/json_recipe_test.cpp
[[nodiscard]] inline nlohmann::ordered_json recipe_to_json(Recipe recipe) {
    JsonWriter writer;
    describe_recipe(writer, recipe);
    return writer.json();
}

/// The recipe that a JSON object describes. Missing fields come from its "base", a known recipe, or else from fp32.
/// Errors: an unknown key, with the list of known keys; a value of the wrong kind; inconsistent rules.
[[nodiscard]] inline Recipe recipe_from_json(nlohmann::ordered_json json) {
    Recipe recipe = find_recipe("fp32");
    if (json.is_object() && json.contains("base")) {
        check(json["base"].is_string(), "recipe: base is not a text; expected the name of a known recipe");
        recipe = find_recipe(json["base"].get<std::string>());
        json.erase("base");
    }
    JsonReader reader(json, "");
    describe_recipe(reader, recipe);
    reader.finish();
    check_recipe(recipe);
    return recipe;
}

/// The recipe with one field set by `key=value`. The parts of the key are joined by dots, as in the JSON. `matmul.X`
/// means the field X of every rule in `products` that rounds an operand, so that layers that a recipe exempts stay
/// exempt; `attention.X` means the field X of attention's rules, which `matmul.X` leaves alone. Without such a rule,
/// they mean field X of a new rule for all linear layers, or for all attention. A value that is not JSON is read as a
/// text.
/// Errors: no `=`; the errors of `recipe_from_json`.
[[nodiscard]] inline Recipe override_recipe(const Recipe& recipe, const std::string& assignment) {
    const std::size_t sign = assignment.find('=');
    check(sign != std::string::npos && sign > 0, "recipe: '", assignment, "'; expected key=value");
    const std::string key = assignment.substr(0, sign), text = assignment.substr(sign + 1);
    auto value = nlohmann::ordered_json::parse(text, nullptr, false);
    if (value.is_discarded()) value = text;
    nlohmann::ordered_json json = recipe_to_json(recipe);
    const auto set = [&](nlohmann::ordered_json& root, std::string_view path) {
        nlohmann::ordered_json* at = &root;
        while (true) {
            const std::size_t dot = path.find('.');
            const std::string part(path.substr(0, dot));
            if (at->is_string()) *at = nlohmann::ordered_json{{"format", *at}};  // the short form of a quantiser
            if (at->is_null()) *at = nlohmann::ordered_json::object();
            if (at->is_array()) {
                const bool number = !part.empty() && part.size() < 6 &&
                                    std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
                check(number && std::stoul(part) < at->size(), "recipe: ", key, ": no entry '", part, "' among ",
                      at->size());
                at = &(*at)[std::stoul(part)];
            } else {
                check(at->is_object(), "recipe: unknown key '", key, "'");
                at = &(*at)[part];
            }
            if (dot == std::string_view::npos) break;
            path.remove_prefix(dot + 1);
        }
        *at = value;
    };
    const bool attention = key.starts_with("attention.");
    if (attention || key.starts_with("matmul.")) {
        std::vector<bool> chosen(recipe.products.size());
        std::transform(recipe.products.begin(), recipe.products.end(), chosen.begin(), [=](const ProductRule& rule) {
            return rule.formats.any() && (rule.kind == ProductKind::attention) == attention;
        });
        if (std::find(chosen.begin(), chosen.end(), true) == chosen.end()) {
            json["products"].push_back({{"kind", attention ? "attention" : "linear"}});
            chosen.push_back(true);
        }
        for (std::size_t i = 0; i < chosen.size(); ++i)
            if (chosen[i]) set(json["products"][i], std::string_view(key).substr(key.find('.') + 1));
    } else {
        set(json, key);
    }
    return recipe_from_json(json);
}

/// A parameter's facts as a checkpoint keeps them:
///   {"role": "weight", "fan_in": 128, "fan_out": 512, "depth": 4, "width": 128}
/// The facts determine initial scale, multipliers and learning rates, so that these can be told from the file.
[[nodiscard]] inline nlohmann::ordered_json facts_to_json(const ParameterFacts& facts) {
    return {{"role", name(facts.role)},
            {"fan_in", facts.fan_in},
            {"fan_out", facts.fan_out},
            {"depth", facts.depth},
            {"width", facts.width}};
}

/// A known recipe by its name, or a recipe from a JSON file by its path, then with the fields set that follow after
/// colons: `nvfp4`, `mine.json`, `nvfp4:matmul.gradient.rounding=nearest_even:matmul.weight_gradient.rotation=null`. A
/// path ends in .json or holds a slash. The name of a recipe with fields set is the whole text.
/// Errors: an unknown name; a file that cannot be read; the errors of `parse_json`, of `recipe_from_json`, after the
/// file's path, and of `override_recipe`.
[[nodiscard]] inline Recipe load_recipe(const std::string& text) {
    const std::size_t colon = text.find(':');
    if (colon != std::string::npos && text.find('=', colon) != std::string::npos) {
        Recipe recipe = load_recipe(text.substr(0, colon));
        for (std::size_t begin = colon + 1, end = begin; begin <= text.size(); begin = end + 1) {
            end = std::min(text.find(':', begin), text.size());
            recipe = override_recipe(recipe, text.substr(begin, end - begin));
        }
        recipe.name = text;
        return recipe;
    }
    if (!text.ends_with(".json") && text.find('/') == std::string::npos) return find_recipe(text);
    std::ifstream file(text, std::ios::binary);
    check(file.is_open() && !std::filesystem::is_directory(text), "recipe: ", text, " cannot be read");
    const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const auto json = parse_json<nlohmann::ordered_json>(concatenate("recipe: ", text), content);
    try {
        return recipe_from_json(json);
    } catch (const Error& error) {
        fail(text, ": ", error.what());
    }
}

}  // namespace unitscale::io
