// SPDX-License-Identifier: MIT
// Training of a small model under every recipe.
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/step.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

using namespace unitscale;

namespace {

/// The result of a run on a text of one repeated sentence: losses in bits before and after, and the generated text.
struct Learnt {
    double before = 0.0, after = 0.0;
    std::uint64_t skipped = 0;
    std::uint64_t broken = 0;  ///< the step that ended the run because it was not taken and not skipped; 0: none
    std::string written{};
};

template <class T>
Learnt learn(const Recipe& recipe, const io::CharacterVocabulary& vocabulary, const train::Split& parts) {
    test::LanguageModel<T> model(recipe,
                                 {.vocabulary = vocabulary.size(), .width = 32, .depth = 2, .heads = 2, .length = 24});
    optim::Adam<T> optimiser(
        model.decoder.parameters(),
        {.beta1 = 0.9, .beta2 = 0.95, .parametrisation = recipe.parametrisation_rule(), .storage = recipe.storage});
    const optim::Schedule schedule{
        .kind = optim::ScheduleKind::cosine, .peak = recipe.learning_rate, .steps = 80, .warmup = 8};
    model.plan(test::random_batch(8, 24, vocabulary.size()));
    Learnt result{.before = train::evaluate(model.decoder, model.tape, parts.validation, 24, 4)};
    train::Batch batch = train::make_batch(8, 24);
    optim::LossScaler scaler(recipe.loss_scaling);
    for (std::uint64_t step = 1; step <= schedule.steps; ++step) {
        train::fill_random(batch, parts.training, {1, 2}, step);
        const auto done = train::train_step<T>(model.decoder, model.tape, optimiser, std::span(&batch, 1),
                                               schedule.at(step), &scaler);
        if (done.updated || done.skipped) continue;
        result.broken = step;
        break;
    }
    result.after = train::evaluate(model.decoder, model.tape, parts.validation, 24, 4);
    result.skipped = scaler.skipped();
    const auto prompt = vocabulary.encode(U"sphinx of black ");
    result.written =
        vocabulary.decode(train::generate(model.decoder, model.tape, prompt, {.tokens = 12, .temperature = 0.0}));
    return result;
}

}  // namespace

TEST_CASE("runs: under every recipe a small model learns a sentence by heart") {
    std::u32string text;
    for (int i = 0; i < 60; ++i) text += U"sphinx of black quartz, judge my vow. ";
    const io::CharacterVocabulary vocabulary(text);
    const std::vector<std::int32_t> tokens = vocabulary.encode(text);
    const train::Split parts = train::split(tokens, 24);
    // The entropy of single characters is the lowest loss of a model without context.
    std::vector<double> counts(vocabulary.size(), 0.0);
    for (const std::int32_t token : tokens) counts[static_cast<std::size_t>(token)] += 1.0;
    double entropy = 0.0;
    for (const double count : counts)
        entropy -= count / static_cast<double>(tokens.size()) * std::log2(count / static_cast<double>(tokens.size()));
    REQUIRE(entropy > 4.0);

    // Every known recipe, and attention in FP8 under each scaling.
    std::vector<Recipe> recipes = known_recipes();
    for (const char* name : {"fp8-amax", "unit-fp8", "scalify-fp8-3"}) {
        const ScaleRule rule{.source = name[0] == 'f' ? ScaleSource::amax : ScaleSource::none};
        recipes.push_back(find_recipe(name));
        recipes.back().products.push_back({.kind = ProductKind::attention,
                                           .formats = {.activation = Quantiser{.format = e4m3},
                                                       .gradient = Quantiser{.format = e5m2},
                                                       .activation_scale = rule,
                                                       .gradient_scale = rule}});
    }
    for (const Recipe& recipe : recipes) {
        INFO(recipe.name << " with " << recipe.products.size() << " rules of products");
        const Learnt learnt = train::with_element(
            recipe, [&]<class T>(std::type_identity<T>) { return learn<T>(recipe, vocabulary, parts); });
        INFO(learnt.before << " bits before, " << learnt.after << " after, single characters have " << entropy);
        CHECK(learnt.before > entropy);
        CHECK(learnt.broken == 0);
        if (recipe.name == "scalify-fp16-static") {  // bears low rates only: too low for a sentence in 80 steps
            CHECK(learnt.after < learnt.before - 0.1);
            Recipe faster = recipe;
            faster.learning_rate = find_recipe("scalify-fp16-1").learning_rate;
            CHECK(learn<Half>(faster, vocabulary, parts).broken > 0);
            continue;
        }
        CHECK(learnt.skipped <= (recipe.loss_scaling.kind > LossScaleKind::constant ? 8 : 0));
        // Plain FP16 loses gradients below its smallest number, so its limit is weaker.
        CHECK(learnt.after < (recipe.name == "fp16" ? 1.0 : 0.25) * entropy);
        if (recipe.name != "fp16") CHECK(learnt.written == "quartz, judg");
    }
}
