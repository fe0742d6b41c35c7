// SPDX-License-Identifier: MIT
#include <unitscale/train/tree_reducer.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/shared_training.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_group.hpp"

#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/trainer.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

using test::Group;
using test::Outcome;
using test::SharedNetwork;

/// A group of one process.
Group one_process() { return std::make_shared<train::ProcessGroup>(); }

/// The outcomes of all processes of a group.
template <class T>
std::vector<Outcome> runs(const Recipe& recipe, std::size_t micro_batches, std::size_t processes,
                          const train::TreeReducerOptions& options = {}) {
    std::vector<Outcome> all(processes);
    test::in_group(processes, [&](const Group& group) {
        all[group->rank()] = test::shared_run<T>(recipe, micro_batches, group, 6, options);
    });
    return all;
}

/// The errors of processes that train with these recipes, seeds and numbers of micro-batches, by process.
struct Process {
    std::string recipe = "fp32";
    std::uint64_t seed = 5;
    std::size_t micro_batches = 4;
    std::string data = "a";
};
std::vector<std::string> errors_of(const std::vector<Process>& processes) {
    std::vector<std::string> errors(processes.size());
    test::in_group(processes.size(), [&](const Group& group) {
        const Process& own = processes[group->rank()];
        errors[group->rank()] = test::error_of([&] {
            SharedNetwork<float> network;
            train::Trainer<float> trainer(network, find_recipe(own.recipe),
                                          {.seed = own.seed, .schedule = test::shared_schedule(6)});
            trainer.set_reducer(
                std::make_shared<train::TreeReducer<float>>(group, std::vector<train::SharedFact>{{"data", own.data}}));
            std::vector<double> losses;
            test::shared_steps(trainer, network, own.micro_batches, 1, losses);
        });
    });
    return errors;
}

}  // namespace

TEST_CASE("training has equal bits in one, two and more processes") {
    for (const char* name : test::shared_recipes) {
        INFO(name);
        const Recipe recipe = find_recipe(name);
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            const Outcome one = test::shared_run<T>(recipe, 4, one_process());
            CHECK(one.losses.back() != one.losses.front());
            for (const std::size_t processes : {2u, 4u})
                for (const Outcome& each : runs<T>(recipe, 4, processes)) CHECK(each == one);
        });
    }
}

TEST_CASE("training has equal bits where processes share state, with and without overlap") {
    for (const char* name : test::shared_recipes) {
        INFO(name);
        const Recipe recipe = find_recipe(name);
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            const Outcome one = test::shared_run<T>(recipe, 4, one_process());
            for (const train::TreeReducerOptions& options : test::shared_options())
                for (const std::size_t processes : {2u, 4u})
                    for (const Outcome& each : runs<T>(recipe, 4, processes, options)) {
                        INFO(train::name(options.sharding) << ", overlap " << options.overlap);
                        CHECK(each == one);
                    }
        });
    }
}

TEST_CASE("clipping and gradients as codes have equal bits where processes share state") {
    Recipe clipped = find_recipe("fp16-auto-loss-scaled"), coded = find_recipe("scalify-fp8-4");
    clipped.clip_norm = 1e-3;
    coded.communication = Communication{.element = {.format = e4m3}, .block = 16, .error_feedback = true};
    for (const Recipe& recipe : {clipped, coded})
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            const Outcome one = test::shared_run<T>(recipe, 4, one_process());
            for (const train::TreeReducerOptions& options : test::shared_options())
                for (const std::size_t processes : {2u, 3u})
                    for (const Outcome& each : runs<T>(recipe, 4, processes, options)) {
                        INFO(recipe.name << ' ' << train::name(options.sharding) << ", overlap " << options.overlap);
                        CHECK(each == one);
                    }
        });
}

