// SPDX-License-Identifier: MIT
#include "experiments/coordinate_check.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/element.hpp>

#include "experiments/coordinate_page.hpp"
#include "experiments/coordinate_probe.hpp"
#include "experiments/language_run.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace unitscale::experiments {

namespace {

/// `measure_width` in the element type T.
template <class T>
[[nodiscard]] WidthCoordinates measure_width_as(const LanguageRunOptions& options) {
    LanguageRun<T> run(options);
    train::Batch seen = train::make_batch(options.batch, options.seq);
    train::fill_random(seen, run.split().validation, {options.seed, hash_name("data")}, 0);
    run.plan();
    CoordinateProbe<T> probe(run.model(), run.tape(), seen.ids);
    WidthCoordinates measured{.width = options.width, .steps = {probe.measure()}};
    try {
        run.take_steps([&](const LanguageStep& step, const ScalingState&) {
            measured.last_loss = step.train_bpc;
            if (step.step == 1) measured.first_loss = measured.last_loss;
            measured.steps.push_back(probe.measure());
        });
    } catch (const Diverged&) {
        throw RunFailed(concatenate("coordinate check: the loss or its gradient is not finite at width ", options.width,
                                    ", step ", measured.steps.size(), "; try a lower --lr (it is ",
                                    options.lr.value_or(run.recipe().learning_rate), ")"));
    }
    return measured;
}

}  // namespace

LanguageRunOptions CoordinateCheckOptions::at(std::size_t width) const {
    LanguageRunOptions result = run;
    result.width = width;
    if (!run.recipe.empty()) return result;
    const auto known = std::find(parametrisation_names.begin(), parametrisation_names.end(), parametrisation);
    check(known != parametrisation_names.end(), "--parametrisation: unknown '", parametrisation,
          "'; expected one of standard, unit, mup, umup");
    result.recipe = parametrisation == "standard" ? "fp32" : parametrisation + "-fp32";
    return result;
}

void CoordinateCheckOptions::validate() const {
    check(widths.size() >= 2, "--widths: ", widths.size(), widths.size() == 1 ? " width" : " widths",
          "; a trend needs at least 2, such as 64,128,256,512");
    check(seeds >= 1, "--seeds: is 0; expected at least 1");
    check(run.head_size >= 1, "--head-size: is 0; expected at least 1");
    for (std::size_t i = 0; i < widths.size(); ++i) {
        check(widths[i] % run.head_size == 0, "--widths: ", widths[i], " is not divisible by the head size ",
              run.head_size);
        for (std::size_t j = 0; j < i; ++j) check(widths[i] != widths[j], "--widths: ", widths[i], " is given twice");
        at(widths[i]).validate();
    }
}

WidthCoordinates measure_width(LanguageRunOptions options) {
    options.schedule = "constant";
    options.repeat_skipped = options.quiet = true;
    options.eval_every = options.sample = 0;
    options.log.clear();
    options.save.clear();
    options.resume.clear();
    options.weights.clear();
    return train::with_element(recipe_of(options),
                               [&]<class T>(std::type_identity<T>) { return measure_width_as<T>(options); });
}

void coordinate_check(CoordinateCheckOptions options, std::FILE* text) {
    options.validate();
    std::sort(options.widths.begin(), options.widths.end());
    const LanguageRunOptions& run = options.run;
    const Recipe recipe = recipe_of(options.at(options.widths.front()));
    static_cast<void>(read_training_text(run.data, {run.seq}));  // bad data is an error before any output
    io::check_writable("--out", options.out);

    // A normal run reaches the recipe's rate by a warm-up. Here the first step has the full rate. Its effect is largest
    // at small widths.
    const double rate = run.lr.value_or(0.25 * recipe.learning_rate);
    const std::string heading = concatenate(
        "recipe ", recipe.name, ", model ", run.model_text(), ", depth ", run.depth, ", heads of ", run.head_size, ", ",
        run.steps, run.steps == 1 ? " step" : " steps", " of ", run.batch, " x ", run.seq,
        " characters, Adam, learning rate ", rate, ", ", options.seeds, options.seeds == 1 ? " seed" : " seeds");
    std::fprintf(text, "%s\n", heading.c_str());
    std::vector<WidthCoordinates> measured;
    for (const std::size_t width : options.widths) {
        std::vector<WidthCoordinates> runs;
        LanguageRunOptions one = options.at(width);
        one.lr = rate;
        for (std::size_t i = 0; i < options.seeds; ++i, ++one.seed) runs.push_back(measure_width(one));
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
    io::write_atomically("--out", options.out, coordinate_page(measured, heading, options.source));
    std::fprintf(text, "\nthe page is %s\n%s\nverdict: %s\n", options.out.c_str(),
                 explain(judgement, run.steps).c_str(), std::string(name(judgement.verdict)).c_str());
}

}  // namespace unitscale::experiments
