// SPDX-License-Identifier: MIT
#include <unitscale/nn/convolution.hpp>

#include "support/causal_layer.hpp"
#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/peer_case.hpp"
#include "support/step_sizes.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/channel_norm.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/nn/sequential.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/pool.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <cmath>
#include <cstddef>
#include <map>
#include <numbers>
#include <string>
#include <vector>

using namespace unitscale;

TEST_CASE("Conv1d, Conv2d: are their ops of their own weight and bias") {
    nn::Conv2d<float> images("net/first", {.in = 4, .out = 6, .kernel = {3, 2}, .options = {.groups = 2}});
    nn::Conv1d<float> sequences("net/second",
                                {.in = 4, .out = 6, .kernel = 5, .bias = false, .options = {.causal = true}});
    CHECK(images.weight().shape() == Shape{6, 2, 3, 2});
    CHECK(images.weight().facts() == ParameterFacts{.role = ParameterRole::weight, .fan_in = 12, .fan_out = 18});
    CHECK(images.weight().name() == "net/first/weight");
    REQUIRE(images.bias() != nullptr);
    CHECK(images.bias()->shape() == Shape{6});
    CHECK(sequences.weight().shape() == Shape{6, 4, 5});
    CHECK(sequences.weight().facts().fan_in == 20);
    CHECK(sequences.bias() == nullptr);
    CHECK(nn::parameters_of<float>(images).size() == 2);
    CHECK(nn::parameters_of<float>(sequences).size() == 1);
    test::randomise(nn::parameters_of<float>(images), 1.0);
    test::randomise(nn::parameters_of<float>(sequences), 1.0);

    test::OpTape<float> run;
    const auto x = run.input({2, 4, 5, 6}), z = run.input({2, 4, 9});
    const auto of_images = images(x), of_sequences = sequences(z);
    CHECK(run.state.path(run.tape.node(1).site).starts_with("first/"));
    CHECK(test::elements(of_images.value()) ==
          test::elements(
              ops::conv2d(x, run.tape.parameter(images.weight()), run.tape.parameter(*images.bias()), {.groups = 2})
                  .value()));
    CHECK(test::elements(of_sequences.value()) ==
          test::elements(ops::conv1d(z, run.tape.parameter(sequences.weight()), {.causal = true}).value()));
    CHECK_THROWS_WITH((nn::Conv2d<float>("net", {.in = 4, .out = 6, .options = {.groups = 4}})),
                      "Conv2d net: groups is 4; expected a divisor of 4 input and 6 output channels");
}

TEST_CASE("convolutions: at initialisation under unit, all values and gradients have unit size") {
    nn::Sequential<float> network(
        "net", nn::Conv2d<float>("net/first", {.in = 3, .out = 16, .options = {.padding = {1, 1}}}),
        [](auto x) { return ops::gelu(x); }, [](auto x) { return ops::max_pool(x); },
        nn::Conv2d<float>("net/second", {.in = 16, .out = 32, .bias = false, .options = {.padding = {1, 1}}}),
        nn::BatchNorm<float>("net/norm", {.channels = 32}), [](auto x) { return ops::gelu(x); },
        [](auto x) { return ops::average_pool(x); },
        nn::Conv2d<float>("net/third", {.in = 32, .out = 32, .options = {.padding = {1, 1}, .groups = 4}}),
        nn::GroupNorm<float>("net/groups", {.channels = 32, .groups = 8}));
    test::check_unit_sizes(network, [&](Tape<float>& tape) {
        const auto y = network(tape.input(normal<float>({16, 3, 16, 16}, {1, 1}), true));
        return analysis::project(y, normal<float>(y.shape(), {1, 2}));
    });
}

TEST_CASE("Conv2d: a chain keeps the size of its gradients") {
    const std::size_t groups = GENERATE(std::size_t{1}, std::size_t{4});
    std::vector<nn::Conv2d<float>> chain;
    for (int i = 0; i < 6; ++i)
        chain.emplace_back("net/" + std::to_string(i),
                           nn::Conv2dConfig{.in = 32, .out = 32, .options = {.padding = {1, 1}, .groups = groups}});
    struct Chain {
        std::vector<nn::Conv2d<float>>& layers;
        void collect(std::vector<Parameter<float>*>& parameters) {
            for (auto& layer : layers) layer.collect(parameters);
        }
    } model{chain};
    test::check_unit_sizes(model, [&](Tape<float>& tape) {
        auto y = tape.input(normal<float>({8, 32, 16, 16}, {1, 1}), true);
        for (auto& layer : chain) y = layer(y);
        return analysis::project(y, normal<float>(y.shape(), {1, 2}));
    });
}

