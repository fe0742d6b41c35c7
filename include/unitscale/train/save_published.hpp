// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/atomic_folder.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/train/pretrained.hpp>
#include <unitscale/train/published_weights.hpp>

#include <nlohmann/json.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

// Writes a decoder as the Python package transformers keeps it: a folder with config.json and model.safetensors.
namespace unitscale::train {

/// The type of a decoder in the package: "gpt2", "llama" or "qwen2".
/// Errors, naming the part: a part of the decoder that the type lacks.
[[nodiscard]] inline std::string published_model_type(const nn::DecoderConfig& config) {
    const bool gpt2 = config.positions == nn::Positions::learned;
    const std::string type = gpt2 ? "gpt2" : config.query_key_value_bias && !config.bias ? "qwen2" : "llama";
    const auto expect = [&](bool holds, std::string_view part) {
        check(holds, "published: a model of type ", type, " has ", part);
    };
    expect(config.positions != nn::Positions::none, "learned or rotary positions");
    expect(config.context.kind == nn::ContextKind::attention, "attention in all layers");
    expect(config.placement == nn::NormPlacement::pre && !config.embedding_norm, "norms in front of its layers alone");
    expect(config.norm.gains, "norms with gains");
    expect(!config.readout_bias, "no bias of the readout");
    expect(config.window == 0 || type == "qwen2", "attention to all positions");
    expect(!config.residual && !config.attention_mult, "no multipliers of its own");
    if (gpt2) {
        expect(config.norm.kind == nn::NormKind::layer, "layer norms");
        expect(config.bias, "biases");
        expect(
            config.feed_forward == nn::FeedForwardKind::gelu || config.feed_forward == nn::FeedForwardKind::gelu_tanh,
            "gelu");
        expect(config.groups == 0 || config.groups == config.heads, "as many key heads as heads");
        expect(config.head_columns() * config.heads == config.width, "heads of width / heads columns");
    } else {
        expect(config.norm.kind == nn::NormKind::rms, "rms norms");
        expect(config.feed_forward == nn::FeedForwardKind::gated_silu, "gated silu");
    }
    return type;
}

/// The config.json of a decoder, with the keys of every version of the package.
/// Errors: the errors of `published_model_type`.
[[nodiscard]] inline nlohmann::ordered_json published_config_json(const nn::DecoderConfig& config) {
    const std::string type = published_model_type(config);
    const bool gpt2 = type == "gpt2";
    const PretrainedKeys& keys = gpt2 ? gpt2_keys : llama_keys;
    const char* const architecture = gpt2              ? "GPT2LMHeadModel"
                                     : type == "llama" ? "LlamaForCausalLM"
                                                       : "Qwen2ForCausalLM";
    nlohmann::ordered_json json{{"architectures", {architecture}}, {"model_type", type}};
    json[keys.vocabulary] = config.vocabulary;
    json[keys.width] = config.width;
    json[keys.depth] = config.depth;
    json[keys.hidden] = config.hidden_columns();
    json[keys.heads] = config.heads;
    json[keys.length] = config.length;
    json[keys.epsilon] = config.norm.epsilon;
    json["tie_word_embeddings"] = config.tied;
    if (gpt2) {
        json[keys.activation] = config.feed_forward == nn::FeedForwardKind::gelu ? "gelu" : "gelu_new";
        return json;
    }
    json[keys.activation] = "silu";
    json["num_key_value_heads"] = config.groups == 0 ? config.heads : config.groups;
    json["head_dim"] = config.head_columns();
    if (type == "llama") json["attention_bias"] = json["mlp_bias"] = config.bias;
    else json["use_sliding_window"] = config.window > 0;
    if (config.window > 0) {
        json["sliding_window"] = config.window;
        json["max_window_layers"] = 0;  // all layers have the window
    }
    // The older layout, which newer versions read too.
    json["rope_theta"] = config.rotary_base;
    json["rope_scaling"] = nullptr;
    const ops::RotaryScaling& scaling = config.rotary_scaling;
    if (scaling.kind == ops::RotaryScalingKind::none) return json;
    const bool llama3 = scaling.kind == ops::RotaryScalingKind::llama3;
    nlohmann::ordered_json rope{{"rope_type", llama3 ? "llama3" : "linear"}, {"factor", scaling.factor}};
    if (llama3) {
        rope["low_freq_factor"] = scaling.low_frequency_factor;
        rope["high_freq_factor"] = scaling.high_frequency_factor;
        rope["original_max_position_embeddings"] = static_cast<std::size_t>(scaling.original_length);
    }
    json["rope_scaling"] = std::move(rope);
    return json;
}

/// Files beside the weights that a tuned model takes over unchanged: the tokeniser's and the generation's.
inline constexpr std::array<std::string_view, 9> published_companions = {"tokenizer.json",
                                                                         "tokenizer_config.json",
                                                                         "tokenizer.model",
                                                                         "vocab.json",
                                                                         "merges.txt",
                                                                         "added_tokens.json",
                                                                         "chat_template.jinja",
                                                                         "generation_config.json",
                                                                         "special_tokens_map.json"};

/// Saves a decoder in a new folder that the Python package transformers loads: config.json and model.safetensors, with
/// the package's names and layouts of tensors. Scales are multiplied into the data. Elements are of type T, or of type
/// F32 if a weight of a narrower type has a scale.
/// `original`: the published model that the decoder was loaded from, a file or a folder. Then its config.json keeps its
/// other keys, tensors' names their prefix, and its tokeniser's files are copied.
/// The folder is there whole or not at all (io::AtomicFolder).
/// Errors: a folder with files; a part of the decoder that the package's model lacks (`published_model_type`); a recipe
/// under which the weights are no published model; the errors of SafetensorsWriter.
/// Test: tests/train/save_published_test.cpp
template <class T>
void save_published(const std::filesystem::path& folder, nn::Decoder<T>& model, const Recipe& recipe,
                    const std::filesystem::path& original = {}) {
    namespace fs = std::filesystem;
    const nn::DecoderConfig& config = model.config();
    nlohmann::ordered_json json = published_config_json(config);
    check(keeps_published_model(recipe), "published: ", folder.string(), ": ", recipe.name,
          " multiplies by factors that belong to the model; expected a recipe of standard parametrisation");
    const PublishedFamily family =
        config.positions == nn::Positions::learned ? PublishedFamily::gpt2 : PublishedFamily::llama;

    std::map<std::string, const Parameter<T>*> parameters;
    bool scaled = false;
    for (const Parameter<T>* parameter : model.parameters()) {
        parameters.emplace(parameter->name(), parameter);
        scaled = scaled || parameter->value().scale() != 1.0;
    }

    std::string prefix(published_prefix(family));
    std::error_code ignored;
    fs::path beside;
    if (!original.empty()) {
        const io::SafetensorsReader file(original);
        if (file.contains(published_names(family)[0].tensor)) prefix.clear();
        beside = fs::is_directory(original, ignored) ? original : original.parent_path();
        std::ifstream stream(beside / "config.json", std::ios::binary);
        // Values nested deeper than in any such file are left out.
        const auto shallow = [](int depth, auto, const auto&) { return depth < 16; };
        auto kept = nlohmann::ordered_json::parse(std::istreambuf_iterator<char>(stream), {}, shallow, false);
        if (kept.is_object()) {
            for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters", "dtype", "layer_types"})
                kept.erase(key);
            if (kept.contains("architectures")) json.erase("architectures");  // tensors have its names
            kept.update(json);
            json = std::move(kept);
        }
    }
    // Without these keys the package takes ids of its own vocabulary.
    for (const char* key : {"bos_token_id", "eos_token_id"})
        if (!json.contains(key)) json[key] = nullptr;

    io::AtomicFolder made("published", folder);
    io::SafetensorsWriter writer;
    const auto add_as = [&]<class E>(std::type_identity<E>) {
        json["torch_dtype"] = std::same_as<E, double>     ? "float64"
                              : std::same_as<E, Half>     ? "float16"
                              : std::same_as<E, BFloat16> ? "bfloat16"
                                                          : "float32";
        std::size_t written = 0;
        const auto values = [&](const std::string& name) {
            const auto found = parameters.find(name);
            check(found != parameters.end(), "published: the model has no parameter '", name, "'");
            ++written;
            return found->second;
        };
        const auto plain = [](const Parameter<T>& parameter) -> Tensor<E> {
            if constexpr (std::same_as<E, T>) return set_scaling(parameter.value(), 1.0);
            else return set_scaling(cast<E>(parameter.value()), 1.0);
        };
        const std::span<const PublishedName> rows = published_names(family);
        for (const PublishedName& row : rows) {
            const bool is_input = row.bias == PublishedBias::input;
            if (row.bias == PublishedBias::other && !config.bias) continue;
            if (is_input && !config.bias && !config.query_key_value_bias) continue;
            if (row.tensor == published_readout && config.tied) continue;
            if (row.part != 0) continue;  // written with part 0
            const bool once = row.tensor.find('*') == std::string_view::npos;
            for (std::size_t block = 0; block < (once ? 1 : config.depth); ++block) {
                const std::string number = std::to_string(block);
                const std::string tensor =
                    (row.tensor == published_readout ? "" : prefix) + fill_number(row.tensor, number);
                const Parameter<T>& first = *values(fill_number(row.parameter, number));
                if (!row.transposed && row.parts == 1) {
                    if constexpr (std::same_as<E, T>)
                        if (first.value().scale() == 1.0) {
                            writer.add(tensor, first.value());  // borrowed
                            continue;
                        }
                    writer.add(tensor, plain(first));
                    continue;
                }
                // [out,in] of each part, side by side in the columns of [in, parts out]
                const std::size_t out = first.shape()[0], in = row.transposed ? first.shape()[1] : 1;
                Tensor<E> joined(row.transposed ? Shape{in, row.parts * out} : Shape{row.parts * out});
                for (const PublishedName& part : rows) {
                    if (part.tensor != row.tensor) continue;
                    const Parameter<T>& parameter =
                        part.part == 0 ? first : *values(fill_number(part.parameter, number));
                    const Tensor<E> own = plain(parameter);
                    for (std::size_t o = 0; o < out; ++o)
                        for (std::size_t i = 0; i < in; ++i)
                            joined.data()[i * row.parts * out + part.part * out + o] = own.data()[o * in + i];
                }
                writer.add(tensor, std::move(joined));
            }
        }
        check(written == parameters.size(), "published: ", parameters.size() - written,
              " parameters of the model have no place in the file");
    };
    if (scaled && sizeof(T) < 4) add_as(std::type_identity<float>{});
    else add_as(std::type_identity<T>{});

    writer.set_metadata("format", "pt");
    writer.write(made.path() / io::safetensors_model_name);
    io::write_atomically("published", made.path() / "config.json", json.dump(2) + "\n");
    if (!beside.empty())
        for (const std::string_view name : published_companions)
            if (fs::exists(beside / name, ignored)) fs::copy_file(beside / name, made.path() / name);
    made.commit();
}

}  // namespace unitscale::train
