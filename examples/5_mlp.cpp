// SPDX-License-Identifier: MIT
// 5. A network trained in simulated FP8 by a loop written by hand: layers, recipe, tape, loss, optimiser. From examples
// it learns to multiply two numbers.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/5_mlp.cpp && ./a.out

#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/mse_loss.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

using namespace unitscale;

/// 2 -> 64 -> 64 -> 1. The model says nothing of precision or scale: that is the recipe's, which the tape holds.
struct Network {
    nn::Linear<float> first{"network/first", {.in = 2, .out = 64, .bias = true}};
    nn::Linear<float> middle{"network/middle", {.in = 64, .out = 64, .bias = true}};
    nn::Linear<float> last{"network/last", {.in = 64, .out = 1}};

    Variable<float> operator()(Variable<float> x) {
        const auto scope = x.tape("Network").scope("network");  // recipes and error messages name layers by their path
        return last(ops::gelu(middle(ops::gelu(first(x)))));
    }

    std::vector<Parameter<float>*> parameters() {
        std::vector<Parameter<float>*> all;
        for (auto* layer : {&first, &middle, &last}) layer->collect(all);
        return all;
    }
};

struct Examples {
    Tensor<float> x, y;
};

/// Pairs of unit-normal numbers and their products, which have unit variance too. The same number gives the same
/// examples.
Examples make_examples(std::size_t count, std::uint64_t number) {
    Examples examples{.x = normal<float>({count, 2}, {.seed = 1, .stream = number}), .y = Tensor<float>({count, 1})};
    for (std::size_t i = 0; i < count; ++i) examples.y(i, 0) = examples.x(i, 0) * examples.x(i, 1);
    return examples;
}

int main() {
    // Unit Scaling; operands of the linear layers' products are rounded to E4M3, gradients to E5M2; sums in float.
    const Recipe recipe = find_recipe("unit-fp8");
    Network network;
    nn::initialise(network.parameters(), recipe,
                   /*seed=*/1);  // all weights unit normal: nothing depends on a layer's width
    optim::Adam<float> optimiser(network.parameters());
    const optim::Schedule schedule{.kind = optim::ScheduleKind::cosine, .peak = 0.1, .steps = 400, .warmup = 20};

    ScalingState state(/*seed=*/1);
    Tape<float> tape(recipe, state);
    const auto report = [&](std::uint64_t step) {
        Examples unseen = make_examples(1000, 0);
        tape.begin_step({.training = false, .gradients = false});
        const auto y = network(tape.input(std::move(unseen.x)));
        std::printf("after %3d steps: loss %.3f\n", static_cast<int>(step),
                    ops::mse_loss(y, tape.input(std::move(unseen.y))).item());
    };

    std::printf("mean squared error on unseen examples; answering 0 makes it 1\n");
    report(0);
    for (std::uint64_t step = 1; step <= schedule.steps; ++step) {
        Examples batch = make_examples(128, step);
        tape.begin_step();  // forgets the last step; its memory is used again
        optimiser.clear_gradients();
        const auto y = network(tape.input(std::move(batch.x)));
        const auto loss = ops::mse_loss(y, tape.input(std::move(batch.y)));
        tape.backward(loss);
        optimiser.step(tape.execution(), schedule.at(step));
        if (step % 100 == 0) report(step);
    }
}
