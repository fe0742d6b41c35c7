// SPDX-License-Identifier: MIT
#include "experiments/run_parts.hpp"
#include "support/catch.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_group.hpp"

#include <unitscale/io/json_recipe.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/checkpoint.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

using namespace unitscale;
using experiments::LanguageRunOptions;
using experiments::RunPart;
using test::TemporaryFolder;

namespace {

/// A run of 12 steps that switches after the fourth.
LanguageRunOptions switched(const std::string& from, const std::string& to, std::size_t at = 4) {
    return {.data = {"text.txt"}, .recipe = from, .switch_at = at, .switch_to = to, .steps = 12};
}

std::vector<std::string> names_of(const std::vector<Recipe>& recipes) {
    std::vector<std::string> names;
    for (const Recipe& recipe : recipes) names.push_back(recipe.name);
    return names;
}

/// The message of an error; "none" without one.
template <class F>
std::string message_of(const F& f) {
    try {
        f();
    } catch (const Error& error) {
        return error.what();
    }
    return "none";
}
std::string message_of_recipes(const LanguageRunOptions& options) {
    return message_of([&] { static_cast<void>(experiments::recipes_of(options)); });
}

/// A checkpoint of step `step`, with the parts that this header reads. `text`: its switch; empty: none.
std::string checkpoint_at(const TemporaryFolder& folder, std::uint64_t step, const std::string& text = {}) {
    const std::filesystem::path path = folder.path() / ("step" + std::to_string(step) + ".safetensors");
    train::CheckpointWriter writer;
    writer.set_prefix("state/");
    writer.scalar("step", step);
    writer.set_prefix("run/");
    if (!text.empty()) writer.text("switch", text);
    writer.write(path);
    return path.string();
}
std::string text_of_switch(const LanguageRunOptions& options) {
    return experiments::switch_text(options, experiments::recipes_of(options));
}
/// The message of resuming `options` from a checkpoint of `step`, whose run had the switch of `saved`.
std::string resumed(const LanguageRunOptions& options, std::uint64_t step, const std::string& saved) {
    const TemporaryFolder folder;
    LanguageRunOptions run = options;
    run.resume = checkpoint_at(folder, step, saved);
    std::string message = message_of([&] { experiments::check_resumed_switch(run, experiments::recipes_of(run)); });
    if (const std::size_t at = message.find(run.resume); at != std::string::npos)
        message.replace(at, run.resume.size(), "FILE");
    return message;
}

}  // namespace

TEST_CASE("run parts: a run has one recipe, or two of one scaling and parametrisation") {
    LanguageRunOptions one = switched("mxfp8", "bf16");
    one.switch_at.reset();
    one.switch_to.clear();
    CHECK(names_of(experiments::recipes_of(one)) == std::vector<std::string>{"mxfp8"});
    for (const auto& [from, to] : {std::pair{"mxfp8", "bf16"},
                                   {"nvfp4", "fp32"},
                                   {"fp8-delayed", "fp16"},
                                   {"unit-fp8", "unit-fp16"},
                                   {"umup-fp8", "umup-bf16"},
                                   {"scalify-fp8-4", "scalify-fp16-1"},
                                   {"fp32", "fp32"}})
        CHECK(names_of(experiments::recipes_of(switched(from, to))) == std::vector<std::string>{from, to});

    // Fields that are set change the first recipe only.
    LanguageRunOptions changed = switched("fp8-amax", "fp8-amax");
    changed.set = {"clip_norm=2"};
    CHECK(experiments::recipes_of(changed).front().clip_norm == 2.0);
    CHECK(experiments::recipes_of(changed).back().clip_norm == 1.0);
    changed.to_infinity = true;
    for (const Recipe& recipe : experiments::recipes_of(changed))
        CHECK(recipe.products.back().formats.activation->overflow == Overflow::to_infinity);

    // A recipe of one's own for the second part.
    const TemporaryFolder folder;
    const std::string file = folder.write("mine.json", R"({"base": "bf16", "name": "mine"})").string();
    CHECK(names_of(experiments::recipes_of(switched("mxfp8", file))) == std::vector<std::string>{"mxfp8", "mine"});
}

