// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/generate.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/test_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

const nn::DecoderConfig small{.vocabulary = 7, .width = 8, .depth = 1, .heads = 2, .length = 5};

/// The tokens of each pass: the rows of attention's queries.
class Passes : public Observer<float> {
public:
    void observe(const TensorEvent<float>& event) override {
        if (event.op == "attention" || event.op == "cached_attention") rows.push_back(event.tensor.dim(1));
    }
    std::vector<std::size_t> rows{};
};

/// The expected result of `generate`, without a cache: every token from a run over its whole window.
template <class T>
std::vector<std::int32_t> generate_uncached(test::LanguageModel<T>& model, const std::vector<std::int32_t>& prompt,
                                            const train::GenerateOptions& options) {
    const RandomKey key{options.seed, hash_name("generate")};
    std::vector<std::int32_t> text = prompt;
    for (std::size_t i = 0; i < options.tokens; ++i) {
        const std::size_t start = train::window_start(text.size(), prompt.size(), model.decoder.config().length);
        const Tensor<std::int32_t> ids({1, text.size() - start}, std::span<const std::int32_t>(text).subspan(start));
        model.tape.begin_step({.training = false, .gradients = false});
        const Variable<T> logits = model.decoder(model.tape, ids);
        const std::size_t vocabulary = logits.shape()[2];
        std::vector<float> last(logits.value().span().end() - static_cast<std::ptrdiff_t>(vocabulary),
                                logits.value().span().end());
        std::vector<bool> occurred(vocabulary, false);
        for (const std::int32_t token : text) occurred[static_cast<std::size_t>(token)] = true;
        if (options.repetition_penalty != 1.0) train::penalise_repetition(last, occurred, options.repetition_penalty);
        text.push_back(train::sample_token(last, options.temperature, static_cast<double>(uniform(random_word(key, i))),
                                           options.top_k, options.top_p));
    }
    return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace

TEST_CASE("generate: a token is drawn from softmax(logits / temperature)") {
    const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
    CHECK(train::sample_token(logits, 1.0, 0.0) == 0);
    CHECK(train::sample_token(logits, 1.0, 0.12) == 0);
    CHECK(train::sample_token(logits, 1.0, 0.13) == 1);
    CHECK(train::sample_token(logits, 1.0, 0.37) == 1);
    CHECK(train::sample_token(logits, 1.0, 0.38) == 2);
    CHECK(train::sample_token(logits, 1.0, 0.9999999) == 2);
    // At temperature 1/2 the probabilities are 1/30, 4/30 and 25/30; near 0 and at 0 the largest logit has probability
    // 1.
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

TEST_CASE("generate: of equal logits the lower ids come first, at the boundary of top_k too") {
    const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 2.0f, 3.0f, 2.0f};
    const auto drawn = [&](std::size_t top_k) {
        std::vector<bool> seen(logits.size(), false);
        for (int i = 0; i < 1000; ++i)
            seen[static_cast<std::size_t>(train::sample_token(logits, 1.0, i / 1000.0, top_k))] = true;
        return seen;
    };
    CHECK(drawn(1) == std::vector<bool>{false, true, false, false, false, false});
    CHECK(drawn(2) == std::vector<bool>{false, true, false, false, true, false});
    CHECK(drawn(3) == std::vector<bool>{false, true, true, false, true, false});
    CHECK(drawn(4) == std::vector<bool>{false, true, true, true, true, false});
    CHECK(drawn(5) == std::vector<bool>{false, true, true, true, true, true});
    for (const std::size_t all : {0u, 6u, 100u}) CHECK(drawn(all) == std::vector<bool>(6, true));
    CHECK(train::sample_token(logits, 0.0, 0.9) == 1);
}

TEST_CASE("generate: draws follow the probabilities of the k most likely tokens") {
    std::vector<float> logits(12);
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(random_normal({3, 1}, i));
    constexpr std::uint64_t draws = 200'000;
    for (const std::size_t top_k : {0u, 1u, 3u, 11u}) {
        std::vector<float> sorted = logits;
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        const float least = top_k == 0 ? sorted.back() : sorted[top_k - 1];
        std::vector<double> expected(logits.size(), 0.0), counts(logits.size(), 0.0);
        double total = 0.0;
        for (std::size_t i = 0; i < logits.size(); ++i) {
            if (logits[i] >= least) expected[i] = std::exp(static_cast<double>(logits[i]) / 0.8);
            total += expected[i];
        }
        for (std::uint64_t i = 0; i < draws; ++i) {
            const double u = static_cast<double>(uniform(random_word({4, top_k}, i)));
            counts[static_cast<std::size_t>(train::sample_token(logits, 0.8, u, top_k))] += 1.0;
        }
        for (std::size_t i = 0; i < logits.size(); ++i) {
            const double p = expected[i] / total, mean = p * static_cast<double>(draws);
            INFO("top_k " << top_k << ", token " << i << ": " << counts[i] << " draws of " << mean);
            CHECK(std::abs(counts[i] - mean) <= 5.0 * std::sqrt(mean * (1.0 - p)));  // an exact count where p is 0 or 1
        }
    }
}

TEST_CASE("generate: the nucleus is the fewest most likely tokens with the probability p") {
    // Probabilities 0.1, 0.4, 0.2, 0.2, 0.1: by likelihood tokens 1, 2, 3, 0, 4.
    const std::vector<float> logits = {0.0f, std::log(4.0f), std::log(2.0f), std::log(2.0f), 0.0f};
    const auto drawn = [&](double top_p, double temperature = 1.0, std::size_t top_k = 0) {
        std::vector<bool> seen(logits.size(), false);
        for (int i = 0; i < 1000; ++i)
            seen[static_cast<std::size_t>(train::sample_token(logits, temperature, i / 1000.0, top_k, top_p))] = true;
        return seen;
    };
    CHECK(drawn(1e-9) == std::vector<bool>{false, true, false, false, false});
    CHECK(drawn(0.39) == std::vector<bool>{false, true, false, false, false});
    CHECK(drawn(0.41) == std::vector<bool>{false, true, true, false, false});
    CHECK(drawn(0.61) == std::vector<bool>{false, true, true, true, false});
    CHECK(drawn(0.81) == std::vector<bool>{true, true, true, true, false});
    CHECK(drawn(0.91) == std::vector<bool>(5, true));
    CHECK(drawn(1.0) == std::vector<bool>(5, true));
    // At temperature 1/2 the probabilities are 1, 16, 4, 4, 1 of 26.
    CHECK(drawn(16.1 / 26, 0.5) == std::vector<bool>{false, true, true, false, false});
    CHECK(drawn(15.9 / 26, 0.5) == std::vector<bool>{false, true, false, false, false});
    // Among the two most likely tokens they are 2/3 and 1/3.
    CHECK(drawn(0.65, 1.0, 2) == std::vector<bool>{false, true, false, false, false});
    CHECK(drawn(0.67, 1.0, 2) == std::vector<bool>{false, true, true, false, false});
    CHECK(drawn(0.3, 0.0) == std::vector<bool>{false, true, false, false, false});
    // What is kept is drawn in proportion: 2/3 of token 1.
    CHECK(train::sample_token(logits, 1.0, 0.66, 0, 0.41) == 1);
    CHECK(train::sample_token(logits, 1.0, 0.67, 0, 0.41) == 2);
    for (const double p : {0.0, -1.0, 1.5, std::nan("")})
        REQUIRE_THROWS_WITH(
            train::sample_token(logits, 1.0, 0.5, 0, p),
            Catch::StartsWith("sample_token: top_p is ") && Catch::EndsWith("; expected a number above 0, at most 1"));
}

TEST_CASE("generate: the repetition penalty divides positive logits and multiplies negative ones, once for a token") {
    std::vector<float> logits = {3.0f, -3.0f, 0.0f, 2.0f, -2.0f};
    train::penalise_repetition(logits, {true, true, true, false, false}, 1.5);
    CHECK(logits == std::vector<float>{2.0f, -4.5f, 0.0f, 2.0f, -2.0f});
    REQUIRE_THROWS_WITH(train::penalise_repetition(logits, {true}, 1.5),
                        "penalise_repetition: 5 logits and 1 tokens; expected one for each");
    REQUIRE_THROWS_WITH(train::penalise_repetition(logits, std::vector<bool>(5), 0.0),
                        "penalise_repetition: penalty is 0; expected a positive number");
}

TEST_CASE("generate: the window stands at the start, then moves by halves") {
    const auto starts = [](std::size_t prompt, std::size_t length, std::size_t count) {
        std::vector<std::size_t> list;
        for (std::size_t size = prompt; size < prompt + count; ++size)
            list.push_back(train::window_start(size, prompt, length));
        return list;
    };
    CHECK(starts(3, 4, 9) == std::vector<std::size_t>{0, 0, 2, 2, 4, 4, 6, 6, 8});
    CHECK(starts(2, 5, 11) == std::vector<std::size_t>{0, 0, 0, 0, 3, 3, 3, 6, 6, 6, 9});
    CHECK(starts(9, 4, 6) == std::vector<std::size_t>{5, 7, 7, 9, 9, 11});
    CHECK(starts(1, 1, 4) == std::vector<std::size_t>{0, 1, 2, 3});
    for (const std::size_t length : {1u, 2u, 7u, 16u})
        for (const std::size_t prompt : {1u, 7u, 40u})
            for (std::size_t size = prompt; size < prompt + 60; ++size) {
                const std::size_t seen = size - train::window_start(size, prompt, length);
                CHECK(seen <= length);
                CHECK(2 * seen > std::min(length, size) - 1);
            }
}

// Rows of logits with and without a cache are equal to the bit (tests/nn/key_value_cache_test.cpp): so are the draws.
TEMPLATE_TEST_CASE("generate: the cache changes no token, greedy or drawn, in the first window or after", "[train]",
                   float, double) {
    auto rotary = small;
    rotary.positions = nn::Positions::rotary, rotary.depth = 2, rotary.length = 16, rotary.tied = true;
    auto windowed = rotary;
    windowed.window = 4;
    for (const nn::DecoderConfig& config : {small, rotary, windowed})
        for (const Recipe& recipe : known_recipes()) {
            const ScaleSource source = recipe.formats(ProductKind::linear, "").activation_scale.source;
            if (source == ScaleSource::amax || source == ScaleSource::delayed)
                continue;  // its scales are measured over the present rows
            INFO(recipe.name << ", length " << config.length);
            test::LanguageModel<TestType> model(recipe, config);
            if (recipe.scaling == Scaling::none) test::randomise(model.decoder.parameters(), 0.4);
            model.plan(test::random_batch(2, config.length, config.vocabulary));
            for (const std::vector<std::int32_t>& prompt : {std::vector<std::int32_t>{3}, {1, 2, 3, 4, 5, 6, 0, 1}})
                for (const train::GenerateOptions& options :
                     {train::GenerateOptions{.tokens = 40, .temperature = 0.0},
                      {.tokens = 40, .temperature = 1.0, .seed = 5},
                      {.tokens = 40, .temperature = 1.5, .top_k = 3, .seed = 6},
                      {.tokens = 40, .temperature = 1.0, .top_p = 0.8, .repetition_penalty = 1.3, .seed = 7}})
                    CHECK(train::generate(model.decoder, model.tape, prompt, options) ==
                          generate_uncached(model, prompt, options));
        }
}

TEST_CASE("generate: the seed decides, and nothing else") {
    test::LanguageModel<float> model(find_recipe("unit-fp8"), small);
    const std::vector<std::int32_t> prompt = {1};
    const std::uint64_t step = model.state.step();
    const auto first =
        train::generate(model.decoder, model.tape, prompt, {.tokens = 40, .temperature = 1.0, .seed = 3});
    CHECK(first.size() == 40);
    CHECK(train::generate(model.decoder, model.tape, prompt, {.tokens = 40, .temperature = 1.0, .seed = 3}) == first);
    CHECK(train::generate(model.decoder, model.tape, prompt, {.tokens = 40, .temperature = 1.0, .seed = 4}) != first);
    const auto shorter =
        train::generate(model.decoder, model.tape, prompt, {.tokens = 11, .temperature = 1.0, .seed = 3});
    CHECK(std::equal(shorter.begin(), shorter.end(), first.begin()));
    CHECK(model.state.step() == step);
    CHECK(train::generate(model.decoder, model.tape, prompt, {.tokens = 0}).empty());
}

TEST_CASE("generate: a text ends with a stop token, or where the caller ends it; tokens are shown as they are drawn") {
    test::LanguageModel<float> model(find_recipe("unit-fp8"), small);
    test::randomise(model.decoder.parameters(), 0.7);
    const std::vector<std::int32_t> prompt = {1, 2};
    const train::GenerateOptions options{.tokens = 60, .temperature = 1.0, .seed = 3};
    const auto whole = train::generate(model.decoder, model.tape, prompt, options);
    const auto until = [&](std::vector<std::int32_t> stops) {
        train::GenerateOptions own = options;
        own.stop_tokens = std::move(stops);
        return train::generate(model.decoder, model.tape, prompt, own);
    };
    for (const std::vector<std::int32_t>& stops : {std::vector<std::int32_t>{0}, {4, 2}, {0, 1, 2, 3, 4, 5, 6}}) {
        const auto end = std::find_first_of(whole.begin(), whole.end(), stops.begin(), stops.end());
        REQUIRE(end != whole.end());
        CHECK(until(stops) == std::vector<std::int32_t>(whole.begin(), end + 1));
    }
    train::GenerateOptions own = options;
    std::vector<std::int32_t> shown;
    own.on_token = [&](std::int32_t token) {
        shown.push_back(token);
        return shown.size() < 5;
    };
    CHECK(train::generate(model.decoder, model.tape, prompt, own) == shown);
    CHECK(shown == std::vector<std::int32_t>(whole.begin(), whole.begin() + 5));
    REQUIRE_THROWS_WITH(until({3, 7}), "generate: stop_tokens[1] is 7; expected a number in [0,7)");
}

TEST_CASE("generate: a prompt takes one pass, and so does each token") {
    test::LanguageModel<float> model(find_recipe("fp32"), small);
    Passes passes;
    model.tape.set_observer(&passes);
    const std::vector<std::int32_t> prompt = {1, 2, 3};
    CHECK(train::generate(model.decoder, model.tape, prompt, {.tokens = 3}).size() == 3);
    CHECK(passes.rows == std::vector<std::size_t>{3, 1, 1});
    model.tape.set_observer(nullptr);
}

TEST_CASE("generate: a cache of 8 bits writes what a model without a division into calls would") {
    nn::DecoderConfig config = small;
    config.length = 64, config.width = 32, config.depth = 2;
    test::LanguageModel<float> model(find_recipe("fp32"), config);
    test::randomise(model.decoder.parameters(), 0.4);
    const std::vector<std::int32_t> prompt = {1, 5, 2};
    train::GenerateOptions options{.tokens = 50, .temperature = 1.0, .seed = 8, .cache_format = e4m3};
    const auto written = train::generate(model.decoder, model.tape, prompt, options);
    // Each token from one pass of the whole text over an empty cache.
    std::vector<std::int32_t> text = prompt;
    for (std::size_t i = 0; i < options.tokens; ++i) {
        auto cache = model.decoder.make_cache(1, 0, e4m3);
        model.tape.begin_step({.training = false, .gradients = false});
        const auto logits = model.decoder(model.tape, Tensor<std::int32_t>({1, text.size()}, text), cache);
        const std::vector<float> last(logits.value().span().end() - 7, logits.value().span().end());
        text.push_back(train::sample_token(
            last, 1.0, static_cast<double>(uniform(random_word({options.seed, hash_name("generate")}, i)))));
    }
    CHECK(std::equal(written.begin(), written.end(), text.begin() + 3));
    options.cache_format = e2m1;
    CHECK(train::generate(model.decoder, model.tape, prompt, options) != written);
}

TEMPLATE_TEST_CASE("generate_batch: each text equals the text that its prompt gives alone", "[train]", float, double) {
    using T = TestType;
    auto rotary = small;
    rotary.positions = nn::Positions::rotary, rotary.depth = 2, rotary.length = 16, rotary.groups = 1;
    auto windowed = rotary;
    windowed.window = 4;
    auto recurrent = small;
    recurrent.context.kind = nn::ContextKind::recurrence, recurrent.positions = nn::Positions::none;
    const std::vector<std::vector<std::int32_t>> prompts = {{3}, {1, 2, 3, 4, 5, 6, 0, 1}, {2, 2}, {6, 5, 4}, {0}};
    for (const nn::DecoderConfig& config : {small, rotary, windowed, recurrent})
        for (const char* recipe : {"fp32", "unit-fp8"})
            for (const std::optional<FloatFormat>& format : {std::optional<FloatFormat>{}, {e4m3}, {fp16}}) {
                if (format && config.context.kind != nn::ContextKind::attention) continue;
                INFO(recipe << ", length " << config.length << ", window " << config.window);
                test::LanguageModel<T> model(find_recipe(recipe), config);
                test::randomise(model.decoder.parameters(), 0.4);
                model.plan(test::random_batch(2, config.length, config.vocabulary));
                std::vector<train::GenerateOptions> options;
                std::vector<std::vector<std::int32_t>> shown(prompts.size());
                for (std::size_t i = 0; i < prompts.size(); ++i) {
                    options.push_back(
                        {.tokens = i == 2 ? 0 : 40 - 7 * i, .temperature = 1.0, .seed = i, .cache_format = format});
                    options.back().on_token = [&own = shown[i]](std::int32_t token) {
                        own.push_back(token);
                        return true;
                    };
                }
                options[1].top_p = 0.7, options[1].repetition_penalty = 1.2;
                options[3].stop_tokens = {2};
                const auto texts = train::generate_batch<T>(model.decoder, model.tape, prompts, options);
                REQUIRE(texts.size() == prompts.size());
                CHECK(shown == texts);
                for (std::size_t i = 0; i < prompts.size(); ++i)
                    CHECK(texts[i] == train::generate<T>(model.decoder, model.tape, prompts[i], options[i]));
                CHECK(texts[0].size() == 40);
                CHECK(texts[2].empty());
            }
}

TEST_CASE("generate_batch: errors name the text") {
    test::LanguageModel<float> model(find_recipe("fp32"), small);
    const auto run = [&](const std::vector<std::vector<std::int32_t>>& prompts,
                         const std::vector<train::GenerateOptions>& options) {
        return train::generate_batch<float>(model.decoder, model.tape, prompts, options);
    };
    REQUIRE_THROWS_WITH(run({}, {}), "generate_batch: no prompts");
    REQUIRE_THROWS_WITH(run({{1}, {2}}, {{}}), "generate_batch: 1 options; expected one for each of 2 prompts");
    REQUIRE_THROWS_WITH(run({{1}, {}}, {{}, {}}),
                        "generate_batch: text 1: the prompt is empty; expected at least one token");
    REQUIRE_THROWS_WITH(run({{1}, {9}}, {{}, {}}),
                        "generate_batch: text 1: prompt[0] is 9; expected a number in [0,7)");
    REQUIRE_THROWS_WITH(run({{1}, {2}}, {{}, {.cache_format = e4m3}}),
                        "generate_batch: text 1: another cache_format than text 0; expected one for all");
}

TEST_CASE("generate: models without a cache run their window again for each token") {
    for (const auto kind :
         {nn::ContextKind::relative_attention, nn::ContextKind::convolution, nn::ContextKind::recurrence}) {
        nn::DecoderConfig config = small;
        config.context = {.kind = kind, .kernel = 3, .convolution_groups = 2};
        config.positions = nn::Positions::none;
        test::LanguageModel<float> model(find_recipe("us-fp32"), config);
        model.plan(test::random_batch(1, 5, 7));
        test::randomise(model.decoder.parameters(), 0.7);
        const train::GenerateOptions options{.tokens = 12, .temperature = 1.0, .seed = 4};
        const std::vector<std::int32_t> prompt = {1, 5, 2};
        CHECK(train::generate(model.decoder, model.tape, prompt, options) == generate_uncached(model, prompt, options));
        train::GenerateOptions coded = options;
        coded.cache_format = e4m3;
        REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, prompt, coded),
                            Catch::StartsWith("generate: a cache_format; context layers of kind ") &&
                                Catch::EndsWith(" have no cache, expected none"));
    }
}

