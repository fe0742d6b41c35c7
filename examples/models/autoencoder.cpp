// SPDX-License-Identifier: MIT
// A denoising autoencoder: it sees noisy curves, presses them through 8 numbers, and draws them without noise. It is
// trained under five recipes. No line of the model speaks of precision.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/models/autoencoder.cpp && ./a.out

#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/sequential.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/mse_loss.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/trainer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>

using namespace unitscale;

constexpr std::size_t points = 64;

struct Curves {
    Tensor<float> noisy, clean;  // [count,points]
};

/// Sums of two waves of random height and phase, of variance 1. The noise has variance 2, and 4 numbers lie behind 64
/// points, so the best model has an error of 1/9. The same number gives the same curves.
Curves make_curves(std::size_t count, std::uint64_t number) {
    Curves curves{.noisy = normal<float>({count, points}, {.seed = 1, .stream = number}, /*stddev=*/1.4142),
                  .clean = Tensor<float>({count, points})};
    const Tensor<float> heights = normal<float>({count, 4}, {.seed = 2, .stream = number});
    for (std::size_t n = 0; n < count; ++n)
        for (std::size_t i = 0; i < points; ++i) {
            const float angle = 6.2831853f * static_cast<float>(i) / static_cast<float>(points);
            curves.clean(n, i) =
                0.70711f * (heights(n, 0) * std::sin(angle) + heights(n, 1) * std::cos(angle) +
                            heights(n, 2) * std::sin(3.0f * angle) + heights(n, 3) * std::cos(3.0f * angle));
            curves.noisy(n, i) += curves.clean(n, i);
        }
    return curves;
}

template <class T>
struct Autoencoder {
    nn::Sequential<T> layers{"autoencoder",
                             nn::Linear<T>("autoencoder/wide", {.in = points, .out = 128, .bias = true}),
                             [](auto x) { return ops::gelu(x); },
                             nn::Linear<T>("autoencoder/code", {.in = 128, .out = 8, .bias = true}),
                             nn::Linear<T>("autoencoder/again", {.in = 8, .out = 128, .bias = true}),
                             [](auto x) { return ops::gelu(x); },
                             nn::Linear<T>("autoencoder/drawn", {.in = 128, .out = points, .bias = true})};

    Variable<T> operator()(Variable<T> x) { return layers(x); }
    void collect(std::vector<Parameter<T>*>& parameters) { layers.collect(parameters); }
};

/// Trains on 800 batches of 64 curves. The mean squared error on 512 unseen ones.
template <class T>
double error_with(const Recipe& recipe, std::uint64_t seed) {
    Autoencoder<T> model;
    train::Trainer<T> trainer(
        model, recipe,
        {.seed = seed,
         .schedule = {.kind = optim::ScheduleKind::cosine, .peak = 0.0, .steps = 800, .warmup = 80},
         .initial = {.standard = nn::InitialScale::lecun}});
    const auto loss_of = [&](Tape<T>& tape, const Curves& curves) {
        return ops::mse_loss(model(tape.input(cast<T>(curves.noisy))), tape.input(cast<T>(curves.clean)));
    };
    for (std::uint64_t step = 1; step <= trainer.schedule().steps; ++step)
        trainer.step([&](Tape<T>& tape, std::size_t) { return loss_of(tape, make_curves(64, 1000 * seed + step)); });
    return trainer.evaluate([&](Tape<T>& tape) { return loss_of(tape, make_curves(512, 0)).item(); });
}

int main() {
    std::printf(
        "mean squared error on unseen curves, the median of 3 seeds; the best model has 0.111, the noisy curves 2\n");
    for (const char* name : {"fp32", "unit-fp32", "unit-fp8", "fp8-amax", "scalify-fp8-4"}) {
        const Recipe recipe = find_recipe(name);
        std::array<double, 3> errors{};
        for (std::size_t i = 0; i < errors.size(); ++i)
            errors[i] = train::with_element(
                recipe, [&]<class T>(std::type_identity<T>) { return error_with<T>(recipe, 1 + i); });
        std::sort(errors.begin(), errors.end());
        std::printf("%-14s %.4f\n", name, errors[1]);
    }
}
