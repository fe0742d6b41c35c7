// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/ops/rotary.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

// Settings in the config.json of a published model, as the Python package transformers writes it.
// Test: tests/train/pretrained_settings_test.cpp
namespace unitscale::train {

/// An object of a config.json. Keys that are absent or null have no value; keys that are not asked for are ignored.
/// Errors, in one line that names the file and the key: a value of another type or out of range.
class PretrainedSettings {
public:
    /// Errors: the file is missing, longer than 1 MiB, or not a JSON object.
    explicit PretrainedSettings(const std::filesystem::path& path)
        : where_(concatenate("pretrained: ", path.string(), ": ")) {
        constexpr std::uintmax_t most = 1 << 20;
        std::error_code error;
        const std::uintmax_t bytes =
            std::filesystem::is_regular_file(path, error) ? std::filesystem::file_size(path, error) : 0;
        std::ifstream file(path, std::ios::binary);
        check(!error && file.is_open(), where_, "cannot be read");
        check(bytes <= most, where_, "has ", bytes, " bytes; expected at most ", most);
        // The settings that are read are not nested. Values nested deeper than in any such file are left out:
        // copying the parsed object is then safe.
        const auto shallow = [](int depth, auto, const auto&) { return depth < 16; };
        json_ = nlohmann::json::parse(std::istreambuf_iterator<char>(file), {}, shallow, false);
        check(json_.is_object(), where_, "is no JSON object");
    }

    /// T: bool, std::string, std::size_t (from 1 to 10^9) or double (positive).
    template <class T>
    [[nodiscard]] std::optional<T> get(const char* key) const {
        const nlohmann::json* const found = find(key);
        if (found == nullptr) return std::nullopt;
        if constexpr (std::same_as<T, bool>) {
            if (!found->is_boolean()) refuse(key, *found, "true or false");
        } else if constexpr (std::same_as<T, std::string>) {
            if (!found->is_string()) refuse(key, *found, "a text");
        } else if constexpr (std::same_as<T, double>) {
            if (!found->is_number() || !(found->get<double>() > 0.0)) refuse(key, *found, "a positive number");
        } else {
            const bool whole = found->is_number_integer() && found->get<double>() >= 1.0 && found->get<double>() <= 1e9;
            if (!whole) refuse(key, *found, "a whole number from 1 to 1000000000");
        }
        return found->get<T>();
    }
    [[nodiscard]] std::optional<PretrainedSettings> object(const char* key) const {
        const nlohmann::json* const found = find(key);
        if (found == nullptr) return std::nullopt;
        if (!found->is_object()) refuse(key, *found, "an object");
        return PretrainedSettings(where_ + key + ".", *found);
    }

    /// Error: the key has no value; then `expected` names it.
    template <class T>
    [[nodiscard]] T require(const char* key, std::string_view expected) const {
        const std::optional<T> found = get<T>(key);
        check(found.has_value(), where_, key, " is absent; expected ", expected);
        return *found;
    }
    /// A whole number, 0 too.
    [[nodiscard]] std::optional<std::size_t> number(const char* key) const {
        const nlohmann::json* const found = find(key);
        if (found != nullptr && *found == 0) return 0;
        return get<std::size_t>(key);
    }
    /// The values of a list of texts. Empty: the key has no value.
    [[nodiscard]] std::vector<std::string> texts(const char* key) const {
        const nlohmann::json* const found = find(key);
        if (found == nullptr) return {};
        const auto is_text = [](const nlohmann::json& value) { return value.is_string(); };
        if (!found->is_array() || !std::all_of(found->begin(), found->end(), is_text))
            refuse(key, *found, "a list of texts");
        return found->get<std::vector<std::string>>();
    }
    /// The values of a token's key: one id or a list of ids. Empty: the key has no value.
    [[nodiscard]] std::vector<std::int32_t> token_ids(const char* key) const {
        const nlohmann::json* const found = find(key);
        if (found == nullptr) return {};
        const auto is_id = [](const nlohmann::json& value) {
            return value.is_number_unsigned() && value.get<double>() <= std::numeric_limits<std::int32_t>::max();
        };
        if (is_id(*found)) return {found->get<std::int32_t>()};
        if (!found->is_array() || !std::all_of(found->begin(), found->end(), is_id))
            refuse(key, *found, "a token id or a list of them");
        return found->get<std::vector<std::int32_t>>();
    }
    [[nodiscard]] bool has(const char* key) const { return find(key) != nullptr; }

    /// Error: the key has a value that differs from `value`.
    template <class T>
    void expect(const char* key, const T& value) const {
        if (const auto found = get<T>(key); found && *found != value)
            refuse(key, *find(key), nlohmann::json(value).dump());
    }
    [[noreturn]] void refuse(const char* key, std::string_view expected) const { refuse(key, *find(key), expected); }

private:
    PretrainedSettings(std::string where, nlohmann::json json) : where_(std::move(where)), json_(std::move(json)) {}

    [[nodiscard]] const nlohmann::json* find(const char* key) const {
        const auto found = json_.find(key);
        return found == json_.end() || found->is_null() ? nullptr : &*found;
    }
    [[noreturn]] void refuse(const char* key, const nlohmann::json& found, std::string_view expected) const {
        const std::string text = found.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
        fail(where_, key, " is ", text.size() <= 40 ? text : text.substr(0, 37) + "...", "; expected ", expected);
    }

