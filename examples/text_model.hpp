// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/text_stream.hpp>
#include <unitscale/io/tokeniser.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/code_weights.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/pretrained.hpp>

#include "experiments/resources.hpp"
#include "experiments/tokens.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The common part of the programs that write text, generate and chat.
// Tests: tests/runs/generate.sh, tests/runs/chat.sh
namespace unitscale::examples {

/// How text is drawn, shown and computed.
struct TextOptions {
    train::GenerateOptions draws{};
    std::vector<std::string> stops{};
    std::string cache{}, weights{}, tables{};
    int threads = available_threads();

    void add_to(CLI::App& app) {
        app.add_option("--temperature", draws.temperature, "0: always the most likely token")->capture_default_str();
        app.add_option("--top-k", draws.top_k, "draw among the k most likely tokens only; 0: all")
            ->capture_default_str();
        app.add_option("--top-p", draws.top_p,
                       "draw among the fewest most likely tokens that have this probability in all; 1: all")
            ->capture_default_str();
        app.add_option("--repetition-penalty", draws.repetition_penalty,
                       "above 1: tokens that have occurred become less likely")
            ->capture_default_str();
        app.add_option("--seed", draws.seed, "of the draws")->capture_default_str();
        app.add_option("--stop", stops, "end the text in front of this one; may be given several times")
            ->allow_extra_args(false);
        app.add_option("--cache", cache, "format of cached keys and values: fp32, fp16, bf16 or one of at most 8 bits")
            ->default_str("the model's");
        app.add_option("--weights", weights,
                       "round the weights of linear layers to this format: fp16, bf16, e4m3, mxfp4, nvfp4, ...")
            ->default_str("as the recipe says, to the bit");
        app.add_option("--tables", tables, "the same for the tables of embedding and readout")
            ->default_str("as they are");
        app.add_option("--threads", threads, "threads; the text does not depend on it")
            ->capture_default_str()
            ->check(CLI::PositiveNumber);
    }
    /// Keeps the model's weights as codes, in the order in which single rows read them. Without --weights and --tables
    /// no bit of the text changes by it.
    template <class T>
    void code_weights(nn::Decoder<T>& model, const Recipe& recipe) const {
        std::vector<train::WeightCodeRule> rules = train::equal_code_rules(recipe, model.parameters());
        const auto add = [&](ParameterRole role, const std::string& format) {
            const train::WeightCodeRule rule{.role = role, .rule = train::weight_code_rule(format)};
            const auto parameters = model.parameters();
            if (std::any_of(parameters.begin(), parameters.end(), [&](const auto* p) { return rule.applies(*p); }))
                rules.push_back(rule);
        };
        if (!weights.empty()) add(ParameterRole::weight, weights);
        for (const ParameterRole role : {ParameterRole::embedding, ParameterRole::readout})
            if (!tables.empty()) add(role, tables);
        train::code_weights(model.parameters(), rules);
    }
    /// Checks the options that depend on others or on names. To be called after the arguments are read.
    /// Errors: an unknown format; an empty --stop.
    void finish() {
        if (!cache.empty()) draws.cache_format = find_format(cache);
        for (const std::string& format : {weights, tables})
            if (!format.empty()) static_cast<void>(train::weight_code_rule(format));
        for (const std::string& stop : stops) check(!stop.empty(), "--stop: is empty; expected a text");
    }
};

/// Error, naming the option or the input: the text is not UTF-8.
inline void check_utf8(std::string_view text, std::string_view name) {
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = io::decode_utf8_sequence(text.substr(i, 4)).length;
        check(length > 0, name, ": is not UTF-8: byte ", io::byte_name(static_cast<unsigned char>(text[i])),
              " at offset ", i);
        i += length;
    }
}

/// The configuration, tokeniser and end tokens of a published model's folder.
struct TextModel {
    TextModel(const std::filesystem::path& folder, const experiments::PublishedTokeniserOptions& options)
        : config(train::pretrained_config(folder)),
          own_tokeniser(experiments::published_tokeniser(folder, options)),
          tokeniser(*own_tokeniser),
          ends(train::published_end_tokens(folder)) {
        check(tokeniser.size() <= config.vocabulary, "--model: ", folder.string(), ": its tokeniser has ",
              tokeniser.size(), " tokens, the model ", config.vocabulary);
        if (const auto end = tokeniser.end_of_text(); ends.empty() && end) ends.push_back(*end);
        std::erase_if(ends, [this](std::int32_t id) { return static_cast<std::size_t>(id) >= config.vocabulary; });
    }

