// SPDX-License-Identifier: MIT
#include <unitscale/nn/feed_forward.hpp>

#include <unitscale/analysis/audit.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/ops/rms_norm.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <cmath>
#include <numbers>

using namespace unitscale;

TEST_CASE("FeedForward: gelu in both forms and gated silu, parameters and value") {
    for (const nn::FeedForwardKind kind :
         {nn::FeedForwardKind::gelu, nn::FeedForwardKind::gelu_tanh, nn::FeedForwardKind::gated_silu}) {
        const bool gated = kind == nn::FeedForwardKind::gated_silu;
        nn::FeedForward<float> layer("block0/ffn",
                                     {.kind = kind, .width = 4, .hidden = 6, .bias = true, .mult = 2.0, .depth = 8});
        std::vector<Parameter<float>*> parameters;
        layer.collect(parameters);
        std::vector<std::string> names;
        for (const Parameter<float>* parameter : parameters) {
            names.push_back(parameter->name());
            CHECK(parameter->facts().depth == 8);
        }
        std::vector<std::string> expected = {"block0/ffn/up/weight", "block0/ffn/up/bias", "block0/ffn/down/weight",
                                             "block0/ffn/down/bias"};
        if (gated) expected.insert(expected.begin() + 2, {"block0/ffn/gate/weight", "block0/ffn/gate/bias"});
        REQUIRE(names == expected);
        CHECK(parameters[0]->shape() == Shape{6, 4});
        CHECK(parameters[parameters.size() - 2]->shape() == Shape{4, 6});
        test::randomise(parameters, 1.0);

        test::OpTape<float> run;
        const auto x = run.input({3, 4});
        const auto y = layer(x);
        const auto linear = [&](Variable<float> input, std::size_t i) {
            return ops::linear(input, run.tape.parameter(*parameters[i]),
                               std::optional(run.tape.parameter(*parameters[i + 1])));
        };
        const auto form = kind == nn::FeedForwardKind::gelu_tanh ? ops::GeluForm::tanh : ops::GeluForm::erf;
        const auto inner = gated ? ops::gated_silu(linear(x, 0), linear(x, 2), {.mult = 2.0})
                                 : ops::gelu(linear(x, 0), {.mult = 2.0, .form = form});
        CHECK(test::elements(y.value()) == test::elements(linear(inner, parameters.size() - 2).value()));
        CHECK(run.state.path(run.tape.node(0).site) == "ffn/up/linear");
        run.tape.backward(test::sum(y));
        for (const Parameter<float>* parameter : parameters) CHECK(parameter->has_gradient());
    }
}

TEST_CASE("FeedForward: gelu has the recipe's constants, and a constraint reaches every layer") {
    nn::FeedForward<double> layer("ffn", {.width = 4, .hidden = 6}),
        joined("ffn", {.width = 4, .hidden = 6, .constraint = Constraint::gmean}),
        relu("ffn", {.kind = nn::FeedForwardKind::relu, .width = 4, .hidden = 6, .constraint = Constraint::gmean});
    const auto factors = [](nn::FeedForward<double>& one, GeluConstants constants) {
        Recipe recipe = analysis::plain_recipe(Scaling::unit);
        recipe.gelu_constants = constants;
        ScalingState state;
        Tape<double> tape(recipe, state);
        std::vector<Parameter<double>*> parameters;
        one.collect(parameters);
        test::randomise(parameters, 1.0);
        tape.begin_step();
        static_cast<void>(one(tape.input(normal<double>({3, 4}, {1, 1}), true)));
        std::vector<double> alphas;
        for (std::size_t i = 0; i < 3; ++i) alphas.push_back(tape.node(i).alpha);
        return alphas;
    };
    const double up = std::pow(24.0, -0.25);
    CHECK(factors(layer, GeluConstants::fitted)[1] == ops::gelu_unit_factors(1.0).alpha);
    CHECK(factors(layer, GeluConstants::unit_scaling_paper)[1] == 1.701);
    const auto of_joined = factors(joined, GeluConstants::unit_scaling_paper);
    CHECK(of_joined[0] == Approx(up));
    CHECK(of_joined[1] == Approx(std::sqrt(1.701 * 1.481)));
    CHECK(of_joined[2] == Approx(up));
    CHECK(factors(relu, GeluConstants::fitted)[0] == Approx(up));
    CHECK(factors(relu, GeluConstants::fitted)[1] ==
          Approx(std::sqrt(std::sqrt(2.0 / (1.0 - 1.0 / std::numbers::pi)) * std::numbers::sqrt2)));
}

