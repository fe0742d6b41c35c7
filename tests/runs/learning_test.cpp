// SPDX-License-Identifier: MIT
// A small model trains under every recipe.
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/step.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

using namespace unitscale;

TEST_CASE("runs: under every recipe a small model learns a sentence by heart") {
    std::u32string text;
    for (int i = 0; i < 60; ++i) text += U"sphinx of black quartz, judge my vow. ";
    const io::CharacterVocabulary vocabulary(text);
    const std::vector<std::int32_t> tokens = vocabulary.encode(text);
    const train::Split parts = train::split(tokens, 24);
    // Entropy of single characters: what a model without context reaches.
    std::vector<double> counts(vocabulary.size(), 0.0);
    for (const std::int32_t token : tokens) counts[static_cast<std::size_t>(token)] += 1.0;
    double entropy = 0.0;
    for (const double count : counts)
        entropy -= count / static_cast<double>(tokens.size()) * std::log2(count / static_cast<double>(tokens.size()));
    REQUIRE(entropy > 4.0);

    for (const Recipe& recipe : known_recipes()) {
        INFO(recipe.name);
        test::LanguageModel<float> model(recipe,
                                         {.vocabulary = vocabulary.size(), .width = 32, .depth = 2, .heads = 2, .length = 24});
        optim::Adam<float> optimiser(model.decoder.parameters(), {.beta1 = 0.9, .beta2 = 0.95});
        const optim::Schedule schedule{
            .kind = optim::ScheduleKind::cosine, .peak = recipe.learning_rate, .steps = 80, .warmup = 8};
        const double before = train::evaluate(model.decoder, model.tape, parts.validation, 24, 4);
        CHECK(before > entropy);
        train::Batch batch = train::make_batch(8, 24);
        optim::LossScaler scaler(recipe.loss_scaling);
        for (std::uint64_t step = 1; step <= schedule.steps; ++step) {
            train::fill_random(batch, parts.training, {1, 2}, step);
            const auto result =
                train::train_step<float>(model.decoder, model.tape, optimiser, std::span(&batch, 1), schedule.at(step), &scaler);
            REQUIRE(result.updated);
        }
        const double after = train::evaluate(model.decoder, model.tape, parts.validation, 24, 4);
        INFO(before << " bits before, " << after << " after, single characters have " << entropy);
        CHECK(after < 0.25 * entropy);
        const auto prompt = vocabulary.encode(U"sphinx of black ");
        const auto written =
            vocabulary.decode(train::generate(model.decoder, model.tape, prompt, {.tokens = 12, .temperature = 0.0}));
        CHECK(written == "quartz, judg");
    }
}
