// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantiser.hpp>
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
//   matmul.gradient=e5m2fnuz      loss_scaling.kind=automatic
namespace unitscale::io {

inline constexpr std::array<std::string_view, 6> rounding_json_names = {"nearest_even", "toward_zero",  "up",
                                                                        "down",         "nearest_away", "stochastic"};
inline constexpr std::array<std::string_view, 2> overflow_json_names = {"saturate", "to_infinity"};
inline constexpr std::array<std::string_view, 3> scaling_json_names = {"none", "unit", "propagate"};
inline constexpr std::array<std::string_view, 3> product_kind_json_names = {"linear", "readout", "matmul"};

/// Names, joined for an error message.
template <class Names>
[[nodiscard]] std::string joined(const Names& names) {
    std::string text;
    for (const auto& name : names) (text += text.empty() ? "" : ", ") += name;
    return text;
}

/// Writes the fields that are described to it as a JSON object.
class JsonWriter {
public:
    template <class T>
    void field(const char* name, const T& value) {
        json_[name] = value;
    }
    template <class Enum, std::size_t N>
    void choice(const char* name, const Enum& value, const std::array<std::string_view, N>& names) {
        json_[name] = names[static_cast<std::size_t>(value)];
    }
    void format(const char* name, const FloatFormat& format) {
        const std::string known = unitscale::name(format);
        const auto named = [&](const NamedFormat& entry) { return entry.format == format; };
        if (std::any_of(named_formats.begin(), named_formats.end(), named) || known.starts_with("p3109"))
            json_[name] = known;
        else
            json_[name] = {{"exponent_bits", format.exponent_bits},
                           {"mantissa_bits", format.mantissa_bits},
                           {"bias", format.bias},
                           {"specials", static_cast<int>(format.specials)},
                           {"sign_bits", format.sign_bits}};
    }
    void format(const char* name, const std::optional<FloatFormat>& format, const char* none) {
        if (format) this->format(name, *format);
        else json_[name] = none;
    }
    template <class T, class Describe>
    void object(const char* name, T& value, Describe&& describe, const char* = nullptr) {
        JsonWriter inner;
        describe(inner, value);
        json_[name] = std::move(inner.json_);
    }
    template <class T, class Describe>
    void optional(const char* name, std::optional<T>& value, const char*, Describe&& describe) {
        if (value) object(name, *value, describe);
        else json_[name] = nullptr;
    }
    template <class T, class Describe>
    void list(const char* name, std::vector<T>& values, Describe&& describe) {
        json_[name] = nlohmann::ordered_json::array();
        for (T& value : values) {
            JsonWriter inner;
            describe(inner, value);
            json_[name].push_back(std::move(inner.json_));
        }
    }
    [[nodiscard]] const nlohmann::ordered_json& json() const noexcept { return json_; }

private:
    nlohmann::ordered_json json_ = nlohmann::ordered_json::object();
};

/// Reads a JSON object into the fields that are described to it. Absent fields keep their values. Errors name the place
/// of the key ("products.0.gradient.format"), the value found and the value expected.
class JsonReader {
public:
    JsonReader(const nlohmann::ordered_json& json, std::string place) : json_(json), place_(std::move(place)) {
        check(json.is_object(), "recipe: ", place_.empty() ? "the text" : place_, " is ", shown(json),
              "; expected an object");
    }

