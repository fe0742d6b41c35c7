// SPDX-License-Identifier: MIT
#include <unitscale/io/tokeniser.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/saved_model.hpp>
#include <unitscale/train/step.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/temporary_folder.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t length = 16;
const train::GenerateOptions writing{.tokens = 40, .temperature = 0.8, .seed = 3};

std::u32string proverbs() {
    std::u32string text;
    for (int i = 0; i < 60; ++i) text += U"the early bird catches the worm, \u00e9\n";
    return text;
}

/// A model's results before it was saved.
struct Before {
    double loss = 0.0;
    std::vector<std::int32_t> written{};
};

/// Trains a small model for 12 steps and saves it, by the calls of a user's own program.
Before train_and_save(const Recipe& recipe, const std::filesystem::path& path) {
    const io::CharacterVocabulary vocabulary(proverbs());
    const auto tokens = vocabulary.encode(proverbs());
    const auto parts = train::split(tokens, length);
    const nn::DecoderConfig config{
        .vocabulary = vocabulary.size(), .width = 16, .depth = 1, .heads = 2, .length = length};
    return train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
        test::LanguageModel<T> model(recipe, config);
        optim::Adam<T> optimiser(model.decoder.parameters(),
                                 {.parametrisation = recipe.parametrisation_rule(), .storage = recipe.storage});
        optim::LossScaler scaler(recipe.loss_scaling);
        train::Batch batch = train::make_batch(4, length);
        for (std::uint64_t step = 1; step <= 12; ++step) {
            train::fill_random(batch, parts.training, {1, 2}, step);
            const auto done = train::train_step<T>(model.decoder, model.tape, optimiser, std::span(&batch, 1),
                                                   recipe.learning_rate, &scaler);
            REQUIRE((done.updated || done.skipped));
        }
        const train::RunParts<T, optim::Adam<T>> run{model.decoder.parameters(), optimiser, model.state, scaler};
        train::save_run(path, run, recipe, {},
                        {{"vocabulary", io::encode_utf8(vocabulary.characters())},
                         {"model", train::decoder_to_json(config).dump()}});
        return Before{train::evaluate(model.decoder, model.tape, parts.validation, length, 4),
                      train::generate(model.decoder, model.tape, parts.validation.first(length / 2), writing)};
    });
}

}  // namespace

TEST_CASE("saved model: evaluates and writes as the model that was saved did, bit for bit") {
    const test::TemporaryFolder folder;
    for (const char* name :
         {"fp32", "unit-fp8", "fp8-delayed", "fp16-auto-loss-scaled", "bf16", "unit-fp16", "scalify-fp8-4"})
        for (const bool means : {false, true}) {
            Recipe recipe = find_recipe(name);
            if (means && recipe.scaling != Scaling::unit) continue;
            if (means) recipe.automatic_rule = Constraint::gmean;
            INFO(name << (means ? ", geometric means" : ""));
            const auto path = folder.path() / "model.safetensors";
            const Before before = train_and_save(recipe, path);
            train::with_saved_model(path, 1, [&](auto& saved) {
                CHECK(saved.recipe().name == name);
                CHECK(saved.model().config().width == 16);
                CHECK(saved.state().step() == 12);
                const auto tokens = saved.vocabulary().encode(proverbs());
                const auto parts = train::split(tokens, length);
                CHECK(train::evaluate(saved.model(), saved.tape(), parts.validation, length, 4) == before.loss);
                CHECK(train::generate(saved.model(), saved.tape(), parts.validation.first(length / 2), writing) ==
                      before.written);
            });
        }
}

TEST_CASE("saved model: the file keeps another tokeniser than the characters, for its reader") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "model.safetensors", again = folder.path() / "again.safetensors";
    const auto save = [&](const std::string& tokeniser) {
        nn::Decoder<float> model({.vocabulary = 256, .width = 16, .depth = 1, .heads = 2, .length = length});
        nn::initialise(model.parameters(), find_recipe("fp32"), 1);
        train::CheckpointWriter writer;
        writer.weights(model.parameters());
        writer.recipe(find_recipe("fp32"));
        ScalingState state;
        writer.set_prefix("state/");
        state.visit_state(writer);
        writer.set_prefix("run/");
        writer.text("tokeniser", tokeniser);
        writer.text("model", train::decoder_to_json(model.config()).dump());
        writer.write(path);
    };
    save("bytes");
    train::SavedModel<float> saved(path);
    CHECK(saved.tokeniser().to_text() == "bytes");
    CHECK(saved.characters() == nullptr);
    CHECK_THROWS_WITH(saved.vocabulary(), "checkpoint: the model's tokens are not characters");
    saved.save(again);
    CHECK(train::SavedModel<float>(again).tokeniser().to_text() == "bytes");
    save("other");
    CHECK_THROWS_WITH(train::SavedModel<float>(path),
                      "checkpoint: its tokeniser is not of characters or bytes; it needs a TokeniserReader");
    const train::TokeniserReader read = [](const std::string& text) {
        CHECK(text == "other");
        return std::make_shared<io::ByteTokeniser>();
    };
    CHECK(train::with_saved_model(
              path, 1, [](auto& model) { return model.tokeniser().size(); }, read) == 256);
}

