// SPDX-License-Identifier: MIT
// Draws the validation losses that compare_recipes has recorded: one SVG picture, a curve for each recipe. See --help.
//   build/examples/loss_figure recipes.jsonl --out losses.svg

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/report/svg_plot.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace unitscale;
using Json = nlohmann::ordered_json;

/// One run: the validation loss after a number of steps, in bits per character.
struct Run {
    std::vector<double> steps{}, losses{};
};

/// All runs of a recipe at one learning rate. A run that failed counts, but has no curve.
struct Runs {
    double rate = 0.0;
    std::vector<Run> finished{};
    std::size_t failed = 0;

    /// The mean of the last losses.
    [[nodiscard]] double last() const {
        double sum = 0.0;
        for (const Run& run : finished) sum += run.losses.back();
        return finished.empty() ? std::numeric_limits<double>::infinity() : sum / static_cast<double>(finished.size());
    }
    /// As compare_recipes chooses: the fewest failed runs, then the least loss.
    [[nodiscard]] bool better_than(const Runs& other) const {
        return std::pair(failed, last()) < std::pair(other.failed, other.last());
    }
};

struct Comparison {
    std::vector<std::string> recipes{};  ///< in the order of their first runs
    std::map<std::string, std::vector<Runs>> runs{};
};

/// Reads the file that compare_recipes keeps beside its page. Errors, naming file and line: it cannot be read; a line
/// that is no record of a comparison; no run.
Comparison read_comparison(const std::filesystem::path& path) {
    std::ifstream file(path);
    check(file.is_open(), path.string(), ": cannot be read");
    Comparison comparison;
    std::string text;
    for (std::size_t number = 1; std::getline(file, text); ++number) {
        try {
            const Json line = Json::parse(text);
            if (number == 1) static_cast<void>(line.at("comparison"));
            if (!line.contains("run")) continue;
            const Json& json = line.at("run");
            const auto recipe = json.at("recipe").get<std::string>();
            const auto rate = json.at("rate").get<double>();
            std::vector<Runs>& all = comparison.runs[recipe];
            if (all.empty()) comparison.recipes.push_back(recipe);
            auto runs = std::find_if(all.begin(), all.end(), [&](const Runs& one) { return one.rate == rate; });
            if (runs == all.end()) runs = all.insert(runs, Runs{.rate = rate});
            if (json.at("failed").get<bool>()) {
                ++runs->failed;
                continue;
            }
            Run run{.steps = json.at("valid_steps").get<std::vector<double>>(),
                    .losses = json.at("valid").get<std::vector<double>>()};
            check(!run.steps.empty() && run.steps.size() == run.losses.size(), "no validation losses");
            runs->finished.push_back(std::move(run));
        } catch (const std::exception& error) {
            fail(path.string(), ": line ", number, " is no record of a comparison: ", error.what());
        }
    }
    check(!comparison.recipes.empty(), path.string(), ": has no run");
    return comparison;
}

/// The mean over seeds, and with several of them the band from the least to the largest, at the steps of all runs.
report::PlotCurve mean_curve(const Runs& runs) {
    std::map<double, std::vector<double>> at;
    for (const Run& run : runs.finished)
        for (std::size_t i = 0; i < run.steps.size(); ++i) at[run.steps[i]].push_back(run.losses[i]);
    report::PlotCurve curve;
    for (const auto& [step, losses] : at) {
        if (losses.size() != runs.finished.size()) continue;
        double sum = 0.0;
        for (const double loss : losses) sum += loss;
        curve.x.push_back(step);
        curve.y.push_back(sum / static_cast<double>(losses.size()));
        if (losses.size() == 1) continue;
        curve.low.push_back(*std::min_element(losses.begin(), losses.end()));
        curve.high.push_back(*std::max_element(losses.begin(), losses.end()));
    }
    return curve;
}

/// The picture of the named recipes; of all where none is named. The axis of losses ends where the curves are after a
/// tenth of the steps: above that all of them fall alike. Error: a recipe without a run that ended well.
std::string loss_figure(const Comparison& comparison, const std::vector<std::string>& names) {
    std::vector<report::PlotCurve> curves;
    std::size_t seeds = 0;
    double steps = 0.0, low = std::numeric_limits<double>::infinity(), high = -low;
    for (const std::string& name : names.empty() ? comparison.recipes : names) {
        const auto found = comparison.runs.find(name);
        check(found != comparison.runs.end(), "--recipes: no run of ", name);
        const std::vector<Runs>& rates = found->second;
        const Runs& best = *std::min_element(rates.begin(), rates.end(),
                                             [](const Runs& a, const Runs& b) { return a.better_than(b); });
        check(!best.finished.empty(), "--recipes: every run of ", name, " failed");
        seeds = std::max(seeds, best.finished.size() + best.failed);
        report::PlotCurve curve = mean_curve(best);
        check(!curve.x.empty(), "--recipes: the runs of ", name, " have no step in common");
        curve.name = name;
        curve.look = curves.size();
        steps = std::max(steps, curve.x.back());
        curves.push_back(std::move(curve));
    }
    for (const report::PlotCurve& curve : curves)
        for (std::size_t i = 0; i < curve.x.size(); ++i) {
            const bool banded = !curve.low.empty();
            low = std::min(low, banded ? curve.low[i] : curve.y[i]);
            if (curve.x[i] >= 0.1 * steps) high = std::max(high, banded ? curve.high[i] : curve.y[i]);
        }
    const double margin = 0.04 * (high - low);
    const std::string title = concatenate("Validation loss, ", seeds, seeds == 1 ? " seed" : " seeds");
    report::Plot plot{.title = title,
                      .label = title + " of a character model over training steps, by recipe",
                      .x = report::linear_axis(0.0, steps, "step"),
                      .y = report::linear_axis(low - margin, high + margin, "bits per character"),
                      .curves = std::move(curves)};
    return report::svg_plot(plot);
}

}  // namespace

int main(int argc, char** argv) {
    std::string records, out = "losses.svg";
    std::vector<std::string> names;
    CLI::App app(
        "Draws the validation losses of a comparison of recipes over training steps: mean over seeds, with a band from "
        "the least to the largest, each recipe at its best learning rate.");
    app.add_option("records", records, "the .jsonl file that compare_recipes keeps beside its page")->required();
    app.add_option("--recipes", names, "recipes to draw, in this order")->delimiter(',')->default_str("all");
    app.add_option("--out", out, "the picture, SVG")->capture_default_str();
    try {
        app.parse(argc, argv);
        const std::string svg = loss_figure(read_comparison(records), names);
        io::AtomicFile file("--out", out);
        file.write(std::as_bytes(std::span(svg)));
        file.commit();
        return 0;
    } catch (const CLI::Success& done) {  // --help
        return app.exit(done);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "loss_figure: %s\n", error.what());
        return 2;
    }
}
