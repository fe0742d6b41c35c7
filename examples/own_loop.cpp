// SPDX-License-Identifier: MIT
// A complete training loop. It takes everything from a recipe: element type, formats, loss scale, clipping, learning
// rates, storage. docs/for_pytorch_users.md explains the numbered lines.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/own_loop.cpp && ./a.out

#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/norm.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/quantise_gradients.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/view.hpp>
#include <unitscale/train/element.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <vector>

using namespace unitscale;

struct Examples {
    Tensor<float> x;              // [count,16]
    Tensor<std::int32_t> labels;  // [count]: which of the first four columns is the largest
};

Examples make_examples(std::size_t count) {
    Examples all{.x = normal<float>({count, 16}, {.seed = 1, .stream = 1}), .labels = Tensor<std::int32_t>({count})};
    for (std::size_t i = 0; i < count; ++i) {
        const float* row = all.x.data() + 16 * i;
        all.labels(i) = static_cast<std::int32_t>(std::max_element(row, row + 4) - row);
    }
    return all;
}

template <class T>
class Classifier {
public:
    [[nodiscard]] Variable<T> operator()(Variable<T> x) {  // x [B,16], logits [B,4]
        const auto scope = x.tape("Classifier").scope("classifier");
        return last_(norm_(ops::gelu(first_(x))));
    }
    void collect(std::vector<Parameter<T>*>& parameters) {
        first_.collect(parameters);
        norm_.collect(parameters);
        last_.collect(parameters);
    }

private:
    nn::Linear<T> first_{"classifier/first", {.in = 16, .out = 64, .bias = true}};
    nn::Norm<T> norm_{"classifier/norm", {.kind = nn::NormKind::layer, .width = 64, .gains = true}};
    nn::Linear<T> last_{"classifier/last", {.in = 64, .out = 4, .bias = true}};
};

/// `count` rows in the order of `rows`, from number `first` on.
Examples batch_of(const Examples& all, const Tensor<std::int32_t>& rows, std::size_t first, std::size_t count) {
    Examples batch{.x = Tensor<float>({count, 16}), .labels = Tensor<std::int32_t>({count})};
    for (std::size_t i = 0; i < count; ++i) {
        const auto row = rows(first + i);
        assign(view(batch.x).select(0, static_cast<std::ptrdiff_t>(i)), view(all.x).select(0, row));
        batch.labels(i) = all.labels(static_cast<std::size_t>(row));
    }
    return batch;
}

/// Trains on 12 passes over the examples. Returns the loss of the last pass.
template <class T>
double fit(const Recipe& recipe, const Examples& all) {
    Classifier<T> model;
    std::vector<Parameter<T>*> parameters;
    model.collect(parameters);
    nn::initialise(parameters, recipe, /*seed=*/1);  // 2

    const std::size_t batch_size = 64, batches = all.labels.size() / batch_size, passes = 12;
    const optim::Schedule schedule{.kind = optim::ScheduleKind::cosine,
                                   .peak = recipe.learning_rate,
                                   .steps = passes * batches,
                                   .warmup = batches};
    optim::Adam<T> optimiser(parameters, recipe,
                             {.weight_decay = 1e-4, .peak_learning_rate = schedule.peak});  // 3, 4
    optim::LossScaler scaler(recipe.loss_scaling);                                          // 5
    ScalingState state(/*seed=*/1);
    Tape<T> tape(recipe, state, /*threads=*/1);  // 1

    const auto loss_of = [&](const Examples& batch) {
        return ops::softmax_cross_entropy(model(tape.input(cast<T>(batch.x))), batch.labels);
    };
    const auto in_order = arange<std::int32_t>(all.labels.size());
    const Examples some = batch_of(all, in_order, 0, batch_size);
    tape.plan([&] { return loss_of(some); });  // 6

    double sum = 0.0;
    for (std::uint64_t step = 1; step <= schedule.steps; ++step) {
        const std::size_t pass = (step - 1) / batches, number = (step - 1) % batches;
        const auto order = permutation<std::int32_t>(all.labels.size(), {.seed = 1, .stream = 100 + pass});
        const Examples batch = batch_of(all, order, number * batch_size, batch_size);

        tape.begin_step();
        optimiser.clear_gradients();
        const Variable<T> loss = loss_of(batch);
        tape.backward(loss, static_cast<Accum<T>>(scaler.scale()));
        const double value = loss.item();
        check(std::isfinite(value), "fit: the loss is ", value, " at step ", step);

        optim::quantise_weight_gradients<T>(tape.execution(), parameters, recipe.storage,
                                            {state.seed(), state.step()});  // 7
        scaler.template unscale<T>(parameters);
        scaler.template measure<T>(tape.execution(), parameters);
        double norm = optim::gradient_norm<T>(tape.execution(), parameters);
        if (scaler.update(std::isfinite(norm))) {  // 8
            if (recipe.clip_norm > 0.0)
                norm = optim::clip_gradients<T>(tape.execution(), parameters, recipe.clip_norm);  // 9
            check(std::isfinite(norm), "fit: the gradient norm is ", norm, " at step ", step);
            optimiser.step(tape.execution(), schedule.at(step));
        }
        if (pass + 1 == passes) sum += value;
    }
    return sum / static_cast<double>(batches);
}

int main() {
    const Examples all = make_examples(1024);
    std::printf("cross-entropy of the last pass; guessing makes it 1.39\n");
    for (const char* name : {"fp32", "fp16-auto-loss-scaled", "bf16", "unit-fp8", "fp8-amax", "scalify-fp8-4"}) {
        const Recipe recipe = find_recipe(name);
        const double loss =
            train::with_element(recipe, [&]<class T>(std::type_identity<T>) { return fit<T>(recipe, all); });
        std::printf("%-24s%.3f\n", name, loss);
    }
}
