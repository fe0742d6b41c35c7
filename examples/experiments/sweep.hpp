// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/batches.hpp>

#include "experiments/job_queue.hpp"
#include "experiments/language_run.hpp"
#include "experiments/progress.hpp"
#include "experiments/record_file.hpp"
#include "experiments/sweep_page.hpp"
#include "experiments/sweep_results.hpp"
#include "experiments/sweep_search.hpp"
#include "experiments/sweep_space.hpp"
#include "experiments/sweep_table.hpp"
#include "experiments/unfinished_run.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace unitscale::experiments {

/// What `sweep` is asked to do.
struct SweepOptions {
    LanguageRunOptions run{};  ///< of all points, as far as no axis changes it; its seed is the first
    std::vector<std::string> recipes = {"fp32"};  ///< names or JSON files; several are an axis
    std::vector<std::string> axes{};              ///< as `parse_axis` reads them
    std::string strategy = "grid";
    std::size_t points = 20;                   ///< of a random search
    std::uint64_t search_seed = 1;             ///< of a random search
    std::size_t seeds = 1;                     ///< runs of each point
    std::size_t jobs = 1;                      ///< runs side by side
    std::optional<std::size_t> save_every{};   ///< steps between checkpoints of a run; empty: a tenth of the run
    std::filesystem::path out = "sweep.html";  ///< the page; beside it `sweep.jsonl` and, while it runs, `sweep.runs`
    std::filesystem::path plot{};              ///< an SVG of the losses by learning rate; empty: none

    [[nodiscard]] std::filesystem::path records() const {
        return std::filesystem::path(out).replace_extension(".jsonl");
    }
    [[nodiscard]] std::filesystem::path unfinished() const {
        return std::filesystem::path(out).replace_extension(".runs");
    }

    /// The space that is searched. Errors: those of the axes and recipes.
    [[nodiscard]] SweepSpace space() const {
        SweepSpace space{.run = run};
        space.run.quiet = true;
        space.run.sample = space.run.eval_every = 0;
        check(!recipes.empty(), "--recipes: none given");
        space.run.recipe = recipes.front();
        if (recipes.size() > 1) {
            std::string values;
            for (const std::string& recipe : recipes) (values += values.empty() ? "recipe=" : ",") += recipe;
            space.axes.push_back(parse_axis(values));
        }
        for (const std::string& axis : axes) space.axes.push_back(parse_axis(axis));
        space.validate();
        return space;
    }

    /// Errors: an unknown strategy.
    [[nodiscard]] SweepSearch search() const {
        const auto found = std::find(sweep_strategy_names.begin(), sweep_strategy_names.end(), strategy);
        check(found != sweep_strategy_names.end(), "--strategy: is '", strategy, "'; expected one of ",
              io::joined(sweep_strategy_names));
        return {static_cast<SweepStrategy>(found - sweep_strategy_names.begin()), points, search_seed};
    }

    /// Error, naming the option. The data is `sweep`'s to check.
    void validate() const {
        check(seeds >= 1 && seeds <= 1000, "--seeds: is ", seeds, "; expected a number from 1 to 1000");
        check(jobs >= 1 && jobs <= 1000, "--jobs: is ", jobs, "; expected a number from 1 to 1000");
        const SweepSpace all = space();
        const SweepSearch how = search();
        const auto unknown = [](const SweepPoint&) { return std::numeric_limits<double>::quiet_NaN(); };
        for (const SweepPoint& point : sweep_points(all, how, unknown)) {
            const LanguageRunOptions options = all.options_at(point);
            static_cast<void>(recipe_of(options));
            options.validate();
        }
        check(out.extension() != ".jsonl" && out.extension() != ".runs" && out.has_filename(), "--out: is ",
              out.string(), "; expected the name of a page, such as sweep.html");
        io::check_writable("--out", out);
        check(plot.empty() || all.rate(), "--plot: shows losses by learning rate; expected --axis lr=...");
        if (!plot.empty()) io::check_writable("--plot", plot);
    }
};

/// A sweep at work: makes the runs that its search asks for and that are not done yet, several side by side, and remembers every run
/// that has ended. Test: tests/experiments/sweep_test.cpp
class Sweep {
public:
    using Json = nlohmann::ordered_json;

    /// Nothing is trained yet. Errors: those of the options, the data and the sweep's file.
    Sweep(const SweepOptions& options, std::FILE* out)
        : options_(checked(options)),
          out_(out),
          space_(options_.space()),
          search_(options_.search()),
          settings_(settings()),
          file_(options_.records(), "sweep", settings_, [this](const Json& line) { read(line.at("run")); }) {}

