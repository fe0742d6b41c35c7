// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/step.hpp>
#include <unitscale/train/storage.hpp>

#include "experiments/coordinate_page.hpp"
#include "experiments/coordinate_probe.hpp"
#include "experiments/coordinate_trend.hpp"
#include "experiments/language_run_options.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace unitscale::experiments {

/// What `coord_check` is asked to do: the same few steps of training at several widths.
struct CoordinateCheckOptions {
    /// Of every width. Its recipe, where it names one, is used instead of the parametrisation's; heads are of one size at every
    /// width; the learning rate is constant, if it is empty a quarter of the recipe's. Its warm-up, evaluations, log, checkpoints
    /// and sample are not used.
    LanguageRunOptions run{
        .recipe = "", .model = "llama", .depth = 2, .seq = 64, .batch = 8, .steps = 8, .head_size = 32};
    std::string parametrisation = "umup";  ///< standard, unit, mup or umup, in 32-bit floating point
    std::vector<std::size_t> widths = {64, 128, 256, 512};
    std::size_t seeds = 3;  ///< `run.seed` and those that follow it
    std::string out = "coordinates.html";

    /// The run at a width, with its recipe named. Error: an unknown parametrisation.
    [[nodiscard]] LanguageRunOptions at(std::size_t width) const {
        LanguageRunOptions result = run;
        result.width = width;
        if (!run.recipe.empty()) return result;
        const auto known = std::find(parametrisation_names.begin(), parametrisation_names.end(), parametrisation);
        check(known != parametrisation_names.end(), "--parametrisation: unknown '", parametrisation,
              "'; expected one of standard, unit, mup, umup");
        result.recipe = parametrisation == "standard" ? "fp32" : parametrisation + "-fp32";
        return result;
    }

    /// Error, naming the option. The recipe and the data are their readers' to check.
    void validate() const {
        check(widths.size() >= 2, "--widths: ", widths.size(), widths.size() == 1 ? " width" : " widths",
              "; a trend needs at least 2, such as 64,128,256,512");
        check(seeds >= 1, "--seeds: is 0; expected at least 1");
        check(run.head_size >= 1, "--head-size: is 0; expected at least 1");
        for (std::size_t i = 0; i < widths.size(); ++i) {
            check(widths[i] % run.head_size == 0, "--widths: ", widths[i], " is not divisible by the head size ",
                  run.head_size);
            for (std::size_t j = 0; j < i; ++j)
                check(widths[i] != widths[j], "--widths: ", widths[i], " is given twice");
            at(widths[i]).validate();
        }
    }
};

/// Trains one width with one seed for the options' steps, each on its own batch, and measures every layer before the first and
/// after each. The batches are the same at every width, and those measured on are none of them: windows of the validation text.
/// RunFailed: a loss or a gradient norm is not finite.
template <class T>
[[nodiscard]] WidthCoordinates measure_width(const LanguageRunOptions& options, const Recipe& recipe,
                                             const train::Split& parts, std::size_t vocabulary) {
    train::check_storage<T>("measure_width", recipe);
    nn::Decoder<T> model(options.decoder(vocabulary));
    nn::initialise(model.parameters(), recipe, options.seed);
    ScalingState state(options.seed);
    Tape<T> tape(recipe, state, options.threads);
    optim::Adam<T> optimiser(
        model.parameters(),
        {.beta1 = 0.9, .beta2 = 0.95, .parametrisation = recipe.parametrisation_rule(), .storage = recipe.storage});
    optim::LossScaler scaler(recipe.loss_scaling);
    const bool scales = recipe.loss_scaling.kind != LossScaleKind::none;
    const double rate = options.lr.value_or(recipe.learning_rate);
    train::Batch batch = train::make_batch(options.batch, options.seq);
    const auto fill = [&](std::span<const std::int32_t> tokens, std::uint64_t step) {
        train::fill_random(batch, tokens, {options.seed, hash_name("data")}, step);
    };

    fill(parts.validation, 0);
    CoordinateProbe<T> probe(model, tape, batch.ids);
    fill(parts.training, 1);
    train::plan_factors(model, tape, batch);
    WidthCoordinates measured{.width = options.width, .steps = {probe.measure()}};
    for (std::size_t step = 1; step <= options.steps; ++step) {
        fill(parts.training, step);
        train::StepResult result;
        do {  // a step that is skipped, its loss scale too large, is not one of those counted
            result = train::train_step<T>(model, tape, optimiser, {&batch, 1}, rate, scales ? &scaler : nullptr);
        } while (result.skipped && scaler.skipped_in_a_row() <= 50);
        if (!result.updated)
            throw RunFailed(concatenate("coordinate check: the loss or its gradient is not finite at width ",
                                        options.width, ", step ", step, "; try a lower --lr (it is ", rate, ")"));
        measured.last_loss = result.loss * train::bits_per_nat;
        if (step == 1) measured.first_loss = measured.last_loss;
        measured.steps.push_back(probe.measure());
    }
    return measured;
}

