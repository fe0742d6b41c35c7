// SPDX-License-Identifier: MIT
#include <unitscale/train/communication_cost.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/thread_group.hpp"

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/tree_reducer.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

using Numbers = std::vector<std::size_t>;

/// Messages and bytes of a process in an exchange.
struct Sent {
    std::size_t sent = 0, received = 0, sent_bytes = 0, received_bytes = 0;
};

/// A group that writes down what its process sends and receives.
class CountingGroup final : public train::ProcessGroup {
public:
    explicit CountingGroup(std::shared_ptr<train::ProcessGroup> of) : of_(std::move(of)) {}
    [[nodiscard]] std::size_t rank() const noexcept override { return of_->rank(); }
    [[nodiscard]] std::size_t size() const noexcept override { return of_->size(); }
    void exchange(std::span<const std::byte> send, std::span<const std::size_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::size_t> receive_bytes) override {
        count(send_bytes, receive_bytes);
        of_->exchange(send, send_bytes, receive, receive_bytes);
    }
    void collect(std::span<const std::byte> mine, std::span<std::byte> all,
                 std::span<const std::size_t> bytes) override {
        count(Numbers(size(), mine.size()), bytes);
        of_->collect(mine, all, bytes);
    }

    std::vector<Sent> exchanges{};

private:
    void count(std::span<const std::size_t> send_bytes, std::span<const std::size_t> receive_bytes) {
        Sent exchange;
        for (std::size_t r = 0; r < size(); ++r) {
            if (r == rank()) continue;
            exchange.sent += send_bytes[r] > 0;
            exchange.received += receive_bytes[r] > 0;
            exchange.sent_bytes += send_bytes[r];
            exchange.received_bytes += receive_bytes[r];
        }
        exchanges.push_back(exchange);
    }

    std::shared_ptr<train::ProcessGroup> of_;
};

using Counts =
    std::vector<std::pair<std::size_t, std::size_t>>;  // messages and bytes of each exchange, in order of size

struct Measured {
    Counts exchanges{};
    Numbers sent_bytes{};
};

/// The second step of a reducer: the first one compares facts, too.
Measured measured(const train::GradientPlan& plan) {
    std::vector<std::vector<Sent>> exchanges(plan.processes);
    Measured found{.sent_bytes = Numbers(plan.processes)};
    test::in_group(plan.processes, [&](const std::shared_ptr<train::ProcessGroup>& threads) {
        auto group = std::make_shared<CountingGroup>(threads);
        Recipe recipe = find_recipe("fp32");
        recipe.communication = plan.communication;
        std::vector<std::unique_ptr<Parameter<float>>> owned;
        std::vector<Parameter<float>*> parameters;
        for (const std::size_t size : plan.sizes) {
            owned.push_back(
                std::make_unique<Parameter<float>>(concatenate("p", owned.size()), Shape{size}, ParameterFacts{}));
            parameters.push_back(owned.back().get());
            fill_constant(parameters.back()->write(), 1.0f);
        }
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        train::TreeReducer<float> reducer(
            group, {}, {.sharding = plan.sharding, .overlap = plan.overlap, .bucket_elements = plan.bucket_elements});
        for (int step = 0; step < 2; ++step) {
            group->exchanges.clear();
            state.set_step(state.step() + 1);
            for (Parameter<float>* const parameter : parameters) parameter->clear_gradient();
            const auto share = reducer.begin(tape, parameters, plan.micro_batches, 1.0);
            for (std::size_t i = share.first; i < share.last; ++i) {
                for (std::size_t p = parameters.size(); p-- > 0;) {
                    Tensor<float> gradient(parameters[p]->shape());
                    fill_constant(gradient, 1.0f);
                    parameters[p]->add_gradient(std::move(gradient));
                    reducer.add_gradient(i, *parameters[p]);
                }
                reducer.add_loss(i, 1.0);
            }
            static_cast<void>(reducer.finish());
            reducer.share_values();
        }
        exchanges[group->rank()] = group->exchanges;
        found.sent_bytes[group->rank()] = reducer.sent_bytes();
    });
    for (std::size_t i = 0; i < exchanges.front().size(); ++i) {
        std::size_t messages = 0, bytes = 0;
        for (const auto& process : exchanges) {
            messages = std::max(messages, process[i].sent + process[i].received);
            bytes = std::max({bytes, process[i].sent_bytes, process[i].received_bytes});
        }
        found.exchanges.emplace_back(messages, bytes);
    }
    std::ranges::sort(found.exchanges);
    return found;
}

