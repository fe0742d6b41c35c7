// SPDX-License-Identifier: MIT
#include "experiments/language_run_options.hpp"
#include "support/catch.hpp"

#include <unitscale/nn/decoder.hpp>

#include <cmath>
#include <string>

using namespace unitscale;
using experiments::LanguageRunOptions;

namespace {

LanguageRunOptions small(const std::filesystem::path& data) {
    return {.data = {data}, .width = 16, .depth = 1, .heads = 2, .seq = 16, .batch = 4, .steps = 12};
}

}  // namespace

TEST_CASE("language run: invalid options are errors that name the option") {
    const auto message = [](auto&& change) {
        LanguageRunOptions options = small("text.txt");
        change(options);
        try {
            options.validate();
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    CHECK(message([](auto&) {}) == "none");
    CHECK(message([](auto& o) { o.data.clear(); }) == "--data: no path given; expected files or folders of text");
    CHECK(message([](auto& o) { o.width = 0; }) == "--width: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.depth = 0; }) == "--depth: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.heads = 0; }) == "--heads: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.seq = 0; }) == "--seq: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.batch = 0; }) == "--batch: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.steps = 0; }) == "--steps: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.micro_batches = 0; }) == "--micro-batches: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.depth = static_cast<std::size_t>(-1); }) ==
          "--depth: is 18446744073709551615; expected at most 1000000000");
    CHECK(message([](auto& o) { o.placement = "after"; }) == "--placement: is after; expected pre, post or none");
    CHECK(message([](auto& o) { o.placement = "post", o.final_norm = true, o.readout_bias = true; }) == "none");
    CHECK(message([](auto& o) { o.heads = 3; }) == "--heads: width 16 is not divisible by 3 heads");
    CHECK(message([](auto& o) { o.micro_batches = 3; }) ==
          "--micro-batches: batch 4 is not divisible by 3 micro-batches");
    CHECK(message([](auto& o) { o.threads = 0; }) == "--threads: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.warmup = 13; }) == "--warmup: 13 steps are more than the run's 12");
    CHECK(message([](auto& o) { o.lr = 0.0; }) == "--lr: is 0; expected a positive number");
    CHECK(message([](auto& o) { o.lr = -1.0; }) == "--lr: is -1; expected a positive number");
    CHECK(message([](auto& o) { o.lr = std::nan(""); }) == "--lr: is nan; expected a positive number");
    CHECK(message([](auto& o) { o.weight_decay = -0.5; }) == "--weight-decay: is -0.5; expected 0 or more");
    CHECK(message([](auto& o) { o.temperature = -1.0; }) == "--temperature: is -1; expected 0 or more");
    CHECK(message([](auto& o) { o.top_k = 2'000'000'000; }) == "--top-k: is 2000000000; expected at most 1000000000");
    CHECK(message([](auto& o) { o.switch_at = 6; }) == "--switch-at: is 6, but --switch-to names no recipe");
    CHECK(message([](auto& o) { o.switch_to = "bf16"; }) == "--switch-to: is bf16, but --switch-at names no step");
    for (const std::size_t at : {0u, 12u, 13u})
        CHECK(message([at](auto& o) { o.switch_at = at, o.switch_to = "bf16"; }) ==
              concatenate("--switch-at: is ", at, "; expected at least 1, and less than the run's 12 steps"));
    for (const std::size_t at : {1u, 11u})
        CHECK(message([at](auto& o) { o.switch_at = at, o.switch_to = "bf16"; }) == "none");
    CHECK(message([](auto& o) {
              o.warmup = 0, o.lr = 0.1, o.micro_batches = 4, o.eval_every = 0, o.sample = 0, o.temperature = 0.0;
          }) == "none");
}

TEST_CASE("language run: norms and the bias of the readout reach the model") {
    LanguageRunOptions options = small("text.txt");
    CHECK(options.model_text() == "gpt");
    CHECK(options.decoder(9).placement == nn::NormPlacement::pre);
    CHECK_FALSE(options.decoder(9).final_norm);
    CHECK_FALSE(options.decoder(9).readout_bias);
    options.final_norm = options.readout_bias = true;
    for (const auto& [name, placement] : {std::pair("pre", nn::NormPlacement::pre),
                                          {"post", nn::NormPlacement::post},
                                          {"none", nn::NormPlacement::none}})
        for (const char* model : {"gpt", "llama"}) {
            options.placement = name, options.model = model;
            CHECK(options.decoder(9).placement == placement);
            CHECK(options.decoder(9).final_norm);
            CHECK(options.decoder(9).readout_bias);
        }
    CHECK(options.model_text() == "llama, norms none, norm before the readout, readout bias");
}

TEST_CASE("language run: the recipe is the one that is named, with the fields that are set") {
    LanguageRunOptions options = small("text.txt");
    options.recipe = "unit-fp8";
    CHECK(experiments::recipe_of(options).products.back().formats.activation->overflow == Overflow::saturate);
    options.set = {"storage.element=bf16", "matmul.gradient=e4m3"};
    options.to_infinity = true;
    const Recipe recipe = experiments::recipe_of(options);
    CHECK(recipe.name == "unit-fp8");
    CHECK(recipe.storage.element == ElementType::bfloat16);
    CHECK(recipe.products.back().formats.gradient->format == e4m3);
    CHECK(recipe.products.back().formats.activation->overflow == Overflow::to_infinity);
    options.recipe = "fp7";
    CHECK_THROWS_WITH(experiments::recipe_of(options),
                      Catch::StartsWith("recipe: unknown name 'fp7'; expected one of fp32, "));
}

TEST_CASE("language run: a step as the log has it, and the line of a result") {
    experiments::LanguageStep step{.step = 3, .train_bpc = 2.5, .learning_rate = 0.25, .tokens_per_s = 1000.0};
    CHECK(step.json().dump() == R"({"step":3,"train_bpc":2.5,"learning_rate":0.25,"tokens_per_s":1000.0})");
    step.gradient_norm = 0.5;
    step.loss_scale = 1024.0;
    step.skipped = 2;
    step.switched_to = "bf16";
    step.valid_bpc_part = 4.0;
    CHECK(step.json().dump() ==
          R"({"step":3,"train_bpc":2.5,"learning_rate":0.25,"tokens_per_s":1000.0,"gradient_norm":0.5,)"
          R"("loss_scale":1024.0,"skipped":2,"switched_to":"bf16","valid_bpc_part":4.0})");
    CHECK(experiments::LanguageRunResult{
              .recipe = "fp16", .steps = 12, .train_bpc = 1.25, .valid_bpc = 2.0, .tokens_per_s = 10.0}
              .line() ==
          "result recipe=fp16 steps=12 train_bpc=1.2500 valid_bpc=2.0000 tokens_per_s=10 peak_rss_mb=0 seconds=0.0");
    CHECK(experiments::LanguageRunResult{.recipe = "mxfp8", .steps = 12, .switch_at = 6, .switch_to = "bf16"}
              .line()
              .starts_with("result recipe=mxfp8 switch_at=6 switch_to=bf16 steps=12 train_bpc=0.0000 "));
}
