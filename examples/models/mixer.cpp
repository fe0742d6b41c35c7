// SPDX-License-Identifier: MIT
// A model of one's own in MXFP8: a mixer, which mixes the patches of an image and their columns in turn. It tells four
// noisy patterns apart, under MXFP8 and five other recipes. No line of the model speaks of precision.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/models/mixer.cpp && ./a.out

#include <unitscale/nn/feed_forward.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/residual_layer.hpp>
#include <unitscale/nn/sequential.hpp>
#include <unitscale/ops/mean.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/ops/transpose.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/trainer.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

constexpr std::size_t patches = 16, pixels = 9, channels = 64;

using Images = std::pair<Tensor<float>, Tensor<std::int32_t>>;  // [count,patches,pixels] and labels [count]

/// Noisy stripes across, down or diagonal, or squares, shifted at random. The same number gives the same images.
Images make_images(std::size_t count, std::uint64_t number) {
    Images images{normal<float>({count, patches, pixels}, {.seed = 1, .stream = number}, /*stddev=*/1.6),
                  Tensor<std::int32_t>({count})};
    auto& [x, labels] = images;
    for (std::size_t n = 0; n < count; ++n) {
        const auto words = random_block({.seed = 2, .stream = number}, n);
        const std::size_t kind = words[0] % 4, shift = words[1] % 4;
        for (std::size_t p = 0; p < patches; ++p)
            for (std::size_t q = 0; q < pixels; ++q) {
                const std::size_t i = p / 4 * 3 + q / 3, j = p % 4 * 3 + q % 3;
                const std::array<std::size_t, 4> phase = {i, j, i + j, i / 2 * 2 + j / 2 * 2};
                x(n, p, q) += (phase[kind] + shift) % 4 < 2 ? 0.7f : -0.7f;
            }
        labels(n) = static_cast<std::int32_t>(kind);
    }
    return images;
}

/// Two residual layers: the patches of each column, then the columns of each patch. x, y [count,patches,channels].
template <class T>
struct MixerBlock {
    explicit MixerBlock(std::size_t index)
        : name("block" + std::to_string(index)),
          patch_layer("mixer/" + name + "/patch_norm", config(2 * index)),
          column_layer("mixer/" + name + "/column_norm", config(2 * index + 1)),
          patch_network("mixer/" + name + "/patches", {.width = patches, .hidden = 64}),
          column_network("mixer/" + name + "/columns", {.width = channels, .hidden = 128}) {}
    static nn::ResidualLayerConfig config(std::size_t number) {
        return {.norm = {.width = channels, .gains = true}, .index = number, .count = 4, .blocks = 2};
    }

    Variable<T> operator()(Variable<T> x) {
        const auto scope = x.tape("MixerBlock").scope(name);
        x = patch_layer(x, [this](Variable<T> inner) {
            return ops::transpose(patch_network(ops::transpose(inner, {0, 2, 1})), {0, 2, 1});
        });
        return column_layer(x, column_network);
    }
    void collect(std::vector<Parameter<T>*>& parameters) {
        for (auto* layer : {&patch_layer, &column_layer}) layer->collect(parameters);
        for (auto* network : {&patch_network, &column_network}) network->collect(parameters);
    }

    std::string name;
    nn::ResidualLayer<T> patch_layer, column_layer;
    nn::FeedForward<T> patch_network, column_network;
};

template <class T>
nn::Sequential<T> make_mixer() {
    return nn::Sequential<T>(
        "mixer", nn::Linear<T>("mixer/first", {.in = pixels, .out = channels}), MixerBlock<T>(0), MixerBlock<T>(1),
        nn::Norm<T>("mixer/norm", {.width = channels, .gains = true}),
        [](auto x) { return ops::mean(x, {.axes = {1}}); }, nn::Linear<T>("mixer/last", {.in = channels, .out = 4}));
}

/// Trains on 150 batches of 32 images. The loss on 512 unseen images.
template <class T>
double loss_with(const Recipe& recipe, std::uint64_t seed) {
    nn::Sequential<T> model = make_mixer<T>();
    train::Trainer<T> trainer(
        model, recipe,
        {.seed = seed,
         .schedule = {.kind = optim::ScheduleKind::cosine, .peak = 0.0, .steps = 150, .warmup = 15},
         .initial = {.standard = nn::InitialScale::lecun}});
    const auto loss_of = [&](Tape<T>& tape, const Images& images) {
        return ops::softmax_cross_entropy(model(tape.input(cast<T>(images.first))), images.second);
    };
    for (std::uint64_t step = 1; step <= trainer.schedule().steps; ++step)
        trainer.step([&](Tape<T>& tape, std::size_t) { return loss_of(tape, make_images(32, 1000 * seed + step)); });
    return trainer.evaluate([&](Tape<T>& tape) { return loss_of(tape, make_images(512, 0)).item(); });
}

int main() {
    std::printf("loss on unseen images, the median of 3 seeds; guessing has 1.39\n");
    for (const char* name : {"fp32", "mxfp8", "unit-fp32", "unit-fp8", "fp8-amax", "scalify-fp8-4"}) {
        const Recipe recipe = find_recipe(name);
        std::array<double, 3> losses{};
        for (std::size_t i = 0; i < losses.size(); ++i)
            losses[i] = train::with_element(
                recipe, [&]<class T>(std::type_identity<T>) { return loss_with<T>(recipe, 1 + i); });
        std::sort(losses.begin(), losses.end());
        std::printf("%-14s %.3f\n", name, losses[1]);
    }
}
