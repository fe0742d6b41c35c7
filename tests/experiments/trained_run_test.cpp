// SPDX-License-Identifier: MIT
#include "experiments/language_run.hpp"
#include "experiments/trained_run.hpp"
#include "support/catch.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;
using Json = nlohmann::ordered_json;

namespace {

LanguageRunOptions small(const TemporaryFolder& folder, const std::string& recipe) {
    LanguageRunOptions options = test::small_run(folder, /*depth=*/2, /*steps=*/12);
    options.recipe = recipe;
    options.lr = 0.01;
    options.save_every = 5;
    return options;
}

/// A small run, trained with `watch`, which may throw. Its files are in `folder`.
TrainedRun train_small(
    const TemporaryFolder& folder, const std::string& recipe, Measured measured = Measured::steps,
    const std::function<void(const LanguageStep&)>& watch = [](const LanguageStep&) {}) {
    const LanguageRunOptions options = small(folder, recipe);
    return train_run(options, measured, UnfinishedRun(folder.path() / "run", measured, options.steps), watch);
}

/// The lines of a log, without speeds.
std::string text_of(std::vector<Json> lines) {
    std::string text;
    for (Json& line : lines) {
        line.erase("tokens_per_s");
        text += line.dump() + '\n';
    }
    return text;
}

}  // namespace

TEST_CASE("trained run: the loss equals the loss of a separate run, and every step has its line") {
    const TemporaryFolder folder, other;
    const TrainedRun trained = train_small(folder, "fp8-amax");
    LanguageRunOptions alone = small(folder, "fp8-amax");
    alone.quiet = true;
    alone.sample = alone.save_every = 0;
    const LanguageRunResult result = run_language(alone, stdout, stdout);
    CHECK_FALSE(trained.failed);
    CHECK(trained.result.valid_bpc == result.valid_bpc);
    CHECK(trained.result.train_bpc == result.train_bpc);
    CHECK(trained.result.weight_bytes > 0);
    CHECK(trained.result.weight_bytes == result.weight_bytes);
    CHECK(trained.result.state_bytes > trained.result.weight_bytes);
    CHECK(trained.result.step_bytes > 0);
    CHECK(trained.seconds > 0.0);
    REQUIRE(trained.lines.size() == 12);
    CHECK(trained.lines[11].at("step") == 12);
    CHECK(trained.lines[11].at("tokens_per_s") > 0.0);
    // Two layers of query, key, value, out, up and down, three roles.
    CHECK(trained.lines[0].at("biases").size() == 2 * 6 * 3);
    CHECK(trained.lines[0].at("zeros").at("linear").at(0) > 0);
    CHECK(trained.lines[0].at("zeros").contains("parameter"));

    // Operands with a rule of their own, and those of attention, have biases of their own. Each tensor of attention is
    // rounded alike in both of its products, but k.
    const TemporaryFolder folder_of_attention;
    const TrainedRun attention =
        train_small(folder_of_attention,
                    "fp8-amax:attention.activation=e4m3:attention.activation_scale.source=amax:"
                    "attention.query_gradient.k=e5m2:attention.query_gradient.k.scale.source=amax:"
                    "matmul.weight_gradient.x=e4m3:matmul.weight_gradient.x.scale.source=amax");
    const auto& biases = attention.lines[0].at("biases");
    std::vector<std::string> names;
    for (const auto& [name, bias] : biases.items())
        if (name.find("block0/") != std::string::npos && name.find('.') != std::string::npos)
            names.push_back(name.substr(name.find('|') + 1));
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    CHECK(names == std::vector<std::string>{"logits.k", "logits.q", "output.p", "output.v", "query_gradient.k",
                                            "weight_gradient.x"});

    // Measuring less changes no loss.
    const TrainedRun losses = train_small(other, "fp8-amax", Measured::losses);
    CHECK(losses.result.valid_bpc == trained.result.valid_bpc);
    CHECK(losses.lines.empty());
    CHECK_FALSE(std::filesystem::exists(other.path() / "run.jsonl"));
}

TEST_CASE("trained run: a stopped run continues from its checkpoint, to an equal result") {
    for (const Measured measured : {Measured::losses, Measured::steps}) {
        const TemporaryFolder folder, other;
        struct Killed {};
        std::vector<std::size_t> seen;
        const auto until = [&](std::size_t last) {
            return [&seen, last](const LanguageStep& step) {
                seen.push_back(step.step);
                if (step.step == last) throw Killed{};
            };
        };
        CHECK_THROWS_AS(train_small(folder, "fp8-delayed", measured, until(7)), Killed);
        CHECK_THROWS_AS(train_small(folder, "fp8-delayed", measured, until(11)), Killed);
        const TrainedRun resumed = train_small(folder, "fp8-delayed", measured, until(99));
        CHECK(seen == std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 10, 11, 11, 12});
        const TrainedRun whole = train_small(other, "fp8-delayed", measured);
        CHECK(resumed.result.valid_bpc == whole.result.valid_bpc);
        CHECK(resumed.result.train_bpc == whole.result.train_bpc);
        CHECK(text_of(resumed.lines) == text_of(whole.lines));
    }
}

TEST_CASE("trained run: the root mean squares of the last step change no loss, and a resumed run has them, too") {
    const auto text = [](const TrainedRun& trained) { return json_of(trained.rms).dump(); };
    const auto ignore = [](const LanguageStep&) {};
    for (const Measured measured : {Measured::losses, Measured::steps}) {
        const TemporaryFolder folder, other, plain;
        const auto train = [&](const TemporaryFolder& in, const auto& watch, bool rms) {
            const LanguageRunOptions options = small(in, "umup-fp8");
            return train_run(options, measured, UnfinishedRun(in.path() / "run", measured, options.steps), watch, rms);
        };
        const TrainedRun whole = train(folder, ignore, true), without = train(plain, ignore, false);
        CHECK(whole.result.valid_bpc == without.result.valid_bpc);
        CHECK(text_of(whole.lines) == text_of(without.lines));
        CHECK(without.rms.empty());
        CHECK(whole.rms.size() == 9);
        struct Killed {};
        CHECK_THROWS_AS(train(
                            other,
                            [](const LanguageStep& step) {
                                if (step.step == 7) throw Killed{};
                            },
                            true),
                        Killed);
        CHECK(text(train(other, ignore, true)) == text(whole));
        // The checkpoint of the last step gives no step to measure.
        CHECK(text(train(other, ignore, true)) == text(whole));
    }
}

TEST_CASE("trained run: a diverged run is an outcome, with the first bad value if steps are measured") {
    for (const Measured measured : {Measured::losses, Measured::steps}) {
        const TemporaryFolder folder;
        LanguageRunOptions options = small(folder, "fp32");
        options.lr = 3e38;
        options.warmup = 1;
        const TrainedRun trained = train_run(options, measured, UnfinishedRun(folder.path() / "run", measured, 12),
                                             [](const LanguageStep&) {});
        CHECK(trained.failed);
        CHECK(trained.reason.starts_with("the "));
        CHECK(trained.reason.find("try") == std::string::npos);
        CHECK(trained.first_bad.empty() == (measured == Measured::losses));
    }
}

TEST_CASE("trained run: the reason of a failure, without the caller's name and advice") {
    CHECK(failure_text(RunFailed("train: the loss is nan at step 3; try a lower --lr (it is 1)")) ==
          "the loss is nan at step 3");
    CHECK(failure_text(RunFailed("checkpoint: a cannot be written")) == "checkpoint: a cannot be written");
}
