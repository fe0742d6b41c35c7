// SPDX-License-Identifier: MIT
#include "experiments/sweep.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/scaling/recipe.hpp>

#include "experiments/layer_rms.hpp"
#include "experiments/progress.hpp"
#include "experiments/results_file.hpp"
#include "experiments/run_set.hpp"
#include "experiments/sweep_page.hpp"
#include "experiments/sweep_settings.hpp"
#include "experiments/sweep_table.hpp"
#include "experiments/trained_run.hpp"
#include "experiments/unfinished_run.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

namespace unitscale::experiments {

namespace {

/// A size that all runs share, other than 0.
bool is_shared_size(const SweepOptions& options, const SweepSpace& space, const SweepParameter& parameter) {
    const bool by_tokens = parameter.name == "steps" && options.tokens;
    return parameter.size != nullptr && options.run.*parameter.size != 0 && !by_tokens && !space.find(parameter.name);
}

/// All settings that the losses depend on and that no axis varies.
nlohmann::ordered_json settings_of(const SweepOptions& options, const SweepSpace& space) {
    using Json = nlohmann::ordered_json;
    const LanguageRunOptions& run = options.run;
    std::vector<std::size_t> lengths;
    for (const SweepPoint& condition : sweep_conditions(space)) lengths.push_back(space.options_at(condition).seq);
    const std::u32string text = read_training_text(run.data, lengths, run.test);
    std::vector<std::string> axes;
    for (const SweepAxis& axis : space.axes) axes.push_back(axis.name());
    std::sort(axes.begin(), axes.end());
    Json settings = {
        {"text", fingerprint(io::encode_utf8(text))}, {"characters", text.size()}, {"axes", axes}, {"set", run.set}};
    if (!space.find("recipe")) {
        settings["recipe"] = recipe_of(space.run).name;
        settings["recipe_fields"] = fingerprint(recipe_of(space.run));
    }
    settings["to_infinity"] = run.to_infinity;
    settings["model"] = run.model;
    settings.update(changed_options(run));
    for (const SweepAxis& axis : space.axes) settings.erase(axis.name());
    if (run.test) settings["test"] = true;
    if (options.rms) settings["rms"] = true;
    for (const SweepParameter& parameter : sweep_parameters)
        if (is_shared_size(options, space, parameter)) settings[std::string(parameter.name)] = run.*parameter.size;
    if (options.tokens) settings["tokens"] = *options.tokens;
    settings["head_size"] = run.head_size;
    settings["kv_heads"] = run.kv_heads;
    if (!space.find("lr")) settings["lr"] = run.lr ? Json(*run.lr) : Json("the recipe's");
    const std::optional<std::size_t> warmup = run.warmup ? run.warmup : space.shared_warmup();
    settings["warmup"] = warmup ? Json(*warmup) : Json("a tenth");
    settings["micro_batches"] = run.micro_batches;
    return settings;
}

/// The measurements of a sweep's runs.
Measured measured_in(const SweepSpace& space) { return space.find("loss_scale") ? Measured::steps : Measured::losses; }

/// A sweep in progress: trains the missing runs of its search, and keeps the result of every ended run.
class Sweep {
public:
    using Json = nlohmann::ordered_json;

    /// Trains nothing yet. Errors: the errors of the options, the data and the results file.
    Sweep(const SweepOptions& options, std::FILE* out)
        : options_(checked(options)),
          out_(out),
          space_(options_.space()),
          search_(options_.search()),
          settings_(settings_of(options_, space_)),
          file_(options_.results_path(), "sweep", settings_, [this](const Json& line) { read(line.at("run")); }),
          set_(options_, space_, measured_in(space_), settings_.dump()) {}

