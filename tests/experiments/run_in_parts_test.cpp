// SPDX-License-Identifier: MIT
#include "experiments/run_in_parts.hpp"
#include "support/catch.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"

#include <unitscale/io/safetensors.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using experiments::LanguageRunOptions;
using experiments::LanguageRunResult;
using test::File;
using test::TemporaryFolder;

namespace {

/// A run of 12 steps; with `to` it switches after step `at`.
LanguageRunOptions run_of(const TemporaryFolder& folder, const std::string& recipe, const std::string& to = {},
                          std::size_t at = 6) {
    LanguageRunOptions options = test::small_run(folder, /*depth=*/1, /*steps=*/12);
    options.recipe = recipe;
    options.sample = 40;
    options.eval_every = 5;
    options.quiet = true;
    if (!to.empty()) options.switch_at = at;
    options.switch_to = to;
    return options;
}

struct CutOff {};

/// The result of a run and the losses of its steps. It ends after step `end`, as if killed, if there is one.
struct Trained {
    LanguageRunResult result{};
    std::vector<double> losses{};
    std::vector<std::string> switched_to{};
};
Trained trained(const LanguageRunOptions& options, std::optional<std::size_t> end = {}) {
    Trained run;
    const File out = test::temporary_file();
    try {
        run.result = experiments::run_language(options, out.get(), out.get(),
                                               [&](const experiments::LanguageStep& step, const ScalingState&) {
                                                   run.losses.push_back(step.train_bpc);
                                                   run.switched_to.push_back(step.switched_to.value_or(""));
                                                   if (end && step.step == *end) throw CutOff{};
                                               });
    } catch (const CutOff&) {
        REQUIRE(end);
    }
    return run;
}

void check_equal(const LanguageRunResult& a, const LanguageRunResult& b) {
    CHECK(a.train_bpc == b.train_bpc);
    CHECK(a.valid_bpc == b.valid_bpc);
    CHECK(a.sample == b.sample);
    CHECK(a.skipped == b.skipped);
    CHECK(a.state_bytes == b.state_bytes);
    CHECK(a.weight_bytes == b.weight_bytes);
}

/// All tensors of a checkpoint, with their types, as bytes.
std::vector<std::pair<std::string, std::vector<std::byte>>> tensors_of(const std::filesystem::path& path) {
    const io::SafetensorsReader file(path);
    std::vector<std::pair<std::string, std::vector<std::byte>>> all;
    for (const auto& [name, entry] : file.tensors()) {
        std::vector<std::byte> bytes(entry.bytes());
        file.read(name, bytes);
        all.emplace_back(name + ' ' + entry.dtype, std::move(bytes));
    }
    return all;
}

std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
    std::vector<nlohmann::json> lines;
    std::istringstream stream(TemporaryFolder::read(file));
    for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
}

}  // namespace

TEST_CASE("run in parts: up to its switch a run has the bits of the first recipe alone") {
    const TemporaryFolder folder;
    for (const auto& [from, to] : {std::pair{"mxfp8", "bf16"},
                                   {"fp8-delayed", "fp32"},
                                   {"unit-fp8", "unit-fp16"},
                                   {"scalify-fp8-4", "scalify-fp16-1"}}) {
        INFO(from << " to " << to);
        auto alone = run_of(folder, from), switched = run_of(folder, from, to);
        alone.save_every = switched.save_every = 6;
        alone.save = (folder.path() / "alone.safetensors").string();
        switched.save = (folder.path() / "switched.safetensors").string();
        const Trained first = trained(alone, 7), second = trained(switched, 7);
        REQUIRE(first.losses.size() == 7);
        REQUIRE(second.losses.size() == 7);
        for (std::size_t i = 0; i < 6; ++i) CHECK(first.losses[i] == second.losses[i]);
        CHECK(first.losses[6] != second.losses[6]);  // equal weights under the second recipe
        CHECK(tensors_of(alone.save) == tensors_of(switched.save));
    }
}

TEST_CASE("run in parts: a switch to the recipe itself changes no bit") {
    const TemporaryFolder folder;
    for (const char* recipe : {"fp32", "bf16", "unit-fp8", "nvfp4", "scalify-fp8-4", "umup-bf16"}) {
        INFO(recipe);
        auto alone = run_of(folder, recipe), switched = run_of(folder, recipe, recipe);
        alone.save = (folder.path() / "alone.safetensors").string();
        switched.save = (folder.path() / "switched.safetensors").string();
        const Trained one = trained(alone), two = trained(switched);
        CHECK(one.losses == two.losses);
        check_equal(one.result, two.result);
        CHECK(tensors_of(alone.save) == tensors_of(switched.save));
    }
}

