// SPDX-License-Identifier: MIT
#include <unitscale/train/generate.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

namespace {
const nn::DecoderConfig small{.vocabulary = 7, .width = 8, .depth = 1, .heads = 2, .length = 5};
}  // namespace

TEST_CASE("generate: a token is drawn from softmax(logits / temperature)") {
    const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
    CHECK(train::sample_token(logits, 1.0, 0.0) == 0);
    CHECK(train::sample_token(logits, 1.0, 0.12) == 0);
    CHECK(train::sample_token(logits, 1.0, 0.13) == 1);
    CHECK(train::sample_token(logits, 1.0, 0.37) == 1);
    CHECK(train::sample_token(logits, 1.0, 0.38) == 2);
    CHECK(train::sample_token(logits, 1.0, 0.9999999) == 2);
    // At temperature 1/2 the shares are 1, 4 and 25 of 30; near 0 and at 0 the largest takes all.
    CHECK(train::sample_token(logits, 0.5, 0.03) == 0);
    CHECK(train::sample_token(logits, 0.5, 0.04) == 1);
    CHECK(train::sample_token(logits, 0.5, 0.16) == 1);
    CHECK(train::sample_token(logits, 0.5, 0.17) == 2);
    CHECK(train::sample_token(logits, 1e-300, 0.0) == 2);
    CHECK(train::sample_token(logits, 0.0, 0.0) == 2);
    const std::vector<float> huge = {3e38f, -3e38f, 3e38f};
    CHECK(train::sample_token(huge, 1.0, 0.4) == 0);
    CHECK(train::sample_token(huge, 1.0, 0.6) == 2);
}

TEST_CASE("generate: at temperature 0 the most likely token follows, also beyond the length of the model") {
    test::LanguageModel<float> model(find_recipe("unit-fp32"), small);
    const std::vector<std::int32_t> prompt = {1, 2, 3, 4, 5, 6, 0, 1};  // longer than the model's 5
    const auto written = train::generate(model.decoder, model.tape, prompt, {.tokens = 6, .temperature = 0.0, .seed = 1});
    REQUIRE(written.size() == 6);
    std::vector<std::int32_t> text = prompt;
    for (const std::int32_t token : written) {
        const Tensor<std::int32_t> ids({1, 5}, std::span<const std::int32_t>(text).last(5));
        model.tape.begin_step({.training = false, .gradients = false});
        const auto logits = test::elements(model.decoder(model.tape, ids).value());
        CHECK(token == std::max_element(logits.end() - 7, logits.end()) - (logits.end() - 7));
        text.push_back(token);
    }
    CHECK(train::generate(model.decoder, model.tape, prompt, {.tokens = 6, .temperature = 0.0, .seed = 2}) == written);
}

TEST_CASE("generate: the seed decides, and nothing else") {
    test::LanguageModel<float> model(find_recipe("unit-fp8"), small);
    const std::vector<std::int32_t> prompt = {1};
    const std::uint64_t step = model.state.step();
    const auto first = train::generate(model.decoder, model.tape, prompt, {.tokens = 40, .temperature = 1.0, .seed = 3});
    CHECK(first.size() == 40);
    CHECK(train::generate(model.decoder, model.tape, prompt, {.tokens = 40, .temperature = 1.0, .seed = 3}) == first);
    CHECK(train::generate(model.decoder, model.tape, prompt, {.tokens = 40, .temperature = 1.0, .seed = 4}) != first);
    const auto shorter = train::generate(model.decoder, model.tape, prompt, {.tokens = 11, .temperature = 1.0, .seed = 3});
    CHECK(std::equal(shorter.begin(), shorter.end(), first.begin()));
    CHECK(model.state.step() == step);
    CHECK(train::generate(model.decoder, model.tape, prompt, {.tokens = 0}).empty());
}

TEST_CASE("generate: an empty prompt, a negative temperature and a token that does not exist are errors") {
    test::LanguageModel<float> model(find_recipe("unit-fp8"), small);
    const std::vector<std::int32_t> prompt = {1}, unknown = {7};
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, {}, {}),
                        "generate: the prompt is empty; expected at least one token");
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, prompt, {.temperature = -0.5}),
                        "generate: temperature is -0.5; expected 0 or more");
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, unknown, {}),
                        "embedding: ids[0] is 7; expected a number in [0,7)");
}
