// SPDX-License-Identifier: MIT

#include <unitscale/train/checkpoint.hpp>

#include "experiments/unfinished_run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;
using Json = nlohmann::ordered_json;

namespace {

const ComparedRun run{"my recipe/8", 0.003, 2};

void save(const std::filesystem::path& path, std::uint64_t step) {
    train::CheckpointWriter writer;
    writer.set_prefix("state/");
    writer.scalar("step", step);
    writer.write(path);
}

std::string lines(std::size_t count) {
    std::string text;
    for (std::size_t step = 1; step <= count; ++step)
        text += Json{{"step", step}, {"train", 1.0 / static_cast<double>(step)}}.dump() + "\n";
    return text;
}

}  // namespace

TEST_CASE("unfinished run: a new run has an empty log and its own name") {
    const TemporaryFolder folder;
    const UnfinishedRun first(folder.path() / "runs", run, "a", 10), second(folder.path() / "runs", run, "b", 10);
    CHECK(first.lines().empty());
    CHECK(TemporaryFolder::read(first.log()).empty());
    CHECK(first.log().filename().string().starts_with("my_recipe_8-0.003-2-"));
    CHECK(first.log() != second.log());
    CHECK(first.checkpoint().extension() == ".safetensors");
    first.remove();
    CHECK_FALSE(std::filesystem::exists(first.log()));
    CHECK(std::filesystem::exists(second.log()));
}

TEST_CASE("unfinished run: it continues from the checkpoint and drops later lines of the log") {
    const TemporaryFolder folder;
    const UnfinishedRun before(folder.path(), run, "a", 10);
    const auto at = [&](std::uint64_t step, const std::string& log) {
        save(before.checkpoint(), step);
        folder.write(before.log().filename(), log);
        return UnfinishedRun(folder.path(), run, "a", 10);
    };
    CHECK(at(4, lines(6) + "{\"step\":7,\"tr").lines().size() == 4);
    CHECK(TemporaryFolder::read(before.log()) == lines(4));
    CHECK(std::filesystem::exists(before.checkpoint()));
    CHECK(at(4, lines(4)).lines().size() == 4);
    // If a line is missing, torn, or of another step, the run starts from its beginning.
    for (const std::string& log :
         {lines(3), lines(3) + "{\"step\":4,", lines(2) + "{\"step\":4}\n{\"step\":3}\n", std::string("7\n")}) {
        CAPTURE(log);
        CHECK(at(4, log).lines().empty());
        CHECK_FALSE(std::filesystem::exists(before.checkpoint()));
        CHECK(TemporaryFolder::read(before.log()).empty());
    }
    CHECK(at(10, lines(10)).lines().empty());  // the last step: nothing would be left to measure
    folder.write(before.log().filename(), lines(4));
    folder.write(before.checkpoint().filename(), "no checkpoint");
    CHECK(UnfinishedRun(folder.path(), run, "a", 10).lines().empty());
}

TEST_CASE("unfinished run: a label's strange signs become plain, and a long one is cut") {
    const TemporaryFolder folder;
    const std::string name = unfinished_path(folder.path() / "runs", "a/b, lr 2^-1\u00b5", "x").filename().string();
    CHECK(name == "a_b__lr_2_-1__-" + fingerprint("x"));
    CHECK(std::filesystem::is_directory(folder.path() / "runs"));
    CHECK(unfinished_path(folder.path(), std::string(1000, 'a'), "x").filename().string().size() == 100 + 1 + 16);
}

TEST_CASE("unfinished run: the reason of a failure, without the caller's name and advice") {
    CHECK(failure_text(RunFailed("train: the loss is nan at step 3; try a lower --lr (it is 1)")) ==
          "the loss is nan at step 3");
    CHECK(failure_text(RunFailed("checkpoint: a cannot be written")) == "checkpoint: a cannot be written");
}

TEST_CASE("unfinished run: a folder that cannot be made is an error") {
    const TemporaryFolder folder;
    folder.write("file", "");
    REQUIRE_THROWS_WITH(UnfinishedRun(folder.path() / "file" / "runs", run, "a", 10),
                        "unfinished runs: " + (folder.path() / "file" / "runs").string() + " cannot be made");
}

TEST_CASE("unfinished run: biases come from amax rules by tensor only") {
    Recipe recipe = find_recipe("fp8-amax");
    recipe.products.back().formats.weight_scale.granularity = ScaleGranularity::row;
    recipe.products.back().formats.gradient_scale.source = ScaleSource::constant;
    ScalingState state;
    const auto scope = state.scope(0, "block0");
    const Site site = state.site(scope, "linear", 0);
    CHECK(measured_biases(state).empty());
    const ProductFormats& formats = state.formats(site, ProductKind::linear, recipe);
    static_cast<void>(state.operand_bias(site, OperandRole::activation, formats.activation->format,
                                         formats.activation_scale, true, [] { return 1.0f; }));
    CHECK(measured_biases(state).dump() == "{\"block0/linear|activation\":4}");  // 240 / 1 is 2^7.9, margin 3
}

TEST_CASE("unfinished run: steps become curves of at most 200 points, and counts add up") {
    std::vector<Json> steps;
    for (std::size_t step = 1; step <= 500; ++step)
        steps.push_back(
            {{"step", step}, {"train", static_cast<double>(step)}, {"skipped", step / 100}, {"tokens_per_s", 7.0}});
    steps[249]["valid"] = 2.5;
    steps[0]["biases"] = {{"a|weight", 3}};
    steps[499]["biases"] = {{"a|weight", -4}};
    steps[0]["zeros"] = {{"linear", {10, 1, 2}}};
    steps[9]["zeros"] = {{"linear", {10, 0, 5}}, {"gelu", {4, 4, 4}}};
    RunResult result;
    add_steps(result, steps);
    REQUIRE(result.train.size() == 167);  // means of three
    CHECK(result.train_steps.front() == 3);
    CHECK(result.train.front() == 2.0);
    CHECK(result.train_steps.back() == 500);
    CHECK(result.train.back() == 499.5);  // of the last two
    CHECK(result.valid_steps == std::vector<std::size_t>{250});
    CHECK(result.valid == std::vector<double>{2.5});
    CHECK(result.bias_steps == std::vector<std::size_t>{1, 500});
    CHECK(result.biases.at("a|weight") == std::vector<int>{3, -4});
    CHECK(result.zeros.at("linear") == std::array<std::uint64_t, 3>{20, 1, 7});
    CHECK(result.zeros.at("gelu") == std::array<std::uint64_t, 3>{4, 4, 4});
    CHECK(result.steps == 500);
    CHECK(result.skipped == 5);
    CHECK(result.tokens_per_s == 7.0);
    RunResult none;
    add_steps(none, {});
    CHECK(none.steps == 0);
}
