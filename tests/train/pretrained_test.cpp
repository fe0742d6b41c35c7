// SPDX-License-Identifier: MIT
#include <unitscale/train/pretrained.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/temporary_folder.hpp"
#include "support/test_ops.hpp"

#include <unitscale/io/npy.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/saved_model.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;

namespace {

// Models of the Python package transformers 5.23 with random weights, and the package's logits.
// bench/peers/pretrained.py makes them.
std::filesystem::path fixture(std::string_view name) {
    return std::filesystem::path(UNITSCALE_TEST_DATA) / "pretrained" / name;
}

struct Difference {
    double largest = 0.0;   ///< largest magnitude of a difference of logits
    double relative = 0.0;  ///< rms of the differences over rms of the reference
};

/// The path of a fixture's weights: its file, or its folder if it has shards.
std::filesystem::path weights_of(std::string_view name) {
    const std::filesystem::path file = fixture(name) / "model.safetensors";
    return std::filesystem::exists(file) ? file : fixture(name);
}

/// Compares a published model, run in T with a recipe, with the logits of its fixture.
template <class T>
Difference compare(std::string_view name, const Recipe& recipe, const nn::DecoderConfig& config) {
    test::LanguageModel<T> model(recipe, config);
    const auto notes =
        train::load_weights(weights_of(name), model.decoder.parameters(), recipe.scaling != Scaling::propagate);
    if (sizeof(T) >= 4) CHECK(notes.empty());
    model.tape.begin_step({.training = false, .gradients = false});
    const auto ids = io::load_npy<std::int32_t>(fixture(name) / "ids.npy");
    const auto expected = io::load_npy<double>(fixture(name) / "logits.npy");
    const Variable<T> output = model.decoder(model.tape, ids);
    const Tensor<T>& logits = output.value();
    REQUIRE(logits.shape() == expected.shape());
    Difference result;
    double squares = 0.0, reference = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const double difference = static_cast<double>(logits.data()[i]) * logits.scale() - expected.data()[i];
        result.largest = std::max(result.largest, std::abs(difference));
        squares += difference * difference;
        reference += expected.data()[i] * expected.data()[i];
    }
    result.relative = std::sqrt(squares / reference);
    return result;
}
template <class T>
Difference compare(std::string_view name, std::string_view recipe) {
    return compare<T>(name, find_recipe(recipe), train::pretrained_config(weights_of(name)));
}

/// Copies a fixture's file to a folder of its own, with a changed config.json.
/// Without `change` there is no config.json.
std::filesystem::path copy_fixture(const test::TemporaryFolder& folder, std::string_view name,
                                   const std::function<void(nlohmann::json&)>& change) {
    const std::filesystem::path to = folder.path() / "model.safetensors", config = folder.path() / "config.json";
    std::filesystem::copy_file(fixture(name) / "model.safetensors", to,
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::remove(config);
    if (!change) return to;
    auto json = nlohmann::json::parse(test::TemporaryFolder::read(fixture(name) / "config.json"));
    change(json);
    folder.write("config.json", json.dump());
    return to;
}
const auto as_it_is = [](nlohmann::json&) {};

/// A fixture's tensors in float, for a file with other names.
void add_fixture(
    io::SafetensorsWriter& writer, std::string_view name,
    const std::function<std::string(const std::string&)>& rename = [](const std::string& n) { return n; }) {
    const io::SafetensorsReader reader(fixture(name) / "model.safetensors");
    for (const auto& [tensor, entry] : reader.tensors()) writer.add(rename(tensor), reader.read_as<float>(tensor));
}

}  // namespace

// Measured, in double, float, Half and BFloat16: GPT-2 5.2e-16, 3.1e-7, 1.3e-3, 9.2e-3;
// Llama 2.2e-7 (the package's norms and angles are float), 6.0e-7, 2.0e-3, 1.6e-2.
TEST_CASE("pretrained: logits of GPT-2, Llama and Qwen2 equal the logits of the package that published the weights") {
    for (const char* name :
         {"gpt2", "gpt2_base", "gpt2_text", "llama", "llama_tied", "llama_linear", "llama3", "qwen2", "qwen2_window"}) {
        INFO(name);
        const bool gpt2 = std::string_view(name).starts_with("gpt2");
        CHECK(compare<double>(name, "fp32").relative < (gpt2 ? 3e-15 : 5e-7));
        const Difference single = compare<float>(name, "fp32");
        CHECK(single.relative < 2e-6);
        CHECK(single.largest < 2e-5);
        CHECK(compare<Half>(name, "fp16").relative < 5e-3);
        CHECK(compare<BFloat16>(name, "bf16").relative < 4e-2);
        CHECK(compare<Half>(name, "scalify-fp16-1").relative < 5e-3);
    }
}

