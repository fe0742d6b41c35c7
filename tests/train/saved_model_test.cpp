// SPDX-License-Identifier: MIT
#include <unitscale/train/saved_model.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <unitscale/train/compiled_runs.hpp>
#include <unitscale/train/language_run.hpp>

#include <cstdio>
#include <string>

using namespace unitscale;

TEST_CASE("saved model: evaluates and writes as the run that saved it did, bit for bit") {
    const test::TemporaryFolder folder;
    std::string words;
    for (int i = 0; i < 60; ++i) words += "the early bird catches the worm, é\n";
    const auto text = folder.write("text.txt", words);
    for (const char* recipe : {"fp32", "unit-fp8", "fp8-delayed", "fp16-auto-loss-scaled", "bf16", "unit-fp16", "scalify-fp8-4"})
        for (const bool means : {false, true}) {
            if (means && find_recipe(recipe).scaling != Scaling::unit) continue;
            INFO(recipe << (means ? ", geometric means" : ""));
            train::LanguageRunOptions options{.data = {text},
                                              .recipe = recipe,
                                              .width = 16,
                                              .depth = 1,
                                              .heads = 2,
                                              .seq = 16,
                                              .batch = 4,
                                              .steps = 12,
                                              .sample = 40,
                                              .quiet = true};
            if (means) options.set = {"automatic_rule=gmean"};
            options.save = (folder.path() / "model.safetensors").string();
            const auto result = train::run_language(options, stdout, stderr);
            train::with_saved_model(options.save, 1, [&](auto& saved) {
                CHECK(saved.recipe().name == recipe);
                CHECK(saved.model().config().width == 16);
                CHECK(saved.state().step() == 12);
                const auto tokens = saved.vocabulary().encode(io::read_text(text));
                const auto parts = train::split(tokens, options.seq);
                CHECK(train::evaluate(saved.model(), saved.tape(), parts.validation, options.seq, options.batch) ==
                      result.valid_bpc);
                const auto written =
                    train::generate(saved.model(), saved.tape(), parts.validation.first(options.seq / 2),
                                    {.tokens = options.sample, .temperature = options.temperature, .seed = options.seed});
                CHECK(saved.vocabulary().decode(written) == result.sample);
            });
        }
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
                             .tied = true};
    const auto json = train::decoder_to_json(config);
    CHECK(train::decoder_to_json(train::decoder_from_json(json)) == json);
    CHECK(json["positions"] == "rotary");
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

TEST_CASE("saved model: weights in 8 bits are those of the model, rounded with a bias per tensor") {
    const test::TemporaryFolder folder;
    std::string words;
    for (int i = 0; i < 60; ++i) words += "the early bird catches the worm\n";
    train::LanguageRunOptions options{.data = {folder.write("text.txt", words)},
                                      .recipe = "fp32",
                                      .width = 16,
                                      .depth = 1,
                                      .heads = 2,
                                      .seq = 16,
                                      .batch = 4,
                                      .steps = 12,
                                      .sample = 0,
                                      .quiet = true};
    options.save = (folder.path() / "model.safetensors").string();
    static_cast<void>(train::run_language(options, stdout, stderr));
    train::SavedModel<float> saved(options.save);
    const auto path = folder.path() / "small.safetensors";
    saved.save_quantised<e4m3>(path);
    train::SavedModel<float> small(path);
    const io::SafetensorsReader file(path);
    std::size_t quantised = 0;
    const auto before = saved.model().parameters(), after = small.model().parameters();
    for (std::size_t i = 0; i < before.size(); ++i) {
        INFO(before[i]->name());
        const bool weight = before[i]->facts().role == ParameterRole::weight;
        const float amax = kernels::amax(Execution{}, before[i]->value().data(), static_cast<std::ptrdiff_t>(before[i]->size()));
        const FloatFormat format = weight ? shifted(e4m3, amax_bias(e4m3, amax, 0)) : fp32;
        quantised += weight ? 1 : 0;
        for (std::size_t k = 0; k < before[i]->size(); ++k)
            REQUIRE(after[i]->value().data()[k] == quantise(format, before[i]->value().data()[k], {}));
    }
    CHECK(quantised == 6);
    CHECK(std::filesystem::file_size(path) < std::filesystem::file_size(options.save) / 3);
}