TEST_CASE("run in parts: a run that is killed before, at or after its switch continues to equal bits") {
    const TemporaryFolder folder;
    for (const auto& [from, to] : {std::pair{"mxfp8", "bf16"},
                                   {"fp16-auto-loss-scaled", "fp32"},
                                   {"bf16", "fp16"},
                                   {"unit-fp8", "unit-fp16"},
                                   {"scalify-fp8-4", "scalify-fp16-1"}}) {
        INFO(from << " to " << to);
        auto options = run_of(folder, from, to);
        options.set = {"loss_scaling.initial=268435456"};  // so large that steps are skipped
        options.save_every = 3;
        options.save = (folder.path() / "whole.safetensors").string();
        const Trained whole = trained(options);
        CHECK(whole.losses.size() == 12);
        if (from == std::string("fp16-auto-loss-scaled")) CHECK(whole.result.skipped > 0);
        // Killed after this step, and resumed from the checkpoint of step 3, 6 or 9.
        for (const std::size_t end : {4u, 7u, 11u}) {
            INFO("killed after step " << end);
            options.save = (folder.path() / "parts.safetensors").string();
            options.resume.clear();
            trained(options, end);
            options.resume = options.save;
            const Trained resumed = trained(options);
            CHECK(resumed.losses == std::vector<double>(whole.losses.begin() + static_cast<std::ptrdiff_t>(end / 3 * 3),
                                                        whole.losses.end()));
            check_equal(resumed.result, whole.result);
            CHECK(TemporaryFolder::read(folder.path() / "parts.safetensors") ==
                  TemporaryFolder::read(folder.path() / "whole.safetensors"));
        }
        const train::CheckpointReader saved(options.save);
        CHECK(saved.recipe().name == to);
        CHECK(saved.file().metadata().contains("run/switch"));
    }
}

TEST_CASE("run in parts: a run without a switch is given one when it is resumed") {
    const TemporaryFolder folder;
    const Trained whole = trained(run_of(folder, "nvfp4", "bf16"));
    auto first = run_of(folder, "nvfp4");
    first.save = (folder.path() / "run.safetensors").string();
    first.save_every = 4;
    trained(first, 5);
    auto second = run_of(folder, "nvfp4", "bf16");
    second.resume = first.save;
    check_equal(trained(second).result, whole.result);
    second.switch_at = 3;
    CHECK_THROWS_WITH(
        trained(second),
        "--resume: " + first.save + " is at step 4 of a run without a switch; --switch-at is 3, expected at least 4");
}