TEST_CASE("processes that share state write the checkpoint of one process, and any number of them resumes it") {
    const test::TemporaryFolder folder;
    const Recipe recipe = find_recipe("scalify-fp8-4");
    const Outcome whole = test::shared_run<Half>(recipe, 4, one_process());
    const auto run = [&](std::size_t processes, train::Sharding sharding, std::uint64_t last, const char* resumed,
                         const char* saved) {
        std::vector<Outcome> all(processes);
        test::in_group(processes, [&](const Group& group) {
            SharedNetwork<Half> network;
            train::Trainer<Half> trainer(network, recipe, {.seed = 5, .schedule = test::shared_schedule(6)},
                                         {.weight_decay = 1e-3});
            trainer.set_reducer(std::make_shared<train::TreeReducer<Half>>(
                group, std::vector<train::SharedFact>{}, train::TreeReducerOptions{.sharding = sharding}));
            CHECK(trainer.optimiser().is_sharded() == (sharding != train::Sharding::none && processes > 1));
            std::vector<double> losses;
            if (resumed != nullptr) {
                trainer.resume(folder.path() / resumed);
                losses.assign(whole.losses.begin(), whole.losses.begin() + 3);
            }
            test::shared_steps(trainer, network, 4, last, losses);
            if (saved != nullptr) trainer.save(folder.path() / saved);
            all[group->rank()] = test::outcome_of(trainer, network, std::move(losses));
        });
        return all;
    };
    const auto bytes = [&](const char* name) {
        std::ifstream in(folder.path() / name, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    using train::Sharding;
    run(1, Sharding::none, 3, nullptr, "one");
    CHECK(bytes("one").size() > 1000);
    for (const Sharding sharding : {Sharding::optimiser, Sharding::gradients}) {
        run(4, sharding, 3, nullptr, "four");
        CHECK(bytes("four") == bytes("one"));
        for (const std::size_t processes : {1u, 2u, 4u})
            for (const Sharding next : {Sharding::none, sharding})
                for (const Outcome& each : run(processes, next, 6, "four", nullptr)) CHECK(each == whole);
    }
}

TEST_CASE("state that is in another process is not left behind in silence") {
    std::vector<std::string> errors(2), saves(2);
    test::in_group(2, [&](const Group& group) {
        SharedNetwork<float> network;
        train::Trainer<float> trainer(network, find_recipe("fp32"), {.seed = 5, .schedule = test::shared_schedule(6)});
        trainer.set_reducer(std::make_shared<train::TreeReducer<float>>(
            group, std::vector<train::SharedFact>{},
            train::TreeReducerOptions{.sharding = train::Sharding::optimiser}));
        std::vector<double> losses;
        test::shared_steps(trainer, network, 4, 1, losses);
        saves[group->rank()] =
            test::error_of([&] { train::save_run("none.safetensors", trainer.parts(), trainer.recipe()); });
        errors[group->rank()] = test::error_of([&] { trainer.set_reducer(nullptr); });
    });
    for (const std::string& error : saves)
        CHECK(error ==
              "save_run: other processes hold a part of the optimiser's state; expected their group, or a run "
              "without sharding");
    for (const std::string& error : errors) {
        CHECK(error.starts_with("Adam: the state of parameter network/"));
        CHECK(error.ends_with(" is in another process; expected a saved run that is resumed"));
    }
}

TEST_CASE("training has equal bits where processes hold unequal shares") {
    const Recipe recipe = find_recipe("fp8-delayed");
    for (const std::size_t micro_batches : {3u, 5u, 6u}) {
        const Outcome one = test::shared_run<float>(recipe, micro_batches, one_process());
        for (const std::size_t processes : {2u, 3u})
            for (const Outcome& each : runs<float>(recipe, micro_batches, processes)) {
                INFO(micro_batches << " micro-batches, " << processes << " processes");
                CHECK(each == one);
            }
    }
}

TEST_CASE("delayed scales follow the largest magnitude of all processes") {
    const Recipe recipe = find_recipe("fp8-delayed");
    const Outcome one = test::shared_run<float>(recipe, 4, one_process());
    CHECK(one.magnitudes.size() > 20);
    CHECK(one.magnitudes.contains("network/rare/linear|activation|current"));  // of micro-batch 2 alone
    for (const Outcome& each : runs<float>(recipe, 4, 2)) CHECK(each.magnitudes == one.magnitudes);
}

TEST_CASE("a tree of two micro-batches gives the sums of a run without a reducer") {
    // No parameter is used twice: then each sum has two terms either way.
    nn::Linear<float> layers[2] = {{"layer", {.in = 16, .out = 16, .bias = true}},
                                   {"layer", {.in = 16, .out = 16, .bias = true}}};
    std::vector<double> losses[2];
    for (std::size_t which = 0; which < 2; ++which) {
        train::Trainer<float> trainer(layers[which], find_recipe("fp32"), {.schedule = test::shared_schedule(6)});
        if (which == 1) trainer.set_reducer(std::make_shared<train::TreeReducer<float>>());
        while (trainer.steps() < 4) {
            const std::uint64_t step = trainer.steps() + 1;
            const auto loss = [&](Tape<float>& tape, std::size_t i) {
                Tensor<std::int32_t> labels({16});
                for (std::size_t row = 0; row < 16; ++row) labels(row) = static_cast<std::int32_t>(row);
                return ops::softmax_cross_entropy(layers[which](tape.input(normal<float>({16, 16}, {1, 2 * step + i}))),
                                                  labels);
            };
            losses[which].push_back(trainer.step(loss, 2).loss);
        }
    }
    CHECK(losses[0] == losses[1]);
}

TEST_CASE("steps are skipped in all processes where one overflows") {
    Recipe recipe = find_recipe("fp16-auto-loss-scaled");
    recipe.loss_scaling.initial = 0x1p24;
    const Outcome one = test::shared_run<Half>(recipe, 4, one_process());
    CHECK(one.skipped > 0);
    for (const Outcome& each : runs<Half>(recipe, 4, 4)) CHECK(each == one);
}

TEST_CASE("one process writes a checkpoint, and another number of processes resumes it to the bit") {
    const test::TemporaryFolder folder;
    const std::filesystem::path file = folder.path() / "run.safetensors";
    const Recipe recipe = find_recipe("fp8-delayed");
    const Outcome whole = test::shared_run<float>(recipe, 4, one_process());
    test::in_group(4, [&](const Group& group) {
        SharedNetwork<float> network;
        train::Trainer<float> trainer(network, recipe, {.seed = 5, .schedule = test::shared_schedule(6)},
                                      {.weight_decay = 1e-3});
        trainer.set_reducer(std::make_shared<train::TreeReducer<float>>(group));
        std::vector<double> losses;
        test::shared_steps(trainer, network, 4, 3, losses);
        trainer.save(group->rank() == 0 ? file : folder.path() / "none" / "run.safetensors");
    });
    std::vector<Outcome> resumed(2);
    test::in_group(2, [&](const Group& group) {
        SharedNetwork<float> network;
        train::Trainer<float> trainer(network, recipe, {.seed = 5, .schedule = test::shared_schedule(6)},
                                      {.weight_decay = 1e-3});
        trainer.set_reducer(std::make_shared<train::TreeReducer<float>>(group));
        trainer.resume(file);
        std::vector<double> losses(whole.losses.begin(), whole.losses.begin() + 3);
        test::shared_steps(trainer, network, 4, 6, losses);
        resumed[group->rank()] = test::outcome_of(trainer, network, std::move(losses));
    });
    for (const Outcome& each : resumed) CHECK(each == whole);
}

TEST_CASE("processes that do not fit together are refused before the first step") {
    const auto all_say = [](const std::vector<Process>& processes, const std::string& begin) {
        for (const std::string& error : errors_of(processes)) {
            INFO(error);
            CHECK(error.starts_with(begin));
        }
    };
    all_say({{}, {}}, "");
    all_say({{}, {.seed = 6}}, "processes: rank 1 has another seed than rank 0: '6', not '5'");
    all_say({{}, {}, {.recipe = "mxfp8"}, {}}, "processes: rank 2 has another recipe than rank 0: '...");
    all_say({{}, {.data = "b"}}, "processes: rank 1 has another data than rank 0: 'b', not 'a'");
    all_say({{.micro_batches = 1}, {.micro_batches = 1}},
            "TreeReducer: 2 processes for 1 micro-batches; expected at least one micro-batch for each process");
    const auto counts = errors_of({{}, {.micro_batches = 8}});
    CHECK(counts[0] == "TreeReducer: rank 1 is at step 1 with 8 micro-batches, rank 0 at step 1 with 4");
    CHECK(counts[1] == "TreeReducer: rank 0 is at step 1 with 4 micro-batches, rank 1 at step 1 with 8");
}

TEST_CASE("training whose gradients travel as codes has equal bits in one, two and more processes") {
    std::vector<Communication> rules;
    for (const FloatFormat& format : {fp32, bf16, fp16, e5m2, e4m3}) rules.push_back({.element = {.format = format}});
    rules.push_back({.element = {.format = e4m3}, .block = 32});
    rules.push_back({.element = {.format = e5m2, .rounding = Rounding::stochastic}, .block = 64});
    rules.push_back({.element = {.format = e4m3}, .block = 16, .error_feedback = true});
    for (const Communication& rule : rules)
        for (const char* name : {"fp32", "fp16-auto-loss-scaled", "unit-fp8", "scalify-fp8-4", "fp8-delayed"}) {
            INFO(name << ' ' << unitscale::name(rule.element.format) << " by " << rule.block);
            Recipe recipe = find_recipe(name);
            const Recipe plain = recipe;
            recipe.communication = rule;
            train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
                const Outcome one = test::shared_run<T>(recipe, 4, one_process());
                // Sums of float in float: fp32 changes nothing.
                const bool equals = std::is_same_v<T, float> && rule.element.format == fp32;
                CHECK((one == test::shared_run<T>(plain, 4, one_process())) == equals);
                for (const std::size_t processes : {2u, 3u, 4u})
                    for (const Outcome& each : runs<T>(recipe, 4, processes)) CHECK(each == one);
            });
        }
}

