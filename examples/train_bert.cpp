// SPDX-License-Identifier: MIT
// Trains BERT on text: masked words, and whether one passage follows another. See --help.

#include <unitscale/analysis/row_groups.hpp>
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_log.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/sentences.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/wordpiece.hpp>
#include <unitscale/nn/bert.hpp>
#include <unitscale/optim/any_optimiser.hpp>
#include <unitscale/report/html_report.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/masked_batches.hpp>
#include <unitscale/train/trainer.hpp>

#include "experiments/progress.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

using Json = nlohmann::ordered_json;

struct Options {
    std::vector<std::filesystem::path> data{};
    std::string vocabulary{}, save_vocabulary{}, recipe = "us-fp16", optimiser = "lamb";
    std::string save{}, checkpoint{}, resume{}, weights{}, log{}, report{};
    report::PageSource source{};  // of the page
    std::vector<std::string> set{};
    std::size_t pieces = 4000, width = 128, depth = 4, heads = 2, hidden = 0, batch = 32, eval_batches = 20;
    std::vector<std::size_t> lengths = {64, 128}, steps = {1600, 400};  // of each phase
    std::vector<double> rates{};                                        // empty: the recipe's
    double weight_decay = 0.01, masked_share = 0.15, short_share = 0.1;
    double next_weight = 1.0;     // of the loss of pairs
    double initial_stddev = 0.0;  // of all weights; 0: the recipe's
    std::uint64_t seed = 1;
    int threads = 1;
    std::size_t eval_every = 200, checkpoint_every = 0;

    void validate() const {
        check(!lengths.empty() && lengths.size() == steps.size(), "--lengths: ", lengths.size(),
              " phases, and --steps ", steps.size(), "; expected one number of each for every phase");
        check(rates.empty() || rates.size() == steps.size(), "--lr: ", rates.size(),
              " rates; expected one for each of ", steps.size(), " phases");
        check(eval_every >= 1, "--eval-every: is 0; expected at least 1");
        for (const std::size_t count : steps) check(count >= 1, "--steps: is 0; expected at least 1");
        check(batch >= 1, "--batch: is 0; expected at least 1");
        check(eval_batches >= 1, "--eval-batches: is 0; expected at least 1");
        check(heads >= 1 && width % heads == 0, "--heads: width ", width, " is not divisible by ", heads, " heads");
        check(checkpoint_every == 0 || !checkpoint.empty(), "--checkpoint-every: is ", checkpoint_every,
              "; expected --checkpoint, the file to write");
        check(weights.empty() || resume.empty(), "--weights: a resumed run has weights; expected no --resume");
        check(std::isfinite(next_weight) && next_weight > 0.0, "--next-weight: is ", next_weight,
              "; expected a positive number");
        check(std::isfinite(initial_stddev) && initial_stddev >= 0.0, "--initial-stddev: is ", initial_stddev,
              "; expected 0, for the recipe's, or more");
        static_cast<void>(parse_optimiser_kind(optimiser));
        for (const auto& [option, path] : {std::pair{"--save", &save},
                                           {"--checkpoint", &checkpoint},
                                           {"--report", &report},
                                           {"--save-vocabulary", &save_vocabulary}})
            if (!path->empty()) io::check_writable(option, *path);
    }

    /// The options that a resumed run must share with the run that wrote its checkpoint.
    [[nodiscard]] Json shared() const {
        return {{"--width", width},
                {"--depth", depth},
                {"--heads", heads},
                {"--hidden", hidden},
                {"--lengths", lengths},
                {"--steps", steps},
                {"--lr", rates},
                {"--batch", batch},
                {"--optimiser", optimiser},
                {"--seed", seed},
                {"--weight-decay", weight_decay},
                {"--masked-share", masked_share},
                {"--short-share", short_share},
                {"--next-weight", next_weight},
                {"--initial-stddev", initial_stddev}};
    }
};