TEST_CASE("pretrained: shapes and config.json tell the model") {
    const auto config = [](std::string_view name) {
        return train::pretrained_config(fixture(name) / "model.safetensors");
    };
    const auto check_sizes = [](const nn::DecoderConfig& c, std::size_t width, std::size_t hidden, std::size_t groups,
                                std::size_t length, bool tied) {
        CHECK((c.vocabulary == 32 && c.width == width && c.depth == 2 && c.heads == 4 && c.groups == groups));
        CHECK((c.length == length && c.hidden == hidden && c.tied == tied && c.dropout == 0.0));
    };
    for (const char* name : {"gpt2", "gpt2_base"}) {
        const nn::DecoderConfig c = config(name);
        check_sizes(c, 16, std::string_view(name) == "gpt2" ? 64 : 40, 0, 20, true);
        CHECK((c.feed_forward == nn::FeedForwardKind::gelu_tanh && c.positions == nn::Positions::learned && c.bias));
        CHECK((c.norm.kind == nn::NormKind::layer && c.norm.gains && c.norm.epsilon == 1e-5));
    }
    for (const char* name : {"llama", "llama_tied"}) {
        const bool tied = std::string_view(name) == "llama_tied";
        const nn::DecoderConfig c = config(name);
        check_sizes(c, 24, tied ? 64 : 41, tied ? 1 : 2, 64, tied);
        CHECK((c.feed_forward == nn::FeedForwardKind::gated_silu && c.positions == nn::Positions::rotary && !c.bias));
        CHECK((c.norm.kind == nn::NormKind::rms && c.norm.gains && c.norm.epsilon == (tied ? 1e-5 : 1e-6)));
        CHECK(c.rotary_base == (tied ? 10000.0 : 500.0));
    }
}

TEST_CASE(
    "pretrained: a folder with shards; heads of their own size; biases of queries, keys and values; slow angles") {
    for (const auto& path : {fixture("llama3"), fixture("llama3") / "model.safetensors.index.json"}) {
        const nn::DecoderConfig c = train::pretrained_config(path);
        CHECK((c.vocabulary == 288 && c.width == 24 && c.depth == 2 && c.heads == 4 && c.groups == 2));
        CHECK((c.head_size == 8 && c.key_columns() == 16 && c.hidden == 40 && c.length == 256 && !c.tied));
        CHECK((c.rotary_base == 500.0 && !c.bias && !c.query_key_value_bias));
        CHECK(c.rotary_scaling == ops::RotaryScaling{.kind = ops::RotaryScalingKind::llama3,
                                                     .factor = 8.0,
                                                     .low_frequency_factor = 1.0,
                                                     .high_frequency_factor = 4.0,
                                                     .original_length = 32.0});
    }
    const nn::DecoderConfig linear = train::pretrained_config(fixture("llama_linear"));
    CHECK((linear.rotary_base == 500.0 && linear.head_size == 0));
    CHECK(linear.rotary_scaling == ops::RotaryScaling{.kind = ops::RotaryScalingKind::linear, .factor = 4.0});
    const nn::DecoderConfig qwen2 = train::pretrained_config(fixture("qwen2"));
    CHECK(
        (qwen2.query_key_value_bias && !qwen2.bias && qwen2.tied && qwen2.groups == 2 && qwen2.rotary_base == 1000.0));
    CHECK(qwen2.window == 0);
    CHECK(train::pretrained_config(fixture("qwen2_window")).window == 5);
    // Each of these settings matters.
    const auto changed = [](const char* name, const auto& change) {
        nn::DecoderConfig config = train::pretrained_config(fixture(name));
        change(config);
        return compare<float>(name, find_recipe("fp32"), config).relative;
    };
    CHECK(changed("llama3", [](auto& c) { c.rotary_scaling = {}; }) > 1e-2);
    CHECK(changed("llama3", [](auto& c) { c.rotary_scaling.original_length = 64.0; }) > 1e-2);
    CHECK(changed("qwen2_window", [](auto& c) { c.window = 6; }) > 1e-3);
    CHECK(changed("llama_linear", [](auto& c) { c.rotary_scaling.factor = 2.0; }) > 1e-2);
}