TEST_CASE("run parts: a second recipe that is unknown or does not fit is one line that names the option") {
    CHECK(message_of_recipes(switched("fp32", "bf16")) == "none");
    CHECK(message_of_recipes(switched("fp32", "fp7"))
              .starts_with("--switch-to: recipe: unknown name 'fp7'; expected one of fp32, "));
    CHECK(message_of_recipes(switched("fp32", "no.json")) == "--switch-to: recipe: no.json cannot be read");
    CHECK(message_of_recipes(switched("unit-fp8", "bf16")) ==
          "--switch-to: bf16 has scaling none; expected unit, as unit-fp8 has");
    CHECK(message_of_recipes(switched("scalify-fp8-4", "fp32")) ==
          "--switch-to: fp32 has scaling none; expected propagate, as scalify-fp8-4 has");
    CHECK(message_of_recipes(switched("fp32", "mup-fp32")) ==
          "--switch-to: mup-fp32 has parametrisation mup; expected standard, as fp32 has");
    LanguageRunOptions changed = switched("fp32", "bf16");
    changed.set = {"hyperparameters.alpha_attn=2"};
    CHECK(message_of_recipes(changed) == "--switch-to: bf16 has hyperparameters.alpha_attn 1; expected 2, as fp32 has");
}

TEST_CASE("run parts: a run goes on with the part that its checkpoint belongs to") {
    const TemporaryFolder folder;
    LanguageRunOptions options = switched("mxfp8", "bf16");
    CHECK(experiments::next_part(options) == RunPart::first);
    for (const std::uint64_t step : {1u, 4u}) {
        options.resume = checkpoint_at(folder, step);
        CHECK(experiments::next_part(options) == RunPart::first);
    }
    options.resume = checkpoint_at(folder, 5);
    CHECK(experiments::next_part(options) == RunPart::second);
    options.switch_at.reset();
    options.switch_to.clear();
    CHECK(experiments::next_part(options) == RunPart::first);
    options.switch_at = 4;
    CHECK_THROWS_WITH(experiments::next_part(options), "--switch-at: is 4, but --switch-to names no recipe");
}

TEST_CASE("run parts: a checkpoint keeps the switch with both recipes") {
    const auto json = nlohmann::json::parse(text_of_switch(switched("mxfp8", "bf16")));
    CHECK(json.at("at") == 4);
    CHECK(json.at("from").at("name") == "mxfp8");
    CHECK(json.at("to") == nlohmann::json(io::recipe_to_json(find_recipe("bf16"))));
}

TEST_CASE("run parts: a run goes on with its own switch only; without one it may be given one") {
    const LanguageRunOptions run = switched("mxfp8", "bf16");
    const std::string own = text_of_switch(run);
    CHECK(resumed(run, 3, own) == "none");
    CHECK(resumed(run, 9, own) == "none");
    CHECK(resumed(switched("mxfp8", "bf16", 5), 3, own) == "--resume: FILE was trained with --switch-at 4, not 5");
    CHECK(resumed(switched("mxfp8", "fp16"), 3, own) == "--resume: FILE was trained with --switch-to bf16, not fp16");
    CHECK(resumed(switched("nvfp4", "bf16"), 9, own) == "--resume: FILE was trained with --recipe mxfp8, not nvfp4");
    LanguageRunOptions other = run;
    other.set = {"clip_norm=2"};
    CHECK(resumed(other, 3, own) == "--resume: FILE was trained with other fields of --recipe mxfp8");
    const TemporaryFolder folder;
    other = switched("mxfp8", folder.write("b.json", R"({"base": "bf16", "clip_norm": 2})").string());
    CHECK(resumed(other, 3, own) == "--resume: FILE was trained with other fields of --switch-to bf16");
    other = switched("mxfp8", folder.write("c.json", R"({"base": "bf16", "description": "words"})").string());
    CHECK(resumed(other, 3, own) == "none");  // the description changes nothing

    LanguageRunOptions plain = run;
    plain.switch_at.reset();
    plain.switch_to.clear();
    CHECK(resumed(plain, 9, "") == "none");
    CHECK(resumed(plain, 3, own) == "--resume: FILE was trained with --switch-at 4 --switch-to bf16; expected both");
    CHECK(resumed(run, 4, "") == "none");
    CHECK(resumed(run, 5, "") ==
          "--resume: FILE is at step 5 of a run without a switch; --switch-at is 4, expected at least 5");
    CHECK(resumed(run, 3, "{}") == "checkpoint: FILE: its switch is not a JSON object with at, from and to");
    CHECK(resumed(run, 3, "at 4") == "checkpoint: FILE: its switch is not a JSON object with at, from and to");
}