TEST_CASE("run in parts: the learning rate goes on, the log and the narration say where the recipe changes") {
    const TemporaryFolder folder;
    auto options = run_of(folder, "mxfp8", "fp16-loss-scaled");
    options.quiet = false;
    options.log = (folder.path() / "log.jsonl").string();
    const File out = test::temporary_file(), progress = test::temporary_file();
    const LanguageRunResult result = experiments::run_language(options, out.get(), progress.get());
    CHECK(result.recipe == "mxfp8");
    CHECK(result.switch_at == 6);
    CHECK(result.switch_to == "fp16-loss-scaled");
    CHECK(result.line().starts_with("result recipe=mxfp8 switch_at=6 switch_to=fp16-loss-scaled steps=12 train_bpc="));
    const auto lines = lines_of(options.log);
    REQUIRE(lines.size() == 12);
    const optim::Schedule schedule{
        .kind = optim::ScheduleKind::cosine, .peak = find_recipe("mxfp8").learning_rate, .steps = 12, .warmup = 1};
    for (std::size_t i = 0; i < lines.size(); ++i) {
        CHECK(lines[i].at("step") == i + 1);
        CHECK(lines[i].at("learning_rate") == schedule.at(i + 1));
        CHECK(lines[i].contains("switched_to") == (i == 6));
        CHECK(lines[i].contains("loss_scale") == (i >= 6));  // the second recipe scales the loss, from its own start
    }
    CHECK(lines[6].at("switched_to") == "fp16-loss-scaled");
    CHECK(lines[6].at("loss_scale") == 0x1p12);

    // The settings and the table of both recipes.
    const std::string text = test::text_of(out.get());
    const std::size_t at =
        text.find("\nstep 6: switched from mxfp8 to fp16-loss-scaled\n\nrecipe      fp16-loss-scaled: ");
    REQUIRE(at != std::string::npos);
    CHECK(text.starts_with("recipe      mxfp8: "));
    CHECK(text.find("\nswitch      after step 6 to fp16-loss-scaled: ") < at);
    CHECK(text.find("ffn/up/linear") < at);
    CHECK(text.substr(0, at).find("mxfp8_e4m3") != std::string::npos);
    CHECK(text.find("ffn/up/linear", at) != std::string::npos);
    CHECK(text.find("mxfp8_e4m3", at) == std::string::npos);
    CHECK(test::text_of(progress.get()).find("step 12/12") != std::string::npos);

    // A run that goes on after its switch begins with the second recipe.
    options.log.clear();
    options.quiet = true;
    options.save = (folder.path() / "run.safetensors").string();
    options.save_every = 8;
    trained(options, 9);
    options.resume = options.save;
    const std::string described = experiments::describe_language(options);
    CHECK(described.starts_with("recipe      fp16-loss-scaled: "));
    CHECK(described.find("\nswitch      after step 6 from mxfp8: ") != std::string::npos);
    CHECK(experiments::parameters_of_language(options).find("decoder/readout/weight") != std::string::npos);
    const Trained resumed = trained(options);
    CHECK(resumed.switched_to == std::vector<std::string>(4));
}

TEST_CASE("run in parts: skipped steps are counted over both parts") {
    const TemporaryFolder folder;
    auto options = run_of(folder, "fp16-auto-loss-scaled", "fp16-loss-scaled");
    options.set = {"loss_scaling.initial=33554432"};
    const Trained both = trained(options);
    auto alone = options;
    alone.switch_at.reset();
    alone.switch_to.clear();
    std::uint64_t before = 0;
    const File out = test::temporary_file();
    static_cast<void>(experiments::run_language(alone, out.get(), out.get(),
                                                [&](const experiments::LanguageStep& step, const ScalingState&) {
                                                    if (step.step == 6) before = step.skipped;
                                                }));
    CHECK(before > 0);
    CHECK(both.result.skipped == before);  // the constant scale of the second recipe skips none
}

TEST_CASE("run in parts: every part is shown to the caller; a part alone is refused where the run has two") {
    const TemporaryFolder folder;
    const auto options = run_of(folder, "mxfp8", "bf16");
    std::vector<std::string> seen;
    const File out = test::temporary_file();
    static_cast<void>(experiments::run_in_parts(
        options, out.get(), out.get(), {},
        [&]<class T>(experiments::LanguageRun<T>& part, const std::function<void()>& take) {
            seen.push_back(concatenate(part.recipe().name, " from ", part.state().step()));
            take();
            seen.push_back(concatenate(part.recipe().name, " to ", part.state().step(), " of ", part.last_step()));
        }));
    CHECK(seen == std::vector<std::string>{"mxfp8 from 0", "mxfp8 to 6 of 6", "bf16 from 6", "bf16 to 12 of 12"});
    experiments::LanguageRun<float> first(options);
    const std::string expected = "LanguageRun: a run with a switch of recipes has two parts; see run_in_parts";
    CHECK_THROWS_WITH(first.run(out.get(), out.get()), expected);
    CHECK_THROWS_WITH(first.take_steps({}), expected);
}

TEST_CASE("run in parts: a weight that the second recipe cannot hold ends the run") {
    const TemporaryFolder folder;
    auto options = run_of(folder, "fp32", "fp16", 1);
    options.lr = 1e5;  // Adam moves every weight by about the learning rate in its first step
    options.warmup = 0;
    const File out = test::temporary_file();
    CHECK_THROWS_AS(experiments::run_language(options, out.get(), out.get()), experiments::RunFailed);
    CHECK_THROWS_WITH(experiments::run_language(options, out.get(), out.get()),
                      Catch::StartsWith("recipe switch: decoder/tokens/weight holds ") &&
                          Catch::EndsWith(", which the second recipe's weights cannot"));
}
