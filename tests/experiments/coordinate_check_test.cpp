// SPDX-License-Identifier: MIT
#include "experiments/coordinate_check.hpp"
#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"

#include <unitscale/io/text.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/train/evaluate.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

using namespace unitscale;
using experiments::CoordinateCheckOptions;
using test::TemporaryFolder;

namespace {

CoordinateCheckOptions small(const TemporaryFolder& folder) {
    CoordinateCheckOptions options;
    options.run.data = {test::proverb_in(folder)};
    options.run.depth = 1;
    options.run.head_size = 4;
    options.run.seq = 16;
    options.run.batch = 2;
    options.run.steps = 2;
    options.widths = {16, 8};
    options.seeds = 2;
    options.out = (folder.path() / "out.html").string();
    return options;
}

/// The output of coordinate_check, and its error.
test::Outcome outcome_of(const CoordinateCheckOptions& options) {
    return test::outcome_of([&](std::FILE* file) { experiments::coordinate_check(options, file); });
}

}  // namespace

TEST_CASE("coordinate check: the numbers of a width equal the numbers of steps made by hand on the tape") {
    const TemporaryFolder folder;
    const CoordinateCheckOptions options = small(folder);
    const std::u32string text = io::read_text(options.run.data);
    const io::CharacterVocabulary vocabulary(text);
    const std::vector<std::int32_t> tokens = vocabulary.encode(text);
    const train::Split parts = train::split(tokens, options.run.seq);
    for (const std::size_t width : options.widths) {
        const experiments::LanguageRunOptions run = options.at(width);
        const Recipe recipe = experiments::recipe_of(run);
        CHECK(recipe.name == "umup-fp32");
        const experiments::WidthCoordinates measured = experiments::measure_width(run);
        CHECK(measured.width == width);
        REQUIRE(measured.steps.size() == 3);

        test::LanguageModel<float> model(recipe, run.decoder(vocabulary.size()), run.seed);
        optim::Adam<float> optimiser(model.decoder.parameters(),
                                     {.beta1 = 0.9, .beta2 = 0.95, .parametrisation = recipe.parametrisation_rule()});
        train::Batch batch = train::make_batch(2, 16), seen = train::make_batch(2, 16);
        train::fill_random(seen, parts.validation, {run.seed, hash_name("data")}, 0);
        std::vector<std::vector<double>> logits;
        for (std::size_t step = 0; step <= 2; ++step) {
            if (step > 0) {
                train::fill_random(batch, parts.training, {run.seed, hash_name("data")}, step);
                optimiser.clear_gradients();
                model.tape.begin_step();
                const Variable<float> loss = model.loss(batch);
                if (step == 1) CHECK(measured.first_loss == Approx(loss.item() * train::bits_per_nat));
                if (step == 2) CHECK(measured.last_loss == Approx(loss.item() * train::bits_per_nat));
                model.tape.backward(loss);
                optimiser.step(model.tape.execution(), recipe.learning_rate);
            }
            model.tape.begin_step({.training = false, .gradients = false});
            const Variable<float> out = model.decoder(model.tape, seen.ids);
            logits.emplace_back(out.value().span().begin(), out.value().span().end());
            double output = 0.0, change = 0.0;
            for (std::size_t i = 0; i < logits[step].size(); ++i) {
                output += logits[step][i] * logits[step][i];
                change += (logits[step][i] - logits[0][i]) * (logits[step][i] - logits[0][i]);
            }
            const auto count = static_cast<double>(logits[step].size());
            CHECK(measured.steps[step].back().layer == "logits");
            CHECK(measured.steps[step].back().output == Approx(std::sqrt(output / count)).epsilon(1e-9));
            CHECK(measured.steps[step].back().change == Approx(std::sqrt(change / count)).epsilon(1e-9));
            for (const auto& layer : measured.steps[step]) {
                INFO(layer.layer);
                CHECK(std::isfinite(layer.output));
                CHECK((step == 0 ? layer.change == 0.0 : layer.change > 0.0 && std::isfinite(layer.change)));
            }
        }
    }
}