// Measured: 1.9e-4 for gelu in its erf form, 1.8e-2 for an epsilon of 1e-3, 0.58 for another base.
TEST_CASE("pretrained: the form of gelu, the norms' epsilon and the base of angles matter") {
    auto config = train::pretrained_config(fixture("gpt2") / "model.safetensors");
    config.feed_forward = nn::FeedForwardKind::gelu;
    const double erf = compare<double>("gpt2", find_recipe("fp32"), config).relative;
    config = train::pretrained_config(fixture("llama") / "model.safetensors");
    config.norm.epsilon = 1e-3;
    const double epsilon = compare<double>("llama", find_recipe("fp32"), config).relative;
    config.norm.epsilon = 1e-6;
    config.rotary_base = 10000.0;
    const double base = compare<double>("llama", find_recipe("fp32"), config).relative;
    CHECK(erf > 1e-5);
    CHECK(erf < 1e-3);
    CHECK(epsilon > 1e-3);
    CHECK(base > 1e-2);
}

TEST_CASE("pretrained: without a config.json, settings that shapes do not determine are required") {
    const test::TemporaryFolder folder;
    const auto alone = [&](std::string_view name) { return copy_fixture(folder, name, {}); };
    auto path = alone("gpt2");
    const std::string start = "pretrained: " + path.string() + ": its shapes do not tell ";
    CHECK_THROWS_WITH(train::pretrained_config(path), start + "the number of heads, and no config.json is beside it");
    CHECK_THROWS_WITH(train::pretrained_config(path, {.heads = 4}),
                      start + "the norms' epsilon, and no config.json is beside it");
    CHECK_THROWS_WITH(train::pretrained_config(path, {.heads = 3, .epsilon = 1e-5}),
                      "pretrained: " + path.string() + ": a width of 16 is not divisible by 3 heads");
    CHECK_THROWS_WITH(train::pretrained_config(path, {.heads = 4, .length = 30, .epsilon = 1e-5}),
                      "pretrained: " + path.string() + ": has 20 positions, not 30");
    const auto json = [](const nn::DecoderConfig& config) { return train::decoder_to_json(config); };
    const auto told = [](std::string_view name) {
        return train::pretrained_config(fixture(name) / "model.safetensors");
    };
    CHECK(json(train::pretrained_config(path, {.heads = 4, .epsilon = 1e-5})) == json(told("gpt2")));
    CHECK(json(train::pretrained_config(path, {.config = fixture("gpt2") / "config.json"})) == json(told("gpt2")));

    path = alone("llama");
    CHECK_THROWS_WITH(train::pretrained_config(path, {.heads = 4, .epsilon = 1e-6}),
                      start + "the number of positions, and no config.json is beside it");
    CHECK_THROWS_WITH(train::pretrained_config(path, {.heads = 4, .length = 64, .epsilon = 1e-6}),
                      start + "the base of rotary positions, and no config.json is beside it");
    CHECK_THROWS_WITH(train::pretrained_config(path, {.heads = 3, .length = 64, .epsilon = 1e-6, .rotary_base = 500.0}),
                      "pretrained: " + path.string() + ": keys of 12 columns do not serve 3 heads of size 8");
    CHECK(json(train::pretrained_config(path, {.heads = 4, .length = 64, .epsilon = 1e-6, .rotary_base = 500.0})) ==
          json(told("llama")));
    CHECK_FALSE(train::pretrained_config(path, {.heads = 4, .length = 64, .epsilon = 1e-6, .rotary_base = 500.0}).tied);
    CHECK(
        train::pretrained_config(alone("llama_tied"), {.heads = 4, .length = 64, .epsilon = 1e-6, .rotary_base = 500.0})
            .tied);

    // Arguments take precedence over config.json.
    path = copy_fixture(folder, "llama", as_it_is);
    const auto changed = train::pretrained_config(path, {.length = 7, .epsilon = 0.5, .rotary_base = 2.0});
    CHECK((changed.length == 7 && changed.norm.epsilon == 0.5 && changed.rotary_base == 2.0 && changed.heads == 4));
}

