// SPDX-License-Identifier: MIT
#include "experiments/language_run_options.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/nn/llama.hpp>
#include <unitscale/train/batches.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace unitscale::experiments {

nn::DecoderConfig LanguageRunOptions::decoder(std::size_t vocabulary) const {
    nn::DecoderConfig config{.vocabulary = vocabulary,
                             .width = width,
                             .depth = depth,
                             .heads = head_count(),
                             .groups = kv_heads,
                             .length = seq};
    if (model == "llama")
        config = nn::llama_config({.vocabulary = vocabulary,
                                   .width = width,
                                   .depth = depth,
                                   .head_size = width / head_count(),
                                   .key_value_heads = kv_heads,
                                   .length = seq});
    config.recompute = recompute;
    const auto* place = std::find(placement_names.begin(), placement_names.end(), placement);
    config.placement = static_cast<nn::NormPlacement>(place - placement_names.begin());
    config.final_norm = final_norm;
    config.readout_bias = readout_bias;
    return config;
}

std::string LanguageRunOptions::model_text() const {
    std::string text = model;
    if (placement != "pre") text += concatenate(", norms ", placement);
    if (final_norm) text += ", norm before the readout";
    if (readout_bias) text += ", readout bias";
    return text;
}

void LanguageRunOptions::validate() const {
    check(!data.empty(), "--data: no path given; expected files or folders of text");
    const auto positive = [](const char* option, std::size_t value) {
        check(value >= 1, option, ": is 0; expected at least 1");
        check(value <= most, option, ": is ", value, "; expected at most ", most);
    };
    positive("--width", width);
    positive("--depth", depth);
    positive("--heads", heads);
    positive("--seq", seq);
    positive("--batch", batch);
    positive("--steps", steps);
    positive("--micro-batches", micro_batches);
    check(std::find(model_names.begin(), model_names.end(), model) != model_names.end(), "--model: is ", model,
          "; expected gpt or llama");
    check(std::find(placement_names.begin(), placement_names.end(), placement) != placement_names.end(),
          "--placement: is ", placement, "; expected pre, post or none");
    check(width % heads == 0 || head_size != 0, "--heads: width ", width, " is not divisible by ", heads, " heads");
    check(head_size == 0 || width % head_size == 0, "--head-size: width ", width, " is not divisible by heads of size ",
          head_size);
    check(kv_heads == 0 || head_count() % kv_heads == 0, "--kv-heads: ", head_count(), " heads are not divisible by ",
          kv_heads, " key and value heads");
    check(model != "llama" || width / head_count() % 2 == 0, "--model: heads of size ", width / head_count(),
          "; rotary positions need an even size");
    check(batch % micro_batches == 0, "--micro-batches: batch ", batch, " is not divisible by ", micro_batches,
          " micro-batches");
    check(threads >= 1, "--threads: is ", threads, "; expected at least 1");
    check(!warmup || *warmup <= steps, "--warmup: ", warmup.value_or(0), " steps are more than the run's ", steps);
    check(!lr || (std::isfinite(*lr) && *lr > 0.0), "--lr: is ", lr.value_or(0.0), "; expected a positive number");
    check(std::isfinite(weight_decay) && weight_decay >= 0.0, "--weight-decay: is ", weight_decay,
          "; expected 0 or more");
    check(std::isfinite(temperature) && temperature >= 0.0, "--temperature: is ", temperature, "; expected 0 or more");
    check(save_every == 0 || !save.empty(), "--save-every: is ", save_every, ", but --save names no file");
    check(!switch_at || !switch_to.empty(), "--switch-at: is ", switch_at.value_or(0),
          ", but --switch-to names no recipe");
    check(switch_at || switch_to.empty(), "--switch-to: is ", switch_to, ", but --switch-at names no step");
    check(!switch_at || (*switch_at >= 1 && *switch_at < steps), "--switch-at: is ", switch_at.value_or(0),
          "; expected at least 1, and less than the run's ", steps, " steps");
    check(resume.empty() || weights.empty(), "--weights: --resume brings weights of its own; give one of the two");
    check(top_k <= most, "--top-k: is ", top_k, "; expected at most ", most);
}

Recipe recipe_of(const LanguageRunOptions& options) {
    Recipe recipe = io::load_recipe(options.recipe);
    for (const std::string& assignment : options.set) recipe = io::override_recipe(recipe, assignment);
    if (options.to_infinity) overflow_to_infinity(recipe);
    check_recipe(recipe);
    return recipe;
}

void overflow_to_infinity(Recipe& recipe) {
    for (ProductRule& rule : recipe.products) {
        for (auto* operand : {&rule.formats.activation, &rule.formats.weight, &rule.formats.gradient})
            if (*operand) (*operand)->overflow = Overflow::to_infinity;
        for (auto& slot : rule.formats.slots)
            if (slot && slot->element) slot->element->overflow = Overflow::to_infinity;
    }
}

nlohmann::ordered_json LanguageStep::json() const {
    nlohmann::ordered_json json = {
        {"step", step}, {"train_bpc", train_bpc}, {"learning_rate", learning_rate}, {"tokens_per_s", tokens_per_s}};
    if (gradient_norm) json["gradient_norm"] = *gradient_norm;
    if (loss_scale) json["loss_scale"] = *loss_scale;
    if (loss_scale) json["skipped"] = skipped;
    if (switched_to) json["switched_to"] = *switched_to;
    if (valid_bpc_part) json["valid_bpc_part"] = *valid_bpc_part;
    return json;
}

std::string LanguageRunResult::line() const {
    char numbers[192];
    std::snprintf(numbers, sizeof numbers,
                  " steps=%zu train_bpc=%.4f valid_bpc=%.4f tokens_per_s=%.0f peak_rss_mb=%.0f seconds=%.1f", steps,
                  train_bpc, valid_bpc, tokens_per_s, peak_rss_mb, seconds);
    std::string text = concatenate("result recipe=", recipe);
    if (switch_at > 0) text += concatenate(" switch_at=", switch_at, " switch_to=", switch_to);
    return text + numbers;
}

std::u32string read_training_text(const std::vector<std::filesystem::path>& data,
                                  const std::vector<std::size_t>& lengths) {
    std::u32string text = io::read_text(data);
    const std::vector<std::int32_t> tokens = io::CharacterVocabulary(text).encode(text);
    for (const std::size_t length : lengths) static_cast<void>(train::split(tokens, length));
    return text;
}

}  // namespace unitscale::experiments
