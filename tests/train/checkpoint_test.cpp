// SPDX-License-Identifier: MIT
#include <unitscale/train/checkpoint.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/temporary_folder.hpp"

#include <unitscale/optim/adam.hpp>
#include <unitscale/train/step.hpp>

#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

nn::DecoderConfig small(std::size_t width = 16) {
    return {.vocabulary = 7, .width = width, .depth = 1, .heads = 2, .length = 6, .dropout = 0.25};
}

struct Run {
    explicit Run(const Recipe& how, std::uint64_t seed = 1, std::size_t width = 16)
        : model(how, small(width), seed), optimiser(model.decoder.parameters()), scaler(how.loss_scaling) {}
    void train(std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t step = first; step <= last; ++step) {
            const std::vector<train::Batch> batches = {test::random_batch(4, 6, 7, 2 * step),
                                                       test::random_batch(4, 6, 7, 2 * step + 1)};
            const auto result =
                train::train_step<float>(model.decoder, model.tape, optimiser, batches, 1e-2,
                                         model.recipe.loss_scaling.kind == LossScaleKind::none ? nullptr : &scaler);
            losses.push_back(result.loss);
        }
    }
    [[nodiscard]] train::RunParts<float, optim::Adam<float>> parts() {
        return {model.decoder.parameters(), optimiser, model.state, scaler};
    }
    [[nodiscard]] std::vector<float> values() {
        std::vector<float> all;
        for (const Parameter<float>* parameter : model.decoder.parameters())
            all.insert(all.end(), parameter->value().data(), parameter->value().data() + parameter->size());
        return all;
    }
    test::LanguageModel<float> model;
    optim::Adam<float> optimiser;
    optim::LossScaler scaler;
    std::vector<double> losses;
};

}  // namespace

TEST_CASE("checkpoint: training on from a file gives the bits of training on, for every recipe and stochastic rounding") {
    const test::TemporaryFolder folder;
    std::vector<Recipe> recipes = known_recipes();
    recipes.push_back(io::override_recipe(io::override_recipe(find_recipe("unit-fp8"), "matmul.gradient.rounding=stochastic"),
                                          "automatic_rule=gmean"));
    recipes.push_back(io::override_recipe(find_recipe("fp8-delayed"), "loss_scaling.kind=automatic"));
    recipes.back().loss_scaling.interval = 2;
    for (const Recipe& recipe : recipes) {
        INFO(recipe.name);
        const auto path = folder.path() / "run.safetensors";
        Run whole(recipe), first(recipe), second(recipe, 5);
        whole.train(1, 6);
        first.train(1, 3);
        train::save_run(path, first.parts(), recipe, {{"sum", 0.1}});
        const auto more = train::load_run(path, second.parts());
        CHECK(more.at("sum") == 0.1);
        second.train(4, 6);
        CHECK(std::vector<double>(whole.losses.begin() + 3, whole.losses.end()) == second.losses);
        CHECK(whole.values() == second.values());
        CHECK(train::CheckpointReader(path).recipe().name == recipe.name);
    }
}

TEST_CASE("checkpoint: weights alone, with scales where there are any") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "weights.safetensors";
    Run source(find_recipe("unit-fp8")), target(find_recipe("fp32"), 9);
    train::save_weights(path, source.model.decoder.parameters());
    CHECK(train::load_weights(path, target.model.decoder.parameters()).empty());
    CHECK(target.values() == source.values());
    CHECK(target.model.decoder.parameters()[0]->version() > 0);

    Parameter<float> weight("w", {2}, {}), again("w", {2}, {});
    weight.write() = Tensor<float>({2}, {3.0f, -1.0f});
    weight.write().set_scale(0.25);
    train::save_weights<float>(path, {&weight});
    CHECK(train::load_weights<float>(path, {&again}).empty());
    CHECK(again.value().scale() == 0.25);
    CHECK(again.value().data()[0] == 3.0f);
    weight.write().set_scale(1.0);  // a file without a scale, for a parameter that has one
    train::save_weights<float>(path, {&weight});
    const auto notes = train::load_weights<float>(path, {&again});
    REQUIRE(notes.size() == 1);
    CHECK(notes[0] == "checkpoint: " + path.string() + ": has no scales; 1 weights were given those of a new model");
    CHECK(again.value().scale() == 0.25);
    CHECK(again.value().data()[0] == 12.0f);
    Parameter<Half> narrow("w", {2}, {});
    CHECK(train::load_weights<Half>(path, {&narrow}).empty());
    CHECK(static_cast<float>(narrow.value().data()[1]) == -1.0f);
}

TEST_CASE("checkpoint: what does not fit is one clear line, and nothing is changed") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "run.safetensors";
    const Recipe recipe = find_recipe("unit-fp8");
    Run run(recipe);
    run.train(1, 2);
    train::save_run(path, run.parts(), recipe, {}, {{"vocabulary", "abc"}});
    Run wide(recipe, 1, 32), same(recipe, 4);
    const auto before = wide.values(), same_before = same.values();
    CHECK_THROWS_WITH(train::load_run(path, wide.parts()),
                      "safetensors: " + path.string() + ": tensor 'decoder/tokens/weight' is [7,16]; expected [7,32]");
    CHECK(wide.values() == before);
    CHECK(wide.model.state.step() == 0);
    CHECK_THROWS_WITH(train::load_run(path, same.parts(), {{"vocabulary", "abd"}}),
                      "checkpoint: " + path.string() + ": its vocabulary is not this run's");
    CHECK(same.values() == same_before);
    const auto weights = folder.path() / "weights.safetensors";
    train::save_weights(weights, run.model.decoder.parameters());
    CHECK_THROWS_WITH(train::load_run(weights, same.parts()),
                      "checkpoint: " + weights.string() + ": has no 'run/numbers'; is it a file of weights alone?");
    CHECK_THROWS_WITH(train::CheckpointReader(weights).recipe(), "checkpoint: " + weights.string() + ": has no recipe");
    CHECK(same.values() == same_before);
    CHECK(same.model.state.step() == 0);
    train::load_run(path, same.parts(), {{"vocabulary", "abc"}});
    CHECK(same.values() == run.values());
    CHECK(same.model.state.step() == 2);
}
