// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/nn/bert.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/published_weights.hpp>
#include <unitscale/train/saved_model.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
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

// The nn::DecoderConfig of GPT-2's and Llama's published weights, and the nn::BertConfig of BERT's.
// `load_weights` (train/checkpoint.hpp) loads the weights:
//   nn::Decoder<float> model(train::pretrained_config("model.safetensors"));
//   train::load_weights("model.safetensors", model.parameters());
// For BERT: nn::Bert<float> model(train::pretrained_bert_config("model.safetensors")).
namespace unitscale::train {

/// Settings of a model that the shapes of its weights do not tell. Empty: from config.json.
struct PretrainedOptions {
    std::filesystem::path config{};  ///< a config.json; empty: the config.json beside the weights, if there is one
    std::optional<std::size_t> heads{};
    std::optional<std::size_t> length{};  ///< positions of training; for learned positions their shape gives the number
    std::optional<double> epsilon{};      ///< epsilon of the norms
    std::optional<double> rotary_base{};
};

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

/// Errors: settings of Llama-like models that nn::Decoder lacks, or that contradict the weights' biases.
inline void check_llama_settings(const PretrainedSettings& settings, const PublishedSizes& sizes) {
    const std::string type =
        settings.get<std::string>("model_type").value_or(sizes.input_bias && !sizes.bias ? "qwen2" : "llama");
    const bool qwen2 = type == "qwen2";
    if (type != "llama" && !qwen2) settings.refuse("model_type", "\"llama\" or \"qwen2\"");
    if (qwen2 && (sizes.bias || !sizes.input_bias))
        settings.refuse("model_type", "\"llama\": not queries, keys and values alone have biases");
    if (settings.has("model_type") && !qwen2 && sizes.input_bias && !sizes.bias)
        settings.refuse("model_type", "\"qwen2\": queries, keys and values alone have biases");
    if (!qwen2) settings.expect("attention_bias", sizes.bias);
    if (!qwen2) settings.expect("mlp_bias", sizes.bias);
}

/// The config.json of the options, or the one beside the weights or in their folder. Empty: there is none.
[[nodiscard]] inline std::optional<PretrainedSettings> find_settings(const std::filesystem::path& path,
                                                                     const PretrainedOptions& options) {
    std::optional<PretrainedSettings> settings;
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(path, ignored);
    const std::filesystem::path beside = (folder ? path : path.parent_path()) / "config.json";
    if (!options.config.empty()) settings.emplace(options.config);
    else if (std::filesystem::exists(beside, ignored)) settings.emplace(beside);
    return settings;
}

/// Whether a model with published weights is the published model under a recipe: ops have no factors of their own.
[[nodiscard]] inline bool keeps_published_model(const Recipe& recipe) noexcept {
    return recipe.scaling != Scaling::unit && recipe.parametrisation == Parametrisation::standard;
}

/// The configuration in a file with this library's names, such as `save_decoder` writes.
/// Errors: options, because the file holds all settings; a recipe under which the weights are no published model.
[[nodiscard]] inline nn::DecoderConfig tuned_decoder_config(const std::filesystem::path& path,
                                                            const PretrainedOptions& options) {
    const std::string where = concatenate("pretrained: ", path.string());
    const CheckpointReader reader(path);
    nn::DecoderConfig config = saved_decoder_config(reader.file(), where);
    check(options.config.empty() && !options.heads && !options.length && !options.epsilon && !options.rotary_base,
          where, ": holds all settings of its model; expected none beside it");
    const Recipe recipe = reader.recipe();
    check(keeps_published_model(recipe), where, ": was trained under ", recipe.name,
          ", whose factors belong to the model; expected weights trained without factors");
    return config;
}

/// The configuration of a model from its weights under GPT-2's or Llama's names: a safetensors file, an index of
/// several, or the model's folder. Qwen2 has Llama's names.
/// The names are the names that the Python package transformers saves.
/// A file of `save_decoder` has this library's names, and holds its configuration (`tuned_decoder_config`).
/// The weights' shapes give vocabulary, width, depth, hidden columns, columns of heads, and key and value heads.
/// config.json gives the other settings; `options` take precedence over it. Dropout is 0.
/// Without a config.json, GPT-2's feed-forward has gelu in its tanh form.
/// Without a config.json, the readout is the token table if the file has no other.
///
/// Errors, in one line:
/// - the errors of SafetensorsReader and PublishedWeights::sizes;
/// - a file of neither family;
/// - a setting that neither shapes nor config.json nor `options` give;
/// - a config.json that contradicts the shapes;
/// - a config.json that asks for features that nn::Decoder lacks: another type of model, other activations, rotary
///   scaling other than linear and llama3, weights in codes, windows of attention in some layers alone.
///
/// References: Radford et al. 2019; Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783;
/// Yang et al. 2024, arXiv:2407.10671 (Qwen2). Test: tests/train/pretrained_test.cpp
[[nodiscard]] inline nn::DecoderConfig pretrained_config(const std::filesystem::path& path,
                                                         const PretrainedOptions& options = {}) {
    const std::string where = concatenate("pretrained: ", path.string());
    const io::SafetensorsReader file(path);
    if (file.contains("decoder/tokens/weight")) return tuned_decoder_config(path, options);
    const std::optional<PublishedWeights> weights = PublishedWeights::find(file, where);
    check(weights.has_value(), where,
          ": has neither 'wte.weight' (GPT-2) nor 'embed_tokens.weight' (Llama), alone or behind ",
          "'transformer.' or 'model.'");
    check(weights->family() != PublishedFamily::bert, where, ": holds BERT's weights; expected GPT-2's or Llama's");
    const PublishedSizes sizes = weights->sizes();
    const bool gpt2 = weights->family() == PublishedFamily::gpt2;
    const PretrainedKeys& keys = gpt2 ? gpt2_keys : llama_keys;

    const std::optional<PretrainedSettings> settings = find_settings(path, options);
    const auto told = [&]<class T>(const char* what, const std::optional<T>& given, const std::optional<T>& otherwise) {
        check(given || otherwise, where, ": its shapes do not tell ", what, ", and ",
              settings ? "neither does its config.json" : "no config.json is beside it");
        return given ? *given : *otherwise;
    };

    nn::DecoderConfig config{.vocabulary = sizes.vocabulary,
                             .width = sizes.width,
                             .depth = sizes.blocks,
                             .length = sizes.positions,
                             .hidden = sizes.hidden,
                             .feed_forward = gpt2 ? nn::FeedForwardKind::gelu_tanh : nn::FeedForwardKind::gated_silu,
                             .norm = {.kind = gpt2 ? nn::NormKind::layer : nn::NormKind::rms, .gains = true},
                             .positions = gpt2 ? nn::Positions::learned : nn::Positions::rotary,
                             .bias = sizes.bias,
                             .query_key_value_bias = sizes.input_bias && !sizes.bias,
                             .tied = !sizes.readout};
    std::optional<std::size_t> heads, length;
    std::optional<double> epsilon, base;
    if (settings) {
        if (gpt2) settings->expect("model_type", std::string("gpt2"));
        else check_llama_settings(*settings, sizes);
        if (settings->has("quantization_config"))
            settings->refuse("quantization_config", "no value: weights, not codes");
        settings->expect(keys.vocabulary, sizes.vocabulary);
        settings->expect(keys.width, sizes.width);
        settings->expect(keys.depth, sizes.blocks);
        settings->expect(keys.hidden, sizes.hidden);
        const std::string activation = settings->get<std::string>(keys.activation).value_or(gpt2 ? "gelu_new" : "silu");
        if (gpt2 && activation == "gelu") config.feed_forward = nn::FeedForwardKind::gelu;
        else if (gpt2 && activation != "gelu_new" && activation != "gelu_pytorch_tanh")
            settings->refuse(keys.activation, "gelu, gelu_new or gelu_pytorch_tanh");
        else if (!gpt2 && activation != "silu") settings->refuse(keys.activation, "silu");
        settings->expect("scale_attn_weights", true);
        settings->expect("scale_attn_by_inverse_layer_idx", false);
        heads = settings->get<std::size_t>(keys.heads);
        length = settings->get<std::size_t>(keys.length);
        epsilon = settings->get<double>(keys.epsilon).value_or(keys.default_epsilon);
        settings->expect("add_cross_attention", false);
        if (!gpt2) {
            const PublishedRotary rotary = published_rotary(*settings);
            base = rotary.base;
            config.rotary_scaling = rotary.scaling;
            config.window = published_window(*settings, sizes.blocks);
        }
        config.tied = settings->get<bool>("tie_word_embeddings").value_or(keys.default_tied);
        check(config.tied || sizes.readout, where,
              ": has no tensor 'lm_head.weight', and its config.json does not tie the readout to the token table");
    }
    config.heads = told("the number of heads", options.heads, heads);
    config.norm.epsilon = told("the norms' epsilon", options.epsilon, epsilon);
    if (gpt2) {
        if (settings) settings->expect(keys.length, sizes.positions);
        check(options.length.value_or(sizes.positions) == sizes.positions, where, ": has ", sizes.positions,
              " positions, not ", options.length.value_or(0));
    } else {
        config.length = told("the number of positions", options.length, length);
        config.rotary_base = told("the base of rotary positions", options.rotary_base, base);
    }

    const bool own_size = sizes.queries != sizes.width;
    check(config.heads >= 1 && sizes.queries % config.heads == 0, where, own_size ? ": queries of " : ": a width of ",
          sizes.queries, own_size ? " columns are" : " is", " not divisible by ", config.heads, " heads");
    const std::size_t head_size = sizes.queries / config.heads, groups = sizes.keys / head_size;
    if (own_size) config.head_size = head_size;
    check(sizes.keys % head_size == 0 && config.heads % groups == 0, where, ": keys of ", sizes.keys,
          " columns do not serve ", config.heads, " heads of size ", head_size);
    if (settings) {
        settings->expect("head_dim", head_size);
        settings->expect("num_key_value_heads", groups);
    }
    if (groups != config.heads) config.groups = groups;
    return config;
}

/// The sizes of BERT from a file of `save_weights`, with this library's names of parameters.
/// Errors: a tensor that is missing or has another rank.
[[nodiscard]] inline PublishedSizes saved_bert_sizes(const io::SafetensorsReader& file, std::string_view where) {
    const auto shape = [&](const char* name) {
        check(file.contains(name), where, ": has no tensor '", name, "'");
        const Shape& found = file.entry(name).shape;
        check(found.size() == 2 && found[0] > 0 && found[1] > 0, where, ": tensor '", name, "' is ",
              io::cut_shape(found), "; expected rank 2");
        return found;
    };
    const Shape words = shape("bert/tokens/weight");
    PublishedSizes sizes{.vocabulary = words[0], .positions = shape("bert/positions/weight")[0], .width = words[1]};
    sizes.hidden = shape("bert/block0/ffn/up/weight")[0];
    sizes.segments = shape("bert/segments/weight")[0];
    while (file.contains(concatenate("bert/block", sizes.blocks, "/ffn/up/weight"))) ++sizes.blocks;
    return sizes;
}

/// The configuration of BERT from a safetensors file of its weights, under published names or, as `save_weights` writes
/// them, under this library's. The model has the heads that the file has.
/// The weights' shapes give all sizes but the number of heads. Without a config.json, epsilon is 1e-12. Dropout is 0.
/// `masked_share` keeps its default: set it, and the heads, as the training that follows needs them.
/// Errors, in one line: as `pretrained_config`; settings of a decoder; an activation other than gelu; relative
/// positions.
/// Reference: Devlin et al. 2019, arXiv:1810.04805. Test: tests/train/pretrained_test.cpp
[[nodiscard]] inline nn::BertConfig pretrained_bert_config(const std::filesystem::path& path,
                                                           const PretrainedOptions& options = {}) {
    const std::string where = concatenate("pretrained: ", path.string());
    const io::SafetensorsReader file(path);
    const bool saved = file.contains("bert/tokens/weight");
    const std::optional<PublishedWeights> weights = saved ? std::nullopt : PublishedWeights::find(file, where);
    check(saved || (weights && weights->family() == PublishedFamily::bert), where,
          ": has no 'embeddings.word_embeddings.weight' (BERT), alone or behind 'bert.'");
    check(!options.rotary_base && !options.length, where, ": length and rotary_base are a decoder's settings");
    const PublishedSizes sizes = saved ? saved_bert_sizes(file, where) : weights->sizes();
    const auto holds = [&](const char* head) { return saved ? file.contains(head) : weights->holds(head); };
    nn::BertConfig config{.vocabulary = sizes.vocabulary,
                          .segments = sizes.segments,
                          .width = sizes.width,
                          .depth = sizes.blocks,
                          .hidden = sizes.hidden,
                          .length = sizes.positions,
                          .pooler = holds("bert/pooler/weight"),
                          .pretraining = holds("bert/transform/weight"),
                          .spans = holds("bert/spans/weight")};
    std::optional<std::size_t> heads = options.heads;
    if (const std::optional<PretrainedSettings> settings = find_settings(path, options)) {
        settings->expect("model_type", std::string("bert"));
        settings->expect("vocab_size", sizes.vocabulary);
        settings->expect("hidden_size", sizes.width);
        settings->expect("num_hidden_layers", sizes.blocks);
        settings->expect("intermediate_size", sizes.hidden);
        settings->expect("max_position_embeddings", sizes.positions);
        settings->expect("type_vocab_size", sizes.segments);
        settings->expect("hidden_act", std::string("gelu"));
        settings->expect("position_embedding_type", std::string("absolute"));
        config.epsilon = settings->get<double>("layer_norm_eps").value_or(config.epsilon);
        if (!heads) heads = settings->get<std::size_t>("num_attention_heads");
    }
    if (const auto own = file.metadata().find("heads"); saved && !heads && own != file.metadata().end()) {
        heads.emplace();
        const char* const end = own->second.data() + own->second.size();
        const auto read = std::from_chars(own->second.data(), end, *heads);
        check(read.ec == std::errc() && read.ptr == end, where, ": heads is '", own->second.substr(0, 40),
              "'; expected a number");
    }
    check(heads.has_value(), where, ": neither its shapes nor a config.json tell the number of heads");
    config.heads = *heads;
    config.epsilon = options.epsilon.value_or(config.epsilon);
    check(config.heads >= 1 && sizes.width % config.heads == 0, where, ": a width of ", sizes.width,
          " is not divisible by ", config.heads, " heads");
    return config;
}

}  // namespace unitscale::train
