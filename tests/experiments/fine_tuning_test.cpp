// SPDX-License-Identifier: MIT
#include "experiments/fine_tuning.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <unitscale/io/npy.hpp>
#include <unitscale/nn/published_shapes.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/pretrained.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

using namespace unitscale;
using experiments::FineTuned;
using experiments::FineTuningOptions;
using test::error_of;

namespace {

std::filesystem::path published(const char* name) {
    return std::filesystem::path(UNITSCALE_TEST_DATA) / "pretrained" / name / "model.safetensors";
}

FineTuningOptions short_run() { return {.steps = 20, .batch = 4, .micro_batches = 2, .seq = 12, .lr = 0.02}; }

/// Ids that a model can learn to predict: a sequence of period 12.
std::vector<std::int32_t> periodic_ids(std::size_t count) {
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(i * i % 12 * 2 + i % 4));
    return ids;
}

/// Loads a file of weights, tunes the model, and returns the result. The reports go nowhere.
FineTuned tune(const std::filesystem::path& weights, const Recipe& recipe, const FineTuningOptions& options) {
    return train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
        nn::Decoder<T> model(train::pretrained_config(weights));
        const bool plain = recipe.scaling != Scaling::propagate;
        if (!plain) nn::initialise(model.parameters(), recipe, 0);
        static_cast<void>(train::load_weights(weights, model.parameters(), plain));
        const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::tmpfile(), std::fclose);
        return experiments::fine_tune<T>(model, recipe, options, periodic_ids(400), nowhere.get(), nowhere.get());
    });
}

}  // namespace

TEST_CASE("fine-tuning: the defaults are the paper's settings") {
    const FineTuningOptions usual;
    CHECK((usual.beta1 == 0.9 && usual.beta2 == 0.999 && usual.epsilon == 1e-5));
    CHECK(usual.batch == 512);
    CHECK(usual.parts() == 512);
    CHECK(usual.length(nn::published_config("gpt-111m")) == 2048);
    CHECK(usual.used_weight_decay(111'050'496) == 0.01);
    CHECK(usual.used_weight_decay(590'310'912) == 0.01);
    CHECK_THROWS_WITH(usual.used_weight_decay(590'310'913),
                      "--weight-decay: is absent; models of more than 590310912 parameters have no usual one, and this "
                      "has 590310913");
    CHECK(FineTuningOptions{.weight_decay = 0.0}.used_weight_decay(1'315'723'264) == 0.0);
}

TEST_CASE("fine-tuning: invalid options are errors that name the option") {
    const nn::DecoderConfig model{.vocabulary = 9, .width = 8, .depth = 1, .length = 16};
    const auto message = [&](const std::function<void(FineTuningOptions&)>& change) {
        FineTuningOptions options = short_run();
        change(options);
        return error_of([&] { options.validate(model); });
    };
    CHECK(message([](auto&) {}) == "");
    CHECK(message([](auto& o) { o.steps = 0; }) == "--steps: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.batch = 0; }) == "--batch: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.micro_batches = 0; }) == "--micro-batches: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.seq = 0; }) == "--seq: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.seq = 17; }) == "--seq: is 17; expected at most the model's 16 positions");
    CHECK(message([](auto& o) { o.micro_batches = 3; }) ==
          "--micro-batches: batch 4 is not divisible by 3 micro-batches");
    CHECK(message([](auto& o) { o.lr = 0.0; }) == "--lr: is 0; expected a positive number");
    CHECK(message([](auto& o) { o.lr = std::nan(""); }) == "--lr: is nan; expected a positive number");
    CHECK(message([](auto& o) { o.beta1 = 1.0; }) == "--beta1: is 1; expected a number from 0 to below 1");
    CHECK(message([](auto& o) { o.beta2 = -0.5; }) == "--beta2: is -0.5; expected a number from 0 to below 1");
    CHECK(message([](auto& o) { o.epsilon = -1.0; }) == "--adam-epsilon: is -1; expected 0 or more");
    CHECK(message([](auto& o) { o.weight_decay = -1.0; }) == "--weight-decay: is -1; expected 0 or more");
    CHECK(message([](auto& o) { o.save = "none/tuned.safetensors"; }) ==
          "--save: none/tuned.safetensors cannot be written");
    FineTuningOptions large;
    CHECK(error_of([&] { large.validate(nn::published_config("gpt-1.3b")); }).starts_with("--weight-decay: is absent"));
}

TEST_CASE("fine-tuning: token ids are whole numbers of the vocabulary") {
    const test::TemporaryFolder folder;
    const std::filesystem::path path = folder.path() / "ids.npy";
    const auto message = [&](const auto& tensor) {
        io::save_npy(path, tensor);
        return error_of([&] { static_cast<void>(experiments::read_token_ids(path, 9)); });
    };
    const std::string where = "npy: " + path.string();
    io::save_npy(path, Tensor<std::int64_t>(Shape{3}, {0, 8, 4}));
    CHECK(experiments::read_token_ids(path, 9) == std::vector<std::int32_t>{0, 8, 4});
    io::save_npy(path, Tensor<std::uint16_t>(Shape{2}, {7, 1}));
    CHECK(experiments::read_token_ids(path, 9) == std::vector<std::int32_t>{7, 1});
    CHECK(message(Tensor<std::int32_t>(Shape{3}, {0, 9, 4})) == where + ": id 1 is 9; expected a number in [0,9)");
    CHECK(message(Tensor<std::int32_t>(Shape{2}, {0, -1})) == where + ": id 1 is -1; expected a number in [0,9)");
    CHECK(message(Tensor<std::int64_t>(Shape{1}, {std::int64_t{1} << 40})) ==
          where + ": element 0 is 1.09951e+12, which elements of type '<i4' do not hold");
    CHECK(message(Tensor<std::int32_t>(Shape{1, 2}, {0, 1})) == where + " has shape [1,2]; expected [N] token ids");
    CHECK(message(Tensor<float>(Shape{2}, {0.0f, 1.0f})) ==
          where + " holds elements of type '<f4'; expected whole numbers, such as '<i4'");
    CHECK(error_of([] { static_cast<void>(experiments::read_token_ids("none.npy", 9)); }) ==
          "npy: none.npy does not exist or is not a file");
}