Counts counts_of(const train::StepTraffic& traffic) {
    Counts counts;
    for (const train::MessageExchange& exchange : traffic.exchanges)
        counts.emplace_back(exchange.messages, exchange.bytes);
    std::ranges::sort(counts);
    return counts;
}

}  // namespace

TEST_CASE("the counted messages and bytes are those that a reducer sends") {
    const std::vector<std::optional<Communication>> rules = {std::nullopt, Communication{},
                                                             Communication{.element = {.format = e4m3}, .block = 16},
                                                             Communication{.element = {.format = bf16}}};
    for (const auto& [processes, micro_batches] : {std::pair{2u, 2u}, {2u, 4u}, {3u, 5u}, {4u, 4u}})
        for (const auto& rule : rules)
            for (const auto sharding : {train::Sharding::none, train::Sharding::optimiser, train::Sharding::gradients})
                for (const bool overlap : {false, true}) {
                    const train::GradientPlan plan{.sizes = {21, 40, 130, 5, 2},
                                                   .processes = processes,
                                                   .micro_batches = micro_batches,
                                                   .communication = rule,
                                                   .sharding = sharding,
                                                   .overlap = overlap,
                                                   .bucket_elements = 60};
                    INFO(processes << " processes, " << micro_batches << " micro-batches, "
                                   << (rule ? name(rule->element.format) : "float") << " by "
                                   << (rule ? rule->block : 0) << ", " << train::name(sharding) << ", overlap "
                                   << overlap);
                    const train::StepTraffic traffic = train::step_traffic(plan);
                    const Measured found = measured(plan);
                    CHECK(counts_of(traffic) == found.exchanges);
                    CHECK(traffic.sent_bytes == found.sent_bytes);
                }
}

TEST_CASE("elements and bytes that processors work on, counted by hand") {
    train::GradientPlan plan{.sizes = {64, 32}, .processes = 4, .micro_batches = 8};
    train::StepTraffic traffic = train::step_traffic(plan);
    CHECK(traffic.exchanges.size() == 5);  // three of state, and the parts and sums of one bucket
    CHECK(traffic.added == 3 * 24);
    CHECK(traffic.moved == 4 * (96 + 24 + 24 + 24 + 96));
    CHECK(traffic.entries == 4 * 2);
    CHECK(traffic.converted + traffic.measured + traffic.encoded + traffic.decoded == 0);

    plan.communication = Communication{.element = {.format = e4m3}, .block = 16};
    traffic = train::step_traffic(plan);
    CHECK(traffic.exchanges.size() == 9);
    CHECK(traffic.converted == 2 * 96 + 96);
    CHECK(traffic.measured == 2 * 96 + 32);  // a process has two of the blocks of a bucket, or one
    CHECK(traffic.encoded == 2 * 96 + 32);
    CHECK(traffic.decoded == 8 * 32 + 96);
    CHECK(traffic.added == 7 * 32);
    CHECK(traffic.moved == 2 * 96 + 2 * 32 + 32);
    CHECK(traffic.entries == 8 * 2);

    plan.communication.reset();
    plan.sharding = train::Sharding::gradients;  // owners: processes 0 and 1
    traffic = train::step_traffic(plan);
    CHECK(traffic.sent_bytes == Numbers{4 * 32 + 3 * (8 + 4 * 64), 4 * 64 + 3 * (8 + 4 * 32), 4 * 96, 4 * 96});
    CHECK(traffic.added == 3 * 64);
    CHECK(traffic.exchanges[3].bytes == 3 * 4 * 64);  // an owner gets whole gradients from all

    const train::StepTraffic alone = train::step_traffic({.sizes = {64}, .processes = 1, .micro_batches = 3});
    CHECK(alone.exchanges.empty());
    CHECK(alone.moved + alone.added == 0);
    CHECK(alone.sent_bytes == Numbers{0});
    plan.processes = 9;
    CHECK(test::error_of([&] { static_cast<void>(train::step_traffic(plan)); }) ==
          "TrafficCount: 9 processes for 8 micro-batches; expected at least one process, and a micro-batch for each");
}

