// SPDX-License-Identifier: MIT
// A convolutional network that tells four patterns apart in noisy images, trained under five recipes. No line of the
// model speaks of scale or precision. docs/own_model.md walks through this program.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/models/image_classifier.cpp && ./a.out

#include <unitscale/nn/channel_norm.hpp>
#include <unitscale/nn/convolution.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/sequential.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/pool.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/trainer.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <vector>

using namespace unitscale;

struct Images {
    Tensor<float> x;              // [count,1,12,12]
    Tensor<std::int32_t> labels;  // [count]
};

/// Stripes across, stripes down, diagonal stripes or squares, shifted at random, under twice as much noise as signal.
/// The same number gives the same images.
Images make_images(std::size_t count, std::uint64_t number) {
    Images images{.x = normal<float>({count, 1, 12, 12}, {.seed = 1, .stream = number}, /*stddev=*/1.6),
                  .labels = Tensor<std::int32_t>({count})};
    for (std::size_t n = 0; n < count; ++n) {
        const auto words = random_block({.seed = 2, .stream = number}, n);
        const std::size_t kind = words[0] % 4, shift = words[1] % 4;
        for (std::size_t i = 0; i < 12; ++i)
            for (std::size_t j = 0; j < 12; ++j) {
                const std::array<std::size_t, 4> phase = {i, j, i + j, i / 2 * 2 + j / 2 * 2};
                images.x(n, 0, i, j) += (phase[kind] + shift) % 4 < 2 ? 0.7f : -0.7f;
            }
        images.labels(n) = static_cast<std::int32_t>(kind);
    }
    return images;
}

template <class T>
struct Classifier {
    nn::Sequential<T> features{
        "classifier/features",
        nn::Conv2d<T>("classifier/features/first", {.in = 1, .out = 16, .options = {.padding = {1, 1}}}),
        nn::BatchNorm<T>("classifier/features/norm", {.channels = 16}),
        [](auto x) { return ops::gelu(x); },
        [](auto x) { return ops::average_pool(x); },
        nn::Conv2d<T>("classifier/features/second", {.in = 16, .out = 32, .options = {.padding = {1, 1}}}),
        [](auto x) { return ops::gelu(x); },
        [](auto x) { return ops::max_pool(x); }};
    nn::Linear<T> last{"classifier/last", {.in = 32 * 3 * 3, .out = 4}};

    Variable<T> operator()(Variable<T> x) {
        const auto scope = x.tape("Classifier").scope("classifier");
        const Variable<T> y = features(x);  // [B,32,3,3]
        return last(ops::reshape(y, {y.shape()[0], 32 * 3 * 3}));
    }
    void collect(std::vector<Parameter<T>*>& parameters) {
        features.collect(parameters);
        last.collect(parameters);
    }
};

/// Trains on 100 batches of 32 images. The loss on 512 unseen images.
template <class T>
double loss_with(const Recipe& recipe, std::uint64_t seed) {
    Classifier<T> model;
    train::Trainer<T> trainer(
        model, recipe,
        {.seed = seed,
         .schedule = {.kind = optim::ScheduleKind::cosine, .peak = 0.0, .steps = 100, .warmup = 10},
         .initial = {.standard = nn::InitialScale::lecun}});
    const auto loss_of = [&](Tape<T>& tape, const Images& images) {
        return ops::softmax_cross_entropy(model(tape.input(cast<T>(images.x))), images.labels);
    };
    for (std::uint64_t step = 1; step <= trainer.schedule().steps; ++step)
        trainer.step([&](Tape<T>& tape, std::size_t) { return loss_of(tape, make_images(32, 1000 * seed + step)); });
    return trainer.evaluate([&](Tape<T>& tape) { return loss_of(tape, make_images(512, 0)).item(); });
}

int main() {
    std::printf("loss on unseen images, the median of 3 seeds; guessing makes it 1.386\n");
    for (const char* name : {"fp32", "unit-fp32", "unit-fp8", "fp8-amax", "scalify-fp8-4"}) {
        const Recipe recipe = find_recipe(name);
        std::array<double, 3> losses{};
        for (std::size_t i = 0; i < losses.size(); ++i)
            losses[i] = train::with_element(
                recipe, [&]<class T>(std::type_identity<T>) { return loss_with<T>(recipe, 1 + i); });
        std::sort(losses.begin(), losses.end());
        std::printf("%-14s %.3f\n", name, losses[1]);
    }
}
