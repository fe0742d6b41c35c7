// SPDX-License-Identifier: MIT
#include <unitscale/train/dialogue.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <unitscale/scaling/known_recipes.hpp>

#include <cstdint>
#include <stdexcept>
#include <vector>

using namespace unitscale;

namespace {

nn::DecoderConfig config_with(nn::Positions positions) {
    return {.vocabulary = 11, .width = 16, .depth = 2, .heads = 2, .length = 24, .positions = positions};
}
using Ids = std::vector<std::int32_t>;

Ids joined(Ids a, const Ids& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

}  // namespace

TEST_CASE("dialogue: replies equal the texts that generate writes from all turns so far") {
    for (const auto positions : {nn::Positions::learned, nn::Positions::rotary}) {
        test::LanguageModel<float> model(find_recipe("fp32"), config_with(positions));
        test::randomise(model.decoder.parameters(), 0.4);
        train::Dialogue<float> dialogue(model.decoder, model.tape);
        Ids text;
        std::uint64_t seed = 3;
        for (const Ids& turn : {Ids{1, 2, 3}, Ids{4}, Ids{5, 6}}) {
            text = joined(text, turn);
            const train::GenerateOptions options{
                .tokens = 5, .temperature = 0.8, .top_k = 8, .repetition_penalty = 1.2, .seed = seed++};
            const Ids expected = train::generate<float>(model.decoder, model.tape, text, options);
            const Ids reply = dialogue.reply(turn, options);
            CHECK(reply == expected);
            text = joined(text, reply);
            CHECK(Ids(dialogue.tokens().begin(), dialogue.tokens().end()) == text);
        }
        CHECK(dialogue.room() == 3);
        // A reply ends where the model's positions end.
        CHECK(dialogue.reply(Ids{1}, {.tokens = 10}).size() == 2);
        CHECK_THROWS_WITH(dialogue.reply(Ids{1}, {}),
                          "dialogue: 24 tokens and 1 more leave no position for a reply; the model has 24");
        dialogue.clear();
        CHECK(dialogue.reply(Ids{1, 2, 3}, {.tokens = 4, .temperature = 0.0}) ==
              train::generate<float>(model.decoder, model.tape, Ids{1, 2, 3}, {.tokens = 4, .temperature = 0.0}));
    }
}

TEST_CASE("dialogue: a turn that fails leaves the text as it was") {
    test::LanguageModel<float> model(find_recipe("fp32"), config_with(nn::Positions::rotary));
    test::randomise(model.decoder.parameters(), 0.4);
    train::Dialogue<float> dialogue(model.decoder, model.tape);
    const Ids first = dialogue.reply(Ids{1, 2}, {.tokens = 3, .temperature = 0.0});
    const Ids text = joined(Ids{1, 2}, first);
    CHECK_THROWS_WITH(dialogue.reply(Ids{11}, {}), "dialogue: prompt[5] is 11; expected a number in [0,11)");
    CHECK_THROWS_WITH(dialogue.reply(Ids{1}, {.temperature = -1.0}), "dialogue: temperature is -1; expected 0 or more");
    CHECK_THROWS_AS(dialogue.reply(Ids{3}, {.on_token = [](std::int32_t) -> bool { throw std::runtime_error("x"); }}),
                    std::runtime_error);
    CHECK(Ids(dialogue.tokens().begin(), dialogue.tokens().end()) == text);
    const train::GenerateOptions options{.tokens = 4, .temperature = 0.0};
    CHECK(dialogue.reply(Ids{3}, options) ==
          train::generate<float>(model.decoder, model.tape, joined(text, Ids{3}), options));

    nn::DecoderConfig other = config_with(nn::Positions::none);
    other.context.kind = nn::ContextKind::recurrence;
    test::LanguageModel<float> without(find_recipe("fp32"), other);
    CHECK_THROWS_WITH(train::Dialogue<float>(without.decoder, without.tape),
                      "Decoder: a cache; context layers of kind recurrence have none");
}

TEST_CASE("dialogue: a cache in a narrower format, and tokens that end a reply") {
    test::LanguageModel<float> model(find_recipe("fp32"), config_with(nn::Positions::rotary));
    test::randomise(model.decoder.parameters(), 0.4);
    train::Dialogue<float> dialogue(model.decoder, model.tape, fp16);
    train::GenerateOptions options{.tokens = 6, .temperature = 0.0};
    const Ids first = dialogue.reply(Ids{1, 2}, options);
    options.cache_format = fp16;
    CHECK(first == train::generate<float>(model.decoder, model.tape, Ids{1, 2}, options));
    dialogue.clear();
    options.stop_tokens = {first[2]};
    const Ids stopped = dialogue.reply(Ids{1, 2}, options);
    CHECK(stopped.size() <= 3);
    CHECK(stopped.back() == first[2]);
}
