// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/nn/bert.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/pretrained_settings.hpp>
#include <unitscale/train/published_weights.hpp>
#include <unitscale/train/saved_model.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
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

/// The tokens that end a text of a published model: `eos_token_id` of the generation_config.json in its folder, else of
/// its config.json. `path`: the folder or its file of weights. Empty: neither has one.
/// Errors: the errors of PretrainedSettings. Test: tests/train/pretrained_test.cpp
[[nodiscard]] inline std::vector<std::int32_t> published_end_tokens(const std::filesystem::path& path) {
    std::error_code ignored;
    const std::filesystem::path folder = std::filesystem::is_directory(path, ignored) ? path : path.parent_path();
    for (const char* name : {"generation_config.json", "config.json"})
        if (std::filesystem::exists(folder / name, ignored))
            if (auto ids = PretrainedSettings(folder / name).token_ids("eos_token_id"); !ids.empty()) return ids;
    return {};
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
