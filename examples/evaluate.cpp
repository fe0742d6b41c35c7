// SPDX-License-Identifier: MIT
// Multiple-choice accuracy of models that train_transformer has saved, under their own and under other recipes. See
// --help.
//   build/examples/evaluate --model model.safetensors --data text.txt --recipes fp32,fp16,fp8-amax --biases -8..8

#include <unitscale/analysis/bootstrap.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/io/choice_question.hpp>
#include <unitscale/io/continuation_questions.hpp>
#include <unitscale/io/json_choice_questions.hpp>
#include <unitscale/io/json_log.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/choice_scores.hpp>
#include <unitscale/train/saved_model.hpp>

#include "experiments/constant_bias.hpp"
#include "experiments/measured_biases.hpp"
#include "experiments/progress.hpp"
#include "experiments/tokens.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

struct Options {
    std::vector<std::filesystem::path> models{}, data{}, tasks{};
    std::vector<std::string> recipes{}, set{};
    std::string biases{}, save_task{}, json{};
    bool show_biases = false;
    io::ContinuationOptions made{};  ///< its seed and its number of questions are for all tasks
    int threads = available_threads();
};

/// A set of questions, two columns of the table.
struct Task {
    std::string name{}, source{};
    std::vector<io::ChoiceQuestion> questions{};
    std::size_t skipped = 0;  ///< questions with characters that a model lacks
    std::string lacking{};    ///< the first such character

    /// The accuracy of blind choice.
    [[nodiscard]] double chance() const {
        double sum = 0.0;
        for (const io::ChoiceQuestion& question : questions) sum += 1.0 / static_cast<double>(question.choices.size());
        return sum / static_cast<double>(questions.size());
    }
};

/// A model under a recipe, one row of the table.
struct Row {
    std::filesystem::path model{};
    Recipe recipe{};
    std::optional<int> bias{};  ///< the constant bias of the recipe, if the row is one of a range
};

struct Accuracy {
    double share = 0.0;
    analysis::Interval bounds{};

    Accuracy(std::span<const double> right, std::uint64_t seed)
        : share(std::accumulate(right.begin(), right.end(), 0.0) / static_cast<double>(right.size())),
          bounds(analysis::bootstrap_interval(right, {.seed = seed})) {}

    [[nodiscard]] std::string text() const {
        return concatenate(io::cell("%.1f", 100.0 * share), io::cell(" [%.1f, ", 100.0 * bounds.low),
                           io::cell("%.1f]", 100.0 * bounds.high));
    }
};

/// The results of a row for a task.
struct Result {
    Accuracy plain, normalised;
    std::size_t unanswered = 0;
    experiments::BiasCounts biases{};  ///< over questions, if they are wanted
};

/// A progress bar on stderr, if it is a terminal. Its unit is a question in a row of the table.
class QuestionBar {
public:
    explicit QuestionBar(std::size_t questions)
        : questions_(questions),
          bar_(stderr, questions, !experiments::is_terminal(stderr),
               {.step = "question", .measured = "right", .speed = "questions/s"}) {}
    ~QuestionBar() { bar_.finish(); }  // so that an error has a line of its own
    QuestionBar(const QuestionBar&) = delete;
    QuestionBar& operator=(const QuestionBar&) = delete;