TEST_CASE("CausalConvolution: parameters and errors; the default is the published layer") {
    nn::CausalConvolution<float> layer("net", {.in = 32, .out = 48, .depth = 3});
    const auto parameters = nn::parameters_of<float>(layer);
    REQUIRE(parameters.size() == 2);
    CHECK(parameters[0]->name() == "net/weight");
    CHECK(parameters[0]->shape() == Shape{48, 2, 7});
    CHECK(parameters[0]->facts() ==
          ParameterFacts{.role = ParameterRole::weight, .fan_in = 14, .fan_out = 21, .depth = 3, .width = 32});
    CHECK(parameters[1]->shape() == Shape{48});
    CHECK(parameters[1]->facts() ==
          ParameterFacts{.role = ParameterRole::bias, .fan_in = 1, .fan_out = 48, .depth = 3, .width = 32});
    nn::CausalConvolution<float> bare("net", {.in = 16, .out = 16, .bias = false});
    CHECK(nn::parameters_of<float>(bare).size() == 1);

    test::OpTape<float> run;
    CHECK_THROWS_WITH(layer(run.input({2, 5, 16})), "CausalConvolution: x [2,5,16]; expected [B,T,32]");
    CHECK_THROWS_WITH((nn::CausalConvolution<float>("net", {.in = 24, .out = 32})),
                      "CausalConvolution net: groups is 16; expected a divisor of 24 input and 32 output channels");
}

TEST_CASE("CausalConvolution: values and gradients agree with another implementation, also under us-fp32") {
    const std::map<std::string, std::string> names = {{"net/weight", "weight"}, {"net/bias", "bias"}};
    const Recipe none = analysis::plain_recipe(Scaling::none), us = recipe_in<double>(find_recipe("us-fp32"));
    for (const bool unit : {false, true}) {
        test::PeerCase peer("context_layers", unit ? "convolution_unit" : "convolution_standard",
                            unit ? us : none);
        nn::CausalConvolution<double> layer(
            "net", {.in = 16, .out = 20, .kernel = 4, .groups = 4, .constraint = Constraint::gmean});
        peer.load(layer, names);
        const auto x = peer.input("x");
        peer.check(layer(x), {{"dx", x}});
    }
    // In a residual layer the recipe's plan joins the factors.
    test::PeerCase peer("context_layers", "residual", us);
    nn::CausalConvolution<double> layer("net", {.in = 16, .out = 16});
    peer.load(layer, names);
    const auto sum = [&](const Variable<double>& x) {
        return ops::add(x, layer(x), {.unit = ops::Factors<2>{}, .constraint = Constraint::none});
    };
    peer.tape().plan([&] { return analysis::project(sum(peer.input("x")), peer.read("dy")); });
    peer.tape().begin_step();
    const auto x = peer.input("x");
    peer.check(sum(x), {{"dx", x}});
}

TEST_CASE("CausalConvolution: finite differences, threads, propagate, half precision, causality") {
    test::check_causal_layer<nn::CausalConvolution>(
        nn::CausalConvolutionConfig{.in = 4, .out = 6, .kernel = 3, .groups = 2}, 4.0);
}

TEST_CASE("CausalConvolution: a position sees itself and kernel - 1 positions before it") {
    nn::CausalConvolution<double> layer("net", {.in = 16, .out = 16});
    test::randomise(nn::parameters_of<double>(layer), 0.5);
    const Recipe recipe = analysis::plain_recipe(Scaling::none);
    Tensor<double> x = normal<double>({1, 20, 16}, {1, 1});
    const Tensor<double> before = test::run_layer(layer, recipe, x).at("y");
    const std::size_t changed = 5;
    for (std::size_t i = 0; i < 16; ++i) x(0, changed, i) += 1.0;
    const Tensor<double> after = test::run_layer(layer, recipe, x).at("y");
    for (std::size_t t = 0; t < 20; ++t) {
        INFO(t);
        bool differs = false;
        for (std::size_t i = 0; i < 16; ++i) differs = differs || before(0, t, i) != after(0, t, i);
        CHECK(differs == (t >= changed && t <= changed + 6));
    }
}

TEST_CASE("CausalConvolution: the audit finds the factors valid under both rules") {
    test::check_audit<nn::CausalConvolution>(nn::CausalConvolutionConfig{.in = 4, .out = 4, .kernel = 3, .groups = 2});
}

TEST_CASE("CausalConvolution: values and gradients at initialisation have unit size but for the factor of relu") {
    nn::CausalConvolution<float> layer("net", {.in = 64, .out = 64, .constraint = Constraint::gmean});
    const auto parameters = nn::parameters_of<float>(layer);
    const Recipe recipe = find_recipe("us-fp32");
    nn::initialise(parameters, recipe, 1);
    const auto run = [&] {
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        tape.begin_step();
        const auto x = tape.input(normal<float>({16, 128, 64}, {1, 1}), true), y = layer(x);
        std::map<std::string, double> sizes{{"y", root_mean_square(y.value())}};
        tape.backward(analysis::project(y, normal<float>(y.shape(), {1, 2})));
        sizes["x"] = root_mean_square(x.gradient());
        for (const Parameter<float>* parameter : parameters)
            sizes[parameter->name()] = root_mean_square(parameter->gradient());
        return sizes;
    }();
    // The joined factor of relu is the geometric mean of (2 / (1 - 1/pi))^1/2 and 2^1/2. The rms of its value is this
    // factor times 2^-1/2, because its mean is not 0; so is the rms of its gradient, of which one half passes.
    const double expected = std::pow(1.0 - 1.0 / std::numbers::pi, -0.25);
    CHECK(run.size() == 4);
    for (const auto& [what, rms] : run) {
        INFO(what);
        CHECK(rms == Approx(expected).epsilon(what == "net/bias" ? 0.25 : 0.05));  // the bias has 64 elements
    }
}
