// SPDX-License-Identifier: MIT
// Writes text with a published model from its folder, or with a model that train_transformer has saved. See --help.
//   build/examples/generate --model gpt2 --prompt "The early bird" --recipe fp8-amax
//   bash examples/run.sh --save model.safetensors && build/examples/generate model.safetensors --prompt "The "

#include <unitscale/base/error.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/published_weights.hpp>
#include <unitscale/train/saved_model.hpp>

#include "experiments/tokens.hpp"
#include "program.hpp"
#include "text_model.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

/// Writes the prompt and the text that continues it, token by token, then the speed.
template <class T>
void write_text(nn::Decoder<T>& model, Tape<T>& tape, const io::Tokeniser& tokeniser, const std::string& prompt,
                const std::vector<std::int32_t>& ids, const examples::TextOptions& options) {
    train::GenerateOptions draws = options.draws;
    examples::TokenPrinter printer(tokeniser, ids, draws.stop_tokens, options.stops);
    examples::SpeedMeter meter;
    draws.on_token = [&](std::int32_t id) {
        meter.count();
        return printer.add(id);
    };
    train::check_generation("generate", ids, draws, model.config().vocabulary);
    options.code_weights(model, tape.recipe());
    std::fwrite(prompt.data(), 1, prompt.size(), stdout);
    std::fflush(stdout);
    meter.begin(ids.size());
    static_cast<void>(train::generate<T>(model, tape, ids, draws));
    printer.finish();
    std::printf("\n");
    meter.print();
}

void write_published(const std::string& folder, const std::string& recipe_name, const std::string& prompt,
                     const std::optional<std::size_t>& tokens, examples::TextOptions options) {
    const Recipe recipe = find_recipe(recipe_name);
    const examples::TextModel text(folder, {.add_special = true});
    const std::vector<std::int32_t> ids = text.tokeniser.encode(prompt);
    const std::size_t length = text.config.length;
    check(ids.size() < length, "--prompt: has ", ids.size(), " tokens; the model has ", length, " positions");
    check(ids.size() + tokens.value_or(0) <= length, "--tokens: ", tokens.value_or(0), " behind a prompt of ",
          ids.size(), "; the model has ", length, " positions");
    options.draws.tokens = std::min(tokens.value_or(options.draws.tokens), length - ids.size());
    options.draws.stop_tokens = text.ends;
    examples::with_text_model(folder, text.config, recipe, options.threads, [&](auto& model, auto& tape) {
        write_text(model, tape, text.tokeniser, prompt, ids, options);
    });
}

void write_saved(const std::string& path, const std::string& prompt, const std::optional<std::size_t>& tokens,
                 examples::TextOptions options) {
    const io::SafetensorsReader file(path);
    const auto published = train::PublishedWeights::find(file, path);
    const bool of_bert = published && published->family() == train::PublishedFamily::bert;
    check(!of_bert && !file.contains("bert/tokens/weight"), "checkpoint: ", path,
          ": holds BERT's weights, and BERT does not write text; expected a model of train_transformer");
    check(!published || file.metadata().contains("recipe"), "checkpoint: ", path,
          ": holds published weights; expected their folder as --model, or the program pretrained");
    options.draws.tokens = tokens.value_or(options.draws.tokens);
    const auto write = [&](auto& saved) {
        write_text(saved.model(), saved.tape(), saved.tokeniser(), prompt, saved.tokeniser().encode(prompt), options);
    };
    train::with_saved_model(path, options.threads, write, experiments::read_tokeniser);
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    std::string path, model, prompt = "\n", recipe = "fp32";
    std::optional<std::size_t> tokens;
    examples::TextOptions options{.draws = {.tokens = 300}};
    CLI::App app(
        "Writes text with a published model (--model), or with a model that train_transformer has saved (--save).");
    auto* const checkpoint = app.add_option("checkpoint", path, "safetensors file of train_transformer");
    auto* const folder =
        app.add_option("--model", model, "folder of a GPT-2, Llama or Qwen2: weights, config.json, tokeniser")
            ->excludes(checkpoint);
    app.add_option("--prompt", prompt, "text to continue, in UTF-8");
    app.add_option("--recipe", recipe, "a recipe of standard parametrisation, for the model of a folder")
        ->capture_default_str()
        ->needs(folder);
    app.add_option("--tokens", tokens, "tokens to write, at most")->default_str("300, or the positions that are left");
    options.add_to(app);
    examples::require_not_negative(app, {"--tokens", "--top-k", "--seed"});
    return examples::run_program({"generate"}, app, argc, argv, [&] {
        check(!path.empty() || !model.empty(), "--model: is absent; expected a model's folder, or a file of weights");
        options.finish();
        examples::check_utf8(prompt, "--prompt");
        if (model.empty()) write_saved(path, prompt, tokens, options);
        else write_published(model, recipe, prompt, tokens, options);
        return 0;
    });
}
