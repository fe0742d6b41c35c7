// SPDX-License-Identifier: MIT
#include <unitscale/nn/llama.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <string>
#include <vector>

using namespace unitscale;

TEST_CASE("llama: the paper's decoder") {
    nn::Decoder<float> model(nn::llama_config(
        {.vocabulary = 11, .width = 32, .depth = 2, .head_size = 8, .key_value_heads = 2, .length = 6}));
    CHECK(model.config().heads == 4);
    CHECK(model.config().groups == 2);
    CHECK(model.config().positions == nn::Positions::rotary);
    std::vector<std::string> names;
    for (const Parameter<float>* parameter : model.parameters()) {
        names.push_back(parameter->name());
        const ParameterFacts& facts = parameter->facts();
        const bool inside = parameter->name().starts_with("decoder/block");
        CHECK(facts.depth == (inside ? 2u : 0u));
        CHECK(stream_width(facts) == 32);
        CHECK(facts.role != ParameterRole::norm);  // no gains
        CHECK(facts.role != ParameterRole::bias);
        if (parameter->name().ends_with("attention/key/weight")) CHECK(parameter->shape() == Shape{16, 32});
        if (parameter->name().ends_with("ffn/gate/weight")) CHECK(parameter->shape() == Shape{88, 32});
        if (parameter->name().ends_with("ffn/down/weight")) CHECK(facts.fan_in == 88);
    }
    CHECK(names.size() == 2 + 2 * 7);
    CHECK(std::count(names.begin(), names.end(), "decoder/block1/ffn/gate/weight") == 1);
    CHECK(names.back() == "decoder/readout/weight");
}

TEST_CASE("llama: heads that do not divide the width are an error") {
    REQUIRE_THROWS_WITH(nn::llama_config({.width = 32, .head_size = 12}),
                        "llama_config: width 32 is not divisible by heads of size 12");
}
