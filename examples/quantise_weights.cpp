// SPDX-License-Identifier: MIT
// Rounds the linear layers' weights of a trained model to 8 bits and prints the loss before and after. See --help.
//   build/examples/quantise_weights model.safetensors --data text.txt --out small.safetensors

#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/saved_model.hpp>

#include "experiments/tokens.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace {

/// A loss on the last tenth of a text, and its unit. Tokens that are not characters have bytes.
struct Loss {
    double bits = 0.0;
    std::string unit{};
};

/// Bits per character on the last tenth of the text, or bits per byte for a model of other tokens.
Loss loss(const std::string& path, const std::u32string& text, std::size_t batch, int threads) {
    using namespace unitscale;
    return train::with_saved_model(
        path, threads,
        [&](auto& saved) {
            const std::size_t length = saved.model().config().length;
            const experiments::TokenisedText tokens(text, saved.tokeniser(), length);
            const double bits = train::evaluate(saved.model(), saved.tape(), tokens.parts.validation, length, batch);
            const bool characters = saved.characters() != nullptr;
            return characters ? Loss{bits, "bits/char"} : Loss{bits / tokens.validation_bytes, "bits/byte"};
        },
        experiments::read_tokeniser);
}

}  // namespace

int main(int argc, char** argv) {
    using namespace unitscale;
    std::string path, out, format = "e4m3";
    std::vector<std::filesystem::path> data;
    std::size_t batch = 16;
    int threads = available_threads(), margin = 0;
    CLI::App app(
        "Post-training quantisation: the weights of linear layers as 8-bit codes, one power of two to a tensor.");
    app.add_option("checkpoint", path, "safetensors file that train_transformer has saved")->required();
    app.add_option("--out", out, "safetensors file to write")->required();
    app.add_option("--data", data, "text files or folders, UTF-8; the last tenth is evaluated")->required();
    app.add_option("--format", format, "e4m3 or e5m2")->capture_default_str()->check(CLI::IsMember({"e4m3", "e5m2"}));
    app.add_option("--margin", margin, "powers of two left free above the largest magnitude")->capture_default_str();
    app.add_option("--batch", batch, "sequences evaluated at a time")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--threads", threads, "threads")->capture_default_str()->check(CLI::PositiveNumber);
    return examples::run_program({"quantise_weights"}, app, argc, argv, [&] {
        const std::u32string text = io::read_text(data);
        const Loss before = loss(path, text, batch, threads);
        train::with_saved_model(
            path, threads,
            [&](auto& saved) {
                if (format == "e4m3") saved.template save_quantised<e4m3>(out, margin);
                else saved.template save_quantised<e5m2>(out, margin);
            },
            experiments::read_tokeniser);
        const double after = loss(out, text, batch, threads).bits;
        std::printf("validation %.4f %s before, %.4f after (%+.2f %%); %s: %zu bytes\n", before.bits,
                    before.unit.c_str(), after, 100.0 * (after / before.bits - 1.0), out.c_str(),
                    static_cast<std::size_t>(std::filesystem::file_size(out)));
        return 0;
    });
}