/// The phase that a run begins with: that of its checkpoint, if it is resumed. Error: the checkpoint is of a run with
/// other options, or under another recipe.
std::size_t first_phase(const Options& options, const Recipe& recipe) {
    if (options.resume.empty()) return 0;
    train::CheckpointReader reader(options.resume);
    reader.set_prefix("run/");
    const Json own = options.shared(), saved = Json::parse(reader.text("options"), nullptr, false);
    for (const auto& [option, value] : own.items()) {
        const Json other = saved.is_object() && saved.contains(option) ? saved[option] : Json();
        check(other == value, option, ": ", options.resume, " was trained with ", other.dump(), "; here it is ",
              value.dump());
    }
    check(io::recipe_to_json(reader.recipe()) == io::recipe_to_json(recipe), "--recipe: ", options.resume,
          " was trained under ", reader.recipe().name, " with other fields than ", recipe.name, " here");
    std::map<std::string, double> numbers;
    reader.table("numbers", numbers);
    const double phase = numbers["phase"];
    check(phase >= 0.0 && phase < static_cast<double>(options.steps.size()), "--resume: ", options.resume,
          " is of phase ", phase + 1.0, "; expected 1 to ", options.steps.size());
    return static_cast<std::size_t>(phase);
}

/// A line of text is a document, since pairs of passages must not cross from one article into another.
train::SentenceCorpus corpus_of(const std::string& text, const io::WordPiece& pieces) {
    train::SentenceCorpus corpus;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        std::vector<std::vector<std::int32_t>> sentences;
        for (const std::string_view sentence : io::split_sentences(std::string_view(text).substr(begin, end - begin)))
            sentences.push_back(pieces.encode(sentence));
        corpus.add_document(sentences);
        begin = end + 1;
    }
    return corpus;
}

/// What the model knows of unseen text.
struct Measured {
    double masked_loss = 0.0;    // nats for each masked word
    double unigram_loss = 0.0;   // the same, of a model that knows the training text's frequencies only
    double next_loss = 0.0;      // nats for each pair
    double next_accuracy = 0.0;  // share of pairs whose second passage is recognised
};

template <class T>
class Run {
public:
    Run(const Options& options, const Recipe& recipe, const io::WordPiece& pieces,
        const train::SentenceCorpus& training, const train::SentenceCorpus& validation)
        : options_(options),
          recipe_(recipe),
          pieces_(pieces),
          training_(training),
          validation_(validation),
          bert_({.vocabulary = pieces.size(),
                 .width = options.width,
                 .depth = options.depth,
                 .heads = options.heads,
                 .hidden = options.hidden > 0 ? options.hidden : 4 * options.width,
                 .length = *std::max_element(options.lengths.begin(), options.lengths.end()),
                 .masked_share = options.masked_share}) {}

    /// Trains all phases from `phase` on, which goes on from a checkpoint if there is one. The page is
    /// written even if the run fails.
    Measured train(std::size_t phase) {
        if (!options_.log.empty()) log_ = std::make_unique<io::JsonLog>(options_.log, !options_.resume.empty());
        Measured measured;
        try {
            for (std::string resume = options_.resume; phase < options_.lengths.size(); ++phase, resume.clear())
                measured = train_phase(phase, resume);
        } catch (...) {
            if (!tracks_.empty()) write_page();
            throw;
        }
        if (!options_.report.empty()) write_page();
        if (!options_.save.empty()) train::save_weights(options_.save, bert_.parameters(), {{"heads", options_.heads}});
        return measured;
    }

    /// What a line about the whole run says besides losses.
    [[nodiscard]] std::string course() const {
        return concatenate(" loss_scale=", loss_scale_, " skipped=", skipped_,
                           " seconds=", static_cast<std::size_t>(std::llround(seconds_)));
    }

private:
    using Trainer = train::Trainer<T, optim::AnyOptimiser<T>>;
    using Clock = std::chrono::steady_clock;

