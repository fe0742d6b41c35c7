// SPDX-License-Identifier: MIT
// A model of one's own under two parametrisations and at two widths. Under u-µP the best learning rate of the narrow
// model serves the wide model; under the standard parametrisation it does not. docs/umup.md explains it.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/width_transfer.cpp && ./a.out

#include <unitscale/nn/embedding.hpp>
#include <unitscale/nn/feed_forward.hpp>
#include <unitscale/nn/norm.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/readout.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/trainer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

using namespace unitscale;

constexpr std::size_t tokens = 64;

/// Answers a question of two tokens by a third token: two tables, two residual feed-forward layers, readout.
struct Network {
    explicit Network(std::size_t width)
        : left("network/left", tokens, width),
          right("network/right", tokens, width),
          first("network/first", {.width = width, .hidden = 4 * width, .depth = 1}),
          second("network/second", {.width = width, .hidden = 4 * width, .depth = 1}),
          norm("network/norm", {.width = width}),
          readout("network/readout", {tokens, width},
                  {.role = ParameterRole::readout, .fan_in = width, .fan_out = tokens}) {}

    Variable<float> operator()(Tape<float>& tape, const Tensor<std::int32_t>& a, const Tensor<std::int32_t>& b) {
        const auto scope = tape.scope("network");
        Variable<float> x = ops::add(left(tape, a), right(tape, b));
        x = residual(x, 0, first);
        x = residual(x, 1, second);
        return ops::readout(norm(x), tape.parameter(readout));
    }

    Variable<float> residual(Variable<float> x, std::size_t index, nn::FeedForward<float>& branch) {
        const ResidualRule& rule = x.tape("Network").recipe().residual;
        std::optional<double> tau;  // none: x + f(x)
        if (rule.scheme != ResidualScheme::plain) tau = residual_tau(rule, index, 2);
        const auto [inner, stream] = ops::residual_split(x, tau);
        return ops::residual_add(branch(norm(inner)), stream, tau);
    }

    std::vector<Parameter<float>*> parameters() {
        std::vector<Parameter<float>*> all;
        left.collect(all);
        right.collect(all);
        first.collect(all);
        second.collect(all);
        all.push_back(&readout);
        return all;
    }

    nn::Embedding<float> left, right;
    nn::FeedForward<float> first, second;
    nn::Norm<float> norm;
    Parameter<float> readout;
};

/// The mean loss of the last 20 of 200 steps, each on 128 new questions.
double loss_of(const Recipe& recipe, std::size_t width, double learning_rate) {
    Network network(width);
    train::Trainer<float> trainer(
        network, recipe,
        {.schedule = {.kind = optim::ScheduleKind::cosine, .peak = learning_rate, .steps = 200, .warmup = 20}});
    Tensor<std::int32_t> a({128}), b({128}), answers({128});
    double sum = 0.0;
    for (std::uint64_t step = 1; step <= trainer.schedule().steps; ++step) {
        for (std::size_t i = 0; i < 128; ++i) {
            const auto words = random_block({.seed = 1, .stream = step}, i);
            a(i) = static_cast<std::int32_t>(words[0] % tokens);
            b(i) = static_cast<std::int32_t>(words[1] % tokens);
            answers(i) = (a(i) / 8 * (b(i) % 8) + a(i) % 8 + b(i) / 8) % static_cast<std::int32_t>(tokens);
        }
        const train::StepResult done = trainer.step([&](Tape<float>& tape, std::size_t) {
            return ops::softmax_cross_entropy(network(tape, a, b), answers);
        });
        if (step > 180) sum += done.loss / 20.0;
    }
    return sum;
}

int main() {
    for (const char* name : {"fp32", "umup-fp32"}) {
        const Recipe recipe = find_recipe(name);
        const int first =
            recipe.parametrisation == Parametrisation::umup ? -4 : -12;  // weights of size 1 need larger steps
        std::printf("%-9s", name);
        for (int i = first; i < first + 10; i += 2) std::printf("  2^%-3d", i);
        std::printf("  learning rate\n");
        for (const std::size_t width : {16u, 64u}) {
            std::printf("width %2zu ", width);
            for (int i = first; i < first + 10; i += 2) std::printf("  %.2f ", loss_of(recipe, width, std::exp2(i)));
            std::printf("  loss\n");
        }
    }
}
