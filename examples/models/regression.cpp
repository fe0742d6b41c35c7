// SPDX-License-Identifier: MIT
// A regression, trained under five recipes. The weights of the last run are saved and loaded into a new model, which
// gives the same answers to the bit. numpy alone reads them, too: docs/own_model.md. No line of the model speaks of
// precision.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/models/regression.cpp && ./a.out

#include <unitscale/io/npy.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/sequential.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/mse_loss.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/dataset.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/trainer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <utility>

using namespace unitscale;

/// x [1200,3] and y [1200,1] = sin(2 x_0) + x_1 x_2 / 2 + noise with a standard deviation of 0.5.
train::Dataset<float, float> make_examples() {
    Tensor<float> x = normal<float>({1200, 3}, {.seed = 1, .stream = 1}),
                  y = normal<float>({1200, 1}, {.seed = 1, .stream = 2}, /*stddev=*/0.5);
    for (std::size_t i = 0; i < 1200; ++i) y(i, 0) += std::sin(2.0f * x(i, 0)) + 0.5f * x(i, 1) * x(i, 2);
    return train::Dataset<float, float>(std::move(x), std::move(y));
}

template <class T>
struct Regression {
    nn::Sequential<T> layers{"regression",
                             nn::Linear<T>("regression/first", {.in = 3, .out = 64, .bias = true}),
                             [](auto x) { return ops::gelu(x); },
                             nn::Linear<T>("regression/second", {.in = 64, .out = 64, .bias = true}),
                             [](auto x) { return ops::gelu(x); },
                             nn::Linear<T>("regression/last", {.in = 64, .out = 1, .bias = true})};

    Variable<T> operator()(Variable<T> x) { return layers(x); }
    void collect(std::vector<Parameter<T>*>& parameters) { layers.collect(parameters); }
};

/// The model's answers to x, as plain numbers.
template <class T>
Tensor<float> answers(Regression<T>& model, Tape<T>& tape, const Tensor<float>& x) {
    tape.begin_step({.training = false, .gradients = false});
    return cast<float>(model(tape.input(cast<T>(x))).value());
}

/// Trains on 400 batches of 50 examples. The mean squared error on the last 200 examples.
template <class T>
double error_with(const Recipe& recipe, std::uint64_t seed) {
    const auto [training, unseen] = make_examples().split(1000);
    Regression<T> model;
    train::Trainer<T> trainer(
        model, recipe,
        {.seed = seed,
         .schedule = {.kind = optim::ScheduleKind::cosine, .peak = 0.0, .steps = 400, .warmup = 40},
         .initial = {.standard = nn::InitialScale::lecun}});
    const auto loss_of = [&](Tape<T>& tape, const Tensor<float>& x, const Tensor<float>& y) {
        return ops::mse_loss(model(tape.input(cast<T>(x))), tape.input(cast<T>(y)));
    };
    for (std::uint64_t step = 0; step < trainer.schedule().steps; ++step) {
        const auto [x, y] = training.batch(step, 50, seed);
        trainer.step([&, &x = x, &y = y](Tape<T>& tape, std::size_t) { return loss_of(tape, x, y); });
    }
    const auto [x, y] = unseen.slice(0, unseen.size());

    // The weights as plain numbers under the parameters' names, and back into a model of the same type.
    train::save_weights("regression.safetensors", trainer.parameters());
    Regression<T> loaded;
    train::load_weights("regression.safetensors", nn::parameters_of<T>(loaded), recipe.scaling != Scaling::propagate);
    const Tensor<float> before = answers(model, trainer.tape(), x), after = answers(loaded, trainer.tape(), x);
    check(std::equal(before.data(), before.data() + before.size(), after.data()), "the loaded model answers otherwise");
    io::save_npy("regression_x.npy", x);
    io::save_npy("regression_answers.npy", after);
    return trainer.evaluate([&, &x = x, &y = y](Tape<T>& tape) { return loss_of(tape, x, y).item(); });
}

int main() {
    std::printf("mean squared error on unseen examples, the median of 3 seeds; the noise has 0.25\n");
    for (const char* name : {"unit-fp8", "unit-fp32", "scalify-fp8-4", "fp8-amax", "fp32"}) {
        const Recipe recipe = find_recipe(name);
        std::array<double, 3> errors{};
        for (std::size_t i = 0; i < errors.size(); ++i)
            errors[i] = train::with_element(
                recipe, [&]<class T>(std::type_identity<T>) { return error_with<T>(recipe, 1 + i); });
        std::sort(errors.begin(), errors.end());
        std::printf("%-14s %.3f\n", name, errors[1]);
    }
    std::printf("regression.safetensors has the weights of the last run, regression_answers.npy its answers\n");
}