    /// Trains, writes the page and prints the tables. Errors: the errors of the files. Ended runs are kept on any
    /// error.
    void run() {
        if (!options_.run.quiet) say(heading() + "\n");
        while (true) {
            std::vector<SearchRun> ended, waiting;
            for (SearchRun& run : runs_of(space_, wanted(), options_.seeds))
                (find(run.point, run.seed, run.recipe_fingerprint) == nullptr ? waiting : ended)
                    .push_back(std::move(run));
            done_ = ended.size();
            all_ = ended.size() + waiting.size();
            if (!options_.run.quiet) say(concatenate(all_, " runs, of which ", done_, " are done\n"));
            set_.clean(ended);
            if (waiting.empty()) break;
            set_.train(waiting, {.lost = [this](const SearchRun& run, const std::string& reason,
                                                bool again) { lose(run, reason, again); },
                                 .ended = [this](const SearchRun& run, const TrainedRun& trained,
                                                 const std::filesystem::path&) { keep(run, trained); }});
        }
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

    [[nodiscard]] std::string heading() const {
        std::string text =
            concatenate(sweep_strategy_names[static_cast<std::size_t>(search_.strategy)], " search over ");
        for (std::size_t i = 0; i < space_.axes.size(); ++i) (text += i == 0 ? "" : ", ") += space_.axes[i].name();
        if (!space_.find("recipe")) text += concatenate("; recipe ", recipe_of(space_.run).name);
        LanguageRunOptions run = options_.run;
        for (const SweepAxis& axis : space_.axes)
            if (const auto varied = axis.parameter.text) {
                (run.*varied).clear();
                for (const std::string& value : axis.values)
                    (run.*varied += (run.*varied).empty() ? "" : " or ") += value;
            }
        text += concatenate("; model ", run.model_text());
        for (const SweepParameter& parameter : sweep_parameters)
            if (is_shared_size(options_, space_, parameter) &&
                (parameter.name != "heads" || options_.run.head_size == 0))
                text += concatenate(", ", parameter.name, ' ', options_.run.*parameter.size);
        if (options_.tokens) text += concatenate(", ", *options_.tokens, " characters in each run");
        if (options_.run.head_size > 0) text += concatenate(", heads of ", options_.run.head_size);
        if (options_.run.test) text += "; with a test part";
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
            const SweepRun* run = find(point, result.seeds.back());
            if (run == nullptr) continue;
            result.runs.push_back(*run);
            losses.push_back(run->failed ? std::numeric_limits<double>::infinity() : run->valid_loss);
        }
        result.loss = median(std::move(losses));
        return result;
    }

    /// The result of a run, or null. Error: its recipe has changed since.
    [[nodiscard]] const SweepRun* find(const SweepPoint& point, std::uint64_t seed,
                                       const std::string& recipe_fingerprint = {}) const {
        const auto found = std::find_if(runs_.begin(), runs_.end(),
                                        [&](const SweepRun& run) { return run.point == point && run.seed == seed; });
        if (found == runs_.end()) return nullptr;
        check(recipe_fingerprint.empty() || recipe_fingerprint == found->recipe_fingerprint, file_.where(), ": ",
              space_.text(point), ": the recipe has changed since its run there; choose another --out");
        return &*found;
    }

    void lose(const SearchRun& run, const std::string& reason, bool again) const {
        if (again && !options_.run.quiet)
            say(concatenate(space_.text(run.point), ", seed ", run.seed, ": died, is made again: ", reason, "\n"));
    }

