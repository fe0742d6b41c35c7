// SPDX-License-Identifier: MIT
// The time of a generated token by the length of the preceding text, with and without the key-value cache, and the time
// of whole texts. With --memory: the peak of memory of models whose weights are codes.
#include <unitscale/base/error.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/published_shapes.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/code_weights.hpp>
#include <unitscale/train/generate.hpp>

#include "experiments/resources.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#if __has_include(<sys/wait.h>)
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace unitscale;

namespace {

/// The time of the fastest of `runs` calls, in seconds. Other load on the machine can only add to it.
template <class F>
double fastest(std::size_t runs, F&& f) {
    using Clock = std::chrono::steady_clock;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < runs; ++i) {
        const auto start = Clock::now();
        f();
        least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
    }
    return least;
}

/// The least-squares line through the points.
struct Line {
    double at_0 = 0.0, slope = 0.0;
};
Line fit(const std::vector<double>& x, const std::vector<double>& y) {
    const double n = static_cast<double>(x.size());
    double sx = 0.0, sy = 0.0, sxx = 0.0, sxy = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) sx += x[i], sy += y[i], sxx += x[i] * x[i], sxy += x[i] * y[i];
    const double slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
    return {(sy - slope * sx) / n, slope};
}

/// Prints the speed of a GPT-2 with its weights in a format, in tokens per second. It is the median of 3 texts. Each
/// text follows a prompt of 8 tokens.
void measure_gpt2(const std::string& format, const std::string& recipe_name, int threads) {
    const Recipe recipe = find_recipe(recipe_name);
    nn::DecoderConfig config = nn::published_config("gpt-111m");
    config.depth = 12, config.length = 1024;
    nn::Decoder<float> model(config);
    nn::initialise(model.parameters(), recipe, 1);
    std::size_t bytes = 4 * model.parameter_count();
    if (format != "elements") {
        std::vector<train::WeightCodeRule> rules{{.rule = train::weight_code_rule(format)}};
        if (recipe_name != "fp32") {
            rules = train::equal_code_rules(recipe, model.parameters());
            rules.push_back({.role = ParameterRole::embedding, .rule = train::weight_code_rule("bf16")});
        }
        bytes = train::code_weights(model.parameters(), rules);
    }
    ScalingState state(1);
    Tape<float> tape(recipe, state, threads);
    const std::vector<std::int32_t> prompt = {0, 1, 2, 3, 4, 5, 6, 7};
    constexpr std::size_t tokens = 64;
    std::vector<double> rates;
    for (int i = 0; i < 4; ++i) {
        const double seconds = fastest(1, [&] {
            static_cast<void>(train::generate<float>(model, tape, prompt, {.tokens = tokens, .temperature = 0}));
        });
        if (i > 0) rates.push_back(static_cast<double>(tokens) / seconds);
    }
    std::sort(rates.begin(), rates.end());
    std::printf("GPT-2, recipe %-9s weights %-9s %d thread%s: %6.1f tokens/s, %.3f bytes a weight\n",
                recipe_name.c_str(), format.c_str(), threads, threads == 1 ? "" : "s", rates[1],
                static_cast<double>(bytes) / static_cast<double>(model.parameter_count()));
    std::fflush(stdout);
}

/// Runs `f` in a process of its own, so that the peak of its memory is its own, too.
template <class F>
void in_process(F&& f) {
#if __has_include(<sys/wait.h>)
    const pid_t child = fork();
    check(child >= 0, "--memory: no new process could be made");
    if (child == 0) {
        try {
            f();
            std::fflush(stdout);
            _exit(0);
        } catch (const std::exception& error) {
            std::fprintf(stderr, "error: %s\n", error.what());
            _exit(1);
        }
    }
    int status = 0;
    check(waitpid(child, &status, 0) == child && status == 0, "--memory: a process ended with status ", status);
#else
    fail("--memory: expected a system that can fork a process");
#endif
}

