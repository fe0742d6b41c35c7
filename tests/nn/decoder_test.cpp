// SPDX-License-Identifier: MIT
#include <unitscale/nn/decoder.hpp>

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

namespace {

constexpr ResidualRule fixed_rule{.scheme = ResidualScheme::fixed, .tau = 0.7},
    fixed_share{.scheme = ResidualScheme::fixed, .share = 0.3}, running_mean{.scheme = ResidualScheme::running_mean},
    depth_rule{.scheme = ResidualScheme::depth}, plain{.scheme = ResidualScheme::plain};

struct Case {
    const char* name;
    nn::DecoderConfig config;
};

/// Small models that cover every choice of a decoder at least once.
std::vector<Case> cases() {
    const nn::DecoderConfig base{.vocabulary = 7, .width = 8, .depth = 2, .heads = 2, .length = 6, .hidden_ratio = 1.5};
    std::vector<Case> list;
    const auto add = [&](const char* name, auto&& change) {
        list.push_back({name, base});
        change(list.back().config);
    };
    add("default", [](auto&) {});
    add("plain residual, gains", [](auto& c) { c.residual = plain, c.norm.gains = true; });
    add("post norm, layer norm with gains, biases, fixed residual", [](auto& c) {
        c.placement = nn::NormPlacement::post, c.norm = {.kind = nn::NormKind::layer, .gains = true}, c.bias = true,
        c.residual = fixed_rule;
    });
    add("no norm, gated silu, running mean", [](auto& c) {
        c.placement = nn::NormPlacement::none, c.feed_forward = nn::FeedForwardKind::gated_silu,
        c.residual = running_mean;
    });
    add("post norm, final norm, biases also of the readout, running mean", [](auto& c) {
        c.placement = nn::NormPlacement::post, c.final_norm = true, c.readout_bias = true, c.bias = true,
        c.norm = {.kind = nn::NormKind::layer, .gains = true}, c.residual = running_mean;
    });
    add("no norm but the final one, tied with a bias, fixed share", [](auto& c) {
        c.placement = nn::NormPlacement::none, c.final_norm = true, c.readout_bias = true, c.tied = true,
        c.residual = fixed_share;
    });
    add("rotary, grouped heads, depth rule",
        [](auto& c) { c.positions = nn::Positions::rotary, c.groups = 1, c.residual = depth_rule; });
    add("tied, learned positions", [](auto& c) { c.tied = true, c.residual = depth_rule; });
    add("tied, rotary, gated silu, attention multiplier 1", [](auto& c) {
        c.tied = true, c.positions = nn::Positions::rotary, c.feed_forward = nn::FeedForwardKind::gated_silu,
        c.attention_mult = 1.0, c.residual = depth_rule;
    });
    add("embedding norm, relative attention, relu, no positions", [](auto& c) {
        c.embedding_norm = true, c.context.kind = nn::ContextKind::relative_attention, c.bias = true,
        c.positions = nn::Positions::none, c.feed_forward = nn::FeedForwardKind::relu, c.residual = fixed_share;
    });
    add("convolution, post norm with gains", [](auto& c) {
        c.context = {.kind = nn::ContextKind::convolution, .kernel = 3, .convolution_groups = 4},
        c.positions = nn::Positions::none, c.placement = nn::NormPlacement::post, c.bias = true,
        c.norm = {.kind = nn::NormKind::layer, .gains = true}, c.residual = depth_rule;
    });
    add("recurrence, no norm but behind the embedding, geometric means", [](auto& c) {
        c.context.kind = nn::ContextKind::recurrence, c.positions = nn::Positions::none, c.embedding_norm = true,
        c.placement = nn::NormPlacement::none, c.bias = true, c.residual = running_mean,
        c.constraint = Constraint::gmean;
    });
    return list;
}

/// Compares the tape's gradient of the mean loss with central differences, for every element of every parameter.
/// Returns the constant factor between them, and the error that remains after division by it.
std::vector<analysis::FactorFit> compare_gradients(test::LanguageModel<double>& model, const train::Batch& batch) {
    for (Parameter<double>* parameter : model.decoder.parameters()) parameter->clear_gradient();
    model.tape.begin_step();
    model.tape.backward(model.loss(batch));
    std::vector<analysis::FactorFit> fits;
    constexpr double h = 2e-5;
    for (Parameter<double>* parameter : model.decoder.parameters()) {
        Tensor<double> numeric(parameter->shape());
        for (std::size_t i = 0; i < numeric.size(); ++i) {
            const auto loss_at = [&](double x) {
                parameter->write().data()[i] = x;
                model.tape.begin_step({.gradients = false});
                return model.loss(batch).item();
            };
            const double x = parameter->value().data()[i];
            numeric.data()[i] = (loss_at(x + h) - loss_at(x - h)) / (2.0 * h);
            parameter->write().data()[i] = x;
        }
        fits.push_back(analysis::fit_factor(parameter->gradient(), numeric));
    }
    return fits;
}

}  // namespace

