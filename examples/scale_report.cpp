// SPDX-License-Identifier: MIT
// Trains a transformer under several recipes and writes one page about the scale of every tensor. See --help.

#include <unitscale/base/parallel.hpp>
#include <unitscale/base/wait_briefly.hpp>

#include "experiments/scale_report.hpp"
#include "language_options.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>

using namespace unitscale;

int main(int argc, char** argv) {
    wait_briefly(argv);
    experiments::ScaleReportOptions options;
    auto& run = options.run;
    run.data = {UNITSCALE_EXAMPLE_DATA};
    run.threads = available_threads();
    run.steps = 200;
    CLI::App app(
        "Trains a character-level transformer under each recipe and writes one HTML page: exponents of every "
        "activation, weight and gradient at the start and at the end, what leaves the format's range, and the first "
        "value that is not finite.");
    app.add_option("--data", run.data, "text files or folders, UTF-8")->default_str("this repository's prose");
    app.add_option("--recipe", options.recipes, "recipes, side by side; may be given several times")
        ->capture_default_str();
    app.add_option("--out", options.out, "the page")->capture_default_str();
    app.add_option("--json", options.json, "also write JSON lines, one object per tensor, pass and tracked step");
    app.add_option("--steps", run.steps, "updates of each run")->capture_default_str();
    app.add_option("--every", options.tracking.every, "steps from one tracked step to the next")
        ->default_str("a fiftieth");
    app.add_option("--track", options.tracking.patterns, "paths of the tensors to track; * stands for any text")
        ->capture_default_str();
    app.add_option("--value-format", options.tracking.value_format, "format that all values are tested against")
        ->default_str("those that round them");
    app.add_option("--gradient-format", options.tracking.gradient_format,
                   "format that all gradients are tested against")
        ->default_str("those that round them");
    examples::add_model_options(app, run);
    examples::add_training_options(app, run);
    examples::add_shape_options(app, run);
    app.add_option("--width", run.width, "width of the residual stream")->capture_default_str();
    app.add_option("--depth", run.depth, "transformer blocks")->capture_default_str();
    app.add_option("--heads", run.heads, "attention heads")->capture_default_str();
    app.add_option("--head-size", run.head_size, "size of a head, in place of --heads; 0: width / heads")
        ->capture_default_str();
    app.add_option("--kv-heads", run.kv_heads, "key and value heads; 0: one for each attention head")
        ->capture_default_str();
    app.add_option("--seq", run.seq, "characters in a sequence")->capture_default_str();
    app.add_option("--batch", run.batch, "sequences in a step")->capture_default_str();
    app.add_option("--seed", run.seed, "seed of initial values and data order")->capture_default_str();
    app.add_option("--lr-factor", options.rate_factor, "factor on each recipe's learning rate")->capture_default_str();
    app.add_flag("--to-infinity", run.to_infinity, "operands of products that exceed their format become infinite");
    app.add_option("--threads", run.threads, "threads; the results do not depend on it")->capture_default_str();
    examples::require_not_negative(app, {"--steps", "--every", "--width", "--depth", "--heads", "--head-size",
                                         "--kv-heads", "--seq", "--batch", "--seed", "--threads"});
    return examples::run_program({"scale_report", examples::one_model_too_large}, app, argc, argv, [&] {
        options.source = examples::page_source(argc, argv, run.data);
        experiments::scale_report(options, stdout);
        std::printf("the page is %s\n", options.out.c_str());
        return 0;
    });
}
