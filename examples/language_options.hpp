// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/nn/published_shapes.hpp>

#include "experiments/language_run_options.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <string>
#include <string_view>

// The options that all programs with a transformer share, so that each has all of them under one name.
namespace unitscale::examples {

/// Options of the model's kind and parts: those of `named_options` and `named_parts`.
inline void add_model_options(CLI::App& app, experiments::LanguageRunOptions& run) {
    for (const experiments::NamedOption& option : experiments::named_options()) {
        if (!option.of_model) continue;
        app.add_option(concatenate("--", option.name), run.*option.value,
                       concatenate(option.help, ": ", experiments::choice_text(option.values)))
            ->capture_default_str();
    }
    for (const experiments::NamedPart& part : experiments::named_parts())
        app.add_flag(concatenate("--", part.name), run.*part.value, std::string(part.help));
}

/// The feed-forward width, and the sizes of a published model, for programs with the option `--width`.
inline void add_shape_options(CLI::App& app, experiments::LanguageRunOptions& run) {
    app.add_option("--hidden", run.hidden, "width of the feed-forward layers; 0: the model's multiple of --width")
        ->capture_default_str();
    // CLI11 calls it when all arguments are read.
    app.add_option_function<std::string>(
        "--shape",
        [&app, &run](const std::string& shape) {
            run.set_shape(shape, [&app](std::string_view option) {
                const CLI::Option* const found = app.get_option_no_throw(concatenate("--", option));
                return found != nullptr && found->count() > 0;
            });
        },
        "--model, --width, --depth, --heads, --kv-heads and --hidden of a published model; each of them that is given "
        "replaces the shape's: " +
            nn::published_shape_names());
    require_not_negative(app, {"--hidden"});
}

/// Options of the optimiser, of the learning rate's course and of the loss. `--lr` and `--steps` are the program's own.
inline void add_training_options(CLI::App& app, experiments::LanguageRunOptions& run) {
    for (const experiments::NamedOption& option : experiments::named_options())
        if (!option.of_model)
            app.add_option(concatenate("--", option.name), run.*option.value,
                           concatenate(option.help, ": ", experiments::choice_text(option.values)))
                ->capture_default_str();
    app.add_option("--beta1", run.beta1, "of adam and lamb")->capture_default_str();
    app.add_option("--beta2", run.beta2, "of adam and lamb")->capture_default_str();
    app.add_option("--epsilon", run.epsilon, "of adam and lamb")->default_str("1e-8 for adam, 1e-6 for lamb");
    app.add_option("--momentum", run.momentum, "of sgd")->capture_default_str();
    app.add_option("--dropout", run.dropout, "of the embedding and of each branch's output, in steps that train")
        ->capture_default_str();
    app.add_option("--weight-decay", run.weight_decay,
                   "an update takes lr times this from a weight, under mup and umup lr / peak times this; sgd adds it "
                   "to the gradient")
        ->capture_default_str();
    app.add_option("--rate", run.rates,
                   "PATTERN=FACTOR: a factor on the learning rate of parameters. PATTERN selects their names, * is any "
                   "text. May be repeated; of several matches the last one holds")
        ->allow_extra_args(false);
    app.add_option("--warmup", run.warmup, "steps of linear warm-up to the peak learning rate")
        ->default_str("a tenth of the run, but none of a constant rate");
    app.add_option("--final-share", run.final_share, "of the peak learning rate, at the end of cosine and linear")
        ->capture_default_str();
    app.add_option("--half-life", run.half_life, "steps in which the schedule half-life halves the learning rate")
        ->default_str("an eighth of the run");
    app.add_option("--masked", run.masked, "first predictions of each sequence that no loss counts")
        ->capture_default_str();
    require_not_negative(app, {"--warmup", "--half-life", "--masked"});
}

}  // namespace unitscale::examples