TEST_CASE("Decoder: logits of a prefix equal the full pass's logits under none and unit") {
    for (const Case& c : cases())
        for (const char* recipe : {"fp32", "unit-fp32"}) {
            INFO(c.name << ", " << recipe);
            test::LanguageModel<float> model(find_recipe(recipe), c.config);
            if (std::string_view(recipe) == "fp32")
                test::randomise(model.decoder.parameters(), 0.4);  // large enough for attention to change the result
            const auto ids = test::random_tokens({3, 6}, 7);
            model.tape.begin_step();
            const std::vector<float> full = test::elements(model.decoder(model.tape, ids).value());
            float largest = 0.0f;
            for (const float logit : full) largest = std::max(largest, std::abs(logit));
            REQUIRE(largest > 0.1f);
            REQUIRE(full.size() == 3 * 6 * 7);
            double worst = 0.0, spread = 0.0;
            for (std::size_t length = 1; length < 6; ++length) {
                Tensor<std::int32_t> prefix({3, length});
                for (std::size_t b = 0; b < 3; ++b) std::copy_n(ids.data() + b * 6, length, prefix.data() + b * length);
                model.tape.begin_step({.training = false, .gradients = false});
                const auto logits = model.decoder(model.tape, prefix);
                REQUIRE(logits.shape() == Shape{3, length, 7});
                for (std::size_t b = 0; b < 3; ++b)
                    for (std::size_t t = 0; t < length; ++t)
                        for (std::size_t v = 0; v < 7; ++v) {
                            const double want = static_cast<double>(full[(b * 6 + t) * 7 + v]);
                            worst = std::max(worst, std::abs(static_cast<double>(logits.value()(b, t, v)) - want));
                            spread =
                                std::max(spread, std::abs(static_cast<double>(full[(b * 6 + t + 1) * 7 + v]) - want));
                        }
            }
            CHECK(worst <= 1e-5 * std::max(1.0, static_cast<double>(largest)));
            CHECK(spread > 0.01);  // logits differ between positions
        }
}

TEST_CASE("Decoder: a later token changes no earlier logit and every later one") {
    test::LanguageModel<float> model(find_recipe("unit-fp8"), cases()[0].config);
    auto ids = test::random_tokens({1, 6}, 7);
    model.tape.begin_step();
    const std::vector<float> before = test::elements(model.decoder(model.tape, ids).value());
    ids.data()[3] = (ids.data()[3] + 1) % 7;
    model.tape.begin_step();
    const std::vector<float> after = test::elements(model.decoder(model.tape, ids).value());
    for (std::ptrdiff_t t = 0; t < 6; ++t)
        CHECK(std::equal(before.begin() + 7 * t, before.begin() + 7 * t + 7, after.begin() + 7 * t) == (t < 3));
}

TEST_CASE("Decoder: the gradient of every parameter agrees with finite differences under none") {
    const auto batch = test::random_batch(2, 5, 7);
    for (const Case& c : cases()) {
        INFO(c.name);
        Recipe recipe = analysis::plain_recipe(Scaling::none);
        test::LanguageModel<double> model(recipe, c.config);
        test::randomise(model.decoder.parameters(), 0.4);
        const auto fits = compare_gradients(model, batch);
        const auto parameters = model.decoder.parameters();
        for (std::size_t i = 0; i < fits.size(); ++i) {
            INFO(parameters[i]->name());
            if (parameters[i]->name().ends_with("key/bias")) continue;  // its gradient is 0: softmax cancels it
            CHECK(fits[i].factor == Approx(1.0).epsilon(1e-6));
            CHECK(fits[i].error < 1e-6);
        }
    }
}

