// SPDX-License-Identifier: MIT
#include "experiments/run_parts.hpp"

#include <unitscale/base/crc32.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/precision_table.hpp>

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace unitscale::experiments {

namespace {

/// Training steps that a checkpoint's run has begun.
std::uint64_t step_of(train::CheckpointReader& checkpoint) {
    std::uint64_t step = 0;
    checkpoint.set_prefix("state/");
    checkpoint.scalar("step", step);
    checkpoint.commit();
    return step;
}

/// The optimiser and the course of the learning rate.
std::string training_text(const LanguageRunOptions& options) {
    std::string text = options.optimiser == "sgd" ? concatenate("SGD with momentum ", options.momentum)
                                                  : concatenate(options.optimiser == "adam" ? "Adam" : "LAMB", " (",
                                                                options.beta1, ", ", options.beta2, ')');
    if (options.epsilon && options.optimiser != "sgd") text += concatenate(", epsilon ", *options.epsilon);
    text += concatenate(", ", options.schedule);
    const bool falls = options.schedule == "cosine" || options.schedule == "linear";
    if (falls) text += concatenate(" to ", options.final_share);
    if (!options.rates.empty()) text += concatenate(", factors on rates ", io::joined(options.rates));
    if (options.dropout > 0.0) text += concatenate(", dropout ", options.dropout);
    if (options.masked > 0) text += concatenate(", the first ", options.masked, " predictions of a sequence masked");
    return text;
}

/// The part of a text that is for training.
std::u32string_view training_text_of(std::u32string_view text, bool test) {
    const std::vector<std::int32_t> points(text.begin(), text.end());
    return text.substr(0, train::split(points, 1, test).training.size());
}

/// All fields of a recipe but its description, which changes nothing.
nlohmann::ordered_json fields_of(const Recipe& recipe) {
    nlohmann::ordered_json json = io::recipe_to_json(recipe);
    json.erase("description");
    return json;
}

}  // namespace

std::vector<Recipe> recipes_of(const LanguageRunOptions& options) {
    std::vector<Recipe> recipes = {recipe_of(options)};
    if (!options.switch_at) return recipes;
    try {
        recipes.push_back(io::load_recipe(options.switch_to));
    } catch (const Error& error) {
        fail("--switch-to: ", error.what());
    }
    if (options.to_infinity) overflow_to_infinity(recipes.back());
    train::check_recipe_switch("--switch-to", recipes.front(), recipes.back());
    return recipes;
}

RunPart next_part(const LanguageRunOptions& options) {
    options.validate();
    if (!options.switch_at || options.resume.empty()) return RunPart::first;
    train::CheckpointReader checkpoint(options.resume);
    return step_of(checkpoint) > *options.switch_at ? RunPart::second : RunPart::first;
}

std::string switch_text(const LanguageRunOptions& options, const std::vector<Recipe>& recipes) {
    return nlohmann::ordered_json{{"at", options.switch_at.value_or(0)},
                                  {"from", io::recipe_to_json(recipes.front())},
                                  {"to", io::recipe_to_json(recipes.back())}}
        .dump();
}

std::map<std::string, std::string> optimiser_texts(const LanguageRunOptions& options) {
    return {{"optimiser", options.optimiser}, {"rates", options.rates.empty() ? "none" : io::joined(options.rates)}};
}

void check_resumed_optimiser(const LanguageRunOptions& options) {
    train::CheckpointReader checkpoint(options.resume);
    const auto& metadata = checkpoint.file().metadata();
    const auto check_same = [&](const char* name, const char* option) {
        const auto found = metadata.find(concatenate("run/", name));
        // Older files lack what was usual in their runs.
        const std::string saved =
            found == metadata.end() ? optimiser_texts(LanguageRunOptions{}).at(name) : found->second;
        const std::string own = optimiser_texts(options).at(name);
        check(saved == own, "--resume: ", options.resume, " was trained with ", option, ' ', saved, ", not ", own);
    };
    check_same("optimiser", "--optimiser");
    check_same("rates", "--rate");
}

void check_resumed_switch(const LanguageRunOptions& options, const std::vector<Recipe>& recipes) {
    train::CheckpointReader checkpoint(options.resume);
    const std::string where = concatenate("--resume: ", options.resume);
    const auto& metadata = checkpoint.file().metadata();
    const auto found = metadata.find("run/switch");
    if (found == metadata.end()) {
        if (!options.switch_at) return;
        const std::uint64_t step = step_of(checkpoint);
        check(step <= *options.switch_at, where, " is at step ", step, " of a run without a switch; --switch-at is ",
              *options.switch_at, ", expected at least ", step);
        return;
    }
    const nlohmann::ordered_json json = nlohmann::ordered_json::parse(found->second, nullptr, false);
    const bool whole = json.is_object() && json.contains("at") && json["at"].is_number_unsigned() &&
                       json.contains("from") && json.contains("to");
    check(whole, "checkpoint: ", options.resume, ": its switch is not a JSON object with at, from and to");
    const Recipe from = io::recipe_from_json(json["from"]), to = io::recipe_from_json(json["to"]);
    const auto at = json["at"].get<std::uint64_t>();
    check(options.switch_at.has_value(), where, " was trained with --switch-at ", at, " --switch-to ", to.name,
          "; expected both");
    check(at == *options.switch_at, where, " was trained with --switch-at ", at, ", not ", *options.switch_at);
    const auto check_same = [&](std::string_view option, const Recipe& saved, const Recipe& own) {
        check(saved.name == own.name, where, " was trained with ", option, ' ', saved.name, ", not ", own.name);
        check(fields_of(saved) == fields_of(own), where, " was trained with other fields of ", option, ' ', own.name);
    };
    check_same("--recipe", from, recipes.front());
    check_same("--switch-to", to, recipes.back());
}

LanguageData::LanguageData(const LanguageRunOptions& options)
    : text(io::read_text(options.data)),
      tokeniser(make_tokeniser(options.tokens, text, training_text_of(text, options.test))),
      vocabulary(*tokeniser),
      tokenised(text, vocabulary, options.seq, options.test),
      parts(tokenised.parts) {}

void LanguageData::add_bytes(LanguageStep& step) const {
    if (is_of_characters(vocabulary)) return;
    step.bytes_per_token = tokenised.training_bytes;
    step.valid_bytes_per_token = tokenised.validation_bytes;
}
void LanguageData::add_bytes(LanguageRunResult& result) const {
    if (is_of_characters(vocabulary)) return;
    result.bytes_per_token = tokenised.validation_bytes;
    result.test_bytes_per_token = tokenised.test_bytes;
}

std::string LanguageData::validation_text(double loss) const {
    const bool characters = is_of_characters(vocabulary);
    return concatenate(io::cell("%.4f ", loss), loss_unit(vocabulary),
                       characters ? "" : io::cell(" (%.4f bits/byte)", loss / tokenised.validation_bytes));
}

LanguageRunOptions options_of_process(LanguageRunOptions options) {
    options.validate();
    if (options.group == nullptr || options.group->rank() == 0) return options;
    options.quiet = true;
    options.log.clear();
    options.sample = 0;
    return options;
}

std::string memory_table(train::ProcessGroup& group, const LanguageRunResult& result) {
    const std::array<std::uint64_t, 3> mine = {result.weight_bytes, result.state_bytes, result.step_bytes};
    std::vector<std::vector<std::string>> rows = {{"process", "bytes of weights", "optimiser state", "step's peak"}};
    const auto parts = group.gather(std::as_bytes(std::span(mine)));
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        std::array<std::uint64_t, 3> bytes{};
        std::memcpy(bytes.data(), parts[rank].data(), sizeof bytes);
        rows.push_back({concatenate(rank)});
        for (const std::uint64_t count : bytes) rows.back().push_back(concatenate(count));
    }
    return io::text_table(rows);
}

