// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/scaling/recipe.hpp>

#include "experiments/language_run_options.hpp"
#include "experiments/record_file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

// What a comparison of recipes is made of, and the file that remembers what of it is done:
//   {"comparison":{"text":"2b5e...","width":128,...}}          what all runs share
//   {"run":{"recipe":"fp32","rate":0.003,"seed":1,...}}        one line for each run, when it has ended
//   {"window":{"biases":[-8,...],"losses":[...],...}}          the evaluations with constant biases
namespace unitscale::experiments {

/// What `compare_recipes` is asked to do: every recipe at every learning rate with every seed.
struct ComparisonOptions {
    LanguageRunOptions
        run{};  ///< of all; its own recipe, rate, log and checkpoints are not used, its seed is the first
    std::vector<std::string> recipes = {"fp32", "unit-fp8"};  ///< names or JSON files
    std::vector<double> rates{};                              ///< peak learning rates; empty: each recipe's own
    std::vector<double> rate_factors = {1.0};                 ///< on each recipe's own, where `rates` is empty
    std::size_t seeds = 1;
    std::size_t jobs = 1;                     ///< runs side by side
    std::optional<std::size_t> eval_every{};  ///< steps between evaluations; empty: a tenth of the run
    std::optional<std::size_t> save_every{};  ///< steps between checkpoints of a run; empty: a tenth of the run
    std::string window{};                     ///< constant biases to evaluate fp32's weights with, `-8..8`; empty: none
    std::filesystem::path out =
        "recipes.html";  ///< the page; beside it `recipes.jsonl` and, while it runs, `recipes.runs`

    [[nodiscard]] std::filesystem::path records() const {
        return std::filesystem::path(out).replace_extension(".jsonl");
    }
    [[nodiscard]] std::filesystem::path unfinished() const {
        return std::filesystem::path(out).replace_extension(".runs");
    }

    /// The biases that `window` names: none, or LOWEST..HIGHEST. Error: it is no such thing.
    [[nodiscard]] std::vector<int> biases() const {
        if (window.empty()) return {};
        const auto dots = window.find("..");
        int low = 0, high = -1;
        const auto read = [](std::string_view text, int& number) {
            const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
            return end.ec == std::errc() && end.ptr == text.data() + text.size();
        };
        const std::string_view text = window;
        check(dots != std::string::npos && read(text.substr(0, dots), low) && read(text.substr(dots + 2), high) &&
                  low <= high && low >= -64 && high <= 64,
              "--window: is '", window, "'; expected LOWEST..HIGHEST within -64..64, such as -8..8");
        std::vector<int> result;
        for (int bias = low; bias <= high; ++bias) result.push_back(bias);
        return result;
    }

    /// Error, naming the option. The data is `compare_recipes`' to check.
    void validate() const {
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
        check(seeds >= 1 && seeds <= 1000, "--seeds: is ", seeds, "; expected a number from 1 to 1000");
        check(jobs >= 1 && jobs <= 1000, "--jobs: is ", jobs, "; expected a number from 1 to 1000");
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
        check(out.extension() != ".jsonl" && out.extension() != ".runs" && out.has_filename(), "--out: is ",
              out.string(), "; expected the name of a page, such as recipes.html");
        io::check_writable("--out", out);
    }
};

/// One run of a comparison.
struct ComparedRun {
    std::string recipe{};
    double rate = 0.0;
    std::uint64_t seed = 1;

