// SPDX-License-Identifier: MIT
// Trains one model at several widths for a few steps and tests whether the changes of its layers depend on the width.
// See --help.
//   build/examples/coord_check --parametrisation umup --widths 64,128,256,512 --steps 8 --out coordinates.html

#include "experiments/coordinate_check.hpp"
#include "language_options.hpp"
#include "program.hpp"

#include <unitscale/base/wait_briefly.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>

using namespace unitscale;

int main(int argc, char** argv) {
    wait_briefly(argv);
    experiments::CoordinateCheckOptions options;
    auto& run = options.run;
    run.data = {UNITSCALE_EXAMPLE_DATA};
    CLI::App app(
        "Coordinate check: trains a character-level transformer at several widths for a few steps and measures the "
        "root mean square of every layer's output, and of its change since initialisation, on one fixed batch. Prints "
        "tables over the widths, writes a page with plots, and ends with the verdict: flat, growing or shrinking.");
    app.add_option("--data", run.data, "text files or folders, UTF-8")->default_str("this repository's prose");
    auto* parametrisation = app.add_option("--parametrisation", options.parametrisation,
                                           "standard, unit, mup or umup, each in 32-bit floating point");
    parametrisation->capture_default_str();
    app.add_option("--recipe", run.recipe, "a recipe instead: its name, or a JSON file")->excludes(parametrisation);
    app.add_option("--set", run.set, "change a field of the recipe, key=value; may be given several times");
    app.add_option("--widths", options.widths, "widths of the residual stream, separated by commas")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--steps", run.steps, "updates of each run")->capture_default_str();
    app.add_option("--out", options.out, "the page")->capture_default_str();
    examples::add_model_options(app, run);
    app.add_option("--depth", run.depth, "transformer blocks")->capture_default_str();
    app.add_option("--head-size", run.head_size, "columns of an attention head, the same at every width")
        ->capture_default_str();
    app.add_option("--seq", run.seq, "characters in a sequence")->capture_default_str();
    app.add_option("--batch", run.batch, "sequences in a step")->capture_default_str();
    app.add_option("--lr", run.lr, "learning rate, constant and the same at every width")
        ->default_str("a quarter of the recipe's");
    app.add_option("--seeds", options.seeds, "seeds of each width: --seed and those that follow it")
        ->capture_default_str();
    app.add_option("--seed", run.seed, "the first seed, of initial values and data order")->capture_default_str();
    app.add_option("--threads", run.threads, "threads; the results do not depend on it")->capture_default_str();
    examples::require_not_negative(
        app, {"--widths", "--steps", "--depth", "--head-size", "--seq", "--batch", "--seeds", "--seed", "--threads"});
    return examples::run_program({"coord_check", examples::one_model_too_large}, app, argc, argv, [&] {
        options.source = examples::page_source(argc, argv, run.data);
        experiments::coordinate_check(options, stdout);
        return 0;
    });
}
