// SPDX-License-Identifier: MIT
#include <unitscale/report/write_report.hpp>
#include <unitscale/train/dataset.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/trainer.hpp>
#include <unitscale/unitscale.hpp>

#include <cstdio>

using namespace unitscale;

template <class T>
struct Network {
    nn::Sequential<T> layers{"network", nn::Linear<T>("network/first", {.in = 8, .out = 64, .bias = true}),
                             [](auto x) { return ops::gelu(x); }, nn::Linear<T>("network/last", {.in = 64, .out = 2})};

    Variable<T> operator()(Variable<T> x) { return layers(x); }
    void collect(std::vector<Parameter<T>*>& parameters) { layers.collect(parameters); }
};

/// The label says whether the first two columns have one sign.
train::Dataset<float, std::int32_t> make_examples() {
    Tensor<float> x = normal<float>({2000, 8}, {.seed = 1, .stream = 1});
    Tensor<std::int32_t> labels({2000});
    for (std::size_t i = 0; i < 2000; ++i) labels(i) = x(i, 0) * x(i, 1) > 0.0f;
    return train::Dataset<float, std::int32_t>(std::move(x), std::move(labels));
}

/// Trains to step 200 and returns the loss of the last step. It begins with a saved run, or saves one at step 100.
template <class T>
double fit(const Recipe& recipe, bool resume) {
    const auto examples = make_examples();
    Network<T> network;
    train::Trainer<T> trainer(network, recipe, {.schedule = {.peak = 0.0, .steps = 200, .warmup = 20}});
    if (resume) trainer.resume("run.safetensors");
    trainer.track({.every = 20});
    double loss = 0.0;
    while (trainer.steps() < 200) {
        const auto [x, labels] = examples.batch(trainer.steps(), 64, /*seed=*/1);
        // By name: Clang with OpenMP captures no structured binding by itself.
        const auto loss_of = [&, &x = x, &labels = labels](Tape<T>& tape, std::size_t) {
            return ops::softmax_cross_entropy(network(tape.input(cast<T>(x))), labels);
        };
        loss = trainer.step(loss_of).loss;
        if (trainer.steps() == 100 && !resume) trainer.save("run.safetensors");
    }
    report::write_report("scales.html", trainer, "a small network");
    return loss;
}

int main() {
    const Recipe recipe = find_recipe("unit-fp8");
    train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
        const double whole = fit<T>(recipe, false), resumed = fit<T>(recipe, true);
        std::printf("loss %.3f, and resumed %s\n", whole, resumed == whole ? "to the bit" : "otherwise");
    });
}
