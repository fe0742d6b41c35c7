// SPDX-License-Identifier: MIT
#include <unitscale/train/pretrained_settings.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

/// The settings of a text, and the start of their errors.
struct Settings {
    explicit Settings(const std::string& text)
        : path(folder.write("config.json", text)), place("pretrained: " + path.string() + ": ") {}

    test::TemporaryFolder folder{};
    std::filesystem::path path;
    std::string place;
};

}  // namespace

TEST_CASE("pretrained settings: values of each type, absent keys, and values that are refused") {
    const Settings file(R"({"flag": true, "text": "a", "size": 3, "number": 0.5, "none": null, "zero": 0,
                            "texts": ["a", "b"], "id": 7, "ids": [0, 9], "inner": {"size": 4}})");
    const train::PretrainedSettings settings(file.path);
    CHECK(settings.get<bool>("flag") == true);
    CHECK(settings.get<std::string>("text") == "a");
    CHECK(settings.get<std::size_t>("size") == 3u);
    CHECK(settings.get<double>("number") == 0.5);
    CHECK(settings.get<double>("size") == 3.0);
    CHECK_FALSE(settings.get<double>("none").has_value());
    CHECK_FALSE(settings.get<double>("absent").has_value());
    CHECK_FALSE(settings.has("none"));
    CHECK(settings.has("zero"));
    CHECK(settings.number("zero") == 0u);
    CHECK(settings.number("size") == 3u);
    CHECK(settings.texts("texts") == std::vector<std::string>{"a", "b"});
    CHECK(settings.texts("absent").empty());
    CHECK(settings.token_ids("id") == std::vector<std::int32_t>{7});
    CHECK(settings.token_ids("ids") == std::vector<std::int32_t>{0, 9});
    CHECK(settings.token_ids("none").empty());
    CHECK(settings.require<std::size_t>("size", "a size") == 3u);
    CHECK(settings.object("inner")->get<std::size_t>("size") == 4u);
    settings.expect("size", std::size_t{3});
    settings.expect("absent", std::size_t{3});

    CHECK_THROWS_WITH(settings.get<std::size_t>("zero"),
                      file.place + "zero is 0; expected a whole number from 1 to 1000000000");
    CHECK_THROWS_WITH(settings.require<double>("none", "a size"), file.place + "none is absent; expected a size");
    CHECK_THROWS_WITH(settings.expect("size", std::size_t{4}), file.place + "size is 3; expected 4");
    CHECK_THROWS_WITH(settings.texts("ids"), file.place + "ids is [0,9]; expected a list of texts");
    CHECK_THROWS_WITH(settings.token_ids("texts"),
                      file.place + "texts is [\"a\",\"b\"]; expected a token id or a list of them");
    CHECK_THROWS_WITH(settings.token_ids("number"),
                      file.place + "number is 0.5; expected a token id or a list of them");
    CHECK_THROWS_WITH(settings.object("inner")->get<bool>("size"),
                      file.place + "inner.size is 4; expected true or false");
}

TEST_CASE("pretrained settings: rotary angles in the older and in the newer layout") {
    const auto rotary = [](const std::string& text) {
        const Settings file(text);
        return train::published_rotary(train::PretrainedSettings(file.path));
    };
    CHECK(rotary("{}").base == 10000.0);
    CHECK(rotary("{}").scaling == ops::RotaryScaling{});
    CHECK(rotary(R"({"rope_theta": 500.0})").base == 500.0);
    CHECK(rotary(R"({"rope_parameters": {"rope_theta": 700.0}})").base == 700.0);
    const ops::RotaryScaling llama3{.kind = ops::RotaryScalingKind::llama3,
                                    .factor = 8.0,
                                    .low_frequency_factor = 1.0,
                                    .high_frequency_factor = 4.0,
                                    .original_length = 32.0};
    const std::string keys =
        R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32)";
    const auto newer = rotary(R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, )" + keys + "}}"),
               older = rotary(R"({"rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", )" + keys + "}}");
    CHECK((newer.base == 500.0 && newer.scaling == llama3));
    CHECK((older.base == 500.0 && older.scaling == llama3));
    // Without an original length, the model's.
    CHECK(
        rotary(R"({"max_position_embeddings": 64, "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1,
                     "high_freq_factor": 4}})")
            .scaling.original_length == 64.0);
    CHECK(rotary(R"({"rope_scaling": {"type": "linear", "factor": 4.0}})").scaling ==
          ops::RotaryScaling{.kind = ops::RotaryScalingKind::linear, .factor = 4.0});
}

TEST_CASE("pretrained settings: windows of all layers") {
    const auto window = [](const std::string& text) {
        const Settings file(text);
        return train::published_window(train::PretrainedSettings(file.path), 3);
    };
    CHECK(window("{}") == 0);
    CHECK(window(R"({"use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 0})") == 0);
    CHECK(window(R"({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 0})") == 7);
    CHECK(window(R"({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 3})") == 0);
    CHECK(window(R"({"use_sliding_window": true, "sliding_window": 7})") == 0);  // layers from 28 on
    CHECK(window(R"({"use_sliding_window": true, "sliding_window": 7, "layer_types":
                     ["sliding_attention", "sliding_attention", "sliding_attention"]})") == 7);
    CHECK(window(R"({"use_sliding_window": true, "sliding_window": 7, "layer_types":
                     ["full_attention", "full_attention", "full_attention"]})") == 0);
    CHECK_THROWS_AS(window(R"({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 2})"), Error);
    CHECK_THROWS_AS(window(R"({"use_sliding_window": false, "layer_types": ["sliding_attention"]})"), Error);
}
