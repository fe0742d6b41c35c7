// SPDX-License-Identifier: MIT
#include <unitscale/nn/convolution.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/channel_norm.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/nn/sequential.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/pool.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

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
    const auto parameters = nn::parameters_of<float>(network);
    const Recipe recipe = find_recipe("unit-fp32");
    nn::initialise(parameters, recipe, 1);
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    const auto run = [&] {
        const auto y = network(tape.input(normal<float>({16, 3, 16, 16}, {1, 1}), true));
        return analysis::project(y, normal<float>(y.shape(), {1, 2}));
    };
    tape.plan(run);
    tape.begin_step({.retain = true});
    tape.backward(run());
    const auto rms = [](const Tensor<float>& x) {
        double sum = 0.0;
        for (const float v : x.span()) sum += static_cast<double>(v) * v;
        return std::sqrt(sum / static_cast<double>(x.size())) * x.scale();
    };
    for (std::size_t i = 0; i < tape.node_count(); ++i)
        for (const std::uint32_t output : tape.node(i).outputs) {
            const Slot<float>& slot = tape.slot(output);
            if (!slot.has_gradient || element_count(slot.shape) == 1) continue;
            INFO(state.path(tape.node(i).site) << ", " << i);
            if (rms(*slot.value) == 0.0) continue;  // biases and shifts are 0 at first
            CHECK(rms(*slot.value) > 0.25);
            CHECK(rms(*slot.value) < 4.0);
            CHECK(rms(slot.gradient) > 0.25);
            CHECK(rms(slot.gradient) < 4.0);
        }
    for (const Parameter<float>* parameter : parameters) {
        if (!parameter->requires_gradient()) continue;
        INFO(parameter->name());
        CHECK(rms(parameter->gradient()) > 0.25);
        CHECK(rms(parameter->gradient()) < 4.0);
    }
}
