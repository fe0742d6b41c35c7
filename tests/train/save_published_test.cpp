// SPDX-License-Identifier: MIT
#include <unitscale/train/save_published.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/temporary_folder.hpp"
#include "support/test_ops.hpp"

#include <unitscale/io/npy.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;
namespace fs = std::filesystem;

namespace {

// bench/peers/pretrained.py makes these models.
fs::path fixture(std::string_view name) { return fs::path(UNITSCALE_TEST_DATA) / "pretrained" / name; }

/// Loads a fixture in T under a recipe, and saves it.
template <class T>
void write_back(std::string_view name, const fs::path& to, std::string_view recipe_name, const fs::path& original) {
    const Recipe recipe = find_recipe(recipe_name);
    test::LanguageModel<T> model(recipe, train::pretrained_config(fixture(name)));
    static_cast<void>(
        train::load_weights(fixture(name), model.decoder.parameters(), recipe.scaling != Scaling::propagate));
    train::save_published(to, model.decoder, recipe, original);
}

/// The tensors of two models: names, shapes and values are equal.
void check_equal(const fs::path& a, const fs::path& b) {
    const io::SafetensorsReader first(a), second(b);
    CHECK(first.tensors().size() == second.tensors().size());
    for (const auto& [tensor, entry] : first.tensors()) {
        INFO(tensor);
        REQUIRE(second.contains(tensor));
        CHECK(entry.shape == second.entry(tensor).shape);
        CHECK(test::elements(first.read_as<double>(tensor)) == test::elements(second.read_as<double>(tensor)));
    }
}

}  // namespace

TEST_CASE("save_published: a published model that is written back has the tensors, the settings and the files it had") {
    for (const char* name :
         {"gpt2", "gpt2_base", "gpt2_text", "llama", "llama_tied", "llama_linear", "llama3", "qwen2", "qwen2_window"}) {
        INFO(name);
        const test::TemporaryFolder folder;
        const fs::path to = folder.path() / "saved";
        write_back<float>(name, to, "fp32", fixture(name));
        check_equal(fixture(name), to);
        const io::SafetensorsReader file(to);
        CHECK(file.metadata().at("format") == "pt");
        CHECK(file.tensors().begin()->second.dtype == "F32");

        const auto before = nlohmann::json::parse(test::TemporaryFolder::read(fixture(name) / "config.json")),
                   after = nlohmann::json::parse(test::TemporaryFolder::read(to / "config.json"));
        for (const auto& [key, value] : before.items()) {
            if (key.starts_with("rope_") || key == "layer_types" || key == "dtype" || key == "torch_dtype" ||
                value.is_null())
                continue;
            INFO(key);
            CHECK(after.value(key, nlohmann::json()) == value);
        }
        CHECK(after.at("torch_dtype") == "float32");
        CHECK(train::published_config_json(train::pretrained_config(to)) ==
              train::published_config_json(train::pretrained_config(fixture(name))));
        CHECK(fs::exists(to / "tokenizer.json") == fs::exists(fixture(name) / "tokenizer.json"));
    }
}

TEST_CASE("save_published: elements keep the model's type; scales are multiplied into the data") {
    const test::TemporaryFolder folder;
    const auto saved = [&](const char* name) { return folder.path() / name; };
    write_back<Half>("gpt2_base", saved("half"), "fp16", fixture("gpt2_base"));
    check_equal(fixture("gpt2_base"), saved("half"));
    CHECK(io::SafetensorsReader(saved("half")).entry("wte.weight").dtype == "F16");
    write_back<BFloat16>("llama_tied", saved("bfloat16"), "bf16", fixture("llama_tied"));
    check_equal(fixture("llama_tied"), saved("bfloat16"));
    CHECK(io::SafetensorsReader(saved("bfloat16")).entry("model.norm.weight").dtype == "BF16");
    write_back<double>("llama", saved("double"), "fp32", {});
    check_equal(fixture("llama"), saved("double"));

    // FP16 data with scales: the values are those of FP16 times a power of two.
    write_back<Half>("gpt2_base", saved("scaled"), "scalify-fp16-1", {});
    const io::SafetensorsReader scaled(saved("scaled")), original(fixture("gpt2_base"));
    CHECK(scaled.tensors().size() == original.tensors().size());
    for (const auto& [tensor, entry] : scaled.tensors()) {
        CHECK(entry.dtype == "F32");
        // Without an original, names have the usual prefix.
        const auto values = scaled.read_as<float>(tensor), expected = original.read_as<float>(tensor.substr(12));
        REQUIRE(values.shape() == expected.shape());
        for (std::size_t i = 0; i < values.size(); ++i)
            CHECK(values.data()[i] == Approx(expected.data()[i]).epsilon(1e-3).margin(1e-6));
    }
}