TEST_CASE("pretrained: keys that a config.json leaves out have the package's defaults") {
    const test::TemporaryFolder folder;
    auto config = train::pretrained_config(copy_fixture(folder, "llama_tied", [](auto& json) {
        for (const char* key :
             {"rms_norm_eps", "rope_theta", "max_position_embeddings", "hidden_act", "num_key_value_heads"})
            json.erase(key);
        json["max_position_embeddings"] = 32;
    }));
    CHECK((config.norm.epsilon == 1e-6 && config.rotary_base == 10000.0 && config.length == 32 && config.groups == 1));
    config = train::pretrained_config(copy_fixture(folder, "gpt2", [](auto& json) {
        for (const char* key : {"layer_norm_epsilon", "activation_function", "tie_word_embeddings"}) json.erase(key);
    }));
    CHECK((config.norm.epsilon == 1e-5 && config.tied && config.feed_forward == nn::FeedForwardKind::gelu_tanh));
    config = train::pretrained_config(
        copy_fixture(folder, "gpt2", [](auto& json) { json["activation_function"] = "gelu"; }));
    CHECK(config.feed_forward == nn::FeedForwardKind::gelu);
}

TEST_CASE("pretrained: a config.json of another model, or that is damaged, is one clear line") {
    const test::TemporaryFolder folder;
    const std::string place = "pretrained: " + (folder.path() / "config.json").string() + ": ";
    const auto refused = [&](std::string_view name, const std::function<void(nlohmann::json&)>& change,
                             const std::string& message) {
        CHECK_THROWS_WITH(train::pretrained_config(copy_fixture(folder, name, change)), message);
    };
    const auto set = [](const char* key, const nlohmann::json& value) {
        return [=](nlohmann::json& json) { json[key] = value; };
    };
    refused("gpt2", set("model_type", "llama"), place + "model_type is \"llama\"; expected \"gpt2\"");
    refused("llama", set("model_type", "mistral"),
            place + "model_type is \"mistral\"; expected \"llama\" or \"qwen2\"");
    refused("llama", set("model_type", "qwen2"),
            place + "model_type is \"qwen2\"; expected \"llama\": not queries, keys and values alone have biases");
    refused("qwen2", set("model_type", "llama"),
            place + "model_type is \"llama\"; expected \"qwen2\": queries, keys and values alone have biases");
    refused("llama", set("attention_bias", true), place + "attention_bias is true; expected false");
    refused("llama", set("mlp_bias", true), place + "mlp_bias is true; expected false");
    refused("qwen2_window", set("sliding_window", nullptr),
            place + "sliding_window is absent; expected a number of positions");
    refused("qwen2_window", set("layer_types", {"full_attention", "sliding_attention"}),
            place +
                "layer_types is [\"full_attention\",\"sliding_attention\"]; expected full_attention or "
                "sliding_attention in all layers");
    refused(
        "qwen2_window",
        [](auto& json) {
            json.erase("layer_types");
            json["max_window_layers"] = 1;
        },
        place + "max_window_layers is 1; expected 0 or at least 2: equal windows in all layers");
    refused("qwen2", set("layer_types", {"full_attention", "sliding_attention"}),
            place + "layer_types is [\"full_attention\",\"sliding_attention\"]; expected full_attention in all layers");
    refused("qwen2", set("layer_types", "full_attention"),
            place + "layer_types is \"full_attention\"; expected a list of texts");
    refused("llama", set("quantization_config", {{"quant_method", "fp8"}}),
            place + "quantization_config is {\"quant_method\":\"fp8\"}; expected no value: weights, not codes");
    refused("gpt2", set("n_layer", 3), place + "n_layer is 3; expected 2");
    refused("gpt2", set("n_embd", 32), place + "n_embd is 32; expected 16");
    refused("gpt2", set("n_inner", 63), place + "n_inner is 63; expected 64");
    refused("gpt2", set("vocab_size", 31), place + "vocab_size is 31; expected 32");
    refused("gpt2", set("n_positions", 21), place + "n_positions is 21; expected 20");
    refused("gpt2", set("n_head", "four"), place + "n_head is \"four\"; expected a whole number from 1 to 1000000000");
    refused("gpt2", set("n_head", -4), place + "n_head is -4; expected a whole number from 1 to 1000000000");
    refused("gpt2", set("n_head", 4.5), place + "n_head is 4.5; expected a whole number from 1 to 1000000000");
    refused("gpt2", set("layer_norm_epsilon", 0), place + "layer_norm_epsilon is 0; expected a positive number");
    refused("gpt2", set("activation_function", "relu"),
            place + "activation_function is \"relu\"; expected gelu, gelu_new or gelu_pytorch_tanh");
    refused("gpt2", set("scale_attn_by_inverse_layer_idx", true),
            place + "scale_attn_by_inverse_layer_idx is true; expected false");
    refused("gpt2", set("scale_attn_weights", 1), place + "scale_attn_weights is 1; expected true or false");
    refused("llama", set("hidden_act", "gelu"), place + "hidden_act is \"gelu\"; expected silu");
    refused("llama", set("hidden_act", 3), place + "hidden_act is 3; expected a text");
    refused("llama", set("num_key_value_heads", 4), place + "num_key_value_heads is 4; expected 2");
    refused("llama", set("head_dim", 12), place + "head_dim is 12; expected 6");
    const auto rope = [&](const nlohmann::json& value, const std::string& message) {
        refused("llama", set("rope_parameters", value), place + "rope_parameters." + message);
    };
    rope({{"rope_type", "llama3"}, {"rope_theta", 500.0}}, "factor is absent; expected a positive number");
    rope({{"rope_type", "linear"}, {"factor", 0}}, "factor is 0; expected a positive number");
    rope({{"rope_type", "llama3"}, {"factor", 8}}, "low_freq_factor is absent; expected a positive number");
    rope({{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 1}},
         "high_freq_factor is 1; expected more than low_freq_factor");
    rope({{"rope_type", "yarn"}, {"factor", 8}}, "rope_type is \"yarn\"; expected default, linear or llama3");
    rope({{"factor", 8}}, "factor is 8; expected 1.0");
    rope({{"rope_type", "linear"}, {"factor", 8}, {"partial_rotary_factor", 0.5}},
         "partial_rotary_factor is 0.5; expected 1.0");
    rope({{"full_attention", {{"rope_type", "default"}}}},
         "full_attention is {\"rope_type\":\"default\"}; expected no value: equal angles in all layers");
    refused("llama_tied", set("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}),
            place + "rope_scaling.type is \"dynamic\"; expected default, linear or llama3");
    refused("llama", set("rope_scaling", {{"type", "linear"}, {"factor", 2.0}}),
            place + "rope_scaling is {\"factor\":2.0,\"type\":\"linear\"}; expected no value beside rope_parameters");
    refused("llama", set("rope_parameters", 7), place + "rope_parameters is 7; expected an object");
    refused("llama_tied", set("tie_word_embeddings", false),
            "pretrained: " + (folder.path() / "model.safetensors").string() +
                ": has no tensor 'lm_head.weight', and its config.json does not tie the readout to the token table");
    refused(
        "llama", [](auto& json) { json.erase("num_attention_heads"); },
        "pretrained: " + (folder.path() / "model.safetensors").string() +
            ": its shapes do not tell the number of heads, and neither does its config.json");

    const auto path = copy_fixture(folder, "gpt2", {});
    folder.write("config.json", "{\"n_head\": ");
    CHECK_THROWS_WITH(train::pretrained_config(path), place + "is no JSON object");
    folder.write("config.json", "[]");
    CHECK_THROWS_WITH(train::pretrained_config(path), place + "is no JSON object");
    folder.write("config.json", "{\"n_head\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}");
    CHECK_THROWS_AS(train::pretrained_config(path), Error);
    folder.write("config.json", std::string((1 << 20) + 1, ' '));
    CHECK_THROWS_WITH(train::pretrained_config(path), place + "has 1048577 bytes; expected at most 1048576");
    CHECK_THROWS_WITH(train::pretrained_config(path, {.config = "none.json"}), "pretrained: none.json: cannot be read");
    const auto other = folder.path() / "other.safetensors";
    io::SafetensorsWriter().write(other);
    CHECK_THROWS_WITH(train::pretrained_config(other),
                      "pretrained: " + other.string() +
                          ": has neither 'wte.weight' (GPT-2) nor 'embed_tokens.weight' (Llama), "
                          "alone or behind 'transformer.' or 'model.'");
}

TEST_CASE("pretrained: names with and without a prefix, constants and a second copy of the token table load alike") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "renamed.safetensors";
    const auto values = [](std::string_view name, const std::filesystem::path& file) {
        nn::Decoder<float> model(train::pretrained_config(fixture(name) / "model.safetensors"));
        CHECK(train::load_weights(file, model.parameters()).empty());
        return test::all_values(model);
    };
    const auto renamed = [&](std::string_view name, const std::function<std::string(const std::string&)>& rename,
                             const std::function<void(io::SafetensorsWriter&)>& more) {
        INFO(name);
        io::SafetensorsWriter writer;
        add_fixture(writer, name, rename);
        more(writer);
        writer.write(path);
        CHECK(values(name, path) == values(name, fixture(name) / "model.safetensors"));
    };
    const auto stripped = [](const std::string& name) {
        return name == "lm_head.weight" ? name : name.substr(name.find('.') + 1);
    };
    renamed("gpt2", stripped, [](auto& writer) {
        writer.add("h.0.attn.bias", Tensor<bool>(full<bool>({1, 1, 20, 20}, true)));
        writer.add("h.1.attn.masked_bias", full<float>({}, -10000.0f));
    });
    renamed(
        "gpt2_base", [](const std::string& name) { return "transformer." + name; },
        [](auto& writer) {
            const io::SafetensorsReader reader(fixture("gpt2_base") / "model.safetensors");
            writer.add("lm_head.weight", reader.read_as<float>("wte.weight"));
        });
    renamed("llama", stripped, [](auto&) {});

    // Loaded weights are saved under the parameters' own names.
    nn::Decoder<float> model(train::pretrained_config(fixture("llama") / "model.safetensors"));
    CHECK(train::load_weights(path, model.parameters()).empty());
    train::save_weights(path, model.parameters());
    CHECK(io::SafetensorsReader(path).contains("decoder/block1/ffn/gate/weight"));
    CHECK(values("llama", path) == values("llama", fixture("llama") / "model.safetensors"));
    renamed("llama_tied", stripped,
            [](auto& writer) { writer.add("layers.0.self_attn.rotary_emb.inv_freq", full<float>({3}, 1)); });
}