TEST_CASE("Decoder: under unit each gradient is a positive constant times the true gradient of the forward function") {
    const auto batch = test::random_batch(2, 5, 7);
    for (const Case& c : cases()) {
        INFO(c.name);
        Recipe recipe = find_recipe("unit-fp32");
        test::LanguageModel<double> model(recipe, c.config);
        test::randomise(model.decoder.parameters(), 1.0);
        const auto fits = compare_gradients(model, batch);
        const auto parameters = model.decoder.parameters();
        double largest = 0.0;
        for (std::size_t i = 0; i < fits.size(); ++i) {
            INFO(parameters[i]->name());
            if (parameters[i]->name().ends_with("key/bias")) continue;
            CHECK(fits[i].factor > 0.0);
            CHECK(fits[i].error < 1e-6);
            largest = std::max(largest, fits[i].factor);
        }
        // Known from theory: the loss' own factor is N s / sqrt(s - 1).
        // With tied embeddings the table has no other factor.
        // An untied readout's weight also has the factor beta / alpha = N^-1/2 / in^-1/2.
        const double loss_factor = 10.0 * 7.0 / std::sqrt(6.0);
        if (c.config.tied) CHECK(fits[0].factor == Approx(loss_factor).epsilon(1e-6));
        else CHECK(fits.back().factor == Approx(loss_factor * std::sqrt(8.0 / 10.0)).epsilon(1e-6));
        CHECK(largest > 2.0);
    }
}

TEST_CASE("Decoder: parameters, their names and number") {
    nn::Decoder<float> decoder(
        {.vocabulary = 7, .width = 8, .depth = 1, .heads = 2, .length = 6, .norm = {.gains = true}});
    std::vector<std::string> names;
    for (const Parameter<float>* parameter : decoder.parameters()) names.push_back(parameter->name());
    CHECK(names == std::vector<std::string>{
                       "decoder/tokens/weight", "decoder/positions/weight", "decoder/block0/attention_norm/gain",
                       "decoder/block0/attention/query/weight", "decoder/block0/attention/key/weight",
                       "decoder/block0/attention/value/weight", "decoder/block0/attention/out/weight",
                       "decoder/block0/ffn_norm/gain", "decoder/block0/ffn/up/weight", "decoder/block0/ffn/down/weight",
                       "decoder/norm/gain", "decoder/readout/weight"});
    CHECK(decoder.parameter_count() == 7 * 8 + 6 * 8 + 4 * 8 * 8 + 2 * 8 * 32 + 3 * 8 + 7 * 8);
    CHECK(decoder.parameters().back()->facts().role == ParameterRole::readout);
    CHECK(decoder.parameters()[3]->facts().depth == 1);
    CHECK(decoder.parameters()[0]->facts().depth == 0);

    nn::Decoder<float> tied(
        {.vocabulary = 7, .width = 8, .depth = 1, .heads = 2, .positions = nn::Positions::rotary, .tied = true});
    CHECK(tied.parameter_count() == 7 * 8 + 4 * 8 * 8 + 2 * 8 * 32);
    nn::Decoder<float> exact(
        {.vocabulary = 7, .width = 8, .depth = 1, .heads = 2, .length = 6, .hidden_ratio = 0.1, .hidden = 13});
    CHECK(exact.parameter_count() == 7 * 8 + 6 * 8 + 4 * 8 * 8 + 2 * 8 * 13 + 7 * 8);
}

