// SPDX-License-Identifier: MIT
#include <unitscale/train/remainders.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/shared_training.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_group.hpp"

#include <unitscale/io/safetensors.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/trainer.hpp>
#include <unitscale/train/tree_reducer.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

using test::Group;
using test::Outcome;
using train::Sharding;

Recipe with_feedback(const char* name, bool feedback = true) {
    Recipe recipe = find_recipe(name);
    recipe.communication = Communication{.element = {.format = e4m3}, .block = 32, .error_feedback = feedback};
    return recipe;
}

/// A run in so many processes: from the file `resumed` on, if there is one, up to step `last`, saved to `saved`.
struct Part {
    std::size_t processes = 1, micro_batches = 4;
    Sharding sharding = Sharding::none;
    std::filesystem::path resumed{}, saved{};
    std::uint64_t last = 6;
};
/// The outcomes of all processes, or their errors.
template <class T>
struct Ends {
    explicit Ends(const Recipe& recipe, const Part& part) : outcomes(part.processes), errors(part.processes) {
        test::in_group(part.processes, [&](const Group& group) {
            errors[group->rank()] = test::error_of([&] {
                test::SharedNetwork<T> network;
                train::Trainer<T> trainer(network, recipe, {.seed = 5, .schedule = test::shared_schedule(6)},
                                          {.weight_decay = 1e-3});
                trainer.set_reducer(std::make_shared<train::TreeReducer<T>>(
                    group, std::vector<train::SharedFact>{}, train::TreeReducerOptions{.sharding = part.sharding}));
                if (!part.resumed.empty()) trainer.resume(part.resumed);
                std::vector<double> losses;
                test::shared_steps(trainer, network, part.micro_batches, part.last, losses);
                if (!part.saved.empty()) trainer.save(part.saved);
                outcomes[group->rank()] = test::outcome_of(trainer, network, std::move(losses));
            });
        });
    }
    std::vector<Outcome> outcomes;
    std::vector<std::string> errors;
};

std::string bytes_of(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace

TEST_CASE("a run with error feedback goes on to the bit, in any number of processes") {
    const test::TemporaryFolder folder;
    const auto one = folder.path() / "one", many = folder.path() / "many", again = folder.path() / "again";
    for (const char* name : {"fp32", "scalify-fp8-4", "fp16-auto-loss-scaled"}) {
        const Recipe recipe = with_feedback(name);
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            Outcome whole = Ends<T>(recipe, {}).outcomes.front();
            whole.losses.erase(whole.losses.begin(), whole.losses.begin() + 3);
            Ends<T>(recipe, {.saved = one, .last = 3});
            for (const std::size_t processes : {2u, 3u, 4u})
                for (const Sharding sharding : {Sharding::none, Sharding::gradients}) {
                    INFO(name << ", " << processes << " processes, sharding " << train::name(sharding));
                    const Ends<T> saves(recipe,
                                        {.processes = processes, .sharding = sharding, .saved = many, .last = 3});
                    for (const std::string& error : saves.errors) CHECK(error.empty());
                    CHECK((bytes_of(many) == bytes_of(one)));  // not printed
                    for (const std::size_t resumes : {1u, 2u, 4u})
                        for (const Outcome& each :
                             Ends<T>(recipe, {.processes = resumes, .sharding = sharding, .resumed = many}).outcomes)
                            CHECK(each == whole);
                }
            // Saved before the next step, as it was read.
            Ends<T>(recipe, {.processes = 2, .resumed = many, .saved = again, .last = 3});
            CHECK((bytes_of(again) == bytes_of(one)));
        });
    }
}

TEST_CASE("remainders lie in a file by micro-batch and parameter, and none without error feedback") {
    const test::TemporaryFolder folder;
    const auto with = folder.path() / "with", without = folder.path() / "without";
    Ends<float>(with_feedback("fp32"), {.processes = 2, .saved = with, .last = 3});
    const io::SafetensorsReader file(with);
    CHECK(file.metadata().at("remainders/micro_batches") == "4");
    for (const char* name : {"0/network/first/weight", "3/network/last/weight"}) {
        INFO(name);
        const Tensor<float> values = file.tensor<float>(concatenate("remainders/", name));
        double sum = 0.0;
        for (const float value : values.span()) sum += static_cast<double>(value) * static_cast<double>(value);
        CHECK(sum > 0.0);
    }
    CHECK(file.contains("remainders/2/network/rare/weight"));
    CHECK_FALSE(file.contains("remainders/1/network/rare/weight"));  // used by micro-batch 2 alone
    Ends<float>(with_feedback("fp32", false), {.processes = 2, .saved = without, .last = 3});
    CHECK(bytes_of(without).find("remainders") == std::string::npos);
}

TEST_CASE("remainders that do not fit a run are an error of one line") {
    const test::TemporaryFolder folder;
    const auto with = folder.path() / "with", without = folder.path() / "without", early = folder.path() / "early";
    const Recipe recipe = with_feedback("fp32"), plain = with_feedback("fp32", false);
    Ends<float>(recipe, {.processes = 4, .saved = with, .last = 3});
    Ends<float>(plain, {.saved = without, .last = 3});
    Ends<float>(recipe, {.saved = early, .last = 0});
    const auto errors = [&](const Recipe& how, const Part& part) { return Ends<float>(how, part).errors; };
    for (const std::string& error : errors(recipe, {.processes = 2, .resumed = without}))
        CHECK(error == concatenate("checkpoint: ", without.string(),
                                   ": has no remainders of error feedback; expected a run that was saved with them, "
                                   "or communication.error_feedback=false"));
    for (const std::size_t processes : {1u, 2u})
        for (const std::string& error : errors(recipe, {.processes = processes, .micro_batches = 8, .resumed = with}))
            CHECK(error ==
                  "TreeReducer: 8 micro-batches, and the checkpoint has error feedback's remainders of 4; "
                  "expected as many");
    for (const std::string& error : errors(plain, {.processes = 2, .micro_batches = 8, .resumed = with}))
        CHECK(error.empty());
    for (const std::string& error : errors(plain, {.resumed = without})) CHECK(error.empty());
    // No step was taken: any number of micro-batches follows.
    for (const std::string& error : errors(recipe, {.processes = 2, .micro_batches = 8, .resumed = early}))
        CHECK(error.empty());
}

TEST_CASE("a process alone does not save a part of the remainders") {
    std::vector<std::string> errors(2);
    test::in_group(2, [&](const Group& group) {
        test::SharedNetwork<float> network;
        train::Trainer<float> trainer(network, with_feedback("fp32"),
                                      {.seed = 5, .schedule = test::shared_schedule(6)});
        trainer.set_reducer(std::make_shared<train::TreeReducer<float>>(group));
        errors[group->rank()] =
            test::error_of([&] { train::save_run("none.safetensors", trainer.parts(), trainer.recipe()); });
    });
    for (const std::string& error : errors)
        CHECK(error == "save_run: other processes hold remainders of error feedback; expected their group");
}

TEST_CASE("remainders of another number of micro-batches are forgotten") {
    train::Remainders remainders;
    remainders.begin(2);
    remainders.of(1, "p", {3}).data()[2] = 1.0f;
    remainders.begin(2);
    CHECK(remainders.of(1, "p", {3}).data()[2] == 1.0f);
    remainders.begin(4);
    CHECK(remainders.of(1, "p", {3}).data()[2] == 0.0f);
}