TEST_CASE("FeedForward: gated, up and gate have gradients of (width/hidden)^1/2, or of 1 with mirrored factors") {
    constexpr std::size_t width = 16, hidden = 64, rows = 2000;
    const double ratio = std::sqrt(static_cast<double>(width) / static_cast<double>(hidden));
    for (const std::optional<Constraint> constraint :
         {std::optional<Constraint>(), std::optional(Constraint::to_output_scale), std::optional(Constraint::none)}) {
        nn::FeedForward<double> layer(
            "ffn",
            {.kind = nn::FeedForwardKind::gated_silu, .width = width, .hidden = hidden, .constraint = constraint});
        std::vector<Parameter<double>*> parameters;  // up, gate, down
        layer.collect(parameters);
        const Recipe recipe = find_recipe("unit-fp32");
        ScalingState state;
        Tape<double> tape(recipe, state);
        nn::initialise(parameters, recipe, 1);
        tape.begin_step();
        const auto [inner, stream] = ops::residual_split(tape.input(normal<double>({rows, width}, {1, 1}), true), 0.5);
        const auto y = ops::residual_add(layer(ops::rms_norm(inner)), stream, 0.5);
        const auto loss = analysis::project(y, normal<double>({rows, width}, {2, 2}));
        const analysis::Audit audit = analysis::audit(tape, loss);
        INFO(analysis::to_text(audit));
        CHECK(audit.valid());  // the mirrored factors of up and gate, and of down, make up for each other
        tape.backward(loss);
        const bool mirrored = constraint == Constraint::none;
        for (std::size_t i = 0; i < 3; ++i) {
            double squares = 0.0;
            for (const double g : parameters[i]->gradient().span()) squares += g * g;
            const double rms = std::sqrt(squares / static_cast<double>(parameters[i]->size()));
            CHECK(rms == Approx(mirrored || i == 2 ? 1.0 : ratio).epsilon(0.1));
        }
    }
}

TEST_CASE("FeedForward: relu, which has no multiplier") {
    nn::FeedForward<float> layer("block0/ffn", {.kind = nn::FeedForwardKind::relu, .width = 4, .hidden = 6});
    std::vector<Parameter<float>*> parameters;
    layer.collect(parameters);
    REQUIRE(parameters.size() == 2);
    test::randomise(parameters, 1.0);
    test::OpTape<float> run(Scaling::unit);
    const auto x = run.input({3, 4});
    const auto want =
        ops::linear(ops::relu(ops::linear(x, run.tape.parameter(*parameters[0]))), run.tape.parameter(*parameters[1]));
    CHECK(test::elements(layer(x).value()) == test::elements(want.value()));
    CHECK_THROWS_WITH((nn::FeedForward<float>("block0/ffn", {.kind = nn::FeedForwardKind::relu, .mult = 2.0})),
                      "FeedForward block0/ffn: mult is 2; relu has none");

    // A recipe that sets the multiplier cannot hold for this layer.
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    recipe.hyperparameters.alpha_ffn_act = 2.0;
    ScalingState state;
    Tape<float> tape(recipe, state);
    tape.begin_step();
    CHECK_THROWS_WITH(layer(tape.input(normal<float>({3, 4}, {1, 1}))),
                      "FeedForward ffn: the recipe's alpha_ffn_act is 2; relu has none, expected 1");
}
