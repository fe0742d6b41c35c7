// SPDX-License-Identifier: MIT
// A GPT-2 or Llama with published weights, under a recipe: token ids in, logits and token ids out. See --help.
//   cmake --build build/examples --target pretrained
//   build/examples/pretrained gpt2/model.safetensors --ids 464,3290,318

#include <unitscale/nn/initialise.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/pretrained.hpp>

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
void run(const Arguments& arguments, const Recipe& recipe) {
    nn::Decoder<T> model(train::pretrained_config(arguments.weights, arguments.options));
    const bool plain = recipe.scaling != Scaling::propagate;
    if (!plain) nn::initialise(model.parameters(), recipe, 0);  // for the scales that weights are then kept under
    for (const std::string& note : train::load_weights(arguments.weights, model.parameters(), plain))
        std::fprintf(stderr, "%s\n", note.c_str());

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

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments;
    std::string recipe_name = "fp32", config;
    CLI::App app("The most likely next tokens of a GPT-2 or Llama in a safetensors file: their ids and logits.");
    app.add_option("weights", arguments.weights, "safetensors file with the names of the Python package transformers")
        ->required();
    app.add_option("--ids", arguments.ids, "token ids, comma-separated: the work of the model's own tokeniser")
        ->required()
        ->delimiter(',');
    app.add_option("--top", arguments.top, "how many next tokens to print")->capture_default_str();
    app.add_option("--tokens", arguments.tokens, "then write so many, always the most likely")->capture_default_str();
    app.add_option("--recipe", recipe_name, "a recipe of standard parametrisation")->capture_default_str();
    app.add_option("--config", config, "its config.json, if it is not beside the file");
    app.add_option("--heads", arguments.options.heads, "without a config.json: attention heads");
    app.add_option("--epsilon", arguments.options.epsilon, "of the norms");
    app.add_option("--length", arguments.options.length, "positions (Llama)");
    app.add_option("--rotary-base", arguments.options.rotary_base, "of rotary positions (Llama)");
    app.add_option("--threads", arguments.threads, "threads")->capture_default_str()->check(CLI::PositiveNumber);
    return examples::run_program({"pretrained"}, app, argc, argv, [&] {
        arguments.options.config = config;
        const Recipe recipe = find_recipe(recipe_name);
        check(recipe.scaling != Scaling::unit && recipe.parametrisation == Parametrisation::standard,
              "--recipe: ", recipe.name,
              " multiplies by factors that these weights were not trained with; expected one of standard "
              "parametrisation");
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) { run<T>(arguments, recipe); });
        return 0;
    });
}