    nn::DecoderConfig config;
    experiments::TokeniserPointer own_tokeniser;
    const io::Tokeniser& tokeniser;  ///< what it points to
    std::vector<std::int32_t> ends;
};

/// Calls f(model, tape) with the folder's weights under a recipe, in the recipe's element type.
/// Error: a recipe under which the weights are another model.
template <class F>
void with_text_model(const std::filesystem::path& folder, const nn::DecoderConfig& config, const Recipe& recipe,
                     int threads, F&& f) {
    check(train::keeps_published_model(recipe), "--recipe: ", recipe.name,
          " multiplies by factors that these weights were not trained with; expected one of standard "
          "parametrisation");
    train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
        nn::Decoder<T> model(config);
        const bool plain = recipe.scaling != Scaling::propagate;
        if (!plain) nn::initialise(model.parameters(), recipe, 0);  // so that weights are kept under scales
        for (const std::string& note : train::load_weights(folder, model.parameters(), plain))
            std::fprintf(stderr, "%s\n", note.c_str());
        ScalingState state;
        Tape<T> tape(recipe, state, threads);
        f(model, tape);
    });
}

/// Shows tokens on stdout as they are drawn: whole characters, and no part of a stop string or of an end token.
class TokenPrinter {
public:
    /// `before`: the tokens that the text continues.
    TokenPrinter(const io::Tokeniser& tokeniser, std::span<const std::int32_t> before, std::vector<std::int32_t> ends,
                 const std::vector<std::string>& stops)
        : tokeniser_(tokeniser), ends_(std::move(ends)), stream_(stops) {
        for (const std::int32_t id : before) remember(id);
    }

    /// Shows a token. False: the text ends with it.
    [[nodiscard]] bool add(std::int32_t id) {
        if (std::find(ends_.begin(), ends_.end(), id) != ends_.end()) return false;
        show(stream_.add(bytes_of(id)));
        return !stream_.stopped();
    }
    /// Shows the text that was held back.
    void finish() { show(stream_.finish()); }

private:
    static constexpr std::size_t remembered = 8;

    void remember(std::int32_t id) {
        const bool known = id >= 0 && static_cast<std::size_t>(id) < tokeniser_.size();
        if (!known) return before_.clear();
        before_.push_back(id);
        if (before_.size() > remembered) before_.erase(before_.begin());
    }
    /// The bytes of a token behind the tokens before it: some tokenisers leave out a space at a text's start.
    [[nodiscard]] std::string bytes_of(std::int32_t id) {
        if (static_cast<std::size_t>(id) >= tokeniser_.size()) {  // a model may have more ids than tokens
            before_.clear();
            return "\xEF\xBF\xBD";
        }
        const std::string start = tokeniser_.decode(before_);
        before_.push_back(id);
        const std::string all = tokeniser_.decode(before_);
        if (before_.size() > remembered) before_.erase(before_.begin());
        return all.starts_with(start) ? all.substr(start.size()) : all;
    }
    static void show(const std::string& text) {
        if (text.empty()) return;
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
    }

    const io::Tokeniser& tokeniser_;
    std::vector<std::int32_t> ends_, before_{};
    io::TextStream stream_;
};

/// Measures the time of prompts, from `begin` to the first token, and of the tokens behind.
class SpeedMeter {
public:
    void begin(std::size_t tokens) {
        prompt_ += tokens;
        last_ = Clock::now();
        is_first_ = true;
    }
    void count() {
        const auto now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - last_).count();
        if (is_first_) prompt_seconds_ += seconds;
        else ++written_, written_seconds_ += seconds;
        is_first_ = false;
        last_ = now;
    }
    /// A line on stderr, with the process's peak memory. The first token of each text counts as the prompt's.
    void print() const {
        const auto rate = [](std::size_t tokens, double seconds) {
            return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
        };
        std::fprintf(stderr, "prompt %zu tokens, %.0f tokens/s; text %zu tokens, %.1f tokens/s; peak memory %.0f MB\n",
                     prompt_, rate(prompt_, prompt_seconds_), written_, rate(written_, written_seconds_),
                     experiments::peak_resident_megabytes());
    }

private:
    using Clock = std::chrono::steady_clock;

    std::size_t prompt_ = 0, written_ = 0;
    double prompt_seconds_ = 0.0, written_seconds_ = 0.0;
    Clock::time_point last_{};
    bool is_first_ = true;
};

}  // namespace unitscale::examples