    /// A question has been answered, the last one of `answers`.
    void advance(const train::ChoiceAnswers& answers) {
        if (answers.right.size() == 1) right_ = 0.0;
        right_ += answers.right.back();
        ++done_;
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
        const auto done = static_cast<double>(done_);
        bar_.update(done_, right_ / static_cast<double>(answers.right.size()), done / seconds,
                    seconds / done * static_cast<double>(questions_ - done_));
    }

private:
    std::size_t questions_, done_ = 0;
    double right_ = 0.0;  ///< in this row and task
    experiments::Progress bar_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// The tasks that the options ask for. Writes --save-task.
std::vector<Task> read_tasks(const Options& options) {
    std::vector<Task> tasks;
    if (!options.data.empty()) {
        const std::u32string text = io::read_text(options.data);
        const std::vector<std::int32_t> points(text.begin(), text.end());
        const auto held_out = train::split(points, 1).validation;
        Task task{.name = "continuations", .source = "the last tenth of the text"};
        const std::string held_out_text = io::encode_utf8(std::u32string(held_out.begin(), held_out.end()));
        task.questions = io::continuation_questions(held_out_text, options.made);
        if (!options.save_task.empty()) io::write_choice_questions(options.save_task, task.questions);
        tasks.push_back(std::move(task));
    }
    for (const std::filesystem::path& path : options.tasks) {
        Task task{.name = path.stem().string(), .source = path.string()};
        task.questions = io::read_choice_questions(path);
        const std::size_t all = task.questions.size();
        if (options.made.questions > 0 && options.made.questions < all) {
            task.questions.resize(options.made.questions);
            task.source = concatenate("the first ", options.made.questions, " of ", all, " in ", path.string());
        }
        tasks.push_back(std::move(task));
    }
    return tasks;
}

/// The first character of a question that is not among the sorted characters of a vocabulary.
std::optional<char32_t> lacking_character(const io::ChoiceQuestion& question, const std::u32string& known) {
    std::string all = question.question;
    for (const std::string& choice : question.choices) all += choice;
    for (const char32_t point : io::decode_utf8(all))
        if (!std::binary_search(known.begin(), known.end(), point)) return point;
    return std::nullopt;
}

/// Takes questions out of a task that a model cannot read, so that all rows answer equal questions.
/// Error: no question is left.
void skip_unreadable(Task& task, const std::vector<std::u32string>& vocabularies) {
    task.skipped = std::erase_if(task.questions, [&](const io::ChoiceQuestion& question) {
        for (const std::u32string& known : vocabularies)
            if (const auto point = lacking_character(question, known)) {
                if (task.lacking.empty()) task.lacking = io::code_point_name(*point);
                return true;
            }
        return false;
    });
    check(!task.questions.empty(), "task ", task.name,
          ": a model's vocabulary lacks characters of every question, such as ", task.lacking);
}

/// The rows of a model: the recipes that are asked for, or else its own, then FP8-CSCALE with each bias.
std::vector<Row> rows_of(const std::filesystem::path& model, const Recipe& own, const Options& options) {
    std::vector<Row> rows;
    const auto add = [&](Recipe recipe, std::optional<int> bias = {}) {
        for (const std::string& assignment : options.set) recipe = io::override_recipe(recipe, assignment);
        if (bias) recipe = experiments::with_constant_bias(recipe, *bias);
        rows.push_back({model, train::recipe_of_weights(model, own, &recipe), bias});
    };
    if (options.recipes.empty()) add(own);
    for (const std::string& recipe : options.recipes) add(io::load_recipe(recipe));
    if (!options.biases.empty())
        for (const int bias : experiments::bias_range("--biases", options.biases)) add(find_recipe("fp8-cscale"), bias);
    return rows;
}

/// The results of a row for each task.
std::vector<Result> answer(const Row& row, const std::vector<Task>& tasks, const Options& options, QuestionBar& bar) {
    return train::with_saved_model(
        row.model, row.recipe, options.threads,
        [&](auto& saved) {
            std::vector<Result> results;
            for (const Task& task : tasks) {
                experiments::BiasCounts biases;
                const auto answers = train::answer_choices(
                    saved.model(), saved.tape(), saved.model().config().length, task.questions,
                    [&](const std::u32string& text) { return saved.tokeniser().encode(io::encode_utf8(text)); },
                    [&](const train::ChoiceAnswers& so_far) {
                        if (options.show_biases) biases.add(saved.state());
                        bar.advance(so_far);
                    });
                results.push_back({{answers.right, options.made.seed},
                                   {answers.right_normalised, options.made.seed},
                                   answers.unanswered,
                                   std::move(biases)});
            }
            return results;
        },
        experiments::read_tokeniser);
}

nlohmann::ordered_json json_of(const Row& row, const Task& task, const Result& result) {
    nlohmann::ordered_json json{{"model", row.model.string()}, {"recipe", row.recipe.name}};
    if (row.bias) json["bias"] = *row.bias;
    json.update({{"task", task.name},
                 {"questions", task.questions.size()},
                 {"skipped", task.skipped},
                 {"unanswered", result.unanswered},
                 {"chance", task.chance()}});
    for (const auto& [name, accuracy] : {std::pair("accuracy", &result.plain), {"normalised", &result.normalised}})
        json.update({{name, accuracy->share},
                     {concatenate(name, "_low"), accuracy->bounds.low},
                     {concatenate(name, "_high"), accuracy->bounds.high}});
    if (!result.biases.operands().empty()) json["biases"] = result.biases.json();
    return json;
}

/// The table, the ranges of biases that cost little, and the measured biases.
class Report {
public:
    Report(const std::vector<Row>& rows, const std::vector<Task>& tasks,
           const std::vector<std::vector<Result>>& results, bool show_biases)
        : rows_(rows), tasks_(tasks), results_(results), show_biases_(show_biases) {}

