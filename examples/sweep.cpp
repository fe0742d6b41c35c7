// SPDX-License-Identifier: MIT
// Searches hyperparameters of a transformer by many short runs, in parallel. A killed search can be resumed. See
// --help.
//   build/examples/sweep --recipes umup-fp32,fp32 --model llama --head-size 16 --axis width=32:128:x2
//     --axis lr_factor=2^-3:2^3:x2 --seeds 2 --steps 300 --depth 2 --jobs 2 --data text.txt --out widths.html

#include "experiments/sweep.hpp"
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
    examples::SearchProcesses processes("sweep", argc, argv);
    experiments::SweepOptions options;
    auto& run = options.run;
    run.data = {UNITSCALE_EXAMPLE_DATA};
    run.steps = 300;
    CLI::App app(
        "Trains a character-level transformer at many points of named axes and says where its loss is least: tables, "
        "and one HTML page. Killed, it goes on where it was when it is started again with the same options; more "
        "values and seeds may be added.");
    app.add_option(
        "--axis", options.axes,
        "NAME=VALUES, once for each axis: lr=0.5,1,2 or lr=0.25:4:x2 (from, to, factor); for random search the "
        "interval lr=0.25:4; placement=pre,post; rate:*query*=0.5,1, factors as --rate has; constant_bias=-8..8 or "
        "constant_bias=-4,-2,0, of all operands with a constant scale. Hyperparameters: " +
            experiments::sweep_parameter_names(false) +
            "; lr_factor is on each recipe's own rate, loss_scale is constant. Conditions, for each of which the "
            "search "
            "is made: " +
            experiments::sweep_parameter_names(true));
    app.add_option("--strategy", options.strategy,
                   "grid; line: one axis at a time, the others at their defaults; random: --points drawn; independent: "
                   "the learning rate, then each multiplier alone at the best one, then the best of all together; "
                   "upwards: learning rates from the lowest, until one is worse by --worse-by or fails")
        ->capture_default_str();
    app.add_option("--worse-by", options.worse_by,
                   "bits per character above the best loss so far that end an upward search")
        ->capture_default_str();
    app.add_flag("--sizes-alone", options.sizes_alone,
                 "vary each size alone, the others as --width, --depth and so on say; without it every combination of "
                 "sizes is searched");
    app.add_option("--points", options.points, "points of a random search")->capture_default_str();
    app.add_option("--search-seed", options.search_seed, "seed of a random search")->capture_default_str();
    app.add_option("--data", run.data, "text files or folders, UTF-8; the last tenth is for validation")
        ->default_str("this repository's prose");
    app.add_flag("--test", run.test,
                 "the last tenth is halved: validation, which the search reads, and a test at the end of every run");
    app.add_flag(
        "--rms", options.rms,
        "every run records the root mean squares of weights, inputs and gradients in its last step; the losses "
        "do not depend on it");
    app.add_option("--recipe,--recipes", options.recipes,
                   "recipes, names or JSON files, separated by commas; several are an axis; "
                   ":key=value behind one sets a field")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--set", run.set, "a field of the recipes, key=value, as in their JSON")->allow_extra_args(false);
    app.add_option("--out", options.out, "the page; FILE.jsonl beside it remembers what is done")
        ->capture_default_str();
    app.add_option("--plot", options.plot, "an SVG of the losses by learning rate");
    app.add_option("--plot-settings", options.plot_settings,
                   "an SVG of each recipe's least loss in each combination of the other names and sizes");
    app.add_option("--seeds", options.seeds, "runs of each point: --seed and the seeds that follow it")
        ->capture_default_str();
    app.add_option("--seed", run.seed, "the first seed, of initial values and data order")->capture_default_str();
    app.add_option("--jobs", options.jobs, "runs side by side; the losses do not depend on it")->capture_default_str();
    app.add_option("--threads", run.threads, "threads of each run; the losses do not depend on it")
        ->capture_default_str();
    auto* steps = app.add_option("--steps", run.steps, "updates of each run")->capture_default_str();
    app.add_option("--tokens", options.tokens,
                   "characters that each run trains on: its updates are this over --batch times --seq")
        ->excludes(steps);
    app.add_option("--lr", run.lr, "peak learning rate, where no axis varies it")->default_str("each recipe's own");
    examples::add_training_options(app, run);
    examples::add_model_options(app, run);
    examples::add_shape_options(app, run);
    app.add_option("--width", run.width, "width of the residual stream")->capture_default_str();
    app.add_option("--depth", run.depth, "transformer blocks")->capture_default_str();
    auto* heads = app.add_option("--heads", run.heads, "attention heads")->capture_default_str();
    app.add_option("--head-size", run.head_size, "channels of a head: the heads follow the width")->excludes(heads);
    app.add_option("--kv-heads", run.kv_heads, "key and value heads")->default_str("as many as query heads");
    app.add_option("--seq", run.seq, "characters in a sequence")->capture_default_str();
    app.add_option("--batch", run.batch, "sequences in a step")->capture_default_str();
    app.add_option("--save-every", options.save_every, "steps between checkpoints of a run that is under way; 0: none")
        ->default_str("a tenth of the run");
    app.add_flag("--quiet", run.quiet, "print the tables only");
    examples::require_not_negative(
        app, {"--points", "--search-seed", "--seeds", "--seed", "--jobs", "--threads", "--steps", "--tokens", "--width",
              "--depth", "--heads", "--head-size", "--kv-heads", "--seq", "--batch", "--save-every"});
    processes.add_options(app);
    const auto search = [&] {
        options.source = examples::page_source(argc, argv, run.data);
        experiments::sweep(options, stdout);
        std::printf("\nthe page is %s\n", options.out.c_str());
    };
    const auto make = [&](const std::string& task) { experiments::make_sweep_run(options, task, stdout); };
    return processes.run(app, options, search, make);
}