    void keep(const SearchRun& run, const TrainedRun& trained) {
        if (!options_.run.quiet)
            say(concatenate('[', ++done_, '/', all_, "] ", space_.text(run.point), ", seed ", run.seed, ": ",
                            trained.failed ? concatenate("failed: ", trained.reason)
                                           : io::cell("%.4f bits/char", trained.result.valid_bpc),
                            ", ", duration_text(trained.seconds), "\n"));
        SweepRun ended{.point = run.point,
                       .seed = run.seed,
                       .recipe_fingerprint = run.recipe_fingerprint,
                       .failed = trained.failed,
                       .reason = trained.reason,
                       .train_loss = trained.result.train_bpc,
                       .valid_loss = trained.result.valid_bpc,
                       .tokens_per_s = trained.result.tokens_per_s,
                       .seconds = trained.seconds,
                       .test_loss = trained.result.test_bpc,
                       .rms = trained.rms};
        if (!trained.lines.empty()) {
            std::uint64_t elements = 0, zeros = 0;
            for (const auto& [kind, counts] : zeros_of(trained.lines)) {
                elements += counts[0];
                zeros += counts[2];
            }
            if (elements > 0) ended.zeros = static_cast<double>(zeros) / static_cast<double>(elements);
            ended.skipped =
                trained.lines.back().at("skipped").get<double>() / static_cast<double>(trained.lines.size());
        }
        add(std::move(ended), !trained.lost);
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
        field("test_loss", run.test_loss);
        field("zeros", run.zeros);
        field("skipped", run.skipped);
    }
    /// A run without `record` is made again by the next process.
    void add(SweepRun run, bool record) {
        Json json;
        for (std::size_t i = 0; i < space_.axes.size(); ++i)
            json[space_.axes[i].name()] =
                space_.axes[i].parameter.has_names() ? Json(run.point[i]) : Json::parse(run.point[i]);
        describe(run, [&]<class Value>(const char* name, const Value& value) {
            if constexpr (!std::is_same_v<Value, std::optional<double>>) json[name] = value;
            else if (value) json[name] = *value;
        });
        if (!run.rms.empty()) json["rms"] = json_of(run.rms);
        if (record) file_.write({{"run", std::move(json)}});
        runs_.push_back(std::move(run));
    }
    void read(const Json& json) {
        SweepRun run;
        for (const SweepAxis& axis : space_.axes) {
            const Json& value = json.at(axis.name());
            run.point.push_back(axis.parameter.has_names() ? value.get<std::string>()
                                                           : number_text(value.get<double>()));
        }
        describe(run, [&]<class Value>(const char* name, Value& value) {
            if constexpr (!std::is_same_v<Value, std::optional<double>>) read_logged(json.at(name), value);
            else if (json.contains(name)) read_logged(json[name], value.emplace());
        });
        if (json.contains("rms")) run.rms = read_layers(json["rms"]);
        runs_.push_back(std::move(run));
    }

    void write_page(const SweepResults& results) const {
        io::write_atomically("--out", options_.out, sweep_page(results, heading(), options_.source));
        const auto write = [](const char* option, const std::filesystem::path& path, const std::string& svg) {
            if (!path.empty() && !svg.empty()) io::write_atomically(option, path, svg);
        };
        write("--plot", options_.plot, sweep_plot(results, options_.source));
        write("--plot-settings", options_.plot_settings, settings_svg(results, options_.source));
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
    RunSet set_;
    std::size_t done_ = 0, all_ = 0;
};

}  // namespace

SweepSpace SweepOptions::space() const {
    SweepSpace space{.run = run, .tokens = tokens, .sizes_alone = sizes_alone};
    space.run.quiet = true;
    space.run.sample = space.run.eval_every = 0;
    check(!recipes.empty(), "--recipes: none given");
    space.run.recipe = recipes.front();
    if (recipes.size() > 1) space.axes.push_back(make_axis("recipe", recipes));
    for (const std::string& axis : axes) space.axes.push_back(parse_axis(axis));
    space.validate();
    return space;
}

SweepSearch SweepOptions::search() const {
    const auto found = std::find(sweep_strategy_names.begin(), sweep_strategy_names.end(), strategy);
    check(found != sweep_strategy_names.end(), "--strategy: is '", strategy, "'; expected one of ",
          io::joined(sweep_strategy_names));
    return {static_cast<SweepStrategy>(found - sweep_strategy_names.begin()), points, search_seed, worse_by};
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
    check(
        plot_settings.empty() || recipe_settings({.space = all}).has_value(),
        "--plot-settings: shows recipes over settings; expected --recipes with two or more, and axes of names or sizes "
        "with three combinations or more");
    if (!plot_settings.empty()) io::check_writable("--plot-settings", plot_settings);
}

void sweep(const SweepOptions& options, std::FILE* out) { Sweep(options, out).run(); }

void make_sweep_run(const SweepOptions& options, const std::string& task, std::FILE* out) {
    make_run(out, [&] {
        const SweepSpace space = options.space();
        RunSet(options, space, measured_in(space), settings_of(options, space).dump()).make(task, out);
    });
}

SweepResults results_so_far(const SweepOptions& options) { return Sweep(options, stdout).results(); }

}  // namespace unitscale::experiments