    void field(const char* name, bool& value) {
        if (const auto* found = find(name)) value = get<bool>(name, *found, found->is_boolean(), "true or false");
    }
    void field(const char* name, std::string& value) {
        if (const auto* found = find(name)) value = get<std::string>(name, *found, found->is_string(), "a text");
    }
    void field(const char* name, double& value) {
        if (const auto* found = find(name)) value = get<double>(name, *found, found->is_number(), "a number");
    }
    template <std::integral T>
    requires(!std::same_as<T, bool>) void field(const char* name, T& value) {
        const auto* found = find(name);
        if (found == nullptr) return;
        const auto least = static_cast<double>(std::is_signed_v<T> ? -1'000'000'000 : 0);
        const bool whole = found->is_number_integer() && found->get<double>() >= least && found->get<double>() <= 1e9;
        value = get<T>(name, *found, whole, std::is_signed_v<T> ? "a whole number" : "a whole number, not negative");
    }
    template <class Enum, std::size_t N>
    void choice(const char* name, Enum& value, const std::array<std::string_view, N>& names) {
        const auto* found = find(name);
        if (found == nullptr) return;
        const auto at = found->is_string() ? std::find(names.begin(), names.end(), found->get_ref<const std::string&>())
                                           : names.end();
        check(at != names.end(), "recipe: ", place(name), " is ", shown(*found), "; expected one of ", joined(names));
        value = static_cast<Enum>(at - names.begin());
    }
    void format(const char* name, FloatFormat& format) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_string()) {
            try {
                format = find_format(found->get_ref<const std::string&>());
            } catch (const Error& error) {
                fail("recipe: ", place(name), ": ", error.what());
            }
            return;
        }
        JsonReader inner(*found, place(name));
        int specials = static_cast<int>(format.specials);
        inner.field("exponent_bits", format.exponent_bits);
        inner.field("mantissa_bits", format.mantissa_bits);
        inner.field("bias", format.bias);
        inner.field("specials", specials);
        inner.field("sign_bits", format.sign_bits);
        inner.finish();
        check(specials >= 0 && specials <= static_cast<int>(Specials::scale), "recipe: ", place(name), ".specials is ",
              specials, "; expected a number in [0,", static_cast<int>(Specials::scale), "]");
        format.specials = static_cast<Specials>(specials);
        if (const auto message = problem(format); !message.empty()) fail("recipe: ", place(name), ": ", message);
    }
    /// The text `none` stands for no format.
    void format(const char* name, std::optional<FloatFormat>& format, const char* none) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (*found == none) return format.reset();
        this->format(name, format ? *format : format.emplace(fp32));
    }
    /// A text stands for an object with the field `shorthand`; its other fields have their defaults.
    template <class T, class Describe>
    void object(const char* name, T& value, Describe&& describe, const char* shorthand = nullptr) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_string() && shorthand != nullptr)
            read(nlohmann::ordered_json{{shorthand, *found}}, place(name), value = T{}, describe);
        else read(*found, place(name), value, describe);
    }
    /// null stands for an empty optional.
    template <class T, class Describe>
    void optional(const char* name, std::optional<T>& value, const char* shorthand, Describe&& describe) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_null()) return value.reset();
        object(name, value ? *value : value.emplace(), describe, shorthand);
    }
    template <class T, class Describe>
    void list(const char* name, std::vector<T>& values, Describe&& describe) {
        const auto* found = find(name);
        if (found == nullptr) return;
        check(found->is_array(), "recipe: ", place(name), " is ", shown(*found), "; expected a list");
        values.assign(found->size(), T{});
        for (std::size_t i = 0; i < values.size(); ++i)
            read((*found)[i], concatenate(place(name), '.', i), values[i], describe);
    }
    /// Error: the object has a key that no field has read.
    void finish() const {
        for (const auto& [key, value] : json_.items())
            check(std::find(known_.begin(), known_.end(), key) != known_.end(), "recipe: unknown key '",
                  place(key.c_str()), "'; expected one of ", joined(known_));
    }

