// SPDX-License-Identifier: MIT
#include "experiments/language_run_options.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/base/parse_number.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/llama.hpp>
#include <unitscale/nn/published_shapes.hpp>
#include <unitscale/nn/unit_scaling_model.hpp>
#include <unitscale/optim/any_optimiser.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/sharding.hpp>

#include "experiments/constant_bias.hpp"
#include "experiments/tokens.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace unitscale::experiments {

namespace {

/// The index of a value of the option called `name`.
template <class Enum>
Enum chosen(const std::string& value, const auto& names) {
    return static_cast<Enum>(std::find(names.begin(), names.end(), value) - names.begin());
}

const std::vector<std::string_view> placement_names = {"pre", "post", "none"};       // of nn::NormPlacement
const std::vector<std::string_view> position_names = {"learned", "rotary", "none"};  // of nn::Positions
const std::vector<std::string_view> feed_forward_names = {"gelu", "gated_silu", "gelu_tanh", "relu"};
const std::vector<std::string_view> norm_names = {"layer", "rms"};                      // of nn::NormKind
const std::vector<std::string_view> initial_names = {"gpt2", "lecun", "glorot", "he"};  // of nn::InitialScale

constexpr std::string_view own_choice = "own";

/// The optimiser's group of a text PATTERN=FACTOR. Error, naming `--rate`: any other text.
optim::ParameterGroup rate_group(const std::string& text) {
    const std::size_t sign = text.rfind('=');
    const bool split = sign != std::string::npos && sign > 0;
    const double factor = split ? parse_number(std::string_view(text).substr(sign + 1)).value_or(-1.0) : -1.0;
    check(std::isfinite(factor) && factor >= 0.0, "--rate: is '", text,
          "'; expected PATTERN=FACTOR, such as *query*=0.5, with a factor of 0 or more");
    return {.pattern = text.substr(0, sign), .learning_rate_factor = factor};
}

/// Error, naming `--rate`: a pattern matches no parameter of the model.
void check_rates(const LanguageRunOptions& options) {
    if (options.rates.empty()) return;
    // The names of a model's parameters do not depend on its sizes, except the depth.
    LanguageRunOptions narrow = options;
    narrow.width = 32;
    narrow.heads = narrow.seq = 1;
    narrow.head_size = narrow.kv_heads = narrow.hidden = 0;
    nn::Decoder<float> model(narrow.decoder(1));
    static_cast<void>(optim::resolve_groups("--rate", model.parameters(), options.optimiser_options().groups, {}));
}

std::vector<std::string_view> list(const auto& names) { return {names.begin(), names.end()}; }
std::vector<std::string_view> own_or(const auto& names) {
    std::vector<std::string_view> all = {own_choice};
    all.insert(all.end(), names.begin(), names.end());
    return all;
}

}  // namespace

std::size_t tenth_of(std::size_t steps) { return std::max<std::size_t>(steps / 10, 1); }

const std::vector<NamedOption>& named_options() {
    using O = LanguageRunOptions;
    static const std::vector<NamedOption> table = {
        {"model",
         &O::model,
         {"gpt", "llama", "unit-scaling"},
         "gpt: learned positions, gelu; llama: rotary positions, gated silu; unit-scaling: the character models of the "
         "Unit Scaling paper, with relative attention unless --context says otherwise"},
        {"placement", &O::placement, placement_names, "of the blocks' norms"},
        {"context", &O::context, own_or(nn::context_kind_names),
         "layer of each block that mixes positions; own: the model's, here and below"},
        {"positions", &O::positions, own_or(position_names), "of the tokens"},
        {"feed-forward", &O::feed_forward, own_or(feed_forward_names), "non-linearity of the feed-forward layers"},
        {"norm", &O::norm, own_or(norm_names), "kind of the norms"},
        {"initial", &O::initial, own_or(initial_names),
         "standard deviations of the standard model's initial values; glorot is uniform"},
        {"residual", &O::residual, own_or(residual_scheme_names),
         "scheme of the residual layers, own: the recipe's; fixed has shares of 0.5 unless --set states one"},
        {"optimiser", &O::optimiser, list(optimiser_kind_names), "", false},
        {"schedule", &O::schedule, list(optim::schedule_kind_names), "course of the learning rate after the warm-up",
         false},
    };
    return table;
}

const std::vector<NamedPart>& named_parts() {
    using O = LanguageRunOptions;
    static const std::vector<NamedPart> table = {
        {"final-norm", &O::final_norm, "a norm in front of the readout for post and none, too; pre always has it"},
        {"readout-bias", &O::readout_bias, "a trained bias of the logits"},
        {"embedding-norm", &O::embedding_norm, "a norm behind the embedding"},
        {"bias", &O::bias, "trained biases of the blocks' layers"},
        {"gains", &O::gains, "trained gains of the norms, and shifts of those of kind layer"},
    };
    return table;
}