TEST_CASE("Decoder: a final norm for every placement, and a bias of the readout with the facts of the width") {
    for (const auto placement : {nn::NormPlacement::pre, nn::NormPlacement::post, nn::NormPlacement::none})
        for (const bool final_norm : {false, true}) {
            auto config = cases()[0].config;
            config.placement = placement, config.final_norm = final_norm, config.readout_bias = true;
            config.norm.gains = true;
            test::LanguageModel<float> model(find_recipe("unit-fp32"), config);
            const auto parameters = model.decoder.parameters();
            const bool gain = std::any_of(parameters.begin(), parameters.end(),
                                          [](const auto* p) { return p->name() == "decoder/norm/gain"; });
            CHECK(gain == (final_norm || placement == nn::NormPlacement::pre));
            Parameter<float>& bias = *parameters.back();
            REQUIRE(bias.name() == "decoder/readout/bias");
            CHECK(bias.shape() == Shape{7});
            CHECK(bias.facts() == ParameterFacts{.role = ParameterRole::bias, .fan_out = 7, .width = 8});
            const auto ids = test::random_tokens({2, 6}, 7);
            const auto logits = [&](float first) {
                bias.write().data()[0] = first;
                model.tape.begin_step({.gradients = false});
                return test::elements(model.decoder(model.tape, ids).value());
            };
            const auto before = logits(0.0F), after = logits(1.0F);
            for (std::size_t i = 0; i < before.size(); ++i)
                CHECK(after[i] - before[i] ==
                      Approx(i % 7 == 0 ? 1.0F / std::sqrt(8.0F) : 0.0F).margin(1e-6));  // inside alpha = width^-1/2
        }
}

TEST_CASE("Decoder: the base of rotary positions reaches queries and keys") {
    const Tensor<std::int32_t> ids = test::random_tokens({1, 6}, 7);
    const auto logits = [&](double base) {
        test::LanguageModel<float> model(find_recipe("unit-fp32"), {.vocabulary = 7,
                                                                    .width = 8,
                                                                    .depth = 1,
                                                                    .heads = 1,
                                                                    .length = 6,
                                                                    .positions = nn::Positions::rotary,
                                                                    .rotary_base = base});
        model.tape.begin_step();
        return test::elements(model.decoder(model.tape, ids).value());
    };
    CHECK(logits(10000.0) == logits(nn::DecoderConfig().rotary_base));
    CHECK(logits(10000.0) != logits(100.0));
}

TEST_CASE("Decoder: its own seed and position decide a token's vector; dropout follows the embeddings") {
    auto config = cases()[0].config;
    config.dropout = 0.5;
    test::LanguageModel<float> model(find_recipe("unit-fp32"), config);
    model.tape.begin_step({.retain = true});
    static_cast<void>(model.decoder(model.tape, test::random_tokens({2, 6}, 7)));
    std::vector<std::string> ops;
    for (std::size_t i = 0; i < 4; ++i) ops.push_back(model.state.path(model.tape.node(i).site));
    CHECK(ops == std::vector<std::string>{"decoder/tokens/embedding", "decoder/positions/embedding", "decoder/add",
                                          "decoder/dropout"});
    const std::size_t last = model.tape.node_count() - 1;
    CHECK(model.state.path(model.tape.node(last).site) == "decoder/readout/readout");
    CHECK(model.state.path(model.tape.node(last - 1).site) == "decoder/norm/rms_norm");
}

TEST_CASE("Decoder: with a window, a token reaches the logits of depth times its positions, and no more") {
    nn::DecoderConfig config = cases()[0].config;
    config.length = 12, config.window = 3, config.depth = 2;
    test::LanguageModel<double> model(find_recipe("fp32"), config);
    test::randomise(model.decoder.parameters(), 0.4);
    auto ids = test::random_tokens({1, 12}, config.vocabulary);
    const auto run = [&] {
        model.tape.begin_step();
        return test::elements(model.decoder(model.tape, ids).value());
    };
    const auto before = run();
    ids.data()[2] = (ids.data()[2] + 1) % 7;
    const auto after = run();
    for (std::size_t t = 0; t < 12; ++t) {
        const auto from = static_cast<std::ptrdiff_t>(t * config.vocabulary),
                   to = from + static_cast<std::ptrdiff_t>(config.vocabulary);
        const bool equal = std::equal(before.begin() + from, before.begin() + to, after.begin() + from);
        CHECK(equal == (t < 2 || t > 2 + 2 * 2));
    }
}