/// Trains every width for a few steps and says how the layers' outputs, and their changes, move with the width: tables on `text`,
/// a page at `out`, and the verdict as the last line, `verdict: flat`, `verdict: growing` or `verdict: shrinking` (see `judge`).
/// µP's criterion: where the best learning rate is to be the same at every width, a step has to change every layer as much at every
/// width.
/// Errors: those of the options, the recipe and the data, before any training. RunFailed: a loss is not finite.
/// Reference: Yang et al. 2022, arXiv:2203.03466, appendix D.1. Test: tests/experiments/coordinate_check_test.cpp
inline void coordinate_check(CoordinateCheckOptions options, std::FILE* text) {
    options.validate();
    std::sort(options.widths.begin(), options.widths.end());
    const LanguageRunOptions& run = options.run;
    const Recipe recipe = recipe_of(options.at(options.widths.front()));
    const std::u32string characters = io::read_text(run.data);
    const io::CharacterVocabulary vocabulary(characters);
    const std::vector<std::int32_t> tokens = vocabulary.encode(characters);
    const train::Split parts = train::split(tokens, run.seq);
    io::check_writable("--out", options.out);

    // Training reaches the recipe's rate by a warm-up; here the first step has the full rate, from which small widths depart most.
    const double rate = run.lr.value_or(0.25 * recipe.learning_rate);
    const std::string heading = concatenate(
        "recipe ", recipe.name, ", model ", run.model, ", depth ", run.depth, ", heads of ", run.head_size, ", ",
        run.steps, run.steps == 1 ? " step" : " steps", " of ", run.batch, " x ", run.seq,
        " characters, Adam, learning rate ", rate, ", ", options.seeds, options.seeds == 1 ? " seed" : " seeds");
    std::fprintf(text, "%s\n", heading.c_str());
    std::vector<WidthCoordinates> measured;
    for (const std::size_t width : options.widths) {
        std::vector<WidthCoordinates> runs;
        LanguageRunOptions one = options.at(width);
        one.lr = rate;
        for (std::size_t i = 0; i < options.seeds; ++i, ++one.seed)
            runs.push_back(train::with_storage(recipe, [&]<class T>(std::type_identity<T>) {
                return measure_width<T>(one, recipe, parts, vocabulary.size());
            }));
        measured.push_back(pooled(runs));
        std::fprintf(text, "width %zu: training loss %.3f, then %.3f bits per character\n", width,
                     measured.back().first_loss, measured.back().last_loss);
        std::fflush(text);
    }

    const std::vector<LayerTrend> first = layer_trends(measured, 0), last = layer_trends(measured, run.steps);
    const CoordinateJudgement judgement = judge(last);
    const auto print = [&](const std::string& title, const std::vector<LayerTrend>& trends, auto values, auto trend) {
        std::fprintf(text, "\n%s\n%s", title.c_str(),
                     io::text_table(trend_rows(measured, trends, values, trend)).c_str());
    };
    const std::string after = concatenate(" after ", run.steps, run.steps == 1 ? " step" : " steps");
    print("rms of each layer's output at initialisation", first, &LayerTrend::outputs, &LayerTrend::output);
    print("rms of each layer's output" + after, last, &LayerTrend::outputs, &LayerTrend::output);
    print("rms of the output's change" + after, last, &LayerTrend::changes, &LayerTrend::change);
    io::write_atomically("--out", options.out, coordinate_page(measured, heading));
    std::fprintf(text, "\nthe page is %s\n%s\nverdict: %s\n", options.out.c_str(),
                 explain(judgement, run.steps).c_str(), std::string(name(judgement.verdict)).c_str());
}

}  // namespace unitscale::experiments
