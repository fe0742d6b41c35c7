// SPDX-License-Identifier: MIT
#include <unitscale/nn/convolution.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/step_sizes.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/channel_norm.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/nn/sequential.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/pool.hpp>

#include <cstddef>
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