TEST_CASE("Decoder: invalid configurations and inputs are errors") {
    const auto make = [](auto&& change) {
        nn::DecoderConfig config = cases()[0].config;
        change(config);
        return nn::Decoder<float>(config).parameter_count();
    };
    REQUIRE_THROWS_WITH(make([](auto& c) { c.vocabulary = 0; }), "Decoder: vocabulary is 0; expected at least 1");
    REQUIRE_THROWS_WITH(make([](auto& c) { c.width = 0; }), "Decoder: width is 0; expected at least 1");
    REQUIRE_THROWS_WITH(make([](auto& c) { c.depth = 0; }), "Decoder: depth is 0; expected at least 1");
#if defined(__linux__)
    REQUIRE_THROWS_WITH(
        make([](auto& c) { c.depth = 1'000'000'000'000; }),
        Catch::StartsWith("Decoder: depth 1000000000000: takes ") && Catch::Contains(" GB; this machine has "));
#endif
    REQUIRE_THROWS_WITH(make([](auto& c) { c.heads = 0; }), "Decoder: heads is 0; expected at least 1");
    REQUIRE_THROWS_WITH(make([](auto& c) { c.length = 0; }), "Decoder: length is 0; expected at least 1");
    REQUIRE_THROWS_WITH(make([](auto& c) { c.heads = 3; }), "Decoder: width 8 is not divisible by 3 heads");
    REQUIRE_THROWS_WITH(make([](auto& c) { c.heads = 4, c.groups = 3; }),
                        "attention: 4 heads are not divisible by 3 groups");
    REQUIRE_THROWS_WITH(make([](auto& c) { c.hidden_ratio = 0.1; }),
                        "Decoder: hidden_ratio 0.1 of width 8 gives no hidden columns; expected at least one");

    const auto recurrent = [](auto& c) { c.context.kind = nn::ContextKind::recurrence; };
    REQUIRE_THROWS_WITH(make([&](auto& c) { recurrent(c), c.positions = nn::Positions::rotary; }),
                        "Decoder: rotary positions with context layers of kind recurrence; expected attention");
    REQUIRE_THROWS_WITH(make([&](auto& c) { recurrent(c), c.window = 4; }),
                        "Decoder: a window of 4 positions with context layers of kind recurrence; expected attention");
    REQUIRE_THROWS_WITH(make([&](auto& c) { recurrent(c), c.head_size = 4; }),
                        "Decoder: head_size is 4 with context layers of kind recurrence; expected attention");
    REQUIRE_THROWS_WITH(make([&](auto& c) { recurrent(c), c.query_key_value_bias = true; }),
                        "Decoder: query_key_value_bias with context layers of kind recurrence; expected attention");
    const ops::RotaryScaling linear{.kind = ops::RotaryScalingKind::linear, .factor = 2.0};
    REQUIRE_THROWS_WITH(make([&](auto& c) { c.positions = nn::Positions::learned, c.rotary_scaling = linear; }),
                        "Decoder: rotary_scaling without rotary positions");
    REQUIRE_THROWS_WITH(make([&](auto& c) {
                            c.positions = nn::Positions::rotary, c.rotary_scaling = {linear.kind, -1.0};
                        }),
                        "Decoder: rotary_scaling: scaling.factor is -1; expected a positive number");
    nn::DecoderConfig without_cache = cases()[0].config;
    recurrent(without_cache);
    REQUIRE_THROWS_WITH(nn::Decoder<float>(without_cache).make_cache(),
                        "Decoder: a cache; context layers of kind recurrence have none");

    test::LanguageModel<float> model(find_recipe("fp32"), cases()[0].config);
    model.tape.begin_step();
    REQUIRE_THROWS_WITH(model.decoder(model.tape, test::random_tokens({6}, 7)), "Decoder: ids [6]; expected [B,T]");
    REQUIRE_THROWS_WITH(model.decoder(model.tape, test::random_tokens({1, 7}, 7)),
                        "Decoder: a sequence of 7 tokens; learned positions end at 6");
    REQUIRE_THROWS_WITH(model.decoder(model.tape, full<std::int32_t>({1, 2}, 7)),
                        "embedding: ids[0] is 7; expected a number in [0,7)");
}
