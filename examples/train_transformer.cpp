// SPDX-License-Identifier: MIT
// Trains a transformer on the characters or other tokens of a text with a recipe and generates a sample. See --help.

#include <unitscale/base/error.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "experiments/language_run.hpp"
#include "experiments/scale_report.hpp"
#include "language_options.hpp"
#include "processes.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>

using namespace unitscale;

namespace {

int run(const experiments::LanguageRunOptions& options, const std::string& page, const report::PageSource& source) {
    const auto result = experiments::run_and_report(options, page, source, stdout, stderr);
    if (!options.quiet && options.sample > 0) {
        std::printf("\nsample\n------\n%s\n------\n", result.sample.c_str());
        std::printf("%zu of the sample's %zu words of three and more letters occur in the text (%.0f %%)\n\n",
                    result.words.known, result.words.total, 100.0 * result.words.share());
    }
    std::printf("%s\n", result.line().c_str());
    return 0;
}

/// Returns exit code 1 if the gradients are not valid.
int audit(const experiments::LanguageRunOptions& options) {
    const auto audit = experiments::audit_language(options);
    std::fputs(analysis::to_text(audit).c_str(), stdout);
    return audit.valid() ? 0 : 1;
}

void list_recipes() {
    for (const auto& recipe : known_recipes())
        std::printf("%-21s  %s (learning rate %g)\n", recipe.name.c_str(), recipe.description.c_str(),
                    recipe.learning_rate);
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    examples::Processes processes("train_transformer", argc, argv);
    experiments::LanguageRunOptions options;
    options.data = {UNITSCALE_EXAMPLE_DATA};
    options.threads = processes.threads();
    std::string report;
    bool list = false, audit_only = false, parameters_only = false;
    CLI::App app(
        "Trains a transformer language model on characters or other tokens in low precision and prints text that it "
        "has learned to write.");
    app.add_option("--data", options.data, "text files or folders, UTF-8; the last tenth is for validation")
        ->default_str("this repository's prose");
    app.add_option("--tokens", options.tokens,
                   "characters, bytes, bpe:N (N byte pairs, trained on the training text), or a tokeniser: "
                   "tokenizer.json, a folder with one, or SentencePiece's *.model")
        ->capture_default_str();
    app.add_flag("--test", options.test, "the last tenth is halved: validation, and a test at the end of the run");
    app.add_option("--recipe", options.recipe, "low-precision method: a name of --list-recipes, or a JSON file")
        ->capture_default_str();
    app.add_option("--set", options.set,
                   "a field of the recipe, key=value, such as matmul.gradient=e5m2fnuz; may be repeated");
    app.add_option("--switch-at", options.switch_at,
                   "steps that are taken with --recipe; from the next step on --switch-to holds");
    app.add_option(
        "--switch-to", options.switch_to,
        "recipe of the steps after --switch-at, of equal scaling and parametrisation: a name or a JSON file; "
        "--set and the default of --lr are the first recipe's");
    app.add_flag("--list-recipes", list, "print the known recipes and stop");
    examples::add_model_options(app, options);
    examples::add_shape_options(app, options);
    app.add_option("--width", options.width, "width of the residual stream")->capture_default_str();
    app.add_option("--depth", options.depth, "transformer blocks")->capture_default_str();
    app.add_option("--heads", options.heads, "attention heads")->capture_default_str();
    app.add_option("--head-size", options.head_size, "size of a head, in place of --heads; 0: width / heads")
        ->capture_default_str();
    app.add_option("--kv-heads", options.kv_heads, "key and value heads; 0: one for each attention head")
        ->capture_default_str();
    app.add_option("--seq", options.seq, "tokens in a sequence")->capture_default_str();
    app.add_option("--batch", options.batch, "sequences in a step")->capture_default_str();
    app.add_option("--steps", options.steps, "updates")->capture_default_str();
    app.add_option("--lr", options.lr, "peak learning rate")->default_str("the recipe's");
    examples::add_training_options(app, options);
    app.add_option("--micro-batches", options.micro_batches, "parts that a step's batch is computed in")
        ->capture_default_str();
    processes.add_option(app);
    processes.add_wait_limit(app);
    app.add_option("--shard", options.shard, "state that each process of --distributed keeps of its parameters alone")
        ->check(CLI::IsMember({"none", "optimiser", "gradients"}))
        ->capture_default_str();
    app.add_flag("--overlap", options.overlap, "processes send gradients while the backward pass goes on");
    app.add_flag("--recompute", options.recompute,
                 "keep only the input of each block and compute the block again: less memory, slower");
    app.add_option("--seed", options.seed, "seed of initial values, data order and sampling")->capture_default_str();
    app.add_option("--threads", options.threads, "threads; the results do not depend on it")->capture_default_str();
    app.add_option("--eval-every", options.eval_every, "steps between evaluations; 0: only at the end")
        ->capture_default_str();
    app.add_option("--sample", options.sample, "tokens to write at the end")->capture_default_str();
    app.add_option("--temperature", options.temperature, "of sampling; 0: always the most likely token")
        ->capture_default_str();
    app.add_option("--top-k", options.top_k, "draw among the k most likely tokens only; 0: all")->capture_default_str();
    app.add_option("--log", options.log, "write one JSON object per step to this file");
    app.add_option("--save", options.save, "write a checkpoint to this safetensors file at the end");
    app.add_option("--save-every", options.save_every, "steps between checkpoints; 0: only at the end")
        ->capture_default_str();
    app.add_option("--resume", options.resume,
                   "go on from this checkpoint; with the run's other options the same bits");
    app.add_option("--weights", options.weights, "begin with the weights of this safetensors file");
    app.add_option("--report", report, "write a page about the scale of every tensor to this HTML file");
    app.add_flag("--audit", audit_only, "print the scale factors of every op and whether they are valid, and stop");
    app.add_flag("--print-parameters", parameters_only,
                 "print every parameter's initial values, multiplier and learning rate of the next step, and stop");
    app.add_flag("--quiet", options.quiet, "print the result line only");
    examples::require_not_negative(app, {"--width", "--depth", "--heads", "--head-size", "--kv-heads", "--seq",
                                         "--batch", "--steps", "--switch-at", "--micro-batches", "--seed", "--threads",
                                         "--save-every", "--eval-every", "--sample", "--top-k"});
    return processes.run(examples::one_model_too_large, app, argc, argv, [&] {
        options.group = processes.group();
        check(options.group == nullptr || report.empty(), "--report: is ", report,
              "; a page needs every micro-batch in one process, without --distributed");
        if (list) return list_recipes(), 0;
        if (audit_only) return audit(options);
        if (parameters_only) return std::fputs(experiments::parameters_of_language(options).c_str(), stdout), 0;
        return run(options, report, examples::training_source(argc, argv, options.data));
    });
}