    void print() const {
        for (const Task& task : tasks_) {
            std::printf("task %s: %zu questions, %s; blind choice is right for %.1f %%\n", task.name.c_str(),
                        task.questions.size(), task.source.c_str(), 100.0 * task.chance());
            if (task.skipped > 0)
                std::printf("task %s: %zu more are skipped, with characters that a vocabulary lacks, such as %s\n",
                            task.name.c_str(), task.skipped, task.lacking.c_str());
        }
        std::printf(
            "\naccuracy in %% with a 95 %% interval, by the choice's log-likelihood; normalised: divided by its "
            "length in characters\n%s",
            io::text_table(cells()).c_str());
        for (std::size_t i = 0; i < rows_.size(); ++i)
            for (std::size_t t = 0; t < tasks_.size(); ++t)
                if (const std::size_t count = results_[i][t].unanswered; count > 0)
                    std::printf("%s under %s, %s: in %zu no log-likelihood is a number; they count as wrong\n",
                                rows_[i].model.string().c_str(), label(rows_[i]).c_str(), tasks_[t].name.c_str(),
                                count);
        for (std::size_t i = 0; i < rows_.size(); ++i) {
            if (!is_first_of_model(i) || !rows_.back().bias) continue;
            for (std::size_t t = 0; t < tasks_.size(); ++t)
                std::printf("biases that keep 99.5 %% of %s's accuracy, %s, %s: %s; normalised: %s\n",
                            rows_[i].recipe.name.c_str(), rows_[i].model.string().c_str(), tasks_[t].name.c_str(),
                            kept(i, t, &Result::plain).c_str(), kept(i, t, &Result::normalised).c_str());
        }
        if (show_biases_) print_biases();
        const Result& first = results_.front().front();
        std::printf(
            "result recipe=%s task=%s questions=%zu skipped=%zu chance=%.1f%% accuracy=%.1f%% normalised=%.1f%% "
            "rows=%zu",
            rows_.front().recipe.name.c_str(), tasks_.front().name.c_str(), tasks_.front().questions.size(),
            tasks_.front().skipped, 100.0 * tasks_.front().chance(), 100.0 * first.plain.share,
            100.0 * first.normalised.share, rows_.size());
        if (rows_.back().bias)
            std::printf(" kept=%s kept_normalised=%s", kept(0, 0, &Result::plain).c_str(),
                        kept(0, 0, &Result::normalised).c_str());
        std::printf("\n");
    }

private:
    /// The biases of each row and task, by layer and role.
    void print_biases() const {
        for (std::size_t i = 0; i < rows_.size(); ++i) {
            const std::string of = concatenate(rows_[i].model.string(), " under ", label(rows_[i]));
            for (std::size_t t = 0; t < tasks_.size(); ++t)
                if (const experiments::BiasCounts& biases = results_[i][t].biases; !biases.operands().empty())
                    std::printf("\nbiases of %s, %s: the most frequent over %zu questions, and its share of them\n%s",
                                of.c_str(), tasks_[t].name.c_str(), tasks_[t].questions.size(),
                                io::text_table(biases.rows()).c_str());
            if (results_[i].front().biases.operands().empty() && !rows_[i].bias)
                std::printf("\nbiases of %s: none is measured, as no operand has the scale amax or delayed by tensor\n",
                            of.c_str());
        }
        std::printf("\n");
    }

    [[nodiscard]] static std::string label(const Row& row) {
        return row.bias ? concatenate(row.recipe.name, " with bias ", *row.bias) : row.recipe.name;
    }
    [[nodiscard]] bool is_first_of_model(std::size_t i) const { return i == 0 || rows_[i].model != rows_[i - 1].model; }

    [[nodiscard]] std::vector<std::vector<std::string>> cells() const {
        std::vector<std::vector<std::string>> cells{{"model", "recipe", "bias"}};
        for (const Task& task : tasks_) cells[0].insert(cells[0].end(), {task.name, "normalised"});
        for (std::size_t i = 0; i < rows_.size(); ++i) {
            cells.push_back(
                {rows_[i].model.string(), rows_[i].recipe.name, rows_[i].bias ? std::to_string(*rows_[i].bias) : "-"});
            for (const Result& result : results_[i])
                cells.back().insert(cells.back().end(), {result.plain.text(), result.normalised.text()});
        }
        return cells;
    }