private:
    template <class T, class Describe>
    static void read(const nlohmann::ordered_json& json, const std::string& place, T& value, Describe&& describe) {
        JsonReader inner(json, place);
        describe(inner, value);
        inner.finish();
    }
    template <class T>
    [[nodiscard]] T get(const char* name, const nlohmann::ordered_json& found, bool fits, const char* expected) const {
        check(fits, "recipe: ", place(name), " is ", shown(found), "; expected ", expected);
        return found.get<T>();
    }
    [[nodiscard]] const nlohmann::ordered_json* find(const char* name) {
        if (std::find(known_.begin(), known_.end(), name) == known_.end())
            known_.emplace_back(name);  // `optional` reads a key twice
        const auto found = json_.find(name);
        return found == json_.end() ? nullptr : &*found;
    }
    [[nodiscard]] std::string place(const char* name) const {
        return place_.empty() ? std::string(name) : place_ + "." + name;
    }
    [[nodiscard]] static std::string shown(const nlohmann::ordered_json& json) {
        const std::string text = json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
        return text.size() <= 40 ? text : text.substr(0, 37) + "...";
    }

    const nlohmann::ordered_json& json_;
    std::string place_;
    std::vector<std::string> known_{};
};

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
    };
    const auto state = [](auto& v, StateFormat& how) {
        v.format("format", how.format, "computed");
        v.field("scaled", how.scaled);
        v.field("block", how.block);
        v.choice("rounding", how.rounding, rounding_json_names);
    };
    const auto product = [&](auto& v, ProductRule& rule) {
        v.choice("kind", rule.kind, product_kind_json_names);
        v.field("pattern", rule.pattern);
        v.optional("activation", rule.formats.activation, "format", quantiser);
        v.optional("weight", rule.formats.weight, "format", quantiser);
        v.optional("gradient", rule.formats.gradient, "format", quantiser);
        v.optional("result", rule.formats.result, "format", quantiser);
        v.object("activation_scale", rule.formats.activation_scale, scale);
        v.object("weight_scale", rule.formats.weight_scale, scale);
        v.object("gradient_scale", rule.formats.gradient_scale, scale);
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
    });
    visitor.list("products", recipe.products, product);
    visitor.object("storage", recipe.storage, [&](auto& v, Storage& storage) {
        v.choice("element", storage.element, element_type_names);
        v.optional("master", storage.master, "format", state);
        v.object("first_moment", storage.first_moment, state, "format");
        v.object("second_moment", storage.second_moment, state, "format");
        v.optional("weight_gradient", storage.weight_gradient, "format", quantiser);
        v.object("weight_gradient_scale", storage.weight_gradient_scale, scale);
    });
    visitor.object("loss_scaling", recipe.loss_scaling, [](auto& v, LossScaling& scaling) {
        v.choice("kind", scaling.kind, loss_scale_names);
        v.field("initial", scaling.initial);
        v.field("growth", scaling.growth);
        v.field("backoff", scaling.backoff);
        v.field("interval", scaling.interval);
    });
    visitor.choice("parametrisation", recipe.parametrisation, parametrisation_names);
    visitor.object("hyperparameters", recipe.hyperparameters, [](auto& v, Hyperparameters& h) {
        v.field("alpha_attn", h.alpha_attn);
        v.field("alpha_ffn_act", h.alpha_ffn_act);
        v.field("alpha_loss_softmax", h.alpha_loss_softmax);
        v.field("init_sigma", h.init_sigma);
        v.field("alpha_emb", h.alpha_emb);
        v.field("alpha_out", h.alpha_out);
        v.field("base_width", h.base_width);
        v.field("base_depth", h.base_depth);
    });
    visitor.field("readout_exponent", recipe.readout_exponent);
    visitor.object("residual", recipe.residual, [](auto& v, ResidualRule& rule) {
        v.choice("scheme", rule.scheme, residual_scheme_names);
        v.field("tau", rule.tau);
        v.field("multiplier", rule.multiplier);
        v.field("attention_ratio", rule.attention_ratio);
    });
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

/// A known recipe by its name, or a recipe from a JSON file by its path. A path ends in .json or holds a slash.
/// Errors: an unknown name; a file that cannot be read or is not JSON; the errors of `recipe_from_json`.
[[nodiscard]] inline Recipe load_recipe(const std::string& name_or_path) {
    if (!name_or_path.ends_with(".json") && name_or_path.find('/') == std::string::npos)
        return find_recipe(name_or_path);
    std::ifstream file(name_or_path, std::ios::binary);
    check(file.is_open() && !std::filesystem::is_directory(name_or_path), "recipe: ", name_or_path, " cannot be read");
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
    check(!json.is_discarded(), "recipe: ", name_or_path, " is not JSON");
    return recipe_from_json(json);
}

/// The recipe with one field set by `key=value`. The parts of the key are joined by dots, as in the JSON. `matmul.X`
/// means the field X of every rule in `products`. Without such a rule, it means field X of a new rule for all linear
/// layers. A value that is not JSON is read as a text.
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
    if (key.starts_with("matmul.")) {
        if (json["products"].empty()) json["products"].push_back({{"kind", "linear"}});
        for (auto& rule : json["products"]) set(rule, std::string_view(key).substr(7));
    } else {
        set(json, key);
    }
    return recipe_from_json(json);
}

}  // namespace unitscale::io
