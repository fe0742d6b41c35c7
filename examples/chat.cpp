// SPDX-License-Identifier: MIT
// A chat with a published model on a terminal: each line that is typed is a turn. See --help.
//   build/examples/chat --model llama3 --template llama3 --recipe fp8-amax

#include <unitscale/base/error.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/dialogue.hpp>
#include <unitscale/train/generate.hpp>

#include "experiments/tokens.hpp"
#include "program.hpp"
#include "text_model.hpp"

#include <CLI/CLI.hpp>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;

namespace {

/// A part of a turn: a special token by its name, or a text.
struct Part {
    std::string_view text;
    bool is_token = false;
};

/// The texts around a turn. In `turn` and `system` the part "" stands for the user's words.
struct Template {
    std::string_view name;
    std::vector<Part> begin, system, turn;
    std::string_view end;  ///< the special token, or the text, that ends the model's reply
    bool ends_with_token = true;
    std::vector<Part> behind;  ///< text behind a reply's end, in front of the next turn
};

/// plain: lines of a text. chatml: the models of Qwen. llama3: Llama 3's instruction models.
const std::array<Template, 3> templates{{
    {"plain", {}, {{""}, {"\n"}}, {{""}, {"\n"}}, "\n", false, {}},
    {"chatml",
     {},
     {{"<|im_start|>", true}, {"system\n"}, {""}, {"<|im_end|>", true}, {"\n"}},
     {{"<|im_start|>", true}, {"user\n"}, {""}, {"<|im_end|>", true}, {"\n"}, {"<|im_start|>", true}, {"assistant\n"}},
     "<|im_end|>",
     true,
     {{"\n"}}},
    {"llama3",
     {{"<|begin_of_text|>", true}},
     {{"<|start_header_id|>", true}, {"system"}, {"<|end_header_id|>", true}, {"\n\n"}, {""}, {"<|eot_id|>", true}},
     {{"<|start_header_id|>", true},
      {"user"},
      {"<|end_header_id|>", true},
      {"\n\n"},
      {""},
      {"<|eot_id|>", true},
      {"<|start_header_id|>", true},
      {"assistant"},
      {"<|end_header_id|>", true},
      {"\n\n"}},
     "<|eot_id|>",
     true,
     {}},
}};

const Template& find_template(std::string_view name) {
    std::string names;
    for (const Template& known : templates) {
        if (known.name == name) return known;
        (names += names.empty() ? "" : ", ") += known.name;
    }
    fail("--template: unknown name '", name, "'; expected one of ", names);
}

/// The token of that name. Error: the tokeniser has none.
std::int32_t special_token(const io::Tokeniser& tokeniser, const Template& form, std::string_view name) {
    const auto id = tokeniser.id_of(name);
    check(id.has_value(), "--template: ", form.name, " needs the token ", name, ", which the model's tokeniser lacks");
    return *id;
}

/// Appends the tokens of parts around the user's words. Names of special tokens in the words are plain text.
void append(std::vector<std::int32_t>& ids, const io::Tokeniser& tokeniser, const Template& form,
            const std::vector<Part>& parts, std::string_view words) {
    std::string text;
    const auto flush = [&] {
        const std::vector<std::int32_t> more = tokeniser.encode(text);
        ids.insert(ids.end(), more.begin(), more.end());
        text.clear();
    };
    for (const Part& part : parts) {
        if (!part.is_token) {
            text += part.text.empty() ? words : part.text;
            continue;
        }
        flush();
        ids.push_back(special_token(tokeniser, form, part.text));
    }
    flush();
}

/// The tokens that the model's tokeniser puts in front of a text, for a template without tokens of its own.
std::vector<std::int32_t> first_tokens(const std::string& model, const Template& form) {
    if (form.ends_with_token) return {};
    return experiments::published_tokeniser(model, {.add_special = true})->encode("");
}

struct Arguments {
    std::string model{}, recipe = "fp32", form = "plain", system{};
    examples::TextOptions options{.draws = {.tokens = 300}};
};

/// Whether a person types the turns.
bool is_typed() {
#if __has_include(<unistd.h>)
    return ::isatty(STDIN_FILENO) != 0;
#else
    return false;
#endif
}

/// Reads turns from stdin and writes replies to stdout, until the input ends.
template <class T>
void converse(nn::Decoder<T>& model, Tape<T>& tape, const Arguments& arguments, const examples::TextModel& text,
              const Template& form, const std::vector<std::int32_t>& begin) {
    examples::TextOptions options = arguments.options;
    std::vector<std::int32_t> ends = text.ends;
    if (form.ends_with_token) ends.push_back(special_token(text.tokeniser, form, form.end));
    else options.stops.emplace_back(form.end);
    options.code_weights(model, tape.recipe());
    train::Dialogue<T> dialogue(model, tape, options.draws.cache_format);
    examples::SpeedMeter meter;
    const bool terminal = is_typed();
    bool has_reply = false;
    for (std::string line;;) {
        if (terminal) std::fputs("> ", stdout), std::fflush(stdout);
        if (!std::getline(std::cin, line) || line == "/quit") break;
        if (line == "/reset") {
            dialogue.clear();
            has_reply = false;
            continue;
        }
        try {
            examples::check_utf8(line, "line");
            std::vector<std::int32_t> turn;
            if (dialogue.tokens().empty()) {
                turn = begin;
                append(turn, text.tokeniser, form, form.begin, {});
                if (!arguments.system.empty()) append(turn, text.tokeniser, form, form.system, arguments.system);
            } else if (has_reply) {
                // A reply that was cut has no end token, and the next turn begins behind one.
                if (form.ends_with_token && dialogue.tokens().back() != ends.back()) turn.push_back(ends.back());
                append(turn, text.tokeniser, form, form.behind, {});
            }
            append(turn, text.tokeniser, form, form.turn, line);
            train::GenerateOptions draws = options.draws;
            draws.seed += dialogue.tokens().size();  // another stream for every turn
            draws.stop_tokens = ends;
            examples::TokenPrinter printer(text.tokeniser, turn, ends, options.stops);
            draws.on_token = [&](std::int32_t id) {
                meter.count();
                return printer.add(id);
            };
            meter.begin(turn.size());
            static_cast<void>(dialogue.reply(turn, draws));
            has_reply = true;
            printer.finish();
            std::fputs("\n", stdout);
            std::fflush(stdout);
        } catch (const Error& error) {
            std::fprintf(stderr, "chat: %s; /reset begins anew\n", error.what());
        }
    }
    if (terminal) std::fputs("\n", stdout);
    meter.print();
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    Arguments arguments;
    CLI::App app(
        "A chat with a published model. Each line of stdin is a turn, and the model's reply follows on stdout. "
        "/reset begins anew, /quit ends.");
    app.add_option("--model", arguments.model, "folder of a GPT-2, Llama or Qwen2: weights, config.json, tokeniser")
        ->required();
    app.add_option("--template", arguments.form, "the texts around a turn: plain, chatml (Qwen) or llama3")
        ->capture_default_str();
    app.add_option("--system", arguments.system, "text in front of the first turn");
    app.add_option("--recipe", arguments.recipe, "a recipe of standard parametrisation")->capture_default_str();
    app.add_option("--tokens", arguments.options.draws.tokens, "tokens of a reply, at most")->capture_default_str();
    arguments.options.add_to(app);
    examples::require_not_negative(app, {"--tokens", "--top-k", "--seed"});
    return examples::run_program({"chat", examples::one_model_too_large}, app, argc, argv, [&] {
        arguments.options.finish();
        examples::check_utf8(arguments.system, "--system");
        const Template& form = find_template(arguments.form);
        const Recipe recipe = find_recipe(arguments.recipe);
        const examples::TextModel text(arguments.model, {.find_added = false});
        const std::vector<std::int32_t> begin = first_tokens(arguments.model, form);
        // A wrong template is found before the weights are read.
        std::vector<std::int32_t> ignored;
        for (const auto* parts : {&form.begin, &form.system, &form.turn})
            append(ignored, text.tokeniser, form, *parts, "");
        train::check_generation("chat", {ignored.empty() ? std::vector<std::int32_t>{0} : ignored},
                                arguments.options.draws, text.config.vocabulary);
        examples::with_text_model(
            arguments.model, text.config, recipe, arguments.options.threads,
            [&](auto& model, auto& tape) { converse(model, tape, arguments, text, form, begin); });
        return 0;
    });
}
