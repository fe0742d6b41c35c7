// SPDX-License-Identifier: MIT
// 6. Recipes compared: one classifier of points on two spirals, trained with each of them, down to FP4.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/6_classifier.cpp && ./a.out

#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/trainer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <utility>
#include <vector>

using namespace unitscale;

struct Points {
    Tensor<float> x;              // [count,2]
    Tensor<std::int32_t> labels;  // [count]
};

/// Noisy points on two spirals of two turns each. The same number gives the same points.
Points make_points(std::size_t count, std::uint64_t number) {
    Points points{.x = normal<float>({count, 2}, {.seed = 1, .stream = number}, /*stddev=*/0.04),
                  .labels = Tensor<std::int32_t>({count})};
    for (std::size_t i = 0; i < count; ++i) {
        const auto label = static_cast<std::int32_t>(i % 2);
        const double along = std::sqrt(static_cast<double>(uniform(random_word({.seed = 2, .stream = number}, i))));
        const double angle = (4.0 * along + label) * std::numbers::pi;
        points.x(i, 0) += static_cast<float>(2.0 * along * std::cos(angle));
        points.x(i, 1) += static_cast<float>(2.0 * along * std::sin(angle));
        points.labels(i) = label;
    }
    return points;
}

struct Classifier {
    nn::Linear<float> first{"classifier/first", {.in = 2, .out = 64, .bias = true}};
    nn::Linear<float> middle{"classifier/middle", {.in = 64, .out = 64, .bias = true}};
    nn::Linear<float> last{"classifier/last", {.in = 64, .out = 2, .bias = true}};

    Variable<float> operator()(Variable<float> x) {
        const auto scope = x.tape("Classifier").scope("classifier");
        return last(ops::gelu(middle(ops::gelu(first(x)))));
    }
    void collect(std::vector<Parameter<float>*>& parameters) {
        for (auto* layer : {&first, &middle, &last}) layer->collect(parameters);
    }
};

/// Trains on 600 batches of 128 points; the share of 2000 unseen points that are classified rightly.
double accuracy_with(const Recipe& recipe) {
    Classifier classifier;
    // Weights of size 1 need larger steps than weights of size 0.02.
    const double peak = recipe.scaling == Scaling::unit ? 0.1 : 0.03;
    train::Trainer<float> trainer(
        classifier, recipe,
        {.schedule = {.kind = optim::ScheduleKind::cosine, .peak = peak, .steps = 600, .warmup = 30}});
    for (std::uint64_t step = 1; step <= trainer.schedule().steps; ++step)
        trainer.step([&](Tape<float>& tape, std::size_t) {
            Points batch = make_points(128, step);
            return ops::softmax_cross_entropy(classifier(tape.input(std::move(batch.x))), batch.labels);
        });
    return trainer.evaluate([&](Tape<float>& tape) {
        Points unseen = make_points(2000, 0);
        const auto y = classifier(tape.input(std::move(unseen.x)));
        const Tensor<float>& logits = y.value();
        int right = 0;
        for (std::size_t i = 0; i < 2000; ++i)
            right += (logits(i, 1) > logits(i, 0)) == (unseen.labels(i) == 1) ? 1 : 0;
        return right / 2000.0;
    });
}

int main() {
    const auto row = [](const char* name, const Recipe& recipe) {
        std::printf("%-44s %3.0f %%\n", name, 100.0 * accuracy_with(recipe));
    };
    const Recipe standard = find_recipe("fp32"), unit_fp8 = find_recipe("unit-fp8");
    row("standard model, fp32", standard);
    row("unit scaling, fp32", find_recipe("unit-fp32"));
    row("unit scaling, fp8", unit_fp8);

    // FP4 holds 0, 0.5, 1, 1.5, 2, 3, 4 and 6. The standard model's weights all become 0. Unit-scaled weights fit, but
    // the coordinates do not: one more rule keeps the first layer in fp32. The last rule that matches a layer holds.
    const Quantiser fp4{.format = e2m1}, fp8_gradient{.format = e5m2};
    const ProductFormats fp4_formats{.activation = fp4, .weight = fp4, .gradient = fp8_gradient};
    Recipe standard_fp4 = standard, unit_fp4 = unit_fp8;
    standard_fp4.products = unit_fp4.products = {{.kind = ProductKind::linear, .formats = fp4_formats}};
    row("standard model, fp4", standard_fp4);
    row("unit scaling, fp4", unit_fp4);
    unit_fp4.products.push_back({.kind = ProductKind::linear, .pattern = "classifier/first", .formats = {}});
    row("unit scaling, fp4 but for the first layer", unit_fp4);
}