/// The peak of memory, in bytes for each weight, of a decoder that reads its weights from a file of codes and writes 16
/// tokens: width 768, depth 12, a vocabulary of 32,000, random weights.
void measure_memory(const std::string& format, int threads) {
    namespace fs = std::filesystem;
    const nn::DecoderConfig config{.vocabulary = 32000, .width = 768, .depth = 12, .heads = 12, .length = 256};
    const Recipe recipe = find_recipe("fp32");
    const fs::path path = fs::temp_directory_path() / concatenate("unitscale_generate_bench_", format, ".safetensors");
    in_process([&] {
        nn::Decoder<float> model(config);
        nn::initialise(model.parameters(), recipe, 1);
        static_cast<void>(train::code_weights(model.parameters(), {{.rule = train::weight_code_rule(format)}}));
        train::save_weights(path, model.parameters());
    });
    in_process([&] {
        const double start = experiments::peak_resident_megabytes();
        nn::Decoder<float> model(config);
        train::CheckpointReader reader(path);
        reader.weights(model.parameters(), false, true);  // codes stay codes
        reader.commit();
        const double loaded = experiments::peak_resident_megabytes();
        ScalingState state(1);
        Tape<float> tape(recipe, state, threads);
        const std::vector<std::int32_t> prompt = {0, 1, 2, 3, 4, 5, 6, 7};
        static_cast<void>(train::generate<float>(model, tape, prompt, {.tokens = 16, .temperature = 0}));
        const double written = experiments::peak_resident_megabytes();
        const double weights = 1e-6 * static_cast<double>(model.parameter_count());
        std::printf("weights %-9s %.1f million: peak %.3f bytes a weight once loaded, %.3f after 16 tokens\n",
                    format.c_str(), weights, (loaded - start) / weights, (written - start) / weights);
    });
    std::error_code ignored;
    fs::remove(path, ignored);
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    std::string recipe_name = "fp32", cache_format;
    nn::DecoderConfig config{.vocabulary = 256, .width = 256, .depth = 4, .heads = 4};
    std::vector<std::size_t> lengths = {256, 512, 1024, 2048};
    std::size_t tokens = 1000;
    int threads = 1;
    bool rotary = false, gpt2 = false, memory = false;
    CLI::App app(
        "Measures generation: the time of a token by the length of the text so far, with and without the key-value "
        "cache.");
    app.add_option("--recipe", recipe_name, "see train_transformer --list-recipes")->capture_default_str();
    app.add_option("--width", config.width, "width of the residual stream")->capture_default_str();
    app.add_option("--depth", config.depth, "transformer blocks")->capture_default_str();
    app.add_option("--heads", config.heads, "attention heads")->capture_default_str();
    app.add_option("--groups", config.groups, "key and value heads; 0: as many as heads")->capture_default_str();
    app.add_option("--lengths", lengths, "lengths of the text so far")->capture_default_str();
    app.add_option("--tokens", tokens, "tokens of the text that is written whole")->capture_default_str();
    app.add_option("--threads", threads, "threads")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--cache", cache_format, "format of keys and values in the cache; empty: as computed");
    app.add_option("--window", config.window, "positions that attention sees; 0: all")->capture_default_str();
    app.add_flag("--rotary", rotary, "rotary positions instead of learned ones");
    app.add_flag("--gpt2", gpt2,
                 "instead: tokens/s of a GPT-2 with random weights, by the format of its weights, and their bytes");
    app.add_flag("--memory", memory, "instead: the peak of memory of models whose weights are codes");
    CLI11_PARSE(app, argc, argv);

    try {
        if (memory) {
            for (const char* format : {"e4m3", "mxfp4", "nvfp4"}) measure_memory(format, threads);
            return 0;
        }
        if (gpt2) {
            for (const char* format : {"elements", "fp32", "bf16", "e4m3", "mxfp4", "nvfp4"})
                measure_gpt2(format, "fp32", threads);
            for (const char* format : {"e4m3fnuz", "mxfp4"})
                measure_gpt2(format, std::string(format) == "mxfp4" ? "mxfp4" : "fp8-amax", threads);
            return 0;
        }
        check(lengths.size() >= 2, "--lengths: ", lengths.size(), " given; expected at least 2");
        std::sort(lengths.begin(), lengths.end());
        config.length = lengths.back() + 1;
        config.positions = rotary ? nn::Positions::rotary : nn::Positions::learned;
        const Recipe recipe = find_recipe(recipe_name);
        nn::Decoder<float> model(config);
        nn::initialise(model.parameters(), recipe, 1);
        ScalingState state(1);
        Tape<float> tape(recipe, state, threads);
        const auto ids = [&](std::size_t count) {
            Tensor<std::int32_t> result({1, count});
            for (std::size_t i = 0; i < count; ++i)
                result.data()[i] = static_cast<std::int32_t>(random_word({1, 2}, i) % config.vocabulary);
            return result;
        };
        const Tensor<std::int32_t> one = ids(1);
        std::optional<FloatFormat> format;
        if (!cache_format.empty()) format = find_format(cache_format);
        nn::KeyValueCache<float> cache = model.make_cache(1, 0, format);
        const auto step = [&](auto&& run) {
            tape.begin_step({.training = false, .gradients = false});
            static_cast<void>(run());
        };

        std::printf("%s, width %zu, depth %zu, heads %zu, %s positions, %d thread%s\n", recipe_name.c_str(),
                    config.width, config.depth, config.heads, rotary ? "rotary" : "learned", threads,
                    threads == 1 ? "" : "s");
        std::printf("cache: %zu positions, %zu bytes\n", cache.config().held(), cache.bytes());
        std::printf("%14s %14s %12s %16s %10s\n", "length so far", "ns per token", "tokens/s", "ns without cache",
                    "ratio");
        std::vector<double> x, y;
        for (const std::size_t length : lengths) {
            cache.clear();
            const Tensor<std::int32_t> prompt = ids(length), whole = ids(length + 1);
            step([&] { return model(tape, prompt, cache); });
            const double cached = fastest(100, [&] {
                cache.truncate(length);
                step([&] { return model(tape, one, cache); });
            });
            const double uncached = fastest(5, [&] { step([&] { return model(tape, whole); }); });
            std::printf("%14zu %14.0f %12.0f %16.0f %10.1f\n", length, 1e9 * cached, 1.0 / cached, 1e9 * uncached,
                        uncached / cached);
            x.push_back(static_cast<double>(length)), y.push_back(1e9 * cached);
        }
        const Line line = fit(x, y);
        double worst = 0.0;
        for (std::size_t i = 0; i < x.size(); ++i)
            worst = std::max(worst, std::abs(y[i] - line.at_0 - line.slope * x[i]) / y[i]);
        std::printf("nearest line: %.0f ns + %.1f ns x length; farthest point %.1f %% off\n", line.at_0, line.slope,
                    100.0 * worst);

        const std::vector<std::int32_t> prompt = {0};
        const double text = fastest(3, [&] {
            static_cast<void>(train::generate<float>(
                model, tape, prompt, {.tokens = tokens, .temperature = 1.0, .top_k = 40, .cache_format = format}));
        });
        std::printf("generate: %zu tokens in %.3f s, %.0f tokens/s\n", tokens, text,
                    static_cast<double>(tokens) / text);
    } catch (const Error& error) {
        std::fprintf(stderr, "generate_bench: %s\n", error.what());
        return 2;
    }
    return 0;
}
