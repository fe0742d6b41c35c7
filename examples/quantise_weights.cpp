// SPDX-License-Identifier: MIT
// Keeps the weights of a trained model as codes, rounds its activations, and prints size and loss. See --help.
//   build/examples/quantise_weights model.safetensors --data text.txt --out small.safetensors

#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/train/calibrate.hpp>
#include <unitscale/train/code_weights.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/quantised_recipe.hpp>
#include <unitscale/train/saved_model.hpp>

#include "experiments/tokens.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace unitscale;

struct Settings {
    std::string checkpoint{}, out{};
    std::vector<std::filesystem::path> data{}, test{};
    std::string format = "e4m3", tables = "none";
    int margin = 0;
    std::string activations = "none", activation_format = "e4m3", calibration = "amax";
    double percentile = 99.99;
    std::size_t samples = 64, batch = 16;
    int threads = available_threads();
};

/// The texts: `data` calibrates, and its last tenth is evaluated unless there is a `test`, which is evaluated whole.
struct Texts {
    std::u32string data{}, test{};
};

/// A loss, in bits.
struct Loss {
    double per_token = 0.0, per_byte = 0.0;
    std::string unit{};  ///< of the loss per token
    [[nodiscard]] std::string text() const {
        char text[96];
        std::snprintf(text, sizeof text, "%.4f %s, %.4f bits/byte", per_token, unit.c_str(), per_byte);
        return text;
    }
};

template <class T>
Loss loss(train::SavedModel<T>& saved, const Texts& texts, std::size_t batch) {
    const std::size_t length = saved.model().config().length;
    const auto evaluate = [&](std::span<const std::int32_t> tokens, double bytes) {
        const double bits = train::evaluate(saved.model(), saved.tape(), tokens, length, batch);
        return Loss{bits, bits / bytes, experiments::loss_unit(saved.tokeniser())};
    };
    if (texts.test.empty()) {
        const experiments::TokenisedText tokens(texts.data, saved.tokeniser(), length);
        return evaluate(tokens.parts.validation, tokens.validation_bytes);
    }
    const std::string text = io::encode_utf8(texts.test);
    const std::vector<std::int32_t> tokens = saved.tokeniser().encode(text);
    check(tokens.size() > length, "--test: ", tokens.size(), ' ', experiments::token_name(saved.tokeniser()),
          " are too few; sequences of ", length, " need at least ", length + 1);
    return evaluate(tokens, static_cast<double>(text.size()) / static_cast<double>(tokens.size()));
}

/// The rule of the format with this name. Error: a margin, if the format has no scale of the whole tensor.
OperandRule rule_of(const std::string& format, int margin) {
    OperandRule rule = train::weight_code_rule(format);
    check(margin == 0 || rule.scale.has_measured_bias(), "--margin: is for formats with one scale of the tensor; ",
          format, " has none");
    rule.scale.margin = rule.scale.has_measured_bias() ? margin : 0;
    return rule;
}

/// What becomes of a model: the codes of its parameters, and its recipe but for measured biases.
struct Plan {
    std::vector<train::WeightCodeRule> codes{};
    Recipe recipe{};
};

template <class T>
Plan plan(train::SavedModel<T>& saved, const Settings& settings) {
    const std::vector<Parameter<T>*> parameters = saved.model().parameters();
    for (const Parameter<T>* parameter : parameters)
        check(parameter->coded_value() == nullptr, settings.checkpoint, ": ", parameter->name(),
              " is kept as codes already; expected a model with elements");
    const auto any = [&](ParameterRole role) {
        return std::any_of(parameters.begin(), parameters.end(),
                           [role](const Parameter<T>* parameter) { return parameter->facts().role == role; });
    };
    Plan plan;
    train::ForwardRules linear, readout;
    bool readouts = settings.tables != "none";
    if (settings.format == "recipe") {
        check(settings.margin == 0, "--margin: is for --format of a name; the recipe has a margin of its own");
        plan.codes = train::recipe_code_rules(saved.recipe(), parameters);
        check(!plan.codes.empty(), "--format: recipe ", saved.recipe().name, " rounds no weights");
        for (const Parameter<T>* parameter : parameters)
            for (const train::WeightCodeRule& rule : plan.codes)
                readouts = readouts ||
                           (parameter->facts().role == ParameterRole::readout && rule.pattern == parameter->name());
    } else {
        linear.weight = rule_of(settings.format, settings.margin);
        plan.codes.push_back({.role = ParameterRole::weight, .rule = *linear.weight});
    }
    if (settings.tables != "none") {
        readout.weight = rule_of(settings.tables, 0);
        for (const ParameterRole role : {ParameterRole::embedding, ParameterRole::readout})
            if (any(role)) plan.codes.push_back({.role = role, .rule = *readout.weight});
    }
    if (settings.activations != "none") {
        OperandRule rule{Quantiser{.format = find_format(settings.activation_format)}, {.source = ScaleSource::amax}};
        if (settings.activations == "token") rule.scale.granularity = ScaleGranularity::row;
        linear.activation = rule;
        if (readouts) readout.activation = rule;
    }
    plan.recipe = train::with_forward_rules(saved.recipe(), ProductKind::linear, linear, saved.state());
    if (readouts) plan.recipe = train::with_forward_rules(plan.recipe, ProductKind::readout, readout, saved.state());
    return plan;
}