TEST_CASE("pretrained: weights of another model are one clear line, and change nothing") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "other.safetensors";
    const auto refused = [&](std::string_view name, const std::function<void(nn::DecoderConfig&)>& change,
                             const std::string& message) {
        auto config = train::pretrained_config(fixture(name) / "model.safetensors");
        change(config);
        nn::Decoder<float> model(config);
        nn::initialise(model.parameters(), find_recipe("fp32"), 1);
        const auto before = test::all_values(model);
        const auto file = std::filesystem::exists(path) ? path : fixture(name) / "model.safetensors";
        CHECK_THROWS_WITH(train::load_weights(file, model.parameters()), Catch::Contains(message));
        CHECK(test::all_values(model) == before);
    };
    refused(
        "gpt2", [](auto& c) { c.depth = 1; },
        "tensor 'transformer.h.1.attn.c_attn.bias' belongs to no parameter of this model");
    refused(
        "gpt2", [](auto& c) { c.depth = 3; }, "no tensor 'transformer.h.2.ln_1.weight'; the file holds");
    refused(
        "gpt2", [](auto& c) { c.norm.gains = false; },
        "tensor 'transformer.h.0.ln_1.bias' belongs to no parameter of this model");
    refused(
        "gpt2", [](auto& c) { c.hidden = 48; },
        "tensor 'transformer.h.0.mlp.c_fc.weight' is [16,64]; expected [16,48]");
    refused(
        "gpt2", [](auto& c) { c.tied = false; }, "no tensor 'lm_head.weight'; the file holds");
    refused(
        "gpt2", [](auto& c) { c.feed_forward = nn::FeedForwardKind::gated_silu; },
        "holds gpt2 weights, which have no 'decoder/block0/ffn/gate/weight'");
    refused(
        "llama", [](auto& c) { c.tied = true; }, "'lm_head.weight' is not 'model.embed_tokens.weight'");
    refused(
        "llama", [](auto& c) { c.groups = 1; }, "'model.layers.0.self_attn.k_proj.weight' is [12,24]; expected [6,24]");
    io::SafetensorsWriter writer;
    add_fixture(writer, "llama");
    writer.add("model.layers.0.mlp.up_proj.weight_scale", full<float>({1}, 2));
    writer.write(path);
    refused(
        "llama", [](auto&) {},
        "tensor 'model.layers.0.mlp.up_proj.weight_scale' belongs to no parameter of this model");
    CHECK_THROWS_WITH(train::pretrained_config(path, {.config = fixture("llama") / "config.json"}),
                      "pretrained: " + path.string() +
                          ": tensor 'model.layers.0.mlp.up_proj.weight_scale' belongs to no parameter of this model");
}

