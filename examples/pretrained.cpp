// SPDX-License-Identifier: MIT
// A GPT-2, Llama or Qwen2 with published weights, under a recipe: token ids in, logits and token ids out, or
// fine-tuning on token ids. See --help.
//   cmake --build build/examples --target pretrained
//   build/examples/pretrained gpt2/model.safetensors --ids 464,3290,318
//   build/examples/pretrained gpt2 --fine-tune tokens.npy --recipe fp8-amax --save tuned

#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/pretrained.hpp>

#include "experiments/fine_tuning.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

struct Arguments {
    std::string weights{};
    train::PretrainedOptions options{};
    std::vector<std::int32_t> ids{};
    std::size_t top = 5, tokens = 0;
    experiments::FineTuningOptions tuning{};
    bool recompute = false;
    int threads = available_threads();
};

template <class T>
void print_next_tokens(const Tensor<T>& logits, std::size_t most) {
    const std::size_t vocabulary = logits.dim(2);
    const T* const last = logits.data() + logits.size() - vocabulary;
    std::vector<std::size_t> order(vocabulary);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return last[a] > last[b]; });
    for (std::size_t i = 0; i < std::min(most, vocabulary); ++i)
        std::printf("%zu %.4f\n", order[i], static_cast<double>(last[order[i]]) * logits.scale());
}

template <class T>
void load(nn::Decoder<T>& model, const Arguments& arguments, const Recipe& recipe) {
    const bool plain = recipe.scaling != Scaling::propagate;
    if (!plain) nn::initialise(model.parameters(), recipe, 0);  // so that weights are kept under scales
    for (const std::string& note : train::load_weights(arguments.weights, model.parameters(), plain))
        std::fprintf(stderr, "%s\n", note.c_str());
}

template <class T>
void continue_ids(const Arguments& arguments, const Recipe& recipe) {
    nn::Decoder<T> model(train::pretrained_config(arguments.weights, arguments.options));
    load(model, arguments, recipe);
    ScalingState state;
    Tape<T> tape(recipe, state, arguments.threads);
    tape.begin_step({.training = false, .gradients = false});
    const Variable<T> logits = model(tape, Tensor<std::int32_t>({1, arguments.ids.size()}, arguments.ids));
    print_next_tokens(logits.value(), arguments.top);
    for (const auto id :
         train::generate<T>(model, tape, arguments.ids, {.tokens = arguments.tokens, .temperature = 0.0}))
        std::printf("%d ", static_cast<int>(id));
    if (arguments.tokens > 0) std::printf("\n");
}

template <class T>
void fine_tune(const Arguments& arguments, const Recipe& recipe) {
    experiments::FineTuningOptions tuning = arguments.tuning;
    tuning.threads = arguments.threads;
    tuning.original = arguments.weights;
    nn::DecoderConfig config = train::pretrained_config(arguments.weights, arguments.options);
    config.recompute = arguments.recompute;
    tuning.validate(config);
    const std::vector<std::int32_t> ids = experiments::read_token_ids(tuning.ids, config.vocabulary);
    static_cast<void>(train::split(ids, tuning.length(config), false, "tokens"));  // before the weights are read
    nn::Decoder<T> model(config);
    load(model, arguments, recipe);
    std::fputs(experiments::fine_tuning_text(tuning, config, recipe, ids.size()).c_str(), stdout);
    const experiments::FineTuned tuned = experiments::fine_tune<T>(model, recipe, tuning, ids, stdout, stderr);
    std::printf("%s\n", experiments::fine_tuned_line(tuning, recipe, tuned).c_str());
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    Arguments arguments;
    experiments::FineTuningOptions& tuning = arguments.tuning;
    std::string recipe_name = "fp32", config;
    CLI::App app(
        "The most likely next tokens of a GPT-2, Llama or Qwen2: their ids and logits. Or the model's "
        "fine-tuning on token ids, with the settings of the FP8 LLM paper.");
    app.add_option("weights", arguments.weights,
                   "model folder or safetensors file of the Python package transformers, or a file of --save")
        ->required();
    auto* ids = app.add_option("--ids", arguments.ids, "token ids, comma-separated: the work of the model's tokeniser")
                    ->delimiter(',');
    app.add_option("--top", arguments.top, "how many next tokens to print")->capture_default_str();
    auto* tokens = app.add_option("--tokens", arguments.tokens, "then write so many, always the most likely")
                       ->capture_default_str();
    app.add_option("--recipe", recipe_name, "a recipe of standard parametrisation")->capture_default_str();
    app.add_option("--config", config, "its config.json, if it is not beside the file");
    app.add_option("--heads", arguments.options.heads, "without a config.json: attention heads");
    app.add_option("--epsilon", arguments.options.epsilon, "of the norms");
    app.add_option("--length", arguments.options.length, "positions (Llama)");
    app.add_option("--rotary-base", arguments.options.rotary_base, "of rotary positions (Llama)");
    app.add_option("--threads", arguments.threads, "threads")->capture_default_str()->check(CLI::PositiveNumber);
    auto* fine_tuning =
        app.add_option("--fine-tune", tuning.ids,
                       "train on the token ids of this .npy file, whole numbers of shape [N]; the last tenth is for "
                       "validation")
            ->excludes(ids)
            ->excludes(tokens);
    const auto add = [&](const char* name, auto& value, const char* help) {
        return app.add_option(name, value, help)->needs(fine_tuning);
    };
    add("--save", tuning.save,
        "write the tuned weights: to a .safetensors file for these programs, or to a new folder for transformers");
    add("--steps", tuning.steps, "updates")->capture_default_str();
    add("--lr", tuning.lr, "learning rate, constant")->capture_default_str();
    add("--batch", tuning.batch, "sequences in a step")->capture_default_str();
    add("--micro-batches", tuning.micro_batches, "parts that a step's batch is computed in: fewer need more memory")
        ->default_str("one for each sequence");
    add("--seq", tuning.seq, "tokens in a sequence")->default_str("the model's positions");
    add("--weight-decay", tuning.weight_decay, "of all but biases and norms; lr times this is taken from a weight")
        ->default_str("0.01 for models of up to 590M parameters");
    add("--beta1", tuning.beta1, "of AdamW")->capture_default_str();
    add("--beta2", tuning.beta2, "of AdamW")->capture_default_str();
    add("--adam-epsilon", tuning.epsilon, "of AdamW")->capture_default_str();
    add("--seed", tuning.seed, "of the order of sequences and of stochastic rounding")->capture_default_str();
    app.add_flag("--recompute", arguments.recompute,
                 "keep only the input of each block and compute the block again: less memory, slower")
        ->needs(fine_tuning);
    examples::require_not_negative(app, {"--steps", "--batch", "--micro-batches", "--seq", "--seed"});
    return examples::run_program({"pretrained", examples::one_model_too_large}, app, argc, argv, [&] {
        arguments.options.config = config;
        check(!arguments.ids.empty() || !tuning.ids.empty(),
              "--ids: is absent; expected token ids, or --fine-tune with a file of them");
        const Recipe recipe = find_recipe(recipe_name);
        check(train::keeps_published_model(recipe), "--recipe: ", recipe.name,
              " multiplies by factors that these weights were not trained with; expected one of standard "
              "parametrisation");
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            if (tuning.ids.empty()) continue_ids<T>(arguments, recipe);
            else fine_tune<T>(arguments, recipe);
        });
        return 0;
    });
}
