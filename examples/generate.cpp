// SPDX-License-Identifier: MIT
// Writes text with a model that train_transformer has saved. See --help.
//   bash examples/run.sh --save model.safetensors && build/examples/generate model.safetensors --prompt "The "

#include <unitscale/base/error.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/published_weights.hpp>
#include <unitscale/train/saved_model.hpp>

#include "experiments/tokens.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
    using namespace unitscale;
    std::string path, prompt = "\n";
    train::GenerateOptions options{.tokens = 300};
    int threads = available_threads();
    CLI::App app("Writes text with a model that train_transformer has saved (--save).");
    app.add_option("checkpoint", path, "safetensors file")->required();
    app.add_option("--prompt", prompt, "text to continue, in the tokens that the model knows");
    app.add_option("--tokens", options.tokens, "tokens to write: characters, unless the model has others")
        ->capture_default_str();
    app.add_option("--temperature", options.temperature, "0: always the most likely token")->capture_default_str();
    app.add_option("--top-k", options.top_k, "draw among the k most likely tokens only; 0: all")->capture_default_str();
    app.add_option("--seed", options.seed, "of the draws")->capture_default_str();
    app.add_option("--threads", threads, "threads; the text does not depend on it")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    return examples::run_program({"generate"}, app, argc, argv, [&] {
        const io::SafetensorsReader file(path);
        const auto published = train::PublishedWeights::find(file, path);
        const bool of_bert = published && published->family() == train::PublishedFamily::bert;
        check(!of_bert && !file.contains("bert/tokens/weight"), "checkpoint: ", path,
              ": holds BERT's weights, and BERT does not write text; expected a model of train_transformer");
        check(!published || file.metadata().contains("recipe"), "checkpoint: ", path,
              ": holds published weights; the program pretrained runs them");
        const std::string text = train::with_saved_model(
            path, threads,
            [&](auto& saved) {
                const auto ids = saved.tokeniser().encode(prompt);
                return saved.tokeniser().decode(train::generate(saved.model(), saved.tape(), ids, options));
            },
            experiments::read_tokeniser);
        const std::string all = prompt + text + "\n";  // tokens may be any bytes, zeros too
        std::fwrite(all.data(), 1, all.size(), stdout);
        return 0;
    });
}