nlohmann::ordered_json changed_options(const LanguageRunOptions& options) {
    const LanguageRunOptions usual;
    nlohmann::ordered_json changed = nlohmann::ordered_json::object();
    const auto add = [&](std::string_view name, const auto& value, const auto& usual_value) {
        if (value == usual_value) return;
        std::string key(name);
        std::replace(key.begin(), key.end(), '-', '_');
        changed[key] = value;
    };
    for (const NamedOption& option : named_options()) add(option.name, options.*option.value, usual.*option.value);
    for (const NamedPart& part : named_parts()) add(part.name, options.*part.value, usual.*part.value);
    add("tokens", options.tokens, usual.tokens);
    add("hidden", options.hidden, usual.hidden);
    add("rate", options.rates, usual.rates);
    add("beta1", options.beta1, usual.beta1);
    add("beta2", options.beta2, usual.beta2);
    if (options.epsilon) changed["epsilon"] = *options.epsilon;
    add("momentum", options.momentum, usual.momentum);
    add("dropout", options.dropout, usual.dropout);
    add("weight_decay", options.weight_decay, usual.weight_decay);
    add("final_share", options.final_share, usual.final_share);
    add("half_life", options.half_life, usual.half_life);
    add("masked", options.masked, usual.masked);
    return changed;
}

std::string choice_text(const std::vector<std::string_view>& names) {
    std::string text;
    for (std::size_t i = 0; i < names.size(); ++i)
        (text += i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") += names[i];
    return text;
}

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
    if (model == "unit-scaling")
        config = nn::unit_scaling_config({.vocabulary = vocabulary,
                                          .width = width,
                                          .depth = depth,
                                          .head_size = width / head_count(),
                                          .length = seq});
    if (hidden > 0) config.hidden = hidden;
    config.recompute = recompute;
    config.placement = chosen<nn::NormPlacement>(placement, placement_names);
    if (context != own_choice) config.context.kind = chosen<nn::ContextKind>(context, nn::context_kind_names);
    if (positions != own_choice) config.positions = chosen<nn::Positions>(positions, position_names);
    if (feed_forward != own_choice) config.feed_forward = chosen<nn::FeedForwardKind>(feed_forward, feed_forward_names);
    if (norm != own_choice) config.norm.kind = chosen<nn::NormKind>(norm, norm_names);
    config.norm.gains |= gains;
    config.final_norm |= final_norm;
    config.readout_bias |= readout_bias;
    config.embedding_norm |= embedding_norm;
    config.bias |= bias;
    config.dropout = dropout;
    return config;
}

nn::InitialOptions LanguageRunOptions::initial_options(const Recipe& of_run) const {
    if (initial != own_choice) {
        const auto scale = chosen<nn::InitialScale>(initial, initial_names);
        nn::InitialOptions options{.standard = scale};
        if (scale == nn::InitialScale::glorot) options.distribution = InitialDistribution::uniform;
        return options;
    }
    return model == "unit-scaling" ? nn::unit_scaling_initial(decoder(1), of_run) : nn::InitialOptions{};
}

optim::AnyOptimiserOptions LanguageRunOptions::optimiser_options(std::shared_ptr<MemoryPool> memory) const {
    optim::AnyOptimiserOptions options{.kind = parse_optimiser_kind(optimiser),
                                       .beta1 = beta1,
                                       .beta2 = beta2,
                                       .momentum = momentum,
                                       .epsilon = epsilon,
                                       .weight_decay = weight_decay,
                                       .decay_bias_and_norm = false,
                                       .pool = std::move(memory)};
    for (const std::string& rate : rates) options.groups.push_back(rate_group(rate));
    return options;
}

optim::Schedule LanguageRunOptions::learning_rates(double peak) const {
    const optim::ScheduleKind kind = optim::parse_schedule_kind(schedule);
    const bool constant = kind == optim::ScheduleKind::constant;
    return {.kind = kind,
            .peak = lr.value_or(peak),
            .steps = steps,
            .warmup = warmup.value_or(constant ? 0 : tenth_of(steps)),
            .final_share = final_share,
            .half_life = half_life > 0 ? static_cast<double>(half_life) : static_cast<double>(steps) / 8.0};
}

void LanguageRunOptions::set_shape(std::string_view shape, const std::function<bool(std::string_view)>& given) {
    const nn::PublishedShape& found = nn::published_shape(shape);
    const auto take = [&](std::string_view option, std::size_t& size, std::size_t value) {
        if (!given(option)) size = value;
    };
    if (!given("model")) model = name(found.family);
    take("width", width, found.width);
    take("depth", depth, found.depth);
    if (!given("head-size")) take("heads", heads, found.heads);
    take("kv-heads", kv_heads, found.kv_heads == found.heads ? 0 : found.kv_heads);
    take("hidden", hidden, found.hidden);
}