TEST_CASE("saved model: the weights under another recipe are the weights, rounded as that recipe says") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "model.safetensors";
    static_cast<void>(train_and_save(find_recipe("fp32"), path));
    const auto loss = [&](const Recipe& recipe) {
        return train::with_saved_model(path, recipe, 1, [&](auto& saved) {
            CHECK(saved.recipe().name == recipe.name);
            const auto tokens = saved.vocabulary().encode(proverbs());
            return train::evaluate(saved.model(), saved.tape(), train::split(tokens, length).validation, length, 4);
        });
    };
    const double fp32 = loss(find_recipe("fp32"));
    CHECK(fp32 == train::with_saved_model(path, 1, [&](auto& saved) {
              const auto tokens = saved.vocabulary().encode(proverbs());
              return train::evaluate(saved.model(), saved.tape(), train::split(tokens, length).validation, length, 4);
          }));
    for (const char* name : {"fp16", "bf16", "fp8-amax", "fp8-cscale", "fp8-delayed", "mxfp8"}) {
        INFO(name);
        const double other = loss(find_recipe(name));
        CHECK(other != fp32);
        CHECK(other == Approx(fp32).epsilon(0.05));
    }
    // Weights are rounded to the element type, and to nothing else.
    train::SavedModel<float> saved(path);
    train::SavedModel<Half> half(path, find_recipe("fp16"));
    const auto before = saved.model().parameters();
    const auto after = half.model().parameters();
    for (std::size_t i = 0; i < before.size(); ++i)
        for (std::size_t k = 0; k < before[i]->size(); ++k)
            REQUIRE(after[i]->value().data()[k] == static_cast<Half>(before[i]->value().data()[k]));

    const std::string begin = "checkpoint: " + path.string() + ": another model: ";
    CHECK_THROWS_WITH(loss(find_recipe("unit-fp8")), begin + "unit-fp8 has scaling unit; expected none, as fp32 has");
    CHECK_THROWS_WITH(loss(find_recipe("scalify-fp16-1")),
                      begin + "scalify-fp16-1 has scaling propagate; expected none, as fp32 has");
    CHECK_THROWS_WITH(loss(find_recipe("mup-fp32")),
                      begin + "mup-fp32 has parametrisation mup; expected standard, as fp32 has");
}