    /// A phase has an optimiser of its own, as in the published training: only weights go from phase to phase.
    /// `resume`: a checkpoint of this phase; empty: the phase begins.
    Measured train_phase(std::size_t phase, const std::string& resume) {
        const std::size_t length = options_.lengths[phase], steps = options_.steps[phase];
        const bool has_weights = phase > 0 && resume.empty();
        Trainer trainer(bert_, recipe_,
                        {.seed = options_.seed,
                         .threads = options_.threads,
                         .schedule = {.kind = optim::ScheduleKind::linear,
                                      .peak = options_.rates.empty() ? 0.0 : options_.rates[phase],
                                      .steps = steps,
                                      .warmup = std::max<std::size_t>(steps / 10, 1),
                                      .final_share = 0.0},
                         .initialise = !has_weights,
                         .initial = initial()},
                        {.kind = parse_optimiser_kind(options_.optimiser),
                         .weight_decay = options_.weight_decay,
                         .decay_bias_and_norm = false});
        if (phase == 0 && !options_.weights.empty())
            for (const std::string& note :
                 train::load_weights(options_.weights, bert_.parameters(), recipe_.scaling != Scaling::propagate))
                std::printf("%s\n", note.c_str());
        if (!resume.empty()) numbers_ = trainer.resume(resume, texts());
        numbers_["phase"] = static_cast<double>(phase);
        std::printf("phase %zu: %zu steps of %zu x %zu tokens, on average %.1f without padding, learning rate %g\n",
                    phase + 1, steps, options_.batch, length,
                    train::mean_length(training_, length, {options_.seed, 7}, 1024, masking()),
                    trainer.schedule().peak);
        if (options_.report.empty()) return take_steps(trainer, phase, nullptr);
        analysis::Tracker<T>& tracker =
            trainer.track({.name = concatenate(recipe_.name, ", phase ", phase + 1),
                           .every = std::max<std::size_t>(steps / 50, 1),
                           .last_step = steps,
                           .threads = options_.threads,
                           .row_patterns = {concatenate("bert/block", options_.depth - 1, "/*")}});
        try {
            const Measured measured = take_steps(trainer, phase, &tracker);
            if (!tracker.track().tensors.empty()) tracks_.push_back(tracker.finish());
            return measured;
        } catch (...) {
            if (!tracker.track().tensors.empty()) tracks_.push_back(tracker.track());
            throw;
        }
    }

    /// Takes the remaining steps of a phase. `tracker`: null without a page.
    Measured take_steps(Trainer& trainer, std::size_t phase, analysis::Tracker<T>* tracker) {
        const std::size_t length = options_.lengths[phase], steps = options_.steps[phase];
        train::MaskedBatch batch = train::make_masked_batch(options_.batch, length);
        experiments::Progress progress(stdout, steps, false, {.measured = "nats"});
        const auto skipped_before = static_cast<std::uint64_t>(numbers_["skipped"]);
        double &smooth = numbers_["smooth"], seconds = 0.0, speed = 0.0;
        const std::size_t done = trainer.steps();
        std::optional<Measured> measured;
        for (std::size_t step = done + 1; step <= steps; ++step) {
            const Clock::time_point begin = Clock::now();
            train::fill_masked(batch, training_, pieces_.special(), {options_.seed, 100 + phase}, step, 0, masking());
            if (tracker != nullptr) tracker->set_row_groups(row_groups(batch));
            std::size_t right = 0;
            loss_scale_ = trainer.scaler().scale();
            const auto result = trainer.step([&](Tape<T>& tape, std::size_t) { return loss(tape, batch, right); });
            check_step(trainer, result, step, steps);
            seconds += seconds_since(begin);
            speed = static_cast<double>((step - done) * options_.batch * length) / seconds;
            skipped_ = skipped_before + trainer.scaler().skipped();
            smooth = step == 1 ? result.loss : 0.9 * smooth + 0.1 * result.loss;
            const bool due = step % options_.eval_every == 0 || step == steps;
            if (due) {
                measured = evaluate(trainer, length);
                progress.finish();
                std::printf(
                    "step %zu: masked words %.4f nats (frequencies alone %.4f), next passage %.4f nats, %.1f %% "
                    "right; %.0f tokens/s\n",
                    step, measured->masked_loss, measured->unigram_loss, measured->next_loss,
                    100.0 * measured->next_accuracy, speed);
                std::fflush(stdout);
            }
            if (log_) {
                Json line = {{"phase", phase + 1},
                             {"step", step},
                             {"train_nats", result.loss},
                             {"train_next_accuracy", static_cast<double>(right) / static_cast<double>(options_.batch)},
                             {"learning_rate", trainer.schedule().at(step)},
                             {"tokens_per_s", speed}};
                if (result.gradient_norm > 0.0) line["gradient_norm"] = result.gradient_norm;
                if (recipe_.loss_scaling.kind != LossScaleKind::none) {
                    line["loss_scale"] = loss_scale_;
                    line["skipped"] = skipped_;
                }
                if (due) line.update(json(*measured));
                or_run_failed([&] { log_->write(line); });
            }
            progress.update(step, smooth, speed,
                            seconds / static_cast<double>(step - done) * static_cast<double>(steps - step));
            const bool save_due =
                step == steps || (options_.checkpoint_every > 0 && step % options_.checkpoint_every == 0);
            if (save_due && !options_.checkpoint.empty()) save(trainer);
        }
        progress.finish();
        seconds_ += seconds;
        numbers_["skipped"] = static_cast<double>(skipped_);
        return measured ? *measured : evaluate(trainer, length);
    }