double LanguageRunOptions::used_epsilon() const {
    return epsilon.value_or(optimiser == "lamb" ? optim::LambOptions{}.epsilon : optim::AdamOptions{}.epsilon);
}

std::string LanguageRunOptions::model_text() const {
    const LanguageRunOptions usual;
    std::string text = model;
    for (const NamedOption& option : named_options())
        if (option.of_model && option.name != "model" && this->*option.value != usual.*option.value)
            text += concatenate(", ", option.name, ' ', this->*option.value);
    for (const NamedPart& part : named_parts())
        if (this->*part.value) text += concatenate(", ", part.name);
    if (kv_heads > 0) text += concatenate(", kv-heads ", kv_heads);
    if (hidden > 0) text += concatenate(", hidden ", hidden);
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
    check(hidden <= most, "--hidden: is ", hidden, "; expected at most ", most);
    for (const NamedOption& option : named_options()) {
        const std::string& value = this->*option.value;
        const bool known = std::find(option.values.begin(), option.values.end(), value) != option.values.end();
        check(known, "--", option.name, ": is ", value, "; expected ", choice_text(option.values));
    }
    check(width % heads == 0 || head_size != 0, "--heads: width ", width, " is not divisible by ", heads, " heads");
    check(head_size == 0 || width % head_size == 0, "--head-size: width ", width, " is not divisible by heads of size ",
          head_size);
    check(kv_heads == 0 || head_count() % kv_heads == 0, "--kv-heads: ", head_count(), " heads are not divisible by ",
          kv_heads, " key and value heads");
    const nn::DecoderConfig config = decoder(1);
    const bool rotary = config.positions == nn::Positions::rotary;
    check(!rotary || width / head_count() % 2 == 0, "--model: heads of size ", width / head_count(),
          "; rotary positions need an even size");
    check(!rotary || config.context.kind == nn::ContextKind::attention, "--positions: is rotary; --context ",
          name(config.context.kind), " has none");
    check(kv_heads == 0 || config.context.kind == nn::ContextKind::attention, "--kv-heads: is ", kv_heads,
          "; --context ", name(config.context.kind), " has none");
    check(config.context.kind != nn::ContextKind::convolution || width % config.context.convolution_groups == 0,
          "--width: ", width, " is not divisible by the convolution's ", config.context.convolution_groups, " groups");
    check(batch % micro_batches == 0, "--micro-batches: batch ", batch, " is not divisible by ", micro_batches,
          " micro-batches");
    check(group == nullptr || group->size() <= micro_batches, "--distributed: ", group ? group->size() : 1,
          " processes share ", micro_batches, " micro-batches; expected --micro-batches of at least one for each");
    const train::Sharding sharding = train::parse_sharding(shard);
    check(group != nullptr || sharding == train::Sharding::none, "--shard: is ", shard,
          "; expected --distributed, too");
    check(group != nullptr || !overlap, "--overlap: expected --distributed, too");
    check(!switch_at || sharding == train::Sharding::none, "--shard: is ", shard,
          "; a run with --switch-at needs the whole state in every process");
    check(threads >= 1, "--threads: is ", threads, "; expected at least 1");
    check(!warmup || *warmup <= steps, "--warmup: ", warmup.value_or(0), " steps are more than the run's ", steps);
    check(!lr || (std::isfinite(*lr) && *lr > 0.0), "--lr: is ", lr.value_or(0.0), "; expected a positive number");
    check(std::isfinite(weight_decay) && weight_decay >= 0.0, "--weight-decay: is ", weight_decay,
          "; expected 0 or more");
    const auto share = [](const char* option, double value, bool one) {
        check(value >= 0.0 && (value < 1.0 || (one && value == 1.0)), option, ": is ", value,
              one ? "; expected a number from 0 to 1" : "; expected a number from 0 to below 1");
    };
    share("--beta1", beta1, false);
    share("--beta2", beta2, false);
    check(!epsilon || (std::isfinite(*epsilon) && *epsilon >= 0.0), "--epsilon: is ", epsilon.value_or(0.0),
          "; expected 0 or more");
    share("--momentum", momentum, false);
    share("--dropout", dropout, false);
    share("--final-share", final_share, true);
    check(masked < seq, "--masked: is ", masked, "; expected fewer than the sequence's ", seq, " characters");
    check(std::isfinite(temperature) && temperature >= 0.0, "--temperature: is ", temperature, "; expected 0 or more");
    check(save_every == 0 || !save.empty(), "--save-every: is ", save_every, ", but --save names no file");
    check(!switch_at || !switch_to.empty(), "--switch-at: is ", switch_at.value_or(0),
          ", but --switch-to names no recipe");
    check(switch_at || switch_to.empty(), "--switch-to: is ", switch_to, ", but --switch-at names no step");
    check(!switch_at || (*switch_at >= 1 && *switch_at < steps), "--switch-at: is ", switch_at.value_or(0),
          "; expected at least 1, and less than the run's ", steps, " steps");
    check(resume.empty() || weights.empty(), "--weights: --resume brings weights of its own; give one of the two");
    check(top_k <= most, "--top-k: is ", top_k, "; expected at most ", most);
    check_tokens(tokens);
    check_rates(*this);
}