    std::string where_;
    nlohmann::json json_{};
};

/// The keys of a family's config.json, and the defaults for absent keys.
struct PretrainedKeys {
    const char *vocabulary, *width, *depth, *hidden, *heads, *length, *epsilon, *activation;
    double default_epsilon;
    bool default_tied;
};
inline constexpr PretrainedKeys gpt2_keys{
    "vocab_size",          "n_embd", "n_layer", "n_inner", "n_head", "n_positions", "layer_norm_epsilon",
    "activation_function", 1e-5,     true};
inline constexpr PretrainedKeys llama_keys{"vocab_size",
                                           "hidden_size",
                                           "num_hidden_layers",
                                           "intermediate_size",
                                           "num_attention_heads",
                                           "max_position_embeddings",
                                           "rms_norm_eps",
                                           "hidden_act",
                                           1e-6,
                                           false};

/// The angles of Llama's rotary positions.
struct PublishedRotary {
    double base = 10000.0;
    ops::RotaryScaling scaling{};
};

/// The scaling in an object of a config.json, for a model of `length` positions.
/// Errors: a type other than default, linear and llama3, or one of these without its settings.
[[nodiscard]] inline ops::RotaryScaling published_rotary_scaling(const PretrainedSettings& rope,
                                                                 std::optional<std::size_t> length) {
    for (const char* layers : {"full_attention", "sliding_attention"})
        if (rope.has(layers)) rope.refuse(layers, "no value: equal angles in all layers");
    rope.expect("partial_rotary_factor", 1.0);
    const char* const key = rope.has("rope_type") ? "rope_type" : "type";
    const std::string type = rope.get<std::string>(key).value_or("default");
    if (type == "default") {
        rope.expect("factor", 1.0);
        return {};
    }
    const bool llama3 = type == "llama3";
    if (!llama3 && type != "linear") rope.refuse(key, "default, linear or llama3");
    ops::RotaryScaling scaling{.kind = ops::RotaryScalingKind::linear,
                               .factor = rope.require<double>("factor", "a positive number")};
    if (!llama3) return scaling;
    scaling.kind = ops::RotaryScalingKind::llama3;
    scaling.low_frequency_factor = rope.require<double>("low_freq_factor", "a positive number");
    scaling.high_frequency_factor = rope.require<double>("high_freq_factor", "a positive number");
    if (!(scaling.high_frequency_factor > scaling.low_frequency_factor))
        rope.refuse("high_freq_factor", "more than low_freq_factor");
    constexpr const char* original = "original_max_position_embeddings";
    scaling.original_length = static_cast<double>(
        length && !rope.has(original) ? *length : rope.require<std::size_t>(original, "a whole number"));
    return scaling;
}

/// The angles of a config.json: `rope_parameters`, or the older `rope_theta` and `rope_scaling`.
/// Errors: settings of angles that ops::rotary does not compute; both objects.
[[nodiscard]] inline PublishedRotary published_rotary(const PretrainedSettings& settings) {
    PublishedRotary rotary{.base = settings.get<double>("rope_theta").value_or(10000.0)};
    settings.expect("partial_rotary_factor", 1.0);
    const std::optional<std::size_t> length = settings.get<std::size_t>("max_position_embeddings");
    const auto newer = settings.object("rope_parameters"), older = settings.object("rope_scaling");
    if (newer && older) settings.refuse("rope_scaling", "no value beside rope_parameters");
    if (const auto& rope = newer ? newer : older) {
        rotary.base = rope->get<double>("rope_theta").value_or(rotary.base);
        rotary.scaling = published_rotary_scaling(*rope, length);
    }
    return rotary;
}

/// The window of a Qwen2's attention, DecoderConfig::window: the setting `sliding_window` of `use_sliding_window`.
/// Errors: a window without a size; windows in some layers alone.
[[nodiscard]] inline std::size_t published_window(const PretrainedSettings& settings, std::size_t depth) {
    const std::vector<std::string> layers = settings.texts("layer_types");
    const auto count = [&](const char* kind) {
        return static_cast<std::size_t>(std::count(layers.begin(), layers.end(), kind));
    };
    const bool slides = settings.get<bool>("use_sliding_window").value_or(false);
    if (!slides || (!layers.empty() && count("full_attention") == layers.size())) {
        if (count("full_attention") != layers.size()) settings.refuse("layer_types", "full_attention in all layers");
        return 0;
    }
    if (!layers.empty() && count("sliding_attention") != layers.size())
        settings.refuse("layer_types", "full_attention or sliding_attention in all layers");
    if (layers.empty()) {
        constexpr const char* first = "max_window_layers";
        const std::size_t full = settings.number(first).value_or(28);  // layers from this one on have a window
        if (full >= depth) return 0;
        if (full > 0)
            settings.refuse(first, "0 or at least " + std::to_string(depth) + ": equal windows in all layers");
    }
    return settings.require<std::size_t>("sliding_window", "a number of positions");
}

}  // namespace unitscale::train
