// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/trainer.hpp>
#include <unitscale/train/tree_reducer.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// A small training that processes share, for the tests that compare numbers of processes.
namespace unitscale::test {

/// A recipe of each kind of scaling, storage, loss scaling and rounding.
inline constexpr std::array<const char*, 17> shared_recipes = {"fp32",
                                                               "bf16",
                                                               "fp16",
                                                               "fp16-auto-loss-scaled",
                                                               "fp16-histogram-loss-scaled",
                                                               "fp16-log-normal-loss-scaled",
                                                               "unit-fp8",
                                                               "umup-fp8",
                                                               "us-fp16",
                                                               "fp8-amax",
                                                               "fp8-delayed",
                                                               "fp8-cscale",
                                                               "scalify-fp16-1",
                                                               "scalify-fp16-static",
                                                               "scalify-fp8-4",
                                                               "mxfp8",
                                                               "nvfp4"};

using Group = std::shared_ptr<train::ProcessGroup>;

/// A network with dropout, with a layer that is used twice, and with one that only some micro-batches use.
template <class T>
struct SharedNetwork {
    nn::Linear<T> first{"network/first", {.in = 16, .out = 32, .bias = true}};
    nn::Linear<T> shared{"network/shared", {.in = 32, .out = 32}};
    nn::Linear<T> rare{"network/rare", {.in = 32, .out = 32}};
    nn::Linear<T> last{"network/last", {.in = 32, .out = 16}};

    Variable<T> operator()(Variable<T> x, bool rarely) {
        const auto scope = x.tape("Network").scope("network");
        Variable<T> y = shared(ops::gelu(shared(ops::gelu(first(x)))));
        if (rarely) y = rare(y);
        return last(ops::dropout(y, {.p = 0.1}));
    }
    void collect(std::vector<Parameter<T>*>& parameters) {
        first.collect(parameters);
        shared.collect(parameters);
        rare.collect(parameters);
        last.collect(parameters);
    }
};

/// The loss of micro-batch i of a step.
template <class T>
Variable<T> shared_loss(SharedNetwork<T>& network, Tape<T>& tape, std::uint64_t step, std::size_t i, bool rarely) {
    const std::uint64_t number = 16 * step + i;
    Tensor<std::int32_t> labels({16});
    for (std::size_t row = 0; row < 16; ++row) labels(row) = static_cast<std::int32_t>((row + number) % 16);
    return ops::softmax_cross_entropy(network(tape.input(cast<T>(normal<float>({16, 16}, {1, number}))), rarely),
                                      labels);
}

/// All that a run of some steps leaves.
struct Outcome {
    std::vector<double> losses{}, values{};
    std::map<std::string, double> magnitudes{};
    std::uint64_t skipped = 0;

    friend bool operator==(const Outcome&, const Outcome&) = default;
};

struct MagnitudeReader {
    Outcome& outcome;
    void scalar(const std::string&, std::uint64_t&) {}
    void table(const std::string& name, std::map<std::string, double>& table) {
        if (name == "amax") outcome.magnitudes = table;
    }
};

template <class T>
Outcome outcome_of(train::Trainer<T>& trainer, SharedNetwork<T>& network, std::vector<double> losses) {
    Outcome outcome{.losses = std::move(losses), .skipped = trainer.scaler().skipped()};
    for (const Parameter<T>* parameter : nn::parameters_of<T>(network))
        for (const T v : parameter->value().span())
            outcome.values.push_back(static_cast<double>(element_cast<Accum<T>>(v)) * parameter->scale());
    trainer.state().visit_state(MagnitudeReader{outcome});
    return outcome;
}

[[nodiscard]] constexpr optim::Schedule shared_schedule(std::size_t steps) {
    return {.kind = optim::ScheduleKind::cosine, .peak = 0.0, .steps = steps, .warmup = 2};
}

template <class T>
void shared_steps(train::Trainer<T>& trainer, SharedNetwork<T>& network, std::size_t micro_batches, std::uint64_t last,
                  std::vector<double>& losses) {
    // Under unit scaling every micro-batch has the graph of the plan.
    const bool varies = trainer.recipe().scaling == Scaling::none;
    while (trainer.steps() < last) {
        const std::uint64_t step = trainer.steps() + 1;
        losses.push_back(
            trainer
                .step([&](Tape<T>& tape,
                          std::size_t i) { return shared_loss(network, tape, step, i, !varies || i == 2); },
                      micro_batches)
                .loss);
    }
}

/// Every kind of sharding, with and without overlap, without the defaults. Buckets are smaller than some parameters.
[[nodiscard]] inline std::vector<train::TreeReducerOptions> shared_options() {
    std::vector<train::TreeReducerOptions> all;
    for (const auto sharding : {train::Sharding::none, train::Sharding::optimiser, train::Sharding::gradients})
        for (const bool overlap : {false, true})
            all.push_back({.sharding = sharding, .overlap = overlap, .bucket_elements = 600});
    return all;
}

/// A run in a group, as one of its processes sees it.
template <class T>
Outcome shared_run(const Recipe& recipe, std::size_t micro_batches, const Group& group, std::size_t steps = 6,
                   const train::TreeReducerOptions& options = {}) {
    SharedNetwork<T> network;
    train::Trainer<T> trainer(network, recipe, {.seed = 5, .schedule = shared_schedule(steps)}, {.weight_decay = 1e-3});
    trainer.set_reducer(std::make_shared<train::TreeReducer<T>>(group, std::vector<train::SharedFact>{}, options));
    std::vector<double> losses;
    shared_steps(trainer, network, micro_batches, steps, losses);
    return outcome_of(trainer, network, std::move(losses));
}

}  // namespace unitscale::test