TEST_CASE("save_published: a decoder that was built here, in each type of model") {
    const test::TemporaryFolder folder;
    int number = 0;
    const auto round_trip = [&](nn::DecoderConfig config, const char* type) {
        INFO(type);
        const fs::path to = folder.path() / std::to_string(number++);
        test::LanguageModel<float> model(find_recipe("fp32"), config);
        test::randomise(model.decoder.parameters(), 0.3);
        train::save_published(to, model.decoder, model.recipe);
        const auto json = nlohmann::json::parse(test::TemporaryFolder::read(to / "config.json"));
        CHECK(json.at("model_type") == type);
        CHECK((json.contains("eos_token_id") && json.at("eos_token_id").is_null()));
        const nn::DecoderConfig read = train::pretrained_config(to);
        CHECK(train::published_config_json(read) == train::published_config_json(config));
        test::LanguageModel<float> again(find_recipe("fp32"), read);
        CHECK(train::load_weights(to, again.decoder.parameters()).empty());
        CHECK(test::all_values(again.decoder) == test::all_values(model.decoder));
    };
    const nn::DecoderConfig gpt{.vocabulary = 11,
                                .width = 8,
                                .depth = 2,
                                .heads = 2,
                                .length = 6,
                                .feed_forward = nn::FeedForwardKind::gelu,
                                .norm = {.kind = nn::NormKind::layer, .gains = true, .epsilon = 1e-5},
                                .bias = true};
    round_trip(gpt, "gpt2");
    nn::DecoderConfig llama = gpt;
    llama.norm.kind = nn::NormKind::rms;
    llama.positions = nn::Positions::rotary;
    llama.feed_forward = nn::FeedForwardKind::gated_silu;
    round_trip(llama, "llama");  // with all biases
    llama.bias = false, llama.groups = 1, llama.head_size = 6;
    llama.rotary_scaling = {.kind = ops::RotaryScalingKind::llama3, .factor = 4.0};
    round_trip(llama, "llama");
    llama.query_key_value_bias = llama.tied = true;
    llama.rotary_scaling = {.kind = ops::RotaryScalingKind::linear, .factor = 4.0};
    round_trip(llama, "qwen2");
    llama.window = 3;
    round_trip(llama, "qwen2");
}

TEST_CASE("save_published: models of no type, recipes with factors and full folders are errors; nothing is left") {
    const test::TemporaryFolder folder;
    const fs::path to = folder.path() / "saved";
    const auto refused = [&](std::string_view name, const std::function<void(nn::DecoderConfig&)>& change,
                             const std::string& message) {
        nn::DecoderConfig config = train::pretrained_config(fixture(name));
        change(config);
        nn::Decoder<float> model(config);
        CHECK_THROWS_WITH(train::save_published(to, model, find_recipe("fp32")), "published: " + message);
        CHECK(fs::is_empty(folder.path()));
    };
    refused(
        "gpt2", [](auto& c) { c.bias = false; }, "a model of type gpt2 has biases");
    refused(
        "gpt2", [](auto& c) { c.norm.kind = nn::NormKind::rms; }, "a model of type gpt2 has layer norms");
    refused(
        "gpt2", [](auto& c) { c.groups = 2; }, "a model of type gpt2 has as many key heads as heads");
    refused(
        "gpt2", [](auto& c) { c.readout_bias = true; }, "a model of type gpt2 has no bias of the readout");
    refused(
        "gpt2", [](auto& c) { c.positions = nn::Positions::none; },
        "a model of type llama has learned or rotary positions");
    refused(
        "llama", [](auto& c) { c.norm.gains = false; }, "a model of type llama has norms with gains");
    refused(
        "llama", [](auto& c) { c.feed_forward = nn::FeedForwardKind::gelu; }, "a model of type llama has gated silu");
    refused(
        "llama", [](auto& c) { c.placement = nn::NormPlacement::post; },
        "a model of type llama has norms in front of its layers alone");
    refused(
        "llama", [](auto& c) { c.window = 3; }, "a model of type llama has attention to all positions");
    refused(
        "qwen2", [](auto& c) { c.attention_mult = 2.0; }, "a model of type qwen2 has no multipliers of its own");

    nn::Decoder<float> model(train::pretrained_config(fixture("gpt2")));
    CHECK_THROWS_WITH(train::save_published(to, model, find_recipe("unit-fp8")),
                      "published: " + to.string() +
                          ": unit-fp8 multiplies by factors that belong to the model; expected a recipe of standard "
                          "parametrisation");
    folder.write("saved/file", "x");
    CHECK_THROWS_WITH(train::save_published(to, model, find_recipe("fp32")),
                      "published: " + to.string() + " exists; expected no or an empty folder");
}