    /// Trains, writes the page, prints the tables. Errors: those of files. Runs that have ended by then are kept.
    void run() {
        if (!options_.run.quiet) say(heading() + "\n");
        while (true) {
            const std::vector<SweepPoint> points = wanted();
            std::vector<SweepRun> waiting;
            for (std::size_t seed = 0; seed < options_.seeds; ++seed)
                for (const SweepPoint& point : points) {
                    const SweepRun next{.point = point,
                                        .seed = options_.run.seed + seed,
                                        .recipe_fingerprint = recipe_fingerprint(point)};
                    if (find(next) == nullptr) waiting.push_back(next);
                    else if (std::filesystem::exists(options_.unfinished()))  // a kill may have come between
                        std::filesystem::remove(checkpoint_of(next));
                }
            const std::size_t all = points.size() * options_.seeds;
            if (!options_.run.quiet) say(concatenate(all, " runs, of which ", all - waiting.size(), " are done\n"));
            if (waiting.empty()) break;
            done_ = all - waiting.size();
            all_ = all;
            queue_.run(options_.jobs, waiting.size(), [&](std::size_t i) { train(waiting[i]); });
        }
        std::error_code ignored;
        std::filesystem::remove(options_.unfinished(), ignored);  // if nothing is left in it
        const SweepResults all = results();
        write_page(all);
        for (const SweepTable& table : sweep_tables(all))
            say(concatenate("\n", table.title, "\n", io::text_table(table.rows)));
        for (const std::string& line : failure_lines(all)) say(concatenate("\n", line, "\n"));
    }

    /// What is known now.
    [[nodiscard]] SweepResults results() const {
        SweepResults results{.space = space_, .search = search_};
        for (const SweepPoint& point : wanted()) {
            PointResult result = result_of(point);
            if (!result.runs.empty()) results.points.push_back(std::move(result));
        }
        return results;
    }

private:
    static const SweepOptions& checked(const SweepOptions& options) {
        options.validate();
        return options;
    }

    /// All that the losses depend on and that no axis varies.
    [[nodiscard]] Json settings() const {
        const LanguageRunOptions& run = options_.run;
        const std::u32string text = io::read_text(run.data);
        const io::CharacterVocabulary vocabulary(text);
        const std::vector<std::int32_t> tokens = vocabulary.encode(text);
        for (const SweepPoint& condition : sweep_conditions(space_))
            static_cast<void>(train::split(tokens, space_.options_at(condition).seq));  // both parts are long enough
        std::vector<std::string> axes;
        for (const SweepAxis& axis : space_.axes) axes.push_back(axis.name());
        std::sort(axes.begin(), axes.end());
        Json settings = {{"text", fingerprint(io::encode_utf8(text))},
                         {"characters", text.size()},
                         {"axes", axes},
                         {"set", run.set}};
        if (!space_.find("recipe")) {
            settings["recipe"] = recipe_of(space_.run).name;
            settings["recipe_fields"] = fingerprint(recipe_of(space_.run));
        }
        settings["to_infinity"] = run.to_infinity;
        settings["model"] = run.model;
        for (const SweepParameter& parameter : sweep_parameters)
            if (parameter.size != nullptr && !space_.find(parameter.name))
                settings[std::string(parameter.name)] = run.*parameter.size;
        settings["head_size"] = run.head_size;
        settings["kv_heads"] = run.kv_heads;
        if (!space_.find("lr")) settings["lr"] = run.lr ? Json(*run.lr) : Json("the recipe's");
        for (const SweepParameter& parameter :
             sweep_parameters)  // files of sweeps without such a number know nothing of it
            if (parameter.number != nullptr && !space_.find(parameter.name) && run.*parameter.number != 0.0)
                settings[std::string(parameter.name)] = run.*parameter.number;
        settings["warmup"] = run.warmup ? Json(*run.warmup) : Json("a tenth");
        settings["micro_batches"] = run.micro_batches;
        return settings;
    }

    [[nodiscard]] std::string heading() const {
        std::string text =
            concatenate(sweep_strategy_names[static_cast<std::size_t>(search_.strategy)], " search over ");
        for (std::size_t i = 0; i < space_.axes.size(); ++i) (text += i == 0 ? "" : ", ") += space_.axes[i].name();
        if (!space_.find("recipe")) text += concatenate("; recipe ", recipe_of(space_.run).name);
        text += concatenate("; model ", options_.run.model);
        for (const SweepParameter& parameter : sweep_parameters)
            if (parameter.size != nullptr && !space_.find(parameter.name) &&
                (parameter.name != "heads" || options_.run.head_size == 0))
                text += concatenate(", ", parameter.name, ' ', options_.run.*parameter.size);
        if (options_.run.head_size > 0) text += concatenate(", heads of ", options_.run.head_size);
        return text +
               concatenate("; ", options_.seeds, options_.seeds == 1 ? " seed" : " seeds", " from ", options_.run.seed);
    }

    [[nodiscard]] std::vector<SweepPoint> wanted() const {
        return sweep_points(space_, search_, [this](const SweepPoint& point) {
            const PointResult result = result_of(point);
            return result.whole() ? result.loss : std::numeric_limits<double>::quiet_NaN();
        });
    }

    [[nodiscard]] PointResult result_of(const SweepPoint& point) const {
        PointResult result{.point = point};
        std::vector<double> losses;
        for (std::size_t i = 0; i < options_.seeds; ++i) {
            result.seeds.push_back(options_.run.seed + i);
            const SweepRun* run = find({.point = point, .seed = result.seeds.back()});
            if (run == nullptr) continue;
            result.runs.push_back(*run);
            losses.push_back(run->failed ? std::numeric_limits<double>::infinity() : run->valid_loss);
        }
        result.loss = median(std::move(losses));
        return result;
    }

