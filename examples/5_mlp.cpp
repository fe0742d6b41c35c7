// SPDX-License-Identifier: MIT
// 5. A network trained in simulated FP8: layers, recipe, loss, trainer. It learns to multiply two numbers.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/5_mlp.cpp && ./a.out

#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/mse_loss.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/trainer.hpp>

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
    // The trainer gives the parameters their first values: all weights unit normal, whatever a layer's width.
    train::Trainer<float> trainer(
        network, recipe,
        {.schedule = {.kind = optim::ScheduleKind::cosine, .peak = 0.1, .steps = 400, .warmup = 20}});

    const auto loss_of = [&](Tape<float>& tape, Examples examples) {
        const auto y = network(tape.input(std::move(examples.x)));
        return ops::mse_loss(y, tape.input(std::move(examples.y)));
    };
    const auto report = [&] {
        const double loss = trainer.evaluate([&](auto& tape) { return loss_of(tape, make_examples(1000, 0)).item(); });
        std::printf("after %3d steps: loss %.3f\n", static_cast<int>(trainer.steps()), loss);
    };

    std::printf("mean squared error on unseen examples; answering 0 makes it 1\n");
    report();
    for (std::uint64_t step = 1; step <= trainer.schedule().steps; ++step) {
        trainer.step([&](auto& tape, std::size_t) { return loss_of(tape, make_examples(128, step)); });
        if (step % 100 == 0) report();
    }
}