    [[nodiscard]] std::string text() const { return concatenate(recipe, ", rate ", rate, ", seed ", seed); }
    friend bool operator==(const ComparedRun&, const ComparedRun&) = default;
};

/// The runs that are asked for: of every recipe the first seed first, so that a page with all recipes is there early.
[[nodiscard]] inline std::vector<ComparedRun> runs_of(const ComparisonOptions& options,
                                                      const std::vector<Recipe>& recipes) {
    std::vector<ComparedRun> runs;
    for (std::size_t seed = 0; seed < options.seeds; ++seed)
        for (const Recipe& recipe : recipes) {
            std::vector<double> rates = options.rates;
            if (rates.empty())
                for (const double factor : options.rate_factors) rates.push_back(factor * recipe.learning_rate);
            for (const double rate : rates) runs.push_back({recipe.name, rate, options.run.seed + seed});
        }
    return runs;
}

/// What a run has shown. Losses in bits per character.
struct RunRecord {
    ComparedRun run{};
    std::string recipe_fingerprint{};
    bool failed = false;      ///< it ended early: its loss was no longer finite, or all its steps were skipped
    std::string reason{};     ///< of a failure
    std::string first_bad{};  ///< of a failure: the first value that was not finite, explained; empty: there was none
    std::size_t steps = 0;    ///< that ended well
    double train_loss = 0.0, valid_loss = 0.0;  ///< at the end, of runs that have not failed
    double tokens_per_s = 0.0;
    std::uint64_t skipped = 0;
    std::size_t weight_bytes = 0, state_bytes = 0, step_bytes = 0;  ///< LanguageRunResult's; 0: it failed
    std::vector<std::size_t> train_steps{}, valid_steps{}, bias_steps{};
    std::vector<double> train{}, valid{};
    std::map<std::string, std::vector<int>> biases{};  ///< by `path|role`, at bias_steps
    /// By kind of gradient: elements, zeros as stored, zeros as rounded (analysis::ZeroCount), over all counted steps.
    std::map<std::string, std::array<std::uint64_t, 3>> zeros{};
};

/// The fields of a run, of a record and of a window, named once for both directions: field(name, value).
template <class Run, class Field>
void describe_run(Run& run, Field&& field) {
    field("recipe", run.recipe);
    field("rate", run.rate);
    field("seed", run.seed);
}

template <class Record, class Field>
void describe_record(Record& record, Field&& field) {
    describe_run(record.run, field);
    field("fingerprint", record.recipe_fingerprint);
    field("failed", record.failed);
    field("reason", record.reason);
    field("first_bad", record.first_bad);
    field("steps", record.steps);
    field("train_loss", record.train_loss);
    field("valid_loss", record.valid_loss);
    field("tokens_per_s", record.tokens_per_s);
    field("skipped", record.skipped);
    field("weight_bytes", record.weight_bytes);
    field("state_bytes", record.state_bytes);
    field("step_bytes", record.step_bytes);
    field("train_steps", record.train_steps);
    field("train", record.train);
    field("valid_steps", record.valid_steps);
    field("valid", record.valid);
    field("bias_steps", record.bias_steps);
    field("biases", record.biases);
    field("zeros", record.zeros);
}

/// Losses of one model under one constant bias after the other.
struct BiasWindow {
    ComparedRun run{};  ///< that has trained the weights
    std::vector<int> biases{};
    std::vector<double> losses{};
    double unrounded = 0.0;  ///< the loss with operands that are not rounded
};

template <class Window, class Field>
void describe_window(Window& window, Field&& field) {
    describe_run(window.run, field);
    field("biases", window.biases);
    field("losses", window.losses);
    field("unrounded", window.unrounded);
}

/// The file of a comparison (experiments/record_file.hpp). Test: tests/experiments/comparison_test.cpp
class ComparisonFile {
public:
    using Json = nlohmann::ordered_json;

    /// Opens the file, or makes it; `settings` is what all runs must share. Errors: those of a RecordFile.
    ComparisonFile(std::filesystem::path path, const Json& settings)
        : file_(std::move(path), "comparison", settings, [this](const Json& line) { read(line); }) {}

    [[nodiscard]] const std::vector<RunRecord>& records() const noexcept { return records_; }
    [[nodiscard]] const std::optional<BiasWindow>& window() const noexcept { return window_; }

    /// The record of a run that is done, or null. Error: the recipe of that name is another one now.
    [[nodiscard]] const RunRecord* find(const ComparedRun& run, const std::string& recipe_fingerprint) const {
        const auto found =
            std::find_if(records_.begin(), records_.end(), [&](const RunRecord& record) { return record.run == run; });
        if (found == records_.end()) return nullptr;
        check(found->recipe_fingerprint == recipe_fingerprint, file_.where(), ": ", run.recipe,
              " has changed since its runs there; give it another name, or choose another --out");
        return &*found;
    }

    void add(RunRecord record) {
        Json json;
        describe_record(record, [&](const char* name, const auto& value) { json[name] = value; });
        file_.write({{"run", std::move(json)}});
        records_.push_back(std::move(record));
    }
    void set_window(BiasWindow window) {
        Json json;
        describe_window(window, [&](const char* name, const auto& value) { json[name] = value; });
        file_.write({{"window", std::move(json)}});
        window_ = std::move(window);
    }

private:
    void read(const Json& line) {
        const auto get = [](const Json& json) {
            return [&json](const char* name, auto& value) { read_logged(json.at(name), value); };
        };
        if (line.contains("run")) describe_record(records_.emplace_back(), get(line.at("run")));
        else describe_window(window_.emplace(), get(line.at("window")));
    }

    std::vector<RunRecord> records_{};
    std::optional<BiasWindow> window_{};
    RecordFile file_;
};

}  // namespace unitscale::experiments