TEST_CASE("a trainer follows the communication of its recipe by itself, a step without a reducer does not") {
    Recipe recipe = find_recipe("fp32");
    recipe.communication = Communication{.block = 32};
    SharedNetwork<float> network;
    train::Trainer<float> trainer(network, recipe, {.seed = 5, .schedule = test::shared_schedule(6)},
                                  {.weight_decay = 1e-3});
    std::vector<double> losses;
    test::shared_steps(trainer, network, 4, 6, losses);
    CHECK(test::outcome_of(trainer, network, losses) == test::shared_run<float>(recipe, 4, one_process()));
    const auto loss = [&](std::size_t i) { return test::shared_loss(network, trainer.tape(), 1, i, true); };
    CHECK(test::error_of([&] {
              static_cast<void>(train::take_step<float>(trainer.tape(), trainer.optimiser(), 4, loss, 1e-3));
          }).find("recipe fp32 rounds gradients between micro-batches; expected train::TreeReducer") !=
          std::string::npos);
}

TEST_CASE("codes take a share of the bytes of elements") {
    const auto bytes = [](const std::optional<Communication>& rule) {
        std::vector<std::size_t> all(4);
        test::in_group(4, [&](const Group& group) {
            Recipe recipe = find_recipe("fp32");
            recipe.communication = rule;
            SharedNetwork<float> network;
            train::Trainer<float> trainer(network, recipe, {.seed = 5, .schedule = test::shared_schedule(6)});
            const auto reducer = std::make_shared<train::TreeReducer<float>>(group);
            trainer.set_reducer(reducer);
            std::vector<double> losses;
            test::shared_steps(trainer, network, 4, 1, losses);
            all[group->rank()] = reducer->sent_bytes();
        });
        return std::accumulate(all.begin(), all.end(), std::size_t{0});
    };
    const std::size_t elements = bytes(std::nullopt);
    // All send three parts of four, and the fourth's sum thrice; one layer has one gradient, which three do not send.
    const std::size_t numbers = 16 * 32 + 32 + 32 * 32 + 32 * 16, rare = 32 * 32;
    CHECK(elements == 4 * (6 * numbers + 3 * rare + rare * 3 / 4));
    CHECK(bytes(Communication{.element = {.format = fp32}}) == elements);
    CHECK(bytes(Communication{.element = {.format = bf16}}) == elements / 2);
    CHECK(bytes(Communication{.element = {.format = e4m3}}) == elements / 4);
}