TEST_CASE("pretrained: the tokens that end a text") {
    using Ids = std::vector<std::int32_t>;
    CHECK(train::published_end_tokens(fixture("llama3")) == Ids{2});
    CHECK(train::published_end_tokens(fixture("gpt2") / "model.safetensors") == Ids{0});
    CHECK(train::published_end_tokens(fixture("qwen2")).empty());
    const test::TemporaryFolder folder;
    folder.write("config.json", R"({"eos_token_id": [3, 4]})");
    CHECK(train::published_end_tokens(folder.path()) == Ids{3, 4});
    folder.write("generation_config.json", R"({"eos_token_id": 5})");
    CHECK(train::published_end_tokens(folder.path()) == Ids{5});
    folder.write("generation_config.json", R"({"eos_token_id": -1})");
    CHECK_THROWS_WITH(train::published_end_tokens(folder.path()),
                      "pretrained: " + (folder.path() / "generation_config.json").string() +
                          ": eos_token_id is -1; expected a token id or a list of them");
}

TEST_CASE("pretrained: BERT's shapes, config.json and heads tell the model") {
    const std::filesystem::path weights = std::string(UNITSCALE_TEST_DATA) + "/bert.safetensors";
    const nn::BertConfig c = train::pretrained_bert_config(weights, {.heads = 2});
    CHECK((c.vocabulary == 19 && c.segments == 2 && c.width == 8 && c.depth == 2 && c.heads == 2 && c.hidden == 12));
    CHECK((c.length == 9 && c.epsilon == 1e-12 && c.dropout == 0.0 && c.pooler && c.pretraining && c.spans));
    nn::Bert<float> model(c);
    CHECK(train::load_weights(weights, model.parameters()).empty());

    const test::TemporaryFolder folder;
    const auto path = folder.path() / "model.safetensors";
    const io::SafetensorsReader reader(weights);
    io::SafetensorsWriter writer;
    for (const auto& [tensor, entry] : reader.tensors())
        if (tensor.starts_with("bert.")) writer.add(tensor, reader.read_as<float>(tensor));
    writer.write(path);
    const auto configured = [&](const std::string& text) {
        folder.write("config.json", text);
        return train::pretrained_bert_config(path);
    };
    const nn::BertConfig bare =
        configured(R"({"model_type": "bert", "num_attention_heads": 4, "layer_norm_eps": 1e-6, "vocab_size": 19})");
    CHECK((bare.heads == 4 && bare.epsilon == 1e-6 && bare.pooler && !bare.pretraining && !bare.spans));
    const std::string start = "pretrained: " + path.string();
    CHECK_THROWS_WITH(configured(R"({"num_attention_heads": 3})"),
                      start + ": a width of 8 is not divisible by 3 heads");
    CHECK_THROWS_WITH(configured("{}"), start + ": neither its shapes nor a config.json tell the number of heads");
    CHECK_THROWS_WITH(configured(R"({"num_attention_heads": 2, "hidden_act": "relu"})"),
                      Catch::EndsWith("config.json: hidden_act is \"relu\"; expected \"gelu\""));
    CHECK_THROWS_WITH(train::pretrained_bert_config(path, {.heads = 2, .length = 9}),
                      start + ": length and rotary_base are a decoder's settings");
    CHECK_THROWS_WITH(train::pretrained_config(path), start + ": holds BERT's weights; expected GPT-2's or Llama's");
    CHECK_THROWS_WITH(train::pretrained_bert_config(fixture("gpt2") / "model.safetensors"),
                      Catch::EndsWith(": has no 'embeddings.word_embeddings.weight' (BERT), alone or behind 'bert.'"));
}

