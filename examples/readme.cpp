// SPDX-License-Identifier: MIT
// The README's example: a two-layer network in FP8 with unit scaling, one training step.

#include <unitscale/unitscale.hpp>

#include <cstdio>

int main() {
    using namespace unitscale;
    const Recipe recipe = find_recipe("unit-fp8");
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    nn::FeedForward<float> network("network", {.width = 64, .hidden = 256});
    std::vector<Parameter<float>*> parameters;
    network.collect(parameters);
    nn::initialise(parameters, recipe, 1);
    optim::Adam<float> optimiser(parameters, recipe);

    tape.begin_step();
    const auto x = tape.input(normal<float>({32, 64}, {1, 2}));
    const auto y = network(x);
    const Tensor<std::int32_t> labels = full<std::int32_t>({32}, 7);
    const auto loss = ops::softmax_cross_entropy(y, labels);
    tape.backward(loss);
    optimiser.step(tape.execution(), 0.01);
    std::printf("loss %.4f\n", loss.item());
}
