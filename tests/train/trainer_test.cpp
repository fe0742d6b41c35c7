// SPDX-License-Identifier: MIT
#include <unitscale/train/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/element.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

using namespace unitscale;

namespace {

/// A network that is no transformer.
template <class T>
struct Network {
    nn::Linear<T> first{"network/first", {.in = 12, .out = 32, .bias = true}};
    nn::Linear<T> last{"network/last", {.in = 32, .out = 4}};

    Variable<T> operator()(Variable<T> x) {
        const auto scope = x.tape("Network").scope("network");
        return last(ops::dropout(ops::gelu(first(x)), {.p = 0.1}));
    }
    void collect(std::vector<Parameter<T>*>& parameters) {
        first.collect(parameters);
        last.collect(parameters);
    }
};

struct Examples {
    Tensor<float> x;
    Tensor<std::int32_t> labels;
};
/// Rows whose label is the largest of the first four columns.
Examples examples(std::uint64_t number) {
    Examples all{normal<float>({16, 12}, {1, number}), Tensor<std::int32_t>({16})};
    for (std::size_t i = 0; i < 16; ++i) {
        const float* const row = all.x.data() + 12 * i;
        all.labels(i) = static_cast<std::int32_t>(std::max_element(row, row + 4) - row);
    }
    return all;
}
template <class T>
Variable<T> loss_of(Network<T>& network, Tape<T>& tape, const Examples& batch) {
    return ops::softmax_cross_entropy(network(tape.input(cast<T>(batch.x))), batch.labels);
}

template <class T>
std::vector<double> values(Network<T>& network) {
    std::vector<double> all;
    for (const Parameter<T>* parameter : nn::parameters_of<T>(network))
        for (const T v : parameter->value().span()) all.push_back(static_cast<double>(element_cast<Accum<T>>(v)));
    return all;
}

constexpr optim::Schedule schedule{.kind = optim::ScheduleKind::cosine, .peak = 0.0, .steps = 12, .warmup = 3};
constexpr std::size_t micro_batches = 2;

/// The run by hand: every part of a recipe, as a loop of one's own calls it.
template <class T>
std::vector<double> by_hand(const Recipe& recipe) {
    Network<T> network;
    auto parameters = nn::parameters_of<T>(network);
    nn::initialise(parameters, recipe, 5);
    optim::Schedule rates = schedule;
    rates.peak = recipe.learning_rate;
    optim::Adam<T> optimiser(parameters, {.weight_decay = 1e-3,
                                          .peak_learning_rate = rates.peak,
                                          .parametrisation = recipe.parametrisation_rule(),
                                          .storage = recipe.storage});
    optim::LossScaler scaler(recipe.loss_scaling);
    ScalingState state(5);
    Tape<T> tape(recipe, state);
    const bool scales = recipe.loss_scaling.kind != LossScaleKind::none;
    tape.plan([&] { return loss_of(network, tape, examples(0)); }, {.micro_batches = micro_batches});
    for (std::uint64_t step = 1; step <= rates.steps; ++step) {
        optimiser.clear_gradients();
        for (std::size_t i = 0; i < micro_batches; ++i) {
            tape.begin_step({.micro_batches = micro_batches, .micro_batch = i});
            const Variable<T> loss = loss_of(network, tape, examples(2 * step + i));
            tape.backward(loss, static_cast<Accum<T>>(scales ? scaler.scale() : 1.0));
        }
        optim::quantise_weight_gradients<T>(tape.execution(), parameters, recipe.storage, {5, state.step()});
        if (scales) {
            scaler.template unscale<T>(parameters);
            if (!scaler.update(std::isfinite(optim::gradient_norm<T>(tape.execution(), parameters)))) continue;
        }
        if (recipe.clip_norm > 0) optim::clip_gradients<T>(tape.execution(), parameters, recipe.clip_norm);
        optimiser.step(tape.execution(), rates.at(step));
    }
    return values(network);
}

template <class T>
using Trainer = train::Trainer<T>;

/// Steps of a trainer, from its next step to `last`.
template <class T>
void steps(Trainer<T>& trainer, Network<T>& network, std::uint64_t last) {
    while (trainer.steps() < last) {
        const std::uint64_t step = trainer.steps() + 1;
        const train::StepResult done =
            trainer.step([&](Tape<T>& tape, std::size_t i) { return loss_of(network, tape, examples(2 * step + i)); },
                         micro_batches);
        CHECK((done.updated || done.skipped));
    }
}
template <class T>
Trainer<T> make(Network<T>& network, const Recipe& recipe) {
    return Trainer<T>(network, recipe, {.seed = 5, .schedule = schedule}, {.weight_decay = 1e-3});
}

}  // namespace

TEST_CASE("a trainer takes the steps of a loop that calls every part of the recipe", "[train]") {
    for (const char* name : {"fp32", "fp16", "fp16-auto-loss-scaled", "bf16", "unit-fp8", "umup-fp8", "fp8-amax",
                             "scalify-fp8-4", "mxfp8"}) {
        INFO(name);
        const Recipe recipe = find_recipe(name);
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            Network<T> network;
            Trainer<T> trainer = make(network, recipe);
            const auto before = values(network);
            // The plan of the loop by hand is made from other examples: only sizes matter.
            steps(trainer, network, schedule.steps);
            const auto after = values(network);
            CHECK(after == by_hand<T>(recipe));
            CHECK(after != before);
        });
    }
}