TEST_CASE("run parts: the settings name recipe, switch, model, data and training") {
    const TemporaryFolder folder;
    LanguageRunOptions options = switched("mxfp8", "bf16");
    options.data = {test::proverb_in(folder)};
    options.seq = 16;
    const experiments::LanguageData data(options);
    CHECK(data.vocabulary.size() == 17);
    CHECK(data.parts.training.size() + data.parts.validation.size() == data.text.size());
    const auto text = [&](RunPart part) {
        return experiments::settings_text(options, experiments::recipes_of(options), part, data, 1000,
                                          {.peak = 0.5, .steps = 12, .warmup = 1});
    };
    const Recipe first = find_recipe("mxfp8"), second = find_recipe("bf16");
    CHECK(text(RunPart::first)
              .starts_with(experiments::recipe_text(first) + "switch      after step 4 to bf16: " + second.description +
                           "\nmodel       gpt, width 128, "));
    CHECK(text(RunPart::second)
              .starts_with(experiments::recipe_text(second) + "switch      after step 4 from mxfp8: " +
                           first.description + "\nmodel       gpt, width 128, "));
    CHECK(text(RunPart::first).find("; 1000 parameters, vocabulary of 17 characters\n") != std::string::npos);
    CHECK(text(RunPart::first).find("\ntraining    12 steps of 16 x 16 characters, peak learning rate 0.5, ") !=
          std::string::npos);
    CHECK(experiments::recipe_text(second).starts_with(
        "recipe      bf16: standard model in BF16, FP32 master weights\nscaling     none, parametrisation standard"));
    CHECK(experiments::part_name(options, first, RunPart::first) == "mxfp8 to step 4");
    CHECK(experiments::part_name(options, second, RunPart::second) == "bf16 from step 5");
    options.switch_at.reset();
    options.switch_to.clear();
    CHECK(experiments::part_name(options, first, RunPart::first) == "mxfp8");
    CHECK(text(RunPart::first).find("switch ") == std::string::npos);
}

TEST_CASE("of processes that share a run the first reports and writes, and all agree on data and options") {
    const test::TemporaryFolder folder;
    experiments::LanguageRunOptions options = test::small_run(folder, 1, 4);
    options.micro_batches = 2;
    options.log = "run.jsonl";
    options.save = "run.safetensors";
    CHECK(experiments::options_of_process(options).log == "run.jsonl");
    std::vector<experiments::LanguageRunOptions> own(2);
    std::vector<std::string> errors(4);
    test::in_group(2, [&](const std::shared_ptr<train::ProcessGroup>& group) {
        experiments::LanguageRunOptions mine = options;
        mine.group = group;
        own[group->rank()] = experiments::options_of_process(mine);
    });
    CHECK(own[0].log == "run.jsonl");
    CHECK(own[0].save == "run.safetensors");
    CHECK(own[0].sample > 0);
    CHECK_FALSE(own[0].quiet);
    CHECK(own[1].log.empty());
    CHECK(own[1].save == "run.safetensors");  // the first may wait for its state
    CHECK(own[1].sample == 0);
    CHECK(own[1].quiet);
    test::in_group(4, [&](const std::shared_ptr<train::ProcessGroup>& group) {
        experiments::LanguageRunOptions mine = options;
        mine.group = group;
        errors[group->rank()] = message_of([&] { static_cast<void>(experiments::options_of_process(mine)); });
    });
    for (const std::string& error : errors)
        CHECK(error ==
              "--distributed: 4 processes share 2 micro-batches; expected --micro-batches of at least one for each");

    const experiments::LanguageData data(options);
    const auto facts = experiments::shared_facts(options, data);
    REQUIRE(facts.size() == 2);
    CHECK(facts[0].first == "data");
    CHECK(facts[0].second.starts_with("1920 characters with checksum "));
    CHECK(facts[1].first == "options");
    options.threads = 3;
    options.log.clear();
    CHECK(experiments::shared_facts(options, data) == facts);
    options.weight_decay = 0.1;
    CHECK(experiments::shared_facts(options, data)[1] != facts[1]);
}