TEST_CASE("pretrained: BERT's configuration is found in a file of save_weights too") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "saved.safetensors";
    const nn::BertConfig config{.vocabulary = 19, .width = 8, .depth = 2, .heads = 4, .hidden = 12, .length = 9};
    nn::Bert<float> model(config);
    nn::initialise(model.parameters(), find_recipe("fp32"), 1);
    train::save_weights(path, model.parameters());
    const nn::BertConfig c = train::pretrained_bert_config(path, {.heads = 4});
    CHECK((c.vocabulary == 19 && c.segments == 2 && c.width == 8 && c.depth == 2 && c.heads == 4 && c.hidden == 12));
    CHECK((c.length == 9 && c.pooler && c.pretraining && !c.spans));
    nn::Bert<float> again(c);
    CHECK(train::load_weights(path, again.parameters()).empty());
    CHECK(test::elements(again.parameters()[7]->value()) == test::elements(model.parameters()[7]->value()));

    const std::string start = "pretrained: " + path.string();
    CHECK_THROWS_WITH(train::pretrained_bert_config(path),
                      start + ": neither its shapes nor a config.json tell the number of heads");
    CHECK_THROWS_WITH(train::pretrained_bert_config(path, {.heads = 3}),
                      start + ": a width of 8 is not divisible by 3 heads");
    train::save_weights(path, model.parameters(), {{"heads", 2}});
    CHECK(train::pretrained_bert_config(path).heads == 2);
    CHECK(train::pretrained_bert_config(path, {.heads = 4}).heads == 4);
    CHECK(train::load_weights(path, again.parameters()).empty());
    io::SafetensorsWriter writer;
    writer.add("bert/tokens/weight", Tensor<float>(Shape{19, 8}));
    writer.write(path);
    CHECK_THROWS_WITH(train::pretrained_bert_config(path, {.heads = 4}),
                      start + ": has no tensor 'bert/positions/weight'");
    io::SafetensorsWriter flat;
    flat.add("bert/tokens/weight", Tensor<float>(Shape{19}));
    flat.write(path);
    CHECK_THROWS_WITH(train::pretrained_bert_config(path, {.heads = 4}),
                      start + ": tensor 'bert/tokens/weight' is [19]; expected rank 2");
}