TEST_CASE("saved model: a config survives the way there and back; a file that has none is an error") {
    nn::DecoderConfig config{.vocabulary = 9,
                             .width = 24,
                             .depth = 3,
                             .heads = 3,
                             .groups = 1,
                             .length = 7,
                             .hidden_ratio = 2.75,
                             .hidden = 40,
                             .feed_forward = nn::FeedForwardKind::gated_silu,
                             .norm = {.kind = nn::NormKind::layer, .gains = true},
                             .placement = nn::NormPlacement::post,
                             .positions = nn::Positions::rotary,
                             .rotary_base = 500.0,
                             .dropout = 0.5,
                             .bias = true,
                             .readout_bias = true,
                             .final_norm = true,
                             .tied = true};
    const auto json = train::decoder_to_json(config);
    CHECK(train::decoder_to_json(train::decoder_from_json(json)) == json);
    CHECK(json["positions"] == "rotary");
    CHECK(train::decoder_from_json(json).readout_bias);
    CHECK(train::decoder_from_json(json).final_norm);
    // Older checkpoints lack these fields.
    for (const char* added : {"final_norm", "embedding_norm", "context", "kernel", "convolution_groups", "gate_shift",
                              "rotary_scaling", "window", "head_size", "query_key_value_bias"})
        CHECK_FALSE(train::decoder_to_json(nn::DecoderConfig{}).contains(added));
    nn::DecoderConfig published = config;
    published.head_size = 6, published.window = 3, published.query_key_value_bias = true;
    published.rotary_scaling = {.kind = ops::RotaryScalingKind::llama3, .factor = 8.0, .original_length = 32.0};
    const nn::DecoderConfig read = train::decoder_from_json(train::decoder_to_json(published));
    CHECK((read.head_size == 6 && read.window == 3 && read.query_key_value_bias));
    CHECK(read.rotary_scaling == published.rotary_scaling);
    nn::DecoderConfig other{
        .context = {.kind = nn::ContextKind::convolution, .kernel = 5, .convolution_groups = 4, .gate_shift = 0.5},
        .positions = nn::Positions::none,
        .embedding_norm = true};
    const nn::DecoderConfig again = train::decoder_from_json(train::decoder_to_json(other));
    CHECK(again.context.kind == nn::ContextKind::convolution);
    CHECK(again.context.kernel == 5);
    CHECK(again.context.convolution_groups == 4);
    CHECK(again.context.gate_shift == 0.5);
    CHECK(again.positions == nn::Positions::none);
    CHECK(again.embedding_norm);
    CHECK(json["hidden"] == 40);
    CHECK(json["rotary_base"] == 500.0);
    auto wrong = json;
    wrong["layers"] = 3;
    CHECK_THROWS_WITH(train::decoder_from_json(wrong),
                      Catch::Contains("unknown key 'model.layers'; expected one of vocabulary, width"));

    const test::TemporaryFolder folder;
    const auto path = folder.path() / "weights.safetensors";
    nn::Decoder<float> decoder(config);
    train::save_weights(path, decoder.parameters());
    CHECK_THROWS_WITH(train::SavedModel<float>(path), "checkpoint: " + path.string() + ": has no recipe");
}

TEST_CASE("saved model: weights in 8 bits are the model's weights, rounded with a bias per tensor") {
    const test::TemporaryFolder folder;
    const auto whole = folder.path() / "model.safetensors";
    static_cast<void>(train_and_save(find_recipe("fp32"), whole));
    train::SavedModel<float> saved(whole), coded(whole);
    const auto path = folder.path() / "small.safetensors";
    train::code_weights(coded.model().parameters(),
                        {{.role = ParameterRole::weight, .rule = train::weight_code_rule("e4m3")}});
    coded.save(path);
    train::SavedModel<float> small(path);
    std::size_t quantised = 0;
    const auto before = saved.model().parameters(), after = small.model().parameters();
    for (std::size_t i = 0; i < before.size(); ++i) {
        INFO(before[i]->name());
        const bool weight = before[i]->facts().role == ParameterRole::weight;
        CHECK((after[i]->coded_value() != nullptr) == weight);
        const float amax =
            kernels::amax(Execution{}, before[i]->value().data(), static_cast<std::ptrdiff_t>(before[i]->size()));
        const FloatFormat format = weight ? shifted(e4m3, amax_bias(e4m3, amax, 0)) : fp32;
        quantised += weight ? 1 : 0;
        static_cast<void>(after[i]->write());  // elements of codes
        for (std::size_t k = 0; k < before[i]->size(); ++k)
            REQUIRE(after[i]->value().data()[k] == quantise(format, before[i]->value().data()[k], {}));
    }
    CHECK(quantised == 6);
    CHECK(std::filesystem::file_size(path) < std::filesystem::file_size(whole) / 3);
}

TEST_CASE("saved model: codes of another form than the recipe's become elements") {
    const test::TemporaryFolder folder;
    const auto whole = folder.path() / "model.safetensors", path = folder.path() / "small.safetensors";
    static_cast<void>(train_and_save(find_recipe("fp32"), whole));
    train::SavedModel<float> coded(whole);
    train::code_weights(coded.model().parameters(),
                        {{.role = ParameterRole::weight, .rule = train::weight_code_rule("mxfp4")}});
    coded.save(path);
    const auto count_coded = [&](const char* recipe) {
        train::SavedModel<float> model(path, find_recipe(recipe));
        std::size_t count = 0;
        for (const Parameter<float>* parameter : model.model().parameters())
            count += parameter->coded_value() != nullptr;
        return count;
    };
    CHECK(count_coded("fp32") == 6);
    CHECK(count_coded("mxfp4") == 6);
    CHECK(count_coded("mxfp8") == 0);
}