    [[nodiscard]] std::string recipe_fingerprint(const SweepPoint& point) const {
        return fingerprint(recipe_of(space_.options_at(point)));
    }

    /// The record of a run, or null. Error: its recipe is another one now.
    [[nodiscard]] const SweepRun* find(const SweepRun& run) const {
        const auto found = std::find_if(runs_.begin(), runs_.end(), [&](const SweepRun& done) {
            return done.point == run.point && done.seed == run.seed;
        });
        if (found == runs_.end()) return nullptr;
        check(run.recipe_fingerprint.empty() || run.recipe_fingerprint == found->recipe_fingerprint, file_.where(),
              ": ", space_.text(run.point), ": the recipe has changed since its run there; choose another --out");
        return &*found;
    }

    /// Where a run that is under way is kept. The folder is made.
    [[nodiscard]] std::filesystem::path checkpoint_of(const SweepRun& run) const {
        const std::string text = space_.text(run.point);
        return unfinished_path(options_.unfinished(), concatenate(text, "-seed", run.seed),
                               concatenate(settings_.dump(), run.recipe_fingerprint, text, run.seed)) += ".safetensors";
    }

    void train(SweepRun run) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point begin = Clock::now();
        LanguageRunOptions options = space_.options_at(run.point);
        options.seed = run.seed;
        options.log.clear();
        options.weights.clear();
        options.save_every = options_.save_every.value_or(std::max<std::size_t>(options.steps / 10, 1));
        const std::filesystem::path checkpoint = checkpoint_of(run);
        options.save = checkpoint.string();
        const std::size_t known = step_of_checkpoint(checkpoint);
        if (known > 0) options.resume = options.save;
        try {
            const LanguageRunResult result = run_language(
                options, stdout, stdout, [&](const LanguageStep&, const ScalingState&) { queue_.leave_if_stopped(); });
            run.train_loss = result.train_bpc;
            run.valid_loss = result.valid_bpc;
            run.tokens_per_s = result.tokens_per_s;
        } catch (const Diverged& failure) {
            run.failed = true;
            run.reason = failure_text(failure);
        }
        run.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        const std::lock_guard lock(mutex_);
        if (!options_.run.quiet)
            say(concatenate(
                '[', ++done_, '/', all_, "] ", space_.text(run.point), ", seed ", run.seed, ": ",
                run.failed ? concatenate("failed: ", run.reason) : io::cell("%.4f bits/char", run.valid_loss), ", ",
                duration_text(run.seconds), "\n"));
        add(std::move(run));
        std::error_code ignored;
        std::filesystem::remove(checkpoint, ignored);
        write_page(results());
    }

    /// The fields of a run, named once for both directions.
    template <class Run, class Field>
    static void describe(Run& run, Field&& field) {
        field("seed", run.seed);
        field("recipe_fields", run.recipe_fingerprint);
        field("failed", run.failed);
        field("reason", run.reason);
        field("train_loss", run.train_loss);
        field("valid_loss", run.valid_loss);
        field("tokens_per_s", run.tokens_per_s);
        field("seconds", run.seconds);
    }
    void add(SweepRun run) {
        Json json;
        for (std::size_t i = 0; i < space_.axes.size(); ++i)
            json[space_.axes[i].name()] =
                space_.axes[i].parameter.is_recipe() ? Json(run.point[i]) : Json::parse(run.point[i]);
        describe(run, [&](const char* name, const auto& value) { json[name] = value; });
        file_.write({{"run", std::move(json)}});
        runs_.push_back(std::move(run));
    }
    void read(const Json& json) {
        SweepRun run;
        for (const SweepAxis& axis : space_.axes) {
            const Json& value = json.at(axis.name());
            run.point.push_back(axis.parameter.is_recipe() ? value.get<std::string>()
                                                           : number_text(value.get<double>()));
        }
        describe(run, [&](const char* name, auto& value) { read_logged(json.at(name), value); });
        runs_.push_back(std::move(run));
    }

    void write_page(const SweepResults& results) const {
        io::write_atomically("--out", options_.out, sweep_page(results, heading()));
        if (options_.plot.empty()) return;
        if (const std::string svg = sweep_plot(results); !svg.empty())
            io::write_atomically("--plot", options_.plot, svg);
    }

    void say(const std::string& text) const {
        std::fprintf(out_, "%s", text.c_str());
        std::fflush(out_);
    }

    SweepOptions options_;
    std::FILE* out_;
    SweepSpace space_;
    SweepSearch search_;
    Json settings_;
    std::vector<SweepRun> runs_{};  ///< that have ended
    RecordFile file_;
    JobQueue queue_{};
    std::mutex mutex_{};  ///< of the runs, the file, the page and the output
    std::size_t done_ = 0, all_ = 0;
};

/// Makes every run of a sweep and says on `out`, and on one page, what they show. Killed, it goes on where it was when it is called
/// again.
inline void sweep(const SweepOptions& options, std::FILE* out) { Sweep(options, out).run(); }

}  // namespace unitscale::experiments
