// SPDX-License-Identifier: MIT
#include "experiments/comparison.hpp"

#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/optim/schedule.hpp>

#include "experiments/constant_bias.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace unitscale::experiments {

std::vector<int> ComparisonOptions::biases() const {
    return window.empty() ? std::vector<int>() : bias_range("--window", window);
}

void ComparisonOptions::validate() const {
    check(!recipes.empty(), "--recipes: none given");
    check(!rates.empty() || !rate_factors.empty(), "--lr-factor: none given");
    const auto distinct = [](const char* option, std::vector<double> numbers) {
        std::sort(numbers.begin(), numbers.end());
        const auto twice = std::adjacent_find(numbers.begin(), numbers.end());
        if (twice != numbers.end()) fail(option, ": ", *twice, " is given twice");
    };
    distinct("--lr", rates);
    distinct("--lr-factor", rate_factors);
    for (const double factor : rate_factors)
        check(std::isfinite(factor) && factor > 0.0, "--lr-factor: is ", factor, "; expected a positive number");
    check_counts();
    bool has_fp32 = false;
    std::vector<std::string> names;
    for (const std::string& recipe : recipes) {
        names.push_back(io::load_recipe(recipe).name);
        has_fp32 = has_fp32 || names.back() == "fp32";
        check(std::count(names.begin(), names.end(), names.back()) == 1, "--recipes: ", names.back(),
              " is given twice");
    }
    check(biases().empty() || has_fp32, "--window: the weights are those of fp32, which --recipes does not name");
    LanguageRunOptions each = run;
    for (const double rate : rates) {
        each.lr = rate;
        each.validate();
    }
    each.validate();
    check_out("recipes.html");
    if (!plot.empty()) io::check_writable("--plot", plot);
}

SweepSpace ComparisonOptions::space() const {
    SweepSpace space{.run = run};
    space.run.lr.reset();
    space.run.eval_every = eval_every.value_or(tenth_of(run.steps));
    space.run.warmup = run.learning_rates(1.0).warmup;
    std::vector<std::string> numbers;
    for (const double number : rates.empty() ? rate_factors : rates) numbers.push_back(number_text(number));
    space.axes = {make_axis("recipe", recipes), make_axis(rates.empty() ? "lr_factor" : "lr", std::move(numbers))};
    return space;
}

ComparedRun compared(const SearchRun& run) {
    const Recipe recipe = recipe_of(run.options);
    return {recipe.name, run.options.lr.value_or(recipe.learning_rate), run.seed};
}

namespace {

void add_steps(RunResult& result, const std::vector<nlohmann::ordered_json>& lines) {
    const std::size_t most = 200, group = (lines.size() + most - 1) / most;
    double sum = 0.0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const auto& line = lines[i];
        sum += line.at("train").get<double>();
        ++count;
        if (count == group || i + 1 == lines.size()) {
            result.train_steps.push_back(i + 1);
            result.train.push_back(sum / static_cast<double>(count));
            sum = 0.0;
            count = 0;
        }
        if (line.contains("valid")) {
            result.valid_steps.push_back(i + 1);
            result.valid.push_back(line["valid"].get<double>());
        }
        if (line.contains("biases")) {
            result.bias_steps.push_back(i + 1);
            for (const auto& [name, bias] : line["biases"].items()) result.biases[name].push_back(bias.get<int>());
        }
    }
    result.zeros = zeros_of(lines);
    result.overflows = overflows_of(lines);
    result.steps = lines.size();
    if (lines.empty()) return;
    result.skipped = lines.back().at("skipped").get<std::uint64_t>();
    result.tokens_per_s = lines.back().at("tokens_per_s").get<double>();
}

}  // namespace

RunResult result_of(const SearchRun& run, const TrainedRun& trained) {
    RunResult result{.run = compared(run),
                     .recipe_fingerprint = run.recipe_fingerprint,
                     .failed = trained.failed,
                     .reason = trained.reason,
                     .first_bad = trained.first_bad};
    add_steps(result, trained.lines);
    if (trained.failed) return result;
    result.train_loss = trained.result.train_bpc;
    result.valid_loss = trained.result.valid_bpc;
    result.weight_bytes = trained.result.weight_bytes;
    result.state_bytes = trained.result.state_bytes;
    result.step_bytes = trained.result.step_bytes;
    result.valid_steps.push_back(result.steps);
    result.valid.push_back(result.valid_loss);
    return result;
}

ComparisonFile::ComparisonFile(std::filesystem::path path, const Json& settings)
    : file_(std::move(path), "comparison", settings, [this](const Json& line) { read(line); }) {}

const RunResult* ComparisonFile::find(const ComparedRun& run, const std::string& recipe_fingerprint) const {
    const auto found =
        std::find_if(results_.begin(), results_.end(), [&](const RunResult& result) { return result.run == run; });
    if (found == results_.end()) return nullptr;
    check(found->recipe_fingerprint == recipe_fingerprint, file_.where(), ": ", run.recipe,
          " has changed since its runs there; give it another name, or choose another --out");
    return &*found;
}

void ComparisonFile::add(RunResult result, bool record) {
    Json json;
    describe_result(result, [&](const char* name, const auto& value) { json[name] = value; });
    if (record) file_.write({{"run", std::move(json)}});
    results_.push_back(std::move(result));
}

void ComparisonFile::set_window(BiasWindow window) {
    Json json;
    describe_window(window, [&](const char* name, const auto& value) { json[name] = value; });
    file_.write({{"window", std::move(json)}});
    window_ = std::move(window);
}

void ComparisonFile::read(const Json& line) {
    const auto get = [](const Json& json) {
        return [&json](const char* name, auto& value) {
            if (std::string_view(name) == "overflows" && !json.contains(name)) return;  // of an older version
            read_logged(json.at(name), value);
        };
    };
    if (line.contains("run")) describe_result(results_.emplace_back(), get(line.at("run")));
    else describe_window(window_.emplace(), get(line.at("window")));
}

}  // namespace unitscale::experiments
