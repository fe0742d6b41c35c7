// SPDX-License-Identifier: MIT
#include "experiments/language_run_options.hpp"
#include "support/catch.hpp"

#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/optim/any_optimiser.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/saved_model.hpp>

#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
    CHECK(message([](auto& o) { o.context = "conv"; }) ==
          "--context: is conv; expected own, attention, relative_attention, convolution or recurrence");
    CHECK(message([](auto& o) { o.residual = "mean"; }) ==
          "--residual: is mean; expected own, plain, fixed, running_mean or depth");
    CHECK(message([](auto& o) { o.optimiser = ""; }) == "--optimiser: is ; expected adam, sgd or lamb");
    CHECK(message([](auto& o) { o.schedule = "step"; }) ==
          "--schedule: is step; expected constant, cosine, half-life or linear");
    CHECK(message([](auto& o) { o.model = "llama", o.context = "recurrence"; }) ==
          "--positions: is rotary; --context recurrence has none");
    CHECK(message([](auto& o) { o.kv_heads = 1, o.context = "convolution"; }) ==
          "--kv-heads: is 1; --context convolution has none");
    CHECK(message([](auto& o) { o.width = 24, o.context = "convolution"; }) ==
          "--width: 24 is not divisible by the convolution's 16 groups");
    CHECK(message([](auto& o) { o.masked = 16; }) ==
          "--masked: is 16; expected fewer than the sequence's 16 characters");
    CHECK(message([](auto& o) { o.beta2 = 1.0; }) == "--beta2: is 1; expected a number from 0 to below 1");
    for (const double bad : {-1e-8, std::nan("")})
        CHECK(message([bad](auto& o) { o.epsilon = bad; }) ==
              concatenate("--epsilon: is ", bad, "; expected 0 or more"));
    CHECK(message([](auto& o) { o.epsilon = 0.0; }) == "none");
    CHECK(message([](auto& o) { o.hidden = 2'000'000'000; }) == "--hidden: is 2000000000; expected at most 1000000000");
    CHECK(message([](auto& o) { o.momentum = -0.5; }) == "--momentum: is -0.5; expected a number from 0 to below 1");
    CHECK(message([](auto& o) { o.dropout = 1.0; }) == "--dropout: is 1; expected a number from 0 to below 1");
    CHECK(message([](auto& o) { o.final_share = 1.5; }) == "--final-share: is 1.5; expected a number from 0 to 1");
    CHECK(message([](auto& o) { o.final_share = 1.0, o.schedule = "linear", o.optimiser = "lamb"; }) == "none");
    CHECK(message([](auto& o) { o.heads = 3; }) == "--heads: width 16 is not divisible by 3 heads");
    CHECK(message([](auto& o) { o.micro_batches = 3; }) ==
          "--micro-batches: batch 4 is not divisible by 3 micro-batches");
    CHECK(message([](auto& o) { o.threads = 0; }) == "--threads: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.warmup = 13; }) == "--warmup: 13 steps are more than the run's 12");
    CHECK(message([](auto& o) { o.lr = 0.0; }) == "--lr: is 0; expected a positive number");
    CHECK(message([](auto& o) { o.lr = -1.0; }) == "--lr: is -1; expected a positive number");
    CHECK(message([](auto& o) { o.lr = std::nan(""); }) == "--lr: is nan; expected a positive number");
    CHECK(message([](auto& o) { o.weight_decay = -0.5; }) == "--weight-decay: is -0.5; expected 0 or more");
    for (const char* text : {"", "*", "=1", "*=", "*=fast", "*=1x", "*=-1", "*=nan", "*=inf"})
        CHECK(message([text](auto& o) { o.rates = {text}; }) ==
              concatenate("--rate: is '", text,
                          "'; expected PATTERN=FACTOR, such as *query*=0.5, with a factor of 0 or more"));
    for (const char* model : {"gpt", "llama", "unit-scaling"}) {
        CHECK(message([model](auto& o) {
                  o.model = model, o.rates = {"*block0/*=0.5", "*readout/weight=0"};
              }) == "none");
        CHECK_THAT(message([model](auto& o) {
                       o.model = model, o.rates = {"*=1", "*block1/*=0.5"};
                   }),
                   Catch::StartsWith("--rate: group pattern '*block1/*' matches none of the "));
    }
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
    CHECK(options.model_text() == "llama, placement none, final-norm, readout-bias");
}

TEST_CASE("language run: every named value reaches the model") {
    LanguageRunOptions options = small("text.txt");
    options.width = 32;
    for (const experiments::NamedOption& option : experiments::named_options()) {
        const std::string usual = options.*option.value;
        std::set<std::string> seen;
        for (const std::string_view value : option.values) {
            INFO(option.name << ' ' << value);
            options.*option.value = value;
            // Rotary positions are for attention only.
            const bool contradiction = option.name == "positions" && value == "rotary" && options.context != "own";
            if (!contradiction) CHECK_NOTHROW(options.validate());
            if (option.of_model && option.name != "initial" && option.name != "residual")
                seen.insert(train::decoder_to_json(options.decoder(9)).dump());
            else if (option.name == "initial")
                seen.insert(std::to_string(static_cast<int>(options.initial_options(Recipe{}).standard)));
            else if (option.name == "residual")
                seen.insert(std::string(name(experiments::recipe_of(options).residual.scheme)));
            else if (option.name == "optimiser") seen.insert(std::string(name(options.optimiser_options().kind)));
            else seen.insert(std::string(name(options.learning_rates(1.0).kind)));
            CHECK(experiments::changed_options(options).size() == (value == usual ? 0u : 1u));
        }
        // `own` is equal to one of the others.
        CHECK(seen.size() == option.values.size() - (option.values.front() == "own" ? 1 : 0));
        options.*option.value = usual;
    }
    const std::string without = train::decoder_to_json(options.decoder(9)).dump();
    for (const experiments::NamedPart& part : experiments::named_parts()) {
        options.*part.value = true;
        CHECK(train::decoder_to_json(options.decoder(9)).dump() != without);
        CHECK(options.model_text() == concatenate("gpt, ", part.name));
        options.*part.value = false;
    }
}

TEST_CASE("language run: the Unit Scaling paper's model, its initial values and its residual shares") {
    LanguageRunOptions options = small("text.txt");
    options.model = "unit-scaling";
    const nn::DecoderConfig config = options.decoder(9);
    CHECK(config.context.kind == nn::ContextKind::relative_attention);
    CHECK(config.positions == nn::Positions::none);
    CHECK((config.embedding_norm && config.final_norm && config.readout_bias && config.bias && config.norm.gains));
    CHECK(config.heads == 2);
    const nn::InitialOptions standard = options.initial_options(find_recipe("fp32"));
    CHECK(standard.standard == nn::InitialScale::glorot);
    CHECK(standard.distribution == InitialDistribution::uniform);
    REQUIRE(standard.rules.size() == 2);
    CHECK(standard.rules[0].stddev == 0.25);
    CHECK(standard.rules[1].stddev == 1.0 / std::sqrt(128.0));
    CHECK(options.initial_options(find_recipe("us-fp32")).rules.empty());
    options.context = "convolution";
    CHECK(options.initial_options(find_recipe("fp32")).rules.empty());

    options.recipe = "us-fp32";
    options.residual = "fixed";
    CHECK(experiments::recipe_of(options).residual.share == 0.5);
    options.set = {"residual.scheme=fixed", "residual.share=0.2"};
    CHECK(experiments::recipe_of(options).residual.share == 0.2);
    options.residual = "plain";
    CHECK_FALSE(experiments::recipe_of(options).residual.share);
}

TEST_CASE("language run: optimiser and learning rates are those of the options") {
    LanguageRunOptions options = small("text.txt");
    options.steps = 80;
    CHECK(options.learning_rates(0.5).warmup == 8);
    CHECK(options.learning_rates(0.5).peak == 0.5);
    CHECK(options.learning_rates(0.5).at(80) == Approx(0.05));
    options.schedule = "half-life", options.warmup = 0, options.lr = 0.25;
    CHECK(options.learning_rates(0.5).at(1) == 0.25);
    CHECK(options.learning_rates(0.5).at(11) == Approx(0.125));  // an eighth of the run
    options.half_life = 20;
    CHECK(options.learning_rates(0.5).at(21) == Approx(0.125));
    options.schedule = "linear", options.final_share = 0.0;
    CHECK(options.learning_rates(0.5).at(80) == 0.0);
    options.schedule = "constant", options.warmup.reset();
    CHECK(options.learning_rates(0.5).at(1) == 0.25);
    options.optimiser = "lamb", options.beta1 = 0.8, options.beta2 = 0.99, options.momentum = 0.5;
    options.weight_decay = 0.125;
    const optim::AnyOptimiserOptions made = options.optimiser_options();
    CHECK(made.kind == OptimiserKind::lamb);
    CHECK((made.beta1 == 0.8 && made.beta2 == 0.99 && made.momentum == 0.5 && made.weight_decay == 0.125));
    CHECK_FALSE(made.epsilon);
    CHECK(options.used_epsilon() == 1e-6);
    options.optimiser = "adam";
    CHECK(options.used_epsilon() == 1e-8);
    CHECK_FALSE(experiments::changed_options(options).contains("epsilon"));
    options.epsilon = 1e-5;
    CHECK(options.used_epsilon() == 1e-5);
    CHECK(options.optimiser_options().epsilon == 1e-5);
    CHECK(experiments::changed_options(options).at("epsilon") == 1e-5);
    CHECK(made.groups.empty());
    options.rates = {"*a=b*=0.5", "*query*=1e-3"};
    const std::vector<optim::ParameterGroup> groups = options.optimiser_options().groups;
    REQUIRE(groups.size() == 2);
    CHECK(groups[0].pattern == "*a=b*");
    CHECK(groups[0].learning_rate_factor == 0.5);
    CHECK(groups[1].learning_rate_factor == 1e-3);
    CHECK(experiments::changed_options(options).at("rate") == options.rates);
}

TEST_CASE("language run: a published shape sets model and sizes, but no option that is given") {
    LanguageRunOptions options = small("text.txt");
    options.set_shape("llama2-70b", [](std::string_view) { return false; });
    options.validate();
    CHECK(options.model == "llama");
    CHECK((options.width == 8192 && options.depth == 80 && options.head_count() == 64));
    const nn::DecoderConfig config = options.decoder(9);
    CHECK((config.hidden_columns() == 28672 && config.groups == 8));
    CHECK((config.vocabulary == 9 && config.length == 16));
    CHECK(options.model_text() == "llama, kv-heads 8, hidden 28672");
    CHECK(experiments::changed_options(options).at("hidden") == 28672);
    options.set_shape("gpt-111m", [](std::string_view) { return false; });
    CHECK(options.model_text() == "gpt, hidden 3072");
    CHECK(options.kv_heads == 0);

    LanguageRunOptions given = small("text.txt");
    for (const std::string_view name : {"model", "width", "depth", "heads", "kv-heads", "hidden"}) {
        CAPTURE(name);
        const auto others = [](const LanguageRunOptions& o, std::string_view but) {
            std::vector<std::string> values;
            if (but != "model") values.push_back(o.model);
            if (but != "width") values.push_back(std::to_string(o.width));
            if (but != "depth") values.push_back(std::to_string(o.depth));
            if (but != "heads") values.push_back(std::to_string(o.heads));
            if (but != "kv-heads") values.push_back(std::to_string(o.kv_heads));
            if (but != "hidden") values.push_back(std::to_string(o.hidden));
            return values;
        };
        LanguageRunOptions kept = given, all = given;
        kept.set_shape("llama2-70b", [name](std::string_view option) { return option == name; });
        all.set_shape("llama2-70b", [](std::string_view) { return false; });
        CHECK(others(kept, name) == others(all, name));
        CHECK(others(kept, "") != others(all, ""));
    }
    given.head_size = 8;
    given.set_shape("gpt-590m", [](std::string_view option) { return option == "head-size"; });
    CHECK(given.head_count() == 192);
    CHECK_THROWS_WITH(given.set_shape("gpt", [](std::string_view) { return false; }),
                      Catch::StartsWith("shape: unknown name 'gpt'; expected one of gpt-111m, "));
}

TEST_CASE("language run: a tenth of a run is at least one step") {
    CHECK(experiments::tenth_of(1) == 1);
    CHECK(experiments::tenth_of(19) == 1);
    CHECK(experiments::tenth_of(20) == 2);
    CHECK(experiments::tenth_of(305) == 30);
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
    for (const auto& [model, feed_forward] : {std::pair("unit-scaling", "own"), {"gpt", "relu"}}) {
        LanguageRunOptions relu = small("text.txt");
        relu.model = model, relu.feed_forward = feed_forward;
        CHECK(experiments::recipe_of(relu).hyperparameters.alpha_ffn_act == 1.0);
        relu.set = {"hyperparameters.alpha_ffn_act=2"};
        CHECK_THROWS_WITH(experiments::recipe_of(relu),
                          "--feed-forward: is relu; the recipe's alpha_ffn_act is 2, expected 1");
    }
    for (const char* context : {"convolution", "recurrence"}) {
        LanguageRunOptions mixed = small("text.txt");
        mixed.context = context;
        CHECK(experiments::recipe_of(mixed).hyperparameters.alpha_attn == 1.0);
        mixed.set = {"hyperparameters.alpha_attn=2"};
        CHECK_THROWS_WITH(experiments::recipe_of(mixed),
                          concatenate("--context: is ", context, "; the recipe's alpha_attn is 2, expected 1"));
    }
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
    CHECK(experiments::LanguageRunResult{.recipe = "fp16", .steps = 12, .valid_bpc = 2.0, .test_bpc = 2.25}.line() ==
          "result recipe=fp16 steps=12 train_bpc=0.0000 valid_bpc=2.0000 test_bpc=2.2500 tokens_per_s=0 peak_rss_mb=0 "
          "seconds=0.0");
    CHECK(experiments::LanguageRunResult{.recipe = "mxfp8", .steps = 12, .switch_at = 6, .switch_to = "bf16"}
              .line()
              .starts_with("result recipe=mxfp8 switch_at=6 switch_to=bf16 steps=12 train_bpc=0.0000 "));
}