/// Writes the model as codes and returns the names of its coded parameters.
template <class T>
std::vector<std::string> write(train::SavedModel<T>& saved, const Plan& plan, const Settings& settings,
                               const std::u32string& text) {
    const auto parameters = saved.model().parameters();
    train::code_weights(parameters, plan.codes);
    Recipe recipe = plan.recipe;
    if (settings.activations == "calibrated") {
        const auto kind = std::find(train::calibration_names.begin(), train::calibration_names.end(),
                                    std::string_view(settings.calibration));
        const train::CalibrationOptions options{
            .format = find_format(settings.activation_format),
            .kind = static_cast<train::Calibration>(kind - train::calibration_names.begin()),
            .percentile = settings.percentile};
        const std::size_t length = saved.model().config().length;
        const experiments::TokenisedText tokens(text, saved.tokeniser(), length);
        recipe = train::calibrated_recipe(saved.tape(), options, settings.threads, [&] {
            static_cast<void>(train::evaluate(saved.model(), saved.tape(), tokens.parts.training, length,
                                              settings.batch, settings.samples));
        });
    }
    saved.save(settings.out, recipe);
    std::vector<std::string> coded;
    for (const Parameter<T>* parameter : parameters)
        if (parameter->coded_value() != nullptr) coded.push_back(parameter->name());
    return coded;
}

/// The size of a model's file.
struct Size {
    std::size_t file = 0, plain = 0;  ///< bytes; plain: of the weights alone, as elements
    double bits = 0.0;                ///< for each coded weight, scales included
};

/// `coded`: names of the coded parameters.
template <class T>
Size size_of(const std::string& path, const std::vector<Parameter<T>*>& parameters,
             const std::vector<std::string>& coded) {
    const io::SafetensorsReader file(path);
    Size size{.file = static_cast<std::size_t>(std::filesystem::file_size(path))};
    std::size_t bytes = 0, elements = 0;
    for (const Parameter<T>* parameter : parameters) {
        size.plain += parameter->size() * sizeof(T);
        if (std::find(coded.begin(), coded.end(), parameter->name()) == coded.end()) continue;
        elements += parameter->size();
        for (const char* part : {"", ".scale", ".number"})
            if (file.contains(parameter->name() + part)) bytes += file.entry(parameter->name() + part).bytes();
    }
    size.bits = 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
    return size;
}