TEST_CASE("a trainer saves its run and resumes it to the bit", "[train]") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "run.safetensors";
    for (const char* name : {"fp16-auto-loss-scaled", "scalify-fp8-4", "unit-fp8", "fp8-delayed", "aligned-fp16"}) {
        INFO(name);
        const Recipe recipe = find_recipe(name);
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            Network<T> whole, begun, resumed;
            Trainer<T> one = make(whole, recipe), two = make(begun, recipe), three = make(resumed, recipe);
            steps(one, whole, schedule.steps);
            steps(two, begun, 5);
            two.save(path, {{"seen", 7.0}}, {{"task", "largest"}});
            CHECK_THROWS_WITH(three.resume(path, {{"task", "smallest"}}),
                              Catch::Contains("its task is not this run's"));
            CHECK(three.steps() == 0);
            CHECK(three.resume(path, {{"task", "largest"}}).at("seen") == 7.0);
            CHECK(three.steps() == 5);
            steps(three, resumed, schedule.steps);
            CHECK(values(resumed) == values(whole));
        });
    }
}

TEST_CASE("a trainer records the statistics of its steps, which changes no bit", "[train]") {
    const auto train = [&](bool tracked) {
        Network<float> network;
        Trainer<float> trainer(network, find_recipe("unit-fp8"), {.schedule = schedule});
        if (tracked) trainer.track({.name = "a run", .every = 2});
        for (std::uint64_t step = 1; step <= 4; ++step)
            trainer.step([&](Tape<float>& tape, std::size_t) { return loss_of(network, tape, examples(step)); });
        if (!tracked) {
            CHECK_THROWS_WITH(trainer.finished_track(), "Trainer: no statistics; call track() before the first step");
            return values(network);
        }
        const analysis::Track track = trainer.finished_track();
        CHECK(track.name == "a run");
        const auto weight = std::find_if(track.tensors.begin(), track.tensors.end(),
                                         [](const auto& tensor) { return tensor.path == "network/first/weight"; });
        REQUIRE(weight != track.tensors.end());
        REQUIRE(weight->value.steps.size() == 2);
        CHECK(weight->value.steps.back().step == 3);
        return values(network);
    };
    CHECK(train(true) == train(false));
}

TEST_CASE("an evaluation has no dropout, and changes no later step", "[train]") {
    const Recipe recipe = find_recipe("unit-fp8");
    Network<float> a, b;
    Trainer<float> one = make(a, recipe), two = make(b, recipe);
    steps(one, a, 3);
    steps(two, b, 3);
    const auto evaluate = [&] {
        return one.evaluate([&](Tape<float>& tape) { return loss_of(a, tape, examples(99)).item(); });
    };
    const double loss = evaluate();
    CHECK(loss == evaluate());
    CHECK(std::isfinite(loss));
    steps(one, a, 6);
    steps(two, b, 6);
    CHECK(values(a) == values(b));
}

TEST_CASE("a trainer takes other optimisers, values that exist, and a list of parameters", "[train]") {
    const Recipe recipe = find_recipe("unit-fp32");
    struct Listed {
        Network<float> network;
        std::vector<Parameter<float>*> parameters() {
            std::vector<Parameter<float>*> all;
            network.collect(all);
            return all;
        }
    } model;
    nn::initialise(model.parameters(), recipe, 9);
    const auto before = values(model.network);
    train::Trainer<float, optim::Sgd<float>> trainer(
        model, recipe, {.schedule = {.peak = 0.01, .steps = 2}, .initialise = false}, {.momentum = 0.9});
    CHECK(values(model.network) == before);
    CHECK(trainer.optimiser().options().momentum == 0.9);
    CHECK(trainer.schedule().peak == 0.01);
    for (int i = 0; i < 2; ++i)
        CHECK(trainer.step([&](Tape<float>& tape, std::size_t) { return loss_of(model.network, tape, examples(1)); })
                  .updated);
    CHECK(values(model.network) != before);
    CHECK_THROWS_WITH(
        trainer.step([&](Tape<float>& tape, std::size_t) { return loss_of(model.network, tape, examples(1)); }),
        "schedule: step 3 of 2; updates count from 1");
}

TEST_CASE("what a trainer cannot train is one line before anything is changed", "[train]") {
    Network<float> network;
    CHECK_THROWS_WITH(Trainer<float>(network, find_recipe("fp16")),
                      Catch::Contains("Trainer: recipe fp16 computes in fp16"));
    CHECK_THROWS_WITH(Trainer<float>(network, find_recipe("fp32"), {.initialise = false}),
                      "Trainer: parameter network/first/weight has no values; expected nn::initialise, or values of a "
                      "file, before");
    CHECK_THROWS_WITH(Trainer<float>(network, find_recipe("fp32"), {}, {.peak_learning_rate = 1.0}),
                      "Trainer: peak_learning_rate is 1; the schedule determines it, expected 0");
    CHECK_THROWS_WITH(Trainer<float>(network, find_recipe("fp32"), {.schedule = {.peak = 0.0, .steps = 0}}),
                      "schedule: steps is 0; expected at least 1");
    struct Empty {
        std::vector<Parameter<float>*> parameters() { return {}; }
    } empty;
    CHECK_THROWS_WITH(Trainer<float>(empty, find_recipe("fp32")), "Trainer: the model has no parameters");
}
