// SPDX-License-Identifier: MIT
#include <unitscale/nn/published_shapes.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace unitscale;

TEST_CASE("published shapes: every model has its published number of parameters") {
    const std::vector<std::pair<std::string_view, std::size_t>> expected = {
        {"gpt-111m", 111'050'496},      {"gpt-256m", 255'977'024},    {"gpt-590m", 590'310'912},
        {"gpt-1.3b", 1'315'723'264},    {"gpt-2.7b", 2'651'553'280},  {"gpt-6.7b", 6'658'404'352},
        {"gpt-13b", 12'853'386'240},    {"llama2-7b", 6'738'415'616}, {"llama2-13b", 13'015'864'320},
        {"llama2-70b", 68'976'648'192},
    };
    REQUIRE(expected.size() == nn::published_shapes.size());
    for (const auto& [name, count] : expected) {
        CAPTURE(name);
        CHECK(nn::parameter_count(nn::published_config(name)) == count);
        // The name states the number.
        const std::string number(name.substr(name.find('-') + 1));
        const double named = std::stod(number) * (number.ends_with('m') ? 1e6 : 1e9);
        CHECK(std::abs(static_cast<double>(count) / named - 1.0) < 0.04);
    }
}

TEST_CASE("published shapes: sizes that a decoder can have, under names of their own") {
    std::set<std::string_view> names;
    for (const nn::PublishedShape& shape : nn::published_shapes) {
        CAPTURE(shape.name);
        CHECK(names.insert(shape.name).second);
        CHECK(shape.name.starts_with(name(shape.family)));
        CHECK(shape.width % shape.heads == 0);
        CHECK(shape.heads % shape.kv_heads == 0);
        CHECK(shape.width / shape.heads % 2 == 0);
        const bool gpt = shape.family == nn::DecoderFamily::gpt;
        CHECK(shape.vocabulary == (gpt ? 50257u : 32000u));
        CHECK(shape.length == (gpt ? 2048u : 4096u));
        if (gpt) CHECK(shape.hidden == 4 * shape.width);
        const nn::DecoderConfig config = nn::published_config(shape.name);
        CHECK(config.hidden_columns() == shape.hidden);
        CHECK(config.key_columns() == shape.width / shape.heads * shape.kv_heads);
        CHECK(config.groups == (shape.kv_heads == shape.heads ? 0 : shape.kv_heads));
        CHECK(config.tied == gpt);
        CHECK(config.norm.epsilon == 1e-5);
    }
    CHECK(nn::published_config("gpt-111m").feed_forward == nn::FeedForwardKind::gelu);
    CHECK(nn::published_config("llama2-70b").groups == 8);
}

TEST_CASE("published shapes: an unknown name is an error with the known names") {
    REQUIRE_THROWS_WITH(nn::published_config("gpt-7b"),
                        "shape: unknown name 'gpt-7b'; expected one of gpt-111m, gpt-256m, gpt-590m, gpt-1.3b, "
                        "gpt-2.7b, gpt-6.7b, gpt-13b, llama2-7b, llama2-13b, llama2-70b");
}

TEST_CASE("parameter_count: equals the parameters of the built model") {
    const auto compare = [](const nn::DecoderConfig& config) {
        CHECK(nn::parameter_count(config) == nn::Decoder<float>(config).parameter_count());
    };
    // The published models, made small.
    for (const char* name : {"gpt-111m", "llama2-7b", "llama2-70b"}) {
        CAPTURE(name);
        nn::DecoderConfig config = nn::published_config(name);
        config.vocabulary = 11, config.width = 24, config.depth = 3, config.heads = 6, config.hidden = 17;
        config.length = 5;
        if (config.groups > 0) config.groups = 2;
        compare(config);
        config.hidden = 0, config.hidden_ratio = 2.75;
        compare(config);
    }
    // Each part of a decoder.
    nn::DecoderConfig config{.vocabulary = 7, .width = 12, .depth = 2, .heads = 3, .length = 4};
    compare(config);
    for (const auto placement : {nn::NormPlacement::pre, nn::NormPlacement::post, nn::NormPlacement::none})
        for (const auto kind : {nn::NormKind::layer, nn::NormKind::rms}) {
            config.placement = placement, config.norm = {.kind = kind, .gains = true};
            for (const bool has : {false, true}) {
                config.final_norm = config.embedding_norm = config.readout_bias = config.tied = config.bias = has;
                compare(config);
            }
        }
    config.positions = nn::Positions::none;
    compare(config);
    config.head_size = 6, config.groups = 1;
    for (const bool has : {false, true}) {
        config.bias = has;
        for (const bool inputs : {false, true}) {
            config.query_key_value_bias = inputs;
            compare(config);
        }
    }
}

TEST_CASE("parameter_count: other context layers, and heads that do not divide the width, are errors") {
    REQUIRE_THROWS_WITH(nn::parameter_count({.context = {.kind = nn::ContextKind::recurrence}}),
                        "parameter_count: context layers of kind recurrence; expected attention");
    REQUIRE_THROWS_WITH(nn::parameter_count({.width = 10, .heads = 3}),
                        "parameter_count: width 10 is not divisible by 3 heads");
}