    /// The biases of the model with the first row `first` that keep 99.5 % of this row's accuracy, as ranges.
    [[nodiscard]] std::string kept(std::size_t first, std::size_t task, Accuracy Result::*rule) const {
        std::vector<int> biases;
        const double least = 0.995 * (results_[first][task].*rule).share;
        for (std::size_t i = first; i < rows_.size() && rows_[i].model == rows_[first].model; ++i)
            if (rows_[i].bias && (results_[i][task].*rule).share >= least) biases.push_back(*rows_[i].bias);
        return biases.empty() ? "none" : experiments::bias_range_text(biases);
    }

    const std::vector<Row>& rows_;
    const std::vector<Task>& tasks_;
    const std::vector<std::vector<Result>>& results_;
    bool show_biases_;
};

int run(const Options& options) {
    check(!options.data.empty() || !options.tasks.empty(), "--data, --task: none given");
    check(options.save_task.empty() || !options.data.empty(),
          "--save-task: writes the questions of --data, which is not given");
    std::vector<Row> rows;
    std::vector<std::u32string> vocabularies;
    for (const std::filesystem::path& path : options.models)
        train::with_saved_model(
            path, options.threads,
            [&](auto& saved) {
                // Other tokens can write all questions, or the question is an error.
                if (saved.characters() != nullptr) vocabularies.push_back(saved.characters()->characters());
                for (Row& row : rows_of(path, saved.recipe(), options)) rows.push_back(std::move(row));
            },
            experiments::read_tokeniser);
    std::vector<Task> tasks = read_tasks(options);
    for (Task& task : tasks) skip_unreadable(task, vocabularies);
    std::optional<io::JsonLog> log;
    if (!options.json.empty()) log.emplace(options.json);
    std::vector<std::vector<Result>> results;
    std::size_t questions = 0;
    for (const Task& task : tasks) questions += task.questions.size();
    {
        QuestionBar bar(rows.size() * questions);
        for (const Row& row : rows) {
            results.push_back(answer(row, tasks, options, bar));
            for (std::size_t t = 0; log && t < tasks.size(); ++t) log->write(json_of(row, tasks[t], results.back()[t]));
        }
    }
    Report(rows, tasks, results, options.show_biases).print();
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    Options options;
    CLI::App app(
        "Multiple-choice accuracy of character models that train_transformer has saved. A model chooses the most "
        "likely continuation of a question. Questions are made from a text's last tenth, or are read from files. "
        "Recipes evaluate the saved weights in other formats.");
    app.add_option("--model", options.models, "safetensors files that train_transformer has saved (--save)")
        ->required();
    app.add_option(
        "--data", options.data,
        "text files or folders, UTF-8: the true continuation of a sentence of the last tenth against others");
    app.add_option("--task", options.tasks,
                   "files of JSON lines: {\"question\": TEXT, \"choices\": [TEXT, ...], \"answer\": NUMBER}");
    app.add_option("--recipes", options.recipes,
                   "recipes to evaluate the weights with, of the model's scaling and parametrisation: names or JSON "
                   "files, separated by commas; :key=value behind one sets a field")
        ->delimiter(',')
        ->default_str("the model's own");
    app.add_option("--set", options.set, "a field of every recipe, key=value; may be repeated")
        ->allow_extra_args(false);
    app.add_option("--biases", options.biases,
                   "constant biases, such as -8..8: a row of FP8-CSCALE for each, and the biases that keep 99.5 % of "
                   "the first recipe's accuracy");
    app.add_flag("--show-biases", options.show_biases,
                 "for recipes that measure their scales: the biases by layer and role over questions");
    app.add_option("--questions", options.made.questions, "the most questions of a task; 0: all")
        ->capture_default_str();
    app.add_option("--choices", options.made.choices, "choices of a question of --data")->capture_default_str();
    app.add_option("--choice-bytes", options.made.most_bytes, "the most bytes of a choice of --data")
        ->capture_default_str();
    app.add_option("--seed", options.made.seed, "of the questions of --data and of the intervals")
        ->capture_default_str();
    app.add_option("--threads", options.threads, "threads; the results do not depend on it")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--save-task", options.save_task, "write the questions of --data to this file of JSON lines");
    app.add_option("--json", options.json, "write one JSON object per row and task to this file");
    examples::require_not_negative(app, {"--questions", "--choices", "--choice-bytes", "--seed"});
    return examples::run_program({"evaluate"}, app, argc, argv, [&] { return run(options); });
}