TEST_CASE("coordinate check: tables by ascending width, a page, and the verdict as the last line") {
    const TemporaryFolder folder;
    CoordinateCheckOptions options = small(folder);
    for (const char* model : {"gpt", "llama"}) {
        options.run.model = model;
        for (const auto parametrisation : parametrisation_names) {
            options.parametrisation = parametrisation;
            const test::Outcome outcome = outcome_of(options);
            INFO(outcome.text << outcome.error);
            REQUIRE(outcome.error.empty());
            CHECK(outcome.text.find("model " + std::string(model) + ", depth 1, heads of 4, 2 steps of 2 x 16") !=
                  std::string::npos);
            const std::size_t header = outcome.text.find("\nlayer "), end = outcome.text.find('\n', header + 1);
            REQUIRE(end != std::string::npos);
            const std::string columns = outcome.text.substr(header, end - header);
            CHECK(columns.find("width 8 ") < columns.find("width 16 "));
            CHECK(columns.find("width 16 ") < columns.find("slope"));
            CHECK(columns.ends_with("  slope  max/min"));
            const std::size_t last = outcome.text.rfind('\n', outcome.text.size() - 2) + 1;
            const std::string line = outcome.text.substr(last);
            CHECK((line == "verdict: flat\n" || line == "verdict: growing\n" || line == "verdict: shrinking\n"));
            const std::string page = TemporaryFolder::read(options.out), verdict = line.substr(9, line.size() - 10);
            CHECK(page.find("<h1>Coordinate check: " + verdict + "</h1>") != std::string::npos);
        }
    }
    options.run.recipe = "unit-fp8";
    CHECK(outcome_of(options).text.starts_with("recipe unit-fp8, model llama, "));
}

TEST_CASE("coordinate check: bad input is one line, before any training, and no page is begun") {
    const TemporaryFolder folder;
    const auto error_of = [&](auto&& change) {
        CoordinateCheckOptions options = small(folder);
        change(options);
        const test::Outcome outcome = outcome_of(options);
        CHECK(outcome.text.empty());
        CHECK_FALSE(std::filesystem::exists(folder.path() / "out.html"));
        return outcome.error;
    };
    CHECK(error_of([](auto& o) { o.parametrisation = "np"; }) ==
          "--parametrisation: unknown 'np'; expected one of standard, unit, mup, umup");
    CHECK(error_of([](auto& o) { o.widths = {64}; }) ==
          "--widths: 1 width; a trend needs at least 2, such as 64,128,256,512");
    CHECK(error_of([](auto& o) { o.widths = {}; }) ==
          "--widths: 0 widths; a trend needs at least 2, such as 64,128,256,512");
    CHECK(error_of([](auto& o) { o.widths = {8, 10}; }) == "--widths: 10 is not divisible by the head size 4");
    CHECK(error_of([](auto& o) { o.widths = {8, 16, 8}; }) == "--widths: 8 is given twice");
    CHECK(error_of([](auto& o) { o.widths = {8, 0}; }) == "--width: is 0; expected at least 1");
    CHECK(error_of([](auto& o) { o.run.steps = 0; }) == "--steps: is 0; expected at least 1");
    CHECK(error_of([](auto& o) { o.seeds = 0; }) == "--seeds: is 0; expected at least 1");
    CHECK(error_of([](auto& o) { o.run.head_size = 0; }) == "--head-size: is 0; expected at least 1");
    CHECK(error_of([](auto& o) { o.run.model = "bert"; }) == "--model: is bert; expected gpt, llama or unit-scaling");
    CHECK(error_of([](auto& o) { o.run.lr = -1.0; }) == "--lr: is -1; expected a positive number");
    CHECK(error_of([](auto& o) { o.run.recipe = "fp7"; }).starts_with("recipe: unknown name 'fp7'; expected one of "));
    const std::string missing = (folder.path() / "no" / "out.html").string();
    CHECK(error_of([&](auto& o) { o.out = missing; }) == "--out: " + missing + " cannot be written");
}

TEST_CASE("coordinate check: the error of a diverging run names width and step") {
    const TemporaryFolder folder;
    CoordinateCheckOptions options = small(folder);
    options.parametrisation = "standard";
    options.run.lr = 1e30;
    const test::Outcome outcome = outcome_of(options);
    CHECK(
        outcome.error ==
        "coordinate check: the loss or its gradient is not finite at width 8, step 2; try a lower --lr (it is 1e+30)");
    CHECK_FALSE(std::filesystem::exists(folder.path() / "out.html"));
}