int run(const Settings& settings) {
    const Texts texts{io::read_text(settings.data),
                      settings.test.empty() ? std::u32string() : io::read_text(settings.test)};
    Loss before, after;
    const Plan planned = train::with_saved_model(
        settings.checkpoint, settings.threads,
        [&](auto& saved) {
            before = loss(saved, texts, settings.batch);
            return plan(saved, settings);
        },
        experiments::read_tokeniser);
    const std::vector<std::string> coded = train::with_saved_model(
        settings.checkpoint, planned.recipe, settings.threads,
        [&](auto& saved) { return write(saved, planned, settings, texts.data); }, experiments::read_tokeniser);
    Size size;
    train::with_saved_model(
        settings.out, settings.threads,
        [&](auto& saved) {
            after = loss(saved, texts, settings.batch);
            size = size_of(settings.out, saved.model().parameters(), coded);
        },
        experiments::read_tokeniser);
    const char* const part = texts.test.empty() ? "validation" : "test";
    std::printf("%s %s before\n", part, before.text().c_str());
    std::printf("%s %s after (%+.2f %%)\n", part, after.text().c_str(),
                100.0 * (after.per_token / before.per_token - 1.0));
    std::printf("%s: %zu bytes (%.1f %% of the weights' %zu), %.2f bits per coded weight\n", settings.out.c_str(),
                size.file, 100.0 * static_cast<double>(size.file) / static_cast<double>(size.plain), size.plain,
                size.bits);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    Settings settings;
    CLI::App app(
        "Post-training quantisation: keeps the weights of a model as codes of 8, 6 or 4 bits, by tensor or in blocks, "
        "rounds its activations, and prints the file's size and the loss before and after.");
    app.add_option("checkpoint", settings.checkpoint, "safetensors file that train_transformer has saved")->required();
    app.add_option("--out", settings.out, "safetensors file to write")->required();
    app.add_option("--data", settings.data, "text files or folders, UTF-8; the last tenth is evaluated without --test")
        ->required();
    app.add_option("--test", settings.test, "text files or folders to evaluate, whole");
    app.add_option("--format", settings.format,
                   "of the linear layers' weights: e4m3, e5m2, e4m3fnuz, e3m2, e2m1 and others, with one power of two "
                   "for a tensor; bf16, fp16; blocks such as mxfp8_e4m3, mxfp4, nvfp4, fp8_tile; or recipe: as the "
                   "model's recipe rounds them")
        ->capture_default_str();
    app.add_option("--tables", settings.tables,
                   "format of embedding tables and the readout's weight; none: they are kept as they are")
        ->capture_default_str();
    app.add_option("--margin", settings.margin,
                   "powers of two left free above the largest weight, in formats with one scale for a tensor")
        ->capture_default_str();
    app.add_option("--activations", settings.activations,
                   "scale of the activations that coded weights are multiplied by. none: they are rounded as the "
                   "model's recipe says; tensor: of the batch's largest magnitude; token: of each token's, so that a "
                   "result does not depend on the batch; calibrated: a constant for each layer, from samples")
        ->capture_default_str()
        ->check(CLI::IsMember({"none", "tensor", "token", "calibrated"}));
    CLI::Option* const activation_format =
        app.add_option("--activation-format", settings.activation_format, "format of rounded activations")
            ->capture_default_str();
    CLI::Option* const calibration =
        app.add_option("--calibration", settings.calibration,
                       "of calibrated activations, over all samples. amax: the largest magnitude; percentile: a "
                       "percentile of magnitudes; mse: the least mean squared error")
            ->capture_default_str()
            ->check(CLI::IsMember({"amax", "percentile", "mse"}));
    CLI::Option* const percentile =
        app.add_option("--percentile", settings.percentile, "percentile of magnitudes; what is larger saturates")
            ->capture_default_str();
    CLI::Option* const samples =
        app.add_option("--samples", settings.samples,
                       "sequences of the text's first nine tenths that calibrate, evenly spread")
            ->capture_default_str()
            ->check(CLI::PositiveNumber);
    app.add_option("--batch", settings.batch, "sequences evaluated at a time")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--threads", settings.threads, "threads")->capture_default_str()->check(CLI::PositiveNumber);
    return examples::run_program({"quantise_weights"}, app, argc, argv, [&] {
        const auto needs = [](const CLI::Option* option, bool has, const char* what) {
            check(option->count() == 0 || has, option->get_name(), ": is for ", what);
        };
        const bool calibrated = settings.activations == "calibrated";
        needs(activation_format, settings.activations != "none", "--activations tensor, token or calibrated");
        for (const CLI::Option* option : {calibration, percentile, samples})
            needs(option, calibrated, "--activations calibrated");
        needs(percentile, settings.calibration == "percentile", "--calibration percentile");
        check(settings.percentile > 0.0 && settings.percentile <= 100.0, "--percentile: is ", settings.percentile,
              "; expected a number above 0, at most 100");
        if (settings.format != "recipe") static_cast<void>(rule_of(settings.format, settings.margin));
        if (settings.tables != "none") static_cast<void>(rule_of(settings.tables, 0));
        static_cast<void>(find_format(settings.activation_format));
        return run(settings);
    });
}