TEST_CASE("fine-tuning: published weights learn under recipes of each storage, and load again with their loss") {
    const test::TemporaryFolder folder;
    for (const char* family : {"gpt2", "llama"})
        for (const char* name :
             {"fp32", "fp8-amax", "fp16-auto-loss-scaled", "bf16", "scalify-fp16-static", "scalify-fp8-4"}) {
            CAPTURE(family, name);
            const Recipe recipe = find_recipe(name);
            FineTuningOptions options = short_run();
            options.save = folder.path() / "tuned.safetensors";
            const FineTuned tuned = tune(published(family), recipe, options);
            CHECK(tuned.before > std::log(32.0) - 0.5);
            CHECK(tuned.after < tuned.before - 0.5);
            CHECK(tuned.tokens_per_s > 0.0);
            options.steps = 1;
            const FineTuned again = tune(options.save, recipe, {.steps = 1, .batch = 4, .micro_batches = 2, .seq = 12});
            CHECK(again.before == tuned.after);
        }
}

TEST_CASE("fine-tuning: tuned weights in a folder of the package's layout load again with their loss") {
    const test::TemporaryFolder folder;
    for (const char* name : {"fp32", "scalify-fp16-static"}) {
        FineTuningOptions options = short_run();
        options.save = folder.path() / name;
        options.original = published("gpt2");
        const FineTuned tuned = tune(published("gpt2"), find_recipe(name), options);
        CHECK(std::filesystem::exists(options.save / "config.json"));
        const FineTuned again =
            tune(options.save, find_recipe("fp32"), {.steps = 1, .batch = 4, .micro_batches = 2, .seq = 12});
        CHECK(again.before == Approx(tuned.after).epsilon(1e-3));
    }
    FineTuningOptions options = short_run();
    options.save = folder.path();
    CHECK(error_of([&] { options.validate(train::pretrained_config(published("gpt2"))); }) ==
          "--save: " + folder.path().string() + " exists; expected no or an empty folder");
}

TEST_CASE("fine-tuning: more parts of a batch give the same training") {
    FineTuningOptions options = short_run();
    const FineTuned two = tune(published("gpt2"), find_recipe("fp32"), options);
    options.micro_batches.reset();
    const FineTuned four = tune(published("gpt2"), find_recipe("fp32"), options);
    CHECK(four.before == Approx(two.before).epsilon(1e-6));
    CHECK(four.after == Approx(two.after).epsilon(1e-3));
    options.threads = 2;
    CHECK(tune(published("gpt2"), find_recipe("fp32"), options).after == four.after);
    options.seed = 2;
    CHECK(tune(published("gpt2"), find_recipe("fp32"), options).after != four.after);
}

TEST_CASE("fine-tuning: a run that is not finite has failed") {
    FineTuningOptions options = short_run();
    options.lr = 1e30;
    CHECK_THROWS_AS(tune(published("gpt2"), find_recipe("fp32"), options), experiments::RunFailed);
    // Every gradient overflows, so that no step is taken.
    Recipe recipe = find_recipe("fp16");
    recipe.loss_scaling = {.kind = LossScaleKind::constant, .initial = 0x1p100};
    options.lr = 0.02;
    CHECK_THROWS_AS(tune(published("gpt2"), recipe, options), experiments::RunFailed);
}

TEST_CASE("fine-tuning: the text of the settings, of a loss and of the result") {
    const nn::DecoderConfig model = nn::published_config("gpt-111m");
    FineTuningOptions options;
    const std::string text = experiments::fine_tuning_text(options, model, find_recipe("fp8-amax"), 5000);
    CHECK(text.find("\nmodel       width 768, depth 10, heads 12; 111050496 parameters, vocabulary of 50257\n") !=
          std::string::npos);
    CHECK(text.find("\ntraining    100 steps of 512 x 2048 tokens in 512 parts, learning rate 2e-05, AdamW (0.9, "
                    "0.999), epsilon 1e-05, weight decay 0.01, seed 1, 1 thread\n") != std::string::npos);
    CHECK(experiments::token_loss_text(2.0) == "2.0000 nats, 2.8854 bits per token");
    CHECK(experiments::fine_tuned_line(options, find_recipe("fp32"),
                                       {.before = 2.0, .after = 1.0, .tokens_per_s = 9.0, .skipped = 3}) ==
          "result recipe=fp32 steps=100 before_nats=2.0000 before_bits=2.8854 after_nats=1.0000 after_bits=1.4427 "
          "skipped=3 tokens_per_s=9");
}
