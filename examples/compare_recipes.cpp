// SPDX-License-Identifier: MIT
// Trains a transformer under several recipes on the same batches and compares them in a table and on a page. See
// --help.
//   build/examples/compare_recipes --recipes fp32,unit-fp8,fp8-amax --data text.txt --steps 300 --seeds 3
//     --out recipes.html

#include "experiments/compare.hpp"
#include "language_options.hpp"
#include "program.hpp"
#include "search_processes.hpp"

#include <unitscale/base/wait_briefly.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>

using namespace unitscale;

int main(int argc, char** argv) {
    wait_briefly(argv);
    examples::SearchProcesses processes("compare_recipes", argc, argv);
    experiments::ComparisonOptions options;
    auto& run = options.run;
    run.data = {UNITSCALE_EXAMPLE_DATA};
    run.steps = 300;
    CLI::App app(
        "Trains a character-level transformer under each recipe on the same batches, at each learning rate, with each "
        "seed; prints a table and writes one HTML page. Killed, it goes on where it was when it is started again with "
        "the same options.");
    app.add_option("--data", run.data, "text files or folders, UTF-8; the last tenth is for validation")
        ->default_str("this repository's prose");
    app.add_option("--recipes", options.recipes,
                   "recipes, names or JSON files, separated by commas; :key=value behind one sets a field")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--out", options.out, "the page; FILE.jsonl beside it remembers what is done")
        ->capture_default_str();
    app.add_option("--plot", options.plot, "a plot of the validation losses over the steps, as an SVG image");
    app.add_option("--steps", run.steps, "updates of each run")->capture_default_str();
    app.add_option("--seeds", options.seeds, "seeds of each recipe: --seed and those that follow it")
        ->capture_default_str();
    app.add_option("--seed", run.seed, "the first seed, of initial values and data order")->capture_default_str();
    auto* rates =
        app.add_option("--lr", options.rates, "peak learning rates for all recipes; the best of each is marked")
            ->delimiter(',')
            ->default_str("each recipe's own");
    app.add_option("--lr-factor", options.rate_factors, "factors on each recipe's own learning rate")
        ->delimiter(',')
        ->capture_default_str()
        ->excludes(rates);
    examples::add_training_options(app, run);
    examples::add_model_options(app, run);
    examples::add_shape_options(app, run);
    app.add_option("--width", run.width, "width of the residual stream")->capture_default_str();
    app.add_option("--depth", run.depth, "transformer blocks")->capture_default_str();
    app.add_option("--heads", run.heads, "attention heads")->capture_default_str();
    app.add_option("--seq", run.seq, "characters in a sequence")->capture_default_str();
    app.add_option("--batch", run.batch, "sequences in a step")->capture_default_str();
    app.add_option("--jobs", options.jobs, "runs side by side; the losses do not depend on it")->capture_default_str();
    app.add_option("--threads", run.threads, "threads of each run; the losses do not depend on it")
        ->capture_default_str();
    app.add_option("--eval-every", options.eval_every, "steps between evaluations; 0: only at the end")
        ->default_str("a tenth of the run");
    app.add_option("--save-every", options.save_every, "steps between checkpoints of a run that is under way; 0: none")
        ->default_str("a tenth of the run");
    app.add_option("--window", options.window,
                   "constant biases, such as -8..8: evaluate the weights that fp32 has trained with each (FP8-CSCALE)");
    app.add_flag("--quiet", run.quiet, "print the tables only");
    examples::require_not_negative(app, {"--steps", "--seeds", "--seed", "--width", "--depth", "--heads", "--seq",
                                         "--batch", "--jobs", "--threads", "--eval-every", "--save-every"});
    processes.add_options(app);
    const auto search = [&] {
        options.source = examples::page_source(argc, argv, run.data);
        experiments::compare_recipes(options, stdout, stderr);
        std::printf("\nthe page is %s\n", options.out.c_str());
    };
    const auto make = [&](const std::string& task) { experiments::make_comparison_run(options, task, stdout); };
    return processes.run(app, options, search, make);
}
