// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/recipe.hpp>

#include "experiments/results_file.hpp"
#include "experiments/run_set.hpp"
#include "experiments/sweep_space.hpp"
#include "experiments/trained_run.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// The parts of a comparison of recipes, and its results file:
//   {"comparison":{"text":"2b5e...","width":128,...}}          the settings that all runs share
//   {"run":{"recipe":"fp32","rate":0.003,"seed":1,...}}        one line for each run that has ended
//   {"window":{"biases":[-8,...],"losses":[...],...}}          the evaluations with constant biases
namespace unitscale::experiments {

/// The options of `compare_recipes`: every recipe is trained at every learning rate with every seed.
struct ComparisonOptions : RunSetOptions {
    std::vector<std::string> recipes = {"fp32", "unit-fp8"};  ///< names or JSON files
    std::vector<double> rates{};                              ///< peak learning rates; empty: each recipe's own
    std::vector<double> rate_factors = {1.0};  ///< factors on each recipe's own rate; used where `rates` is empty
    std::optional<std::size_t> eval_every{};   ///< steps between evaluations; empty: a tenth of the run
    std::filesystem::path plot{};              ///< validation losses as an SVG image; empty: none
    std::string window{};  ///< constant biases to evaluate fp32's weights with, `-8..8`; empty: none

    /// The page is `recipes.html`. The recipe, rate, log and checkpoints of `run` are not used.
    ComparisonOptions() { out = "recipes.html"; }

    /// The biases that `window` names: none, or LOWEST..HIGHEST. Error: any other text.
    [[nodiscard]] std::vector<int> biases() const;

    /// The recipes at their rates, as a space to search by a grid.
    [[nodiscard]] SweepSpace space() const;

    /// Checks all options but the data, which `compare_recipes` checks. Error: it names the option.
    void validate() const;
};

/// One run of a comparison, as requested.
struct ComparedRun {
    std::string recipe{};
    double rate = 0.0;
    std::uint64_t seed = 1;

    [[nodiscard]] std::string text() const { return concatenate(recipe, ", rate ", rate, ", seed ", seed); }
    friend bool operator==(const ComparedRun&, const ComparedRun&) = default;
};

[[nodiscard]] ComparedRun compared(const SearchRun& run);

/// The measurements of one run. Losses in bits per character.
struct RunResult {
    ComparedRun run{};
    std::string recipe_fingerprint{};
    bool failed = false;      ///< it ended early, as Diverged
    std::string reason{};     ///< of the failure
    std::string first_bad{};  ///< of the failure: explains the first value that was not finite; empty: none
    std::size_t steps = 0;    ///< completed
    double train_loss = 0.0, valid_loss = 0.0;  ///< final losses of a run that has not failed
    double tokens_per_s = 0.0;
    std::uint64_t skipped = 0;
    std::size_t weight_bytes = 0, state_bytes = 0, step_bytes = 0;  ///< as in LanguageRunResult; 0: the run failed
    std::vector<std::size_t> train_steps{}, valid_steps{}, bias_steps{};
    std::vector<double> train{}, valid{};
    std::map<std::string, std::vector<int>> biases{};  ///< by `path|role`, at bias_steps
    LoggedZeros zeros{};                               ///< summed over all counted steps
    analysis::OverflowCounts overflows{};              ///< likewise
};

/// Reduces a run's outcome to its result. Curves have at most 200 points, each the mean of the steps since the last.
[[nodiscard]] RunResult result_of(const SearchRun& run, const TrainedRun& trained);

/// Call field(name, value) for each field of a run, a result or a window. Reading and writing share these lists.
template <class Run, class Field>
void describe_run(Run& run, Field&& field) {
    field("recipe", run.recipe);
    field("rate", run.rate);
    field("seed", run.seed);
}

template <class Result, class Field>
void describe_result(Result& result, Field&& field) {
    describe_run(result.run, field);
    field("fingerprint", result.recipe_fingerprint);
    field("failed", result.failed);
    field("reason", result.reason);
    field("first_bad", result.first_bad);
    field("steps", result.steps);
    field("train_loss", result.train_loss);
    field("valid_loss", result.valid_loss);
    field("tokens_per_s", result.tokens_per_s);
    field("skipped", result.skipped);
    field("weight_bytes", result.weight_bytes);
    field("state_bytes", result.state_bytes);
    field("step_bytes", result.step_bytes);
    field("train_steps", result.train_steps);
    field("train", result.train);
    field("valid_steps", result.valid_steps);
    field("valid", result.valid);
    field("bias_steps", result.bias_steps);
    field("biases", result.biases);
    field("zeros", result.zeros);
    field("overflows", result.overflows);
}

/// The losses of one model under a range of constant biases.
struct BiasWindow {
    ComparedRun run{};  ///< the run that trained the weights
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

/// The results file of a comparison (experiments/results_file.hpp). Test: tests/experiments/comparison_test.cpp
class ComparisonFile {
public:
    using Json = nlohmann::ordered_json;

    /// Opens or creates the file. All runs in it share `settings`. Errors: the errors of a ResultsFile.
    ComparisonFile(std::filesystem::path path, const Json& settings);

    [[nodiscard]] const std::vector<RunResult>& results() const noexcept { return results_; }
    [[nodiscard]] const std::optional<BiasWindow>& window() const noexcept { return window_; }

    /// The result of a run, or null if the run has not ended. Error: the recipe of that name has changed since.
    [[nodiscard]] const RunResult* find(const ComparedRun& run, const std::string& recipe_fingerprint) const;

    /// A result without `record` is not written: the next process makes its run again.
    void add(RunResult result, bool record = true);
    void set_window(BiasWindow window);

private:
    void read(const Json& line);

    std::vector<RunResult> results_{};
    std::optional<BiasWindow> window_{};
    ResultsFile file_;
};

}  // namespace unitscale::experiments
