// SPDX-License-Identifier: MIT
#include "experiments/fine_tuning.hpp"

#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/npy.hpp>
#include <unitscale/nn/published_shapes.hpp>

namespace unitscale::experiments {

double FineTuningOptions::used_weight_decay(std::size_t parameters) const {
    const std::size_t most = nn::parameter_count(nn::published_config("gpt-590m"));
    check(weight_decay || parameters <= most, "--weight-decay: is absent; models of more than ", most,
          " parameters have no usual one, and this has ", parameters);
    return weight_decay.value_or(usual_weight_decay);
}

void FineTuningOptions::validate(const nn::DecoderConfig& model) const {
    const auto positive = [](const char* option, std::size_t value) {
        check(value >= 1, option, ": is 0; expected at least 1");
    };
    positive("--steps", steps);
    positive("--batch", batch);
    positive("--micro-batches", parts());
    positive("--seq", length(model));
    check(batch % parts() == 0, "--micro-batches: batch ", batch, " is not divisible by ", parts(), " micro-batches");
    check(length(model) <= model.length, "--seq: is ", length(model), "; expected at most the model's ", model.length,
          " positions");
    check(std::isfinite(lr) && lr > 0.0, "--lr: is ", lr, "; expected a positive number");
    for (const auto& [option, beta] : {std::pair("--beta1", beta1), {"--beta2", beta2}})
        check(beta >= 0.0 && beta < 1.0, option, ": is ", beta, "; expected a number from 0 to below 1");
    check(std::isfinite(epsilon) && epsilon >= 0.0, "--adam-epsilon: is ", epsilon, "; expected 0 or more");
    const double decay = used_weight_decay(nn::parameter_count(model));
    check(std::isfinite(decay) && decay >= 0.0, "--weight-decay: is ", decay, "; expected 0 or more");
    if (saves_folder()) {
        static_cast<void>(train::published_config_json(model));
        io::check_new_folder("--save", save);
    } else if (!save.empty()) {
        io::check_writable("--save", save);
    }
}

std::vector<std::int32_t> read_token_ids(const std::filesystem::path& path, std::size_t vocabulary) {
    const std::string where = concatenate("npy: ", path.string());
    const io::NpyHeader header = io::npy_header(path);
    const bool whole = header.type.size() == 3 && (header.type[1] == 'i' || header.type[1] == 'u');
    check(whole, where, " holds elements of type '", header.type, "'; expected whole numbers, such as '<i4'");
    check(header.shape.size() == 1, where, " has shape ", shape_text(header.shape), "; expected [N] token ids");
    const Tensor<std::int32_t> ids = io::load_npy_as<std::int32_t>(path);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::int32_t id = ids.data()[i];
        check(id >= 0 && static_cast<std::size_t>(id) < vocabulary, where, ": id ", i, " is ", id,
              "; expected a number in [0,", vocabulary, ')');
    }
    return {ids.span().begin(), ids.span().end()};
}

std::string fine_tuning_text(const FineTuningOptions& options, const nn::DecoderConfig& model, const Recipe& recipe,
                             std::size_t tokens) {
    const std::size_t parameters = nn::parameter_count(model);
    return concatenate("recipe      ", recipe.name, ": ", recipe.description, "\nmodel       width ", model.width,
                       ", depth ", model.depth, ", heads ", model.heads, "; ", parameters,
                       " parameters, vocabulary of ", model.vocabulary, "\ndata        ", tokens,
                       " tokens, the last tenth to validate\ntraining    ", options.steps, " steps of ", options.batch,
                       " x ", options.length(model), " tokens in ", options.parts(), " parts, learning rate ",
                       options.lr, ", AdamW (", options.beta1, ", ", options.beta2, "), epsilon ", options.epsilon,
                       ", weight decay ", options.used_weight_decay(parameters), ", seed ", options.seed, ", ",
                       options.threads, options.threads == 1 ? " thread\n" : " threads\n");
}

std::string token_loss_text(double nats) {
    char text[64];
    std::snprintf(text, sizeof text, "%.4f nats, %.4f bits per token", nats, nats * train::bits_per_nat);
    return text;
}

std::string fine_tuned_line(const FineTuningOptions& options, const Recipe& recipe, const FineTuned& tuned) {
    char numbers[192];
    std::snprintf(numbers, sizeof numbers,
                  " steps=%zu before_nats=%.4f before_bits=%.4f after_nats=%.4f after_bits=%.4f skipped=%zu "
                  "tokens_per_s=%.0f",
                  options.steps, tuned.before, tuned.before * train::bits_per_nat, tuned.after,
                  tuned.after * train::bits_per_nat, static_cast<std::size_t>(tuned.skipped), tuned.tokens_per_s);
    return concatenate("result recipe=", recipe.name, numbers);
}

}  // namespace unitscale::experiments