TEST_CASE("a step's seconds by constants") {
    const train::NetworkCosts network{.latency = 10, .overhead = 2, .gap = 3, .byte = 0.5};
    train::StepTraffic traffic;
    traffic.exchanges = {{.messages = 6, .bytes = 100}, {.messages = 0, .bytes = 0}};
    CHECK(train::step_seconds(traffic, network, {}, 100).messages == 10 + 2 * 6 + 50);
    CHECK(train::overhead_seconds({.overhead = 1, .gap = 3}, 6) == 9);  // three are sent, each g after the other

    traffic.moved = 1, traffic.added = 2, traffic.converted = 3, traffic.measured = 4, traffic.encoded = 5;
    traffic.decoded = 6, traffic.entries = 7;
    const train::ElementCosts elements{
        .move = 1e6, .add = 1e5, .convert = 1e4, .measure = 1e3, .encode = 1e2, .decode = 1e1, .entry = 1};
    const train::StepSeconds step = train::step_seconds(traffic, network, elements, 100, 0, 2);
    CHECK(step.compute == 200);
    CHECK(step.work == 2 * 1234567);
    CHECK(step.messages == 72);
    CHECK(step.hidden == 0);
    CHECK(step.total() == 200 + 2 * 1234567 + 72);
    CHECK(step.efficiency(step.total() / 4) == 0.25);

    train::NetworkCosts memory = network;
    memory.by_processors = true;
    CHECK(train::step_seconds(traffic, memory, {}, 100, 0, 2).messages == 144);
}

TEST_CASE("exchanges that begin during the backward pass are hidden as far as they end in it") {
    const train::NetworkCosts network{.latency = 1, .overhead = 100, .byte = 1};
    train::StepTraffic traffic;
    traffic.exchanges = {{.messages = 2, .bytes = 7},
                         {.messages = 2, .bytes = 9, .begin = 0.5},
                         {.messages = 2, .bytes = 9, .begin = 0.6},
                         {.messages = 2, .bytes = 9, .begin = 1.0}};
    const auto hidden = [&](double backward) { return train::step_seconds(traffic, network, {}, 0, backward).hidden; };
    CHECK(hidden(100) == 20);  // from 50 to 60, from 60 to 70
    CHECK(hidden(30) == 15);   // from 15 to 25, from 25 to 35
    CHECK(hidden(0) == 0);
    traffic.exchanges.pop_back();
    CHECK(train::step_seconds(traffic, network, {}, 0, 100).messages == 8 + 10 + 10 + 3 * 200);
    train::NetworkCosts memory = network;
    memory.by_processors = true;
    CHECK(train::step_seconds(traffic, memory, {}, 0, 100).hidden == 0);

    train::GradientPlan plan{.sizes = {10, 30, 60}, .overlap = true, .bucket_elements = 1};
    std::vector<double> begins;
    for (const train::MessageExchange& exchange : train::step_traffic(plan).exchanges) begins.push_back(exchange.begin);
    CHECK(begins == std::vector<double>{1, 1, 1, 0.6, 1, 0.9, 1, 1, 1});  // parts and sums of each, from the last on
}

TEST_CASE("sums by direct messages, in a ring and by halves") {
    const train::NetworkCosts network{.latency = 3, .overhead = 1, .gap = 1, .byte = 0.25};
    CHECK(train::direct_seconds(network, 8, 64) == 2 * (3 + 7 * 2 + 14));
    CHECK(train::ring_seconds(network, 8, 64) == 2 * (7 * (3 + 2) + 14));
    CHECK(train::halving_seconds(network, 8, 64) == 2 * (3 * (3 + 2) + 14));
    for (const auto seconds : {train::direct_seconds, train::ring_seconds, train::halving_seconds})
        CHECK(seconds(network, 2, 64) == 2 * (3 + 2 + 8));
}
