// SPDX-License-Identifier: MIT
#include "experiments/sweep.hpp"

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
#include "experiments/results_file.hpp"
#include "experiments/sweep_page.hpp"
#include "experiments/sweep_table.hpp"
#include "experiments/unfinished_run.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <system_error>
#include <utility>

namespace unitscale::experiments {

namespace {

/// A sweep in progress: trains the missing runs of its search, several in parallel, and keeps the result of every ended
/// run.
class Sweep {
public:
    using Json = nlohmann::ordered_json;

    /// Trains nothing yet. Errors: the errors of the options, the data and the results file.
    Sweep(const SweepOptions& options, std::FILE* out)
        : options_(checked(options)),
          out_(out),
          space_(options_.space()),
          search_(options_.search()),
          settings_(settings()),
          file_(options_.results_path(), "sweep", settings_, [this](const Json& line) { read(line.at("run")); }) {}

    /// Trains, writes the page and prints the tables. Errors: the errors of the files. Ended runs are kept on any
    /// error.
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
                    // A kill between a run's result and the removal of its checkpoint leaves the checkpoint behind.
                    else if (std::filesystem::exists(options_.unfinished()))
                        std::filesystem::remove(checkpoint_of(next));
                }
            const std::size_t all = points.size() * options_.seeds;
            if (!options_.run.quiet) say(concatenate(all, " runs, of which ", all - waiting.size(), " are done\n"));
            if (waiting.empty()) break;
            done_ = all - waiting.size();
            all_ = all;
            queue_.run(options_.jobs, waiting.size(), [&](std::size_t i) { train(waiting[i]); });
        }
        remove_if_empty(options_.unfinished());
        const SweepResults all = results();
        write_page(all);
        for (const SweepTable& table : sweep_tables(all))
            say(concatenate("\n", table.title, "\n", io::text_table(table.rows)));
        for (const std::string& line : failure_lines(all)) say(concatenate("\n", line, "\n"));
    }

    /// The results known so far.
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

    /// All settings that the losses depend on and that no axis varies.
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
        // A number of 0 is left out: results files from before this parameter do not hold it.
        for (const SweepParameter& parameter : sweep_parameters)
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

    /// The result of a run, or null. Error: its recipe has changed since.
    [[nodiscard]] const SweepRun* find(const SweepRun& run) const {
        const auto found = std::find_if(runs_.begin(), runs_.end(), [&](const SweepRun& done) {
            return done.point == run.point && done.seed == run.seed;
        });
        if (found == runs_.end()) return nullptr;
        check(run.recipe_fingerprint.empty() || run.recipe_fingerprint == found->recipe_fingerprint, file_.where(),
              ": ", space_.text(run.point), ": the recipe has changed since its run there; choose another --out");
        return &*found;
    }

    /// The checkpoint of an unfinished run. Creates the folder.
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
        options.save_every = options_.save_every.value_or(tenth_of(options.steps));
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

    /// Calls field(name, value) for each field of a run. Reading and writing share this list.
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
    std::vector<SweepRun> runs_{};  ///< ended runs
    ResultsFile file_;
    JobQueue queue_{};
    std::mutex mutex_{};  ///< guards the runs, the file, the page and the output
    std::size_t done_ = 0, all_ = 0;
};

}  // namespace

SweepSpace SweepOptions::space() const {
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

SweepSearch SweepOptions::search() const {
    const auto found = std::find(sweep_strategy_names.begin(), sweep_strategy_names.end(), strategy);
    check(found != sweep_strategy_names.end(), "--strategy: is '", strategy, "'; expected one of ",
          io::joined(sweep_strategy_names));
    return {static_cast<SweepStrategy>(found - sweep_strategy_names.begin()), points, search_seed};
}

void SweepOptions::validate() const {
    check_counts();
    const SweepSpace all = space();
    const SweepSearch how = search();
    const auto unknown = [](const SweepPoint&) { return std::numeric_limits<double>::quiet_NaN(); };
    for (const SweepPoint& point : sweep_points(all, how, unknown)) {
        const LanguageRunOptions options = all.options_at(point);
        static_cast<void>(recipe_of(options));
        options.validate();
    }
    check_out("sweep.html");
    check(plot.empty() || all.rate(), "--plot: shows losses by learning rate; expected --axis lr=...");
    if (!plot.empty()) io::check_writable("--plot", plot);
}

void sweep(const SweepOptions& options, std::FILE* out) { Sweep(options, out).run(); }

SweepResults results_so_far(const SweepOptions& options) { return Sweep(options, stdout).results(); }

}  // namespace unitscale::experiments