void fail_step(double loss, double gradient_norm, std::size_t step, double peak) {
    const bool finite = std::isfinite(loss);
    throw Diverged(concatenate("train: the ", finite ? "gradient norm is " : "loss is ", finite ? gradient_norm : loss,
                               " at step ", step, "; try a lower --lr (it is ", peak, ")"));
}

std::vector<train::SharedFact> shared_facts(const LanguageRunOptions& options, const LanguageData& data) {
    nlohmann::ordered_json json = changed_options(options);
    json["sizes"] = {options.width, options.depth, options.head_count(), options.seq, options.batch, options.steps};
    if (options.lr) json["lr"] = *options.lr;
    if (options.warmup) json["warmup"] = *options.warmup;
    json["eval_every"] = options.eval_every;
    json["repeat_skipped"] = options.repeat_skipped;
    json["shard"] = options.shard;
    json["overlap"] = options.overlap;
    json["save"] = {options.save, options.save_every};  // all save together
    const std::uint32_t sum = crc32(std::as_bytes(std::span(data.text)));
    return {{"data", concatenate(data.text.size(), " characters with checksum ", sum)}, {"options", json.dump()}};
}

std::string recipe_text(const Recipe& recipe) {
    return concatenate("recipe      ", recipe.name, ": ", recipe.description, "\nscaling     ",
                       train::scaling_text(recipe), "\nstorage     ", train::storage_text(recipe.storage),
                       "\nparameters  ", train::parametrisation_text(recipe), '\n');
}

std::string settings_text(const LanguageRunOptions& options, const std::vector<Recipe>& recipes, RunPart part,
                          const LanguageData& data, std::size_t parameters, const optim::Schedule& schedule) {
    const bool first = part == RunPart::first;
    const char* const token = token_name(data.vocabulary);
    const Recipe& other = first ? recipes.back() : recipes.front();
    const std::string bytes =
        std::string_view(token) == "tokens" ? io::cell(" (%.3f bytes each)", data.tokenised.validation_bytes) : "";
    std::string text = recipe_text(first ? recipes.front() : recipes.back());
    if (options.switch_at)
        text += concatenate("switch      after step ", *options.switch_at, first ? " to " : " from ", other.name, ": ",
                            other.description, '\n');
    return text + concatenate("model       ", options.model_text(), ", width ", options.width, ", depth ",
                              options.depth, ", heads ", options.head_count(), ", sequence ", options.seq, "; ",
                              parameters, " parameters, vocabulary of ", data.vocabulary.size(), ' ', token,
                              "\ndata        ", data.parts.training.size(), ' ', token, " to train on, ",
                              data.parts.validation.size(), " to validate",
                              options.test ? concatenate(", ", data.parts.test.size(), " to test") : "", bytes,
                              "\ntraining    ", options.steps, " steps of ", options.batch, " x ", options.seq, ' ',
                              token, ", peak learning rate ", schedule.peak, ", warm-up ", schedule.warmup, " steps, ",
                              training_text(options), ", seed ", options.seed, ", ", options.threads,
                              options.threads == 1 ? " thread\n" : " threads\n");
}

std::string part_name(const LanguageRunOptions& options, const Recipe& recipe, RunPart part) {
    if (!options.switch_at) return recipe.name;
    return part == RunPart::first ? concatenate(recipe.name, " to step ", *options.switch_at)
                                  : concatenate(recipe.name, " from step ", *options.switch_at + 1);
}

}  // namespace unitscale::experiments
