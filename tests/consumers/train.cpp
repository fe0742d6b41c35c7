// SPDX-License-Identifier: MIT
// Three training steps of a small network in FP8.
// The losses are printed to the bit, for a comparison of the compiled library with the headers alone.
#include <unitscale/unitscale.hpp>

#include <cstdio>

int main() {
    using namespace unitscale;
    const Recipe recipe = find_recipe("unit-fp8");
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    nn::FeedForward<float> network("network", {.width = 32, .hidden = 80});
    std::vector<Parameter<float>*> parameters;
    network.collect(parameters);
    nn::initialise(parameters, recipe, 1);
    optim::Adam<float> optimiser(parameters, recipe);
    const Tensor<std::int32_t> labels = full<std::int32_t>({16}, 7);
    std::printf("loss");
    for (int step = 0; step < 3; ++step) {
        tape.begin_step();
        const auto x = tape.input(normal<float>({16, 32}, {1, 2}));
        const auto loss = ops::softmax_cross_entropy(ops::gelu(network(x)), labels);
        tape.backward(loss);
        optimiser.step(tape.execution(), 0.01);
        std::printf(" %a", static_cast<double>(loss.item()));
    }
    std::printf("\n");
}