TEST_CASE("pretrained: a file of save_decoder tells its model and loads again") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "tuned.safetensors";
    const std::string start = "pretrained: " + path.string();
    for (const char* name : {"gpt2", "llama", "llama_tied"}) {
        CAPTURE(name);
        const auto from = fixture(name) / "model.safetensors";
        nn::Decoder<float> model(train::pretrained_config(from));
        static_cast<void>(train::load_weights(from, model.parameters()));
        train::save_decoder(path, model, find_recipe("fp8-amax"));
        folder.write("config.json", "{}");  // does not belong to the file
        const nn::DecoderConfig config = train::pretrained_config(path);
        CHECK(train::decoder_to_json(config) == train::decoder_to_json(model.config()));
        nn::Decoder<float> again(config);
        CHECK(train::load_weights(path, again.parameters()).empty());
        CHECK(test::all_values(again) == test::all_values(model));
        CHECK_THROWS_WITH(train::pretrained_config(path, {.heads = 4}),
                          start + ": holds all settings of its model; expected none beside it");
        train::save_decoder(path, model, find_recipe("unit-fp8"));
        CHECK_THROWS_WITH(train::pretrained_config(path),
                          start +
                              ": was trained under unit-fp8, whose factors belong to the model; expected weights "
                              "trained without factors");
        train::save_weights(path, model.parameters());
        CHECK_THROWS_WITH(train::pretrained_config(path),
                          start + ": has no 'run/model'; is it a file of weights alone?");
    }
}

TEST_CASE("pretrained: recipes that keep the published model have no factors") {
    for (const char* name : {"fp32", "fp16", "fp8-amax", "mxfp8", "scalify-fp8-4"})
        CHECK(train::keeps_published_model(find_recipe(name)));
    for (const char* name : {"unit-fp32", "us-fp16", "umup-fp8", "mup-fp32"})
        CHECK_FALSE(train::keeps_published_model(find_recipe(name)));
}

TEST_CASE("pretrained: damaged files load by their changed contents or are errors of one line") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "model.safetensors";
    for (const char* name : {"gpt2_base", "llama_tied"}) {
        const std::string weights = test::TemporaryFolder::read(fixture(name) / "model.safetensors"),
                          config = test::TemporaryFolder::read(fixture(name) / "config.json");
        const std::size_t header =
            8 + static_cast<unsigned char>(weights[0]) + 256u * static_cast<unsigned char>(weights[1]);
        std::size_t errors = 0, loaded = 0;
        for (std::uint64_t i = 0; i < 600; ++i) {
            const auto draw = [&](std::uint64_t n, std::size_t below) { return random_word({1, n}, i) % below; };
            std::string damaged = weights, settings = config;
            std::string& text = i % 2 == 0 ? damaged : settings;
            constexpr std::string_view characters = "0123456789\"[]{},:-.eE";
            text[draw(1, i % 2 == 0 ? header : config.size())] = characters[draw(2, characters.size())];
            folder.write("model.safetensors", damaged);
            folder.write("config.json", settings);
            try {
                nn::Decoder<float> model(train::pretrained_config(path));
                train::load_weights(path, model.parameters());
                CHECK(model.parameter_count() <= weights.size());
                ++loaded;
            } catch (const Error& error) {
                CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
                ++errors;
            }
        }
        CHECK(errors > 100);
        CHECK(loaded > 100);
    }
}