Recipe recipe_of(const LanguageRunOptions& options) {
    Recipe recipe = io::load_recipe(options.recipe);
    for (const std::string& assignment : options.set) recipe = io::override_recipe(recipe, assignment);
    if (options.constant_bias) recipe = with_constant_bias(std::move(recipe), *options.constant_bias);
    if (options.residual != own_choice) {
        recipe.residual.scheme = chosen<ResidualScheme>(options.residual, residual_scheme_names);
        const bool fixed = recipe.residual.scheme == ResidualScheme::fixed;
        if (!fixed) recipe.residual.share.reset();
        else if (!recipe.residual.share && recipe.residual.tau == ResidualRule{}.tau) recipe.residual.share = 0.5;
    }
    if (options.to_infinity) overflow_to_infinity(recipe);
    check_recipe(recipe);
    // nn::FeedForward refuses this, too, but in the first step, when files are written.
    const double mult = recipe.hyperparameters.alpha_ffn_act;
    const bool relu =
        options.feed_forward == "relu" || (options.feed_forward == own_choice && options.model == "unit-scaling");
    check(!relu || mult == 1.0, "--feed-forward: is relu; the recipe's alpha_ffn_act is ", mult, ", expected 1");
    // nn::Context refuses this, too.
    const bool has_logits = options.context != "convolution" && options.context != "recurrence";
    check(has_logits || recipe.hyperparameters.alpha_attn == 1.0, "--context: is ", options.context,
          "; the recipe's alpha_attn is ", recipe.hyperparameters.alpha_attn, ", expected 1");
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
    nlohmann::ordered_json json = {{"step", step}};
    json[bytes_per_token ? "train_bpt" : "train_bpc"] = train_bpc;
    if (bytes_per_token) json["train_bpb"] = train_bpc / *bytes_per_token;
    json["learning_rate"] = learning_rate;
    json["tokens_per_s"] = tokens_per_s;
    if (gradient_norm) json["gradient_norm"] = *gradient_norm;
    if (loss_scale) json["loss_scale"] = *loss_scale;
    if (loss_scale) json["skipped"] = skipped;
    if (sent_bytes) json["sent_bytes"] = *sent_bytes;
    if (switched_to) json["switched_to"] = *switched_to;
    if (valid_bpc_part) json[valid_bytes_per_token ? "valid_bpt_part" : "valid_bpc_part"] = *valid_bpc_part;
    if (valid_bpc_part && valid_bytes_per_token) json["valid_bpb_part"] = *valid_bpc_part / *valid_bytes_per_token;
    return json;
}

std::string LanguageRunResult::line() const {
    std::string text = concatenate("result recipe=", recipe);
    if (switch_at > 0) text += concatenate(" switch_at=", switch_at, " switch_to=", switch_to);
    char numbers[192];
    const char* const unit = bytes_per_token ? "bpt" : "bpc";
    std::snprintf(numbers, sizeof numbers, " steps=%zu train_%s=%.4f valid_%s=%.4f", steps, unit, train_bpc, unit,
                  valid_bpc);
    text += numbers;
    if (bytes_per_token) text += io::cell(" valid_bpb=%.4f", valid_bpc / *bytes_per_token);
    if (test_bpc) text += io::cell(bytes_per_token ? " test_bpt=%.4f" : " test_bpc=%.4f", test_bpc);
    if (test_bpc && test_bytes_per_token) text += io::cell(" test_bpb=%.4f", *test_bpc / *test_bytes_per_token);
    std::snprintf(numbers, sizeof numbers, " tokens_per_s=%.0f peak_rss_mb=%.0f seconds=%.1f", tokens_per_s,
                  peak_rss_mb, seconds);
    text += numbers;
    if (sent_bytes) text += concatenate(" sent_bytes_per_step=", *sent_bytes);
    return text;
}

std::u32string read_training_text(const std::vector<std::filesystem::path>& data,
                                  const std::vector<std::size_t>& lengths, bool test) {
    std::u32string text = io::read_text(data);
    const std::vector<std::int32_t> tokens = io::CharacterVocabulary(text).encode(text);
    for (const std::size_t length : lengths) static_cast<void>(train::split(tokens, length, test));
    return text;
}

}  // namespace unitscale::experiments