    [[nodiscard]] nn::InitialOptions initial() const {
        if (options_.initial_stddev == 0.0) return {};
        return {.rules = {{.pattern = "*/weight", .stddev = options_.initial_stddev}}};
    }

    static double seconds_since(Clock::time_point start) {
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

    [[nodiscard]] static Json json(const Measured& measured) {
        return {{"masked_nats", measured.masked_loss},
                {"unigram_nats", measured.unigram_loss},
                {"next_nats", measured.next_loss},
                {"next_accuracy", measured.next_accuracy}};
    }

    /// Error if a run of `steps` steps has failed with this one.
    static void check_step(Trainer& trainer, const train::StepResult& result, std::size_t step, std::size_t steps) {
        if (!train::has_failed(result, trainer.scaler(), steps)) return;
        const bool finite = std::isfinite(result.loss);
        throw std::runtime_error(concatenate("the ", finite ? "gradient norm" : "loss", " is ",
                                             finite ? result.gradient_norm : result.loss, " at step ", step,
                                             "; try a lower --lr (it is ", trainer.schedule().peak, ")"));
    }

    /// An Error during the run, a full disk say, becomes a failure of the run: the arguments are not its cause.
    template <class F>
    static void or_run_failed(F&& act) {
        try {
            act();
        } catch (const Error& error) {
            throw std::runtime_error(error.what());
        }
    }

    /// The three kinds of rows of the last block: the loss of masked words reads some, the loss of pairs reads the
    /// first of each sequence, and the others have only the gradient that attention sends them. Padding is in no group.
    [[nodiscard]] analysis::RowGroups row_groups(const train::MaskedBatch& batch) const {
        const std::size_t length = batch.ids.shape()[1];
        std::vector<std::size_t> first, masked, others;
        const auto places = batch.places.span();
        for (std::size_t row = 0; row < batch.lengths.size(); ++row)
            for (std::size_t t = 0; t < batch.lengths[row]; ++t) {
                const std::size_t place = row * length + t;
                if (t == 0) first.push_back(place);
                else if (std::binary_search(places.begin(), places.end(), static_cast<std::int32_t>(place)))
                    masked.push_back(place);
                else others.push_back(place);
            }
        return {batch.ids.size(), {{"first rows", first}, {"masked rows", masked}, {"other rows", others}}};
    }

    void write_page() const {
        report::write_html_report(options_.report, tracks_, "Scales of BERT in training", options_.source);
    }

    /// What a checkpoint must agree with.
    [[nodiscard]] std::map<std::string, std::string> texts() const {
        Json tokens = pieces_.tokens();
        return {{"vocabulary", tokens.dump()},
                {"text", concatenate(training_.size(), " sentences of ", training_.token_count(), " tokens")}};
    }

    void save(Trainer& trainer) {
        std::map<std::string, double> numbers = numbers_;
        std::map<std::string, std::string> all = texts();
        all["options"] = options_.shared().dump();
        or_run_failed([&] { trainer.save(options_.checkpoint, numbers, all); });
    }

    [[nodiscard]] train::MaskedBatchOptions masking() const {
        return {.short_share = options_.short_share, .masked_share = options_.masked_share};
    }

    [[nodiscard]] static nn::BertInput input_of(const train::MaskedBatch& batch) {
        return {.ids = batch.ids, .segments = batch.segments, .lengths = batch.lengths};
    }

    /// `right`: the number of pairs that are put in order.
    [[nodiscard]] Variable<T> loss(Tape<T>& tape, const train::MaskedBatch& batch, std::size_t& right) {
        const Variable<T> hidden = bert_(tape, input_of(batch));
        const Variable<T> next = bert_.next_sentence(bert_.pooled(hidden));
        right = count_right(next.value(), batch.follows);
        return nn::bert_loss(bert_.masked_logits(hidden, batch.places), batch.labels, next, batch.follows, {},
                             options_.next_weight);
    }

    [[nodiscard]] static std::size_t count_right(const Tensor<T>& next, const Tensor<std::int32_t>& follows) {
        std::size_t right = 0;
        for (std::size_t row = 0; row < follows.size(); ++row)
            right += (next(row, 1) > next(row, 0)) == (follows.data()[row] == 1) ? 1U : 0U;
        return right;
    }

    [[nodiscard]] Measured evaluate(Trainer& trainer, std::size_t length) {
        const std::vector<double> unigram = log_frequencies();
        train::MaskedBatch batch = train::make_masked_batch(options_.batch, length);
        Measured sum;
        double words = 0.0;
        for (std::size_t i = 0; i < options_.eval_batches; ++i) {
            train::fill_masked(batch, validation_, pieces_.special(), {12345, 9}, i, 0, masking());
            const auto count = static_cast<double>(batch.labels.size());
            trainer.evaluate([&](Tape<T>& tape) {
                const Variable<T> hidden = bert_(tape, input_of(batch));
                const Variable<T> next = bert_.next_sentence(bert_.pooled(hidden));
                sum.masked_loss +=
                    count * ops::softmax_cross_entropy(bert_.masked_logits(hidden, batch.places), batch.labels).item();
                sum.next_accuracy += static_cast<double>(count_right(next.value(), batch.follows));
                sum.next_loss += ops::softmax_cross_entropy(next, batch.follows).item();
            });
            for (const std::int32_t label : batch.labels.span())
                sum.unigram_loss -= unigram[static_cast<std::size_t>(label)];
            words += count;
        }
        return {sum.masked_loss / words, sum.unigram_loss / words,
                sum.next_loss / static_cast<double>(options_.eval_batches),
                sum.next_accuracy / static_cast<double>(options_.eval_batches * options_.batch)};
    }

    /// The logarithms of the words' shares in the training text; every word is counted once more, so that none is 0.
    [[nodiscard]] std::vector<double> log_frequencies() const {
        std::vector<double> counts(pieces_.size(), 1.0);
        for (const std::int32_t id : training_.tokens()) counts[static_cast<std::size_t>(id)] += 1.0;
        const auto total = static_cast<double>(training_.token_count() + pieces_.size());
        for (double& count : counts) count = std::log(count / total);
        return counts;
    }

    const Options& options_;
    const Recipe& recipe_;
    const io::WordPiece& pieces_;
    const train::SentenceCorpus &training_, &validation_;
    nn::Bert<T> bert_;
    std::unique_ptr<io::JsonLog> log_{};
    std::vector<analysis::Track> tracks_{};                                 // of each phase, for the page
    std::map<std::string, double> numbers_{{"skipped", 0}, {"smooth", 0}};  // that a checkpoint holds
    double seconds_ = 0.0, loss_scale_ = 1.0;
    std::uint64_t skipped_ = 0;
};

int run(const Options& options) {
    options.validate();
    Recipe recipe = io::load_recipe(options.recipe);
    for (const std::string& assignment : options.set) recipe = io::override_recipe(recipe, assignment);
    const std::size_t phase = first_phase(options, recipe);
    const std::string text = io::encode_utf8(io::read_text(options.data));
    const std::size_t border = text.find('\n', text.size() / 10 * 9);
    check(border != std::string::npos, "--data: has no line break in its last tenth, which is for validation");
    const std::string training_text = text.substr(0, border), validation_text = text.substr(border);
    const io::WordPiece pieces = options.vocabulary.empty() ? io::WordPiece::train(training_text, options.pieces)
                                                            : io::WordPiece::load(options.vocabulary);
    if (!options.save_vocabulary.empty()) pieces.save(options.save_vocabulary);
    const train::SentenceCorpus training = corpus_of(training_text, pieces),
                                validation = corpus_of(validation_text, pieces);
    std::printf(
        "recipe %s: %s\n%zu words and parts of words; %zu sentences of %zu tokens to train on, %zu of %zu to "
        "validate\n",
        recipe.name.c_str(), recipe.description.c_str(), pieces.size(), training.size(), training.token_count(),
        validation.size(), validation.token_count());
    std::string course;
    const Measured result = train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
        Run<T> one(options, recipe, pieces, training, validation);
        const Measured measured = one.train(phase);
        course = one.course();
        return measured;
    });
    std::printf(
        "result recipe=%s masked_nats=%.4f unigram_nats=%.4f below_unigram=%.1f%% next_nats=%.4f "
        "next_accuracy=%.1f%%%s\n",
        recipe.name.c_str(), result.masked_loss, result.unigram_loss,
        100.0 * (1.0 - result.masked_loss / result.unigram_loss), result.next_loss, 100.0 * result.next_accuracy,
        course.c_str());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    Options options;
    options.data = {UNITSCALE_EXAMPLE_DATA};
    options.threads = available_threads();
    CLI::App app(
        "Trains BERT on text under a recipe: masked words, and whether one passage follows another. It reports the "
        "loss "
        "of masked words beside that of word frequencies alone, and the share of passages that it puts in order.");
    app.add_option("--data", options.data,
                   "text files or folders, UTF-8: every line is a document; the last tenth is for validation")
        ->default_str("this repository's prose");
    app.add_option("--vocabulary", options.vocabulary, "BERT's vocab.txt")->default_str("trained on the text");
    app.add_option("--vocabulary-size", options.pieces, "of a vocabulary that is trained")->capture_default_str();
    app.add_option("--save-vocabulary", options.save_vocabulary, "write the vocabulary to this file");
    app.add_option("--recipe", options.recipe, "low-precision method: a known name, or a JSON file")
        ->capture_default_str();
    app.add_option("--set", options.set, "a field of the recipe, key=value; may be repeated")->allow_extra_args(false);
    app.add_option("--width", options.width, "width of the residual stream")->capture_default_str();
    app.add_option("--depth", options.depth, "blocks")->capture_default_str();
    app.add_option("--heads", options.heads, "attention heads")->capture_default_str();
    app.add_option("--hidden", options.hidden, "feed-forward width")->default_str("4 times the width");
    app.add_option("--lengths", options.lengths, "tokens in a row, for each phase")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--steps", options.steps, "updates of each phase")->delimiter(',')->capture_default_str();
    app.add_option("--lr", options.rates, "peak learning rate of each phase; it falls to 0 linearly")
        ->delimiter(',')
        ->default_str("the recipe's");
    app.add_option("--next-weight", options.next_weight, "of the loss of pairs, beside the loss of masked words")
        ->capture_default_str();
    app.add_option("--initial-stddev", options.initial_stddev, "standard deviation of the initial weights")
        ->default_str("the recipe's");
    app.add_option("--batch", options.batch, "rows in a step")->capture_default_str();
    app.add_option("--optimiser", options.optimiser, "adam, sgd or lamb")->capture_default_str();
    app.add_option("--weight-decay", options.weight_decay, "of all but biases and gains")->capture_default_str();
    app.add_option("--masked-share", options.masked_share, "of the words in a row")->capture_default_str();
    app.add_option("--short-share", options.short_share, "of the rows, which are shorter than the length")
        ->capture_default_str();
    app.add_option("--seed", options.seed, "of initial values and data")->capture_default_str();
    app.add_option("--threads", options.threads, "threads; the results do not depend on it")->capture_default_str();
    app.add_option("--eval-every", options.eval_every, "steps between evaluations")->capture_default_str();
    app.add_option("--eval-batches", options.eval_batches, "batches of an evaluation")->capture_default_str();
    app.add_option("--save", options.save, "write the weights to this safetensors file at the end");
    app.add_option("--weights", options.weights, "begin with the weights of this safetensors file");
    app.add_option("--checkpoint", options.checkpoint,
                   "write the whole run to this safetensors file, at the end of each phase");
    app.add_option("--checkpoint-every", options.checkpoint_every,
                   "steps between checkpoints; 0: only at the end of each phase")
        ->capture_default_str();
    app.add_option("--resume", options.resume,
                   "go on from this checkpoint; with the run's other options the same bits");
    app.add_option("--log", options.log, "write one JSON object per step to this file");
    app.add_option("--report", options.report,
                   "write a page about the scale of every tensor to this HTML file; in the last block also by kind of "
                   "row: first, masked, other");
    examples::require_not_negative(
        app, {"--vocabulary-size", "--width", "--depth", "--heads", "--hidden", "--batch", "--seed", "--threads",
              "--eval-every", "--eval-batches", "--checkpoint-every"});
    return examples::run_program({"train_bert", examples::one_model_too_large}, app, argc, argv, [&] {
        options.source = examples::training_source(argc, argv, options.data);
        return run(options);
    });
}