TEST_CASE("generate: bad prompts, temperatures and logits are errors") {
    test::LanguageModel<float> model(find_recipe("unit-fp8"), small);
    const std::vector<std::int32_t> prompt = {1}, unknown = {1, 7}, negative = {-1, 2, 3, 4, 5, 6};
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, {}, {}),
                        "generate: the prompt is empty; expected at least one token");
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, prompt, {.temperature = -0.5}),
                        "generate: temperature is -0.5; expected 0 or more");
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, prompt, {.temperature = std::nan("")}),
                        "generate: temperature is nan; expected 0 or more");
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, unknown, {}),
                        "generate: prompt[1] is 7; expected a number in [0,7)");
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, negative, {}),
                        "generate: prompt[0] is -1; expected a number in [0,7)");
    CHECK(train::generate(model.decoder, model.tape, prompt, {.tokens = 5, .top_k = 8}).size() == 5);
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, prompt, {.top_p = 0.0}),
                        "generate: top_p is 0; expected a number above 0, at most 1");
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, prompt, {.repetition_penalty = -1.0}),
                        "generate: repetition_penalty is -1; expected a positive number");
    REQUIRE_THROWS_WITH(train::generate(model.decoder, model.tape, prompt, {.cache_format = e8m0}),
                        Catch::StartsWith("cached lines: format e8m0; expected fp32, fp16, bf16"));

    const float infinity = std::numeric_limits<float>::infinity();
    REQUIRE_THROWS_WITH(train::sample_token({}, 1.0, 0.5), "sample_token: no logits");
    const std::vector<float> broken = {0.0f, std::nanf("")}, infinite = {0.0f, infinity}, hidden = {-infinity, 0.0f};
    REQUIRE_THROWS_WITH(train::sample_token(broken, 1.0, 0.5, 1), "sample_token: logits[1] is NaN");
    REQUIRE_THROWS_WITH(train::sample_token(infinite, 1.0, 0.5),
                        "sample_token: the largest logit is inf; expected a finite one");
    for (const double u : {0.0, 0.5}) CHECK(train::sample_token(hidden, 1.0, u) == 1);
}
