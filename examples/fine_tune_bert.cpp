// SPDX-License-Identifier: MIT
// Fine-tunes BERT on spans: it finds the answers of questions in their contexts. See --help.

#include <unitscale/base/parallel.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/io/answer_baseline.hpp>
#include <unitscale/io/answer_scores.hpp>
#include <unitscale/io/cloze_questions.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/io/squad.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/wordpiece.hpp>
#include <unitscale/nn/bert.hpp>
#include <unitscale/optim/any_optimiser.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/pretrained.hpp>
#include <unitscale/train/span_batches.hpp>
#include <unitscale/train/trainer.hpp>

#include "program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

struct Options {
    std::vector<std::filesystem::path> data{};
    std::string train{}, dev{}, save_train{}, save_dev{}, model{}, config{}, vocabulary{}, predictions{}, save{};
    std::string recipe = "us-fp16", optimiser = "adam";
    bool cased = false;
    std::vector<std::string> set{};
    io::ClozeOptions cloze{};
    std::size_t pieces = 4000, width = 128, depth = 4, heads = 0, hidden = 0;
    train::SpanWindowOptions windows{.length = 128, .stride = 32, .question = 48};
    std::size_t steps = 1000, batch = 16, most_answer = 30, eval_every = 500;
    double rate = 0.0, weight_decay = 0.01, dropout = 0.0, threshold = 0.0;
    std::uint64_t seed = 1;
    int threads = 1;

    void validate() const {
        check(train.empty() == dev.empty(), train.empty() ? "--dev without --train" : "--train without --dev",
              "; expected both, or neither for questions made from --data");
        check(model.empty() || !vocabulary.empty(),
              "--vocabulary: expected the vocabulary that the weights of --model were trained with");
        check(steps >= 1, "--steps: is 0; expected at least 1");
        check(batch >= 1, "--batch: is 0; expected at least 1");
        check(eval_every >= 1, "--eval-every: is 0; expected at least 1");
        check(most_answer >= 1, "--max-answer: is 0; expected at least 1");
        if (model.empty() && heads > 0)
            check(width % heads == 0, "--heads: width ", width, " is not divisible by ", heads, " heads");
        static_cast<void>(parse_optimiser_kind(optimiser));
        for (const std::string& path : {save_train, save_dev, predictions, save})
            if (!path.empty()) io::check_writable("fine_tune_bert", path);
    }
};

/// Questions with their tokens and windows.
struct Set {
    std::vector<io::Question> questions{};
    std::vector<train::SpanExample> examples{};
    std::vector<std::vector<io::TextRange>> ranges{};  // of the contexts' tokens
    std::vector<train::SpanWindow> windows{};
};

Set make_set(std::vector<io::Question> questions, const io::WordPiece& pieces, const Options& options) {
    Set set;
    for (const io::Question& question : questions) {
        io::EncodedText context = pieces.encode_with_ranges(question.context);
        train::SpanExample example{.question = pieces.encode(question.question), .context = std::move(context.ids)};
        if (!question.answers.empty()) {
            const io::Answer& answer = question.answers.front();
            example.answer = train::tokens_in(context.ranges, {answer.begin, answer.begin + answer.text.size()});
        }
        set.examples.push_back(std::move(example));
        set.ranges.push_back(std::move(context.ranges));
    }
    set.questions = std::move(questions);
    set.windows = train::span_windows(set.examples, options.windows);
    return set;
}

/// How well the model answers unseen questions.
struct Measured {
    double loss = 0.0;  // mean over the windows, in nats
    io::AnswerScore score{};
    std::vector<std::string> texts{};  // predictions
};

template <class T>
class Run {
public:
    Run(const Options& options, const Recipe& recipe, const nn::BertConfig& config, const io::WordPiece& pieces,
        const Set& training, const Set& validation)
        : options_(options),
          recipe_(recipe),
          pieces_(pieces),
          training_(training),
          validation_(validation),
          bert_(config),
          may_be_impossible_(prepare()),
          trainer_(bert_, recipe,
                   {.seed = options.seed,
                    .threads = options.threads,
                    .schedule = {.kind = optim::ScheduleKind::linear,
                                 .peak = options.rate,
                                 .steps = options.steps,
                                 .warmup = std::max<std::size_t>(options.steps / 10, 1),
                                 .final_share = 0.0},
                    .initialise = false},
                   {.kind = parse_optimiser_kind(options.optimiser),
                    .weight_decay = options.weight_decay,
                    .decay_bias_and_norm = false}) {}

    Measured train() {
        std::printf("%zu steps of %zu x %zu tokens, on average %.1f without padding, learning rate %g\n",
                    options_.steps, options_.batch, options_.windows.length, train::mean_length(training_.windows),
                    trainer_.schedule().peak);
        train::SpanBatch batch = train::make_span_batch(options_.batch, options_.windows.length);
        const auto begin = std::chrono::steady_clock::now();
        Measured measured;
        double loss_sum = 0.0;
        std::size_t summed = 0;
        for (std::size_t step = 1; step <= options_.steps; ++step) {
            const auto numbers =
                train::shuffled_windows(training_.windows.size(), options_.batch, {options_.seed, 200}, step - 1);
            train::fill_spans(batch, training_.examples, training_.windows, numbers, pieces_.special());
            const auto result =
                trainer_.step([&](Tape<T>& tape, std::size_t) { return loss(logits(tape, batch), batch); });
            if (!result.updated && !result.skipped)
                throw std::runtime_error(concatenate("the loss is ", result.loss, " at step ", step,
                                                     "; try a lower --lr (it is ", trainer_.schedule().peak, ")"));
            loss_sum += result.loss;
            ++summed;
            if (step % options_.eval_every != 0 && step != options_.steps) continue;
            const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            measured = evaluate();
            std::printf(
                "step %zu: loss %.4f in training, %.4f on unseen questions; EM %.1f %%, F1 %.1f %%; "
                "%.0f tokens/s\n",
                step, loss_sum / static_cast<double>(summed), measured.loss, 100.0 * measured.score.exact,
                100.0 * measured.score.f1,
                static_cast<double>(step * options_.batch * options_.windows.length) / seconds);
            std::fflush(stdout);
            loss_sum = 0.0;
            summed = 0;
        }
        if (!options_.save.empty())
            train::save_weights(options_.save, bert_.parameters(), {{"heads", bert_.config().heads}});
        return measured;
    }

private:
    /// Writes initial values of all parameters, then the weights of --model. A head that its file lacks keeps its
    /// values. Returns whether any question of the training set is impossible: the model may then give no answer.
    bool prepare() {
        std::vector<Parameter<T>*> parameters = bert_.parameters();
        nn::initialise(parameters, recipe_, options_.seed);
        if (!options_.model.empty()) {
            const io::SafetensorsReader file(options_.model);
            if (file.contains("bert/tokens/weight") && !file.contains("bert/spans/weight")) {
                std::printf("%s has no head for spans: it begins with random values\n", options_.model.c_str());
                std::erase_if(parameters, [](const Parameter<T>* parameter) {
                    return parameter->name().starts_with("bert/spans/");
                });
            }
            const bool plain = recipe_.scaling != Scaling::propagate;
            for (const std::string& note : train::load_weights(options_.model, parameters, plain))
                std::printf("%s\n", note.c_str());
        }
        return std::any_of(training_.questions.begin(), training_.questions.end(),
                           [](const io::Question& question) { return question.impossible; });
    }
    [[nodiscard]] nn::SpanLogits<T> logits(Tape<T>& tape, const train::SpanBatch& batch) {
        return bert_.span_logits(bert_(tape, {.ids = batch.ids, .segments = batch.segments, .lengths = batch.lengths}),
                                 batch.lengths);
    }
    [[nodiscard]] static Variable<T> loss(const nn::SpanLogits<T>& logits, const train::SpanBatch& batch) {
        return nn::span_loss(logits, batch.starts, batch.ends);
    }

    /// A row of logits as plain numbers: under `propagate` the two ends may have different scales.
    [[nodiscard]] static std::vector<float> row_of(const Tensor<T>& logits, std::size_t row) {
        const auto values = logits.span().subspan(row * logits.shape()[1], logits.shape()[1]);
        std::vector<float> plain;
        for (const T value : values) plain.push_back(static_cast<float>(static_cast<double>(value) * logits.scale()));
        return plain;
    }

    [[nodiscard]] Measured evaluate() {
        const std::vector<train::SpanWindow>& windows = validation_.windows;
        const std::size_t length = options_.windows.length;
        std::vector<train::SpanChoice> choices(validation_.questions.size());
        Measured measured;
        for (std::size_t first = 0; first < windows.size(); first += options_.batch) {
            std::vector<std::size_t> numbers(std::min(options_.batch, windows.size() - first));
            std::iota(numbers.begin(), numbers.end(), first);
            train::SpanBatch batch = train::make_span_batch(numbers.size(), length);
            train::fill_spans(batch, validation_.examples, windows, numbers, pieces_.special());
            trainer_.evaluate([&](Tape<T>& tape) {
                const nn::SpanLogits<T> found = logits(tape, batch);
                measured.loss += static_cast<double>(numbers.size()) * loss(found, batch).item();
                for (std::size_t row = 0; row < numbers.size(); ++row) {
                    const train::SpanWindow& window = windows[first + row];
                    train::choose_span<float>(choices[window.example], window, row_of(found.start.value(), row),
                                              row_of(found.end.value(), row), options_.most_answer);
                }
            });
        }
        measured.loss /= static_cast<double>(windows.size());
        for (std::size_t i = 0; i < choices.size(); ++i) {
            const train::SpanChoice& choice = choices[i];
            const bool none = !choice.span || (may_be_impossible_ && choice.is_impossible(options_.threshold));
            measured.texts.push_back(
                none ? "" : train::span_text(validation_.questions[i].context, validation_.ranges[i], *choice.span));
        }
        measured.score = io::mean_score(validation_.questions, measured.texts);
        return measured;
    }

    const Options& options_;
    const Recipe& recipe_;
    const io::WordPiece& pieces_;
    const Set &training_, &validation_;
    nn::Bert<T> bert_;
    bool may_be_impossible_;
    train::Trainer<T, optim::AnyOptimiser<T>> trainer_;
};

/// The questions of --train and --dev, or those made from --data; and the text to train a vocabulary on.
struct Data {
    std::vector<io::Question> training{}, validation{};
    std::string text{};
};

Data load_data(const Options& options) {
    Data data;
    if (!options.train.empty()) {
        data.training = io::read_squad(options.train);
        data.validation = io::read_squad(options.dev);
        const std::string* last = nullptr;
        for (const io::Question& question : data.training) {
            if (last == nullptr || *last != question.context) data.text += question.context + "\n";
            data.text += question.question + "\n";
            last = &question.context;
        }
    } else {
        check(!options.data.empty(), "--data: is absent; expected a text to make questions from, or --train and --dev");
        data.text = io::encode_utf8(io::read_text(options.data));
        io::ClozeOptions cloze = options.cloze;
        cloze.seed = options.seed;
        io::ClozeQuestions made = io::cloze_questions(data.text, cloze);
        data.training = std::move(made.training);
        data.validation = std::move(made.validation);
        // The vocabulary is trained without the validation part.
        data.text.resize(std::min(data.text.size(), data.text.find(data.validation.front().context)));
    }
    if (!options.save_train.empty()) io::write_squad(options.save_train, data.training);
    if (!options.save_dev.empty()) io::write_squad(options.save_dev, data.validation);
    return data;
}

/// The model's sizes: those of --model's weights, or those of the options.
nn::BertConfig model_config(const Options& options, const io::WordPiece& pieces) {
    nn::BertConfig config{.vocabulary = pieces.size(),
                          .width = options.width,
                          .depth = options.depth,
                          .heads = options.heads > 0 ? options.heads : 2,
                          .hidden = options.hidden > 0 ? options.hidden : 4 * options.width,
                          .length = options.windows.length};
    if (!options.model.empty()) {
        train::PretrainedOptions given{.config = options.config};
        if (options.heads > 0) given.heads = options.heads;
        config = train::pretrained_bert_config(options.model, given);
        check(config.vocabulary == pieces.size(), "--vocabulary: has ", pieces.size(), " tokens, but the weights of ",
              options.model, " have ", config.vocabulary);
        check(config.length >= options.windows.length, "--length: is ", options.windows.length,
              "; expected at most the ", config.length, " positions of ", options.model);
    }
    config.masked_share = 1.0;  // the loss reads every position
    config.pooler = config.pretraining = false;
    config.spans = true;
    config.dropout = config.attention_dropout = options.dropout;
    return config;
}

void print_score(const char* name, const io::AnswerScore& score) {
    std::printf("%-24s %6.1f %6.1f\n", name, 100.0 * score.exact, 100.0 * score.f1);
}

int run(const Options& options) {
    options.validate();
    Recipe recipe = io::load_recipe(options.recipe);
    for (const std::string& assignment : options.set) recipe = io::override_recipe(recipe, assignment);
    Data data = load_data(options);
    const io::WordPieceOptions words{.words = {.lower_case = !options.cased, .strip_accents = !options.cased}};
    const io::WordPiece pieces = options.vocabulary.empty() ? io::WordPiece::train(data.text, options.pieces, words)
                                                            : io::WordPiece::load(options.vocabulary, words);
    nn::BertConfig config = model_config(options, pieces);
    const io::AnswerBaseline::Scores majority = io::AnswerBaseline(data.training).scores(data.validation);
    const Set training = make_set(std::move(data.training), pieces, options),
              validation = make_set(std::move(data.validation), pieces, options);
    config.mean_length = static_cast<std::size_t>(std::llround(train::mean_length(training.windows)));

    std::printf(
        "recipe %s: %s\n%s\n%zu questions in %zu windows to train on, %zu in %zu to validate\n", recipe.name.c_str(),
        recipe.description.c_str(),
        options.model.empty() ? "random weights: no --model was given" : ("weights of " + options.model).c_str(),
        training.questions.size(), training.windows.size(), validation.questions.size(), validation.windows.size());
    const Measured result = train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
        return Run<T>(options, recipe, config, pieces, training, validation).train();
    });
    if (!options.predictions.empty()) io::write_predictions(options.predictions, validation.questions, result.texts);
    std::printf("%-24s %6s %6s\n", "", "EM %", "F1 %");
    print_score("most frequent answer", majority.answer);
    print_score("most frequent place", majority.position);
    print_score("no answer", majority.nothing);
    print_score("majority baseline", majority.best());
    print_score(recipe.name.c_str(), result.score);
    std::printf("result recipe=%s em=%.1f%% f1=%.1f%% baseline_em=%.1f%% baseline_f1=%.1f%% loss=%.4f\n",
                recipe.name.c_str(), 100.0 * result.score.exact, 100.0 * result.score.f1, 100.0 * majority.best().exact,
                100.0 * majority.best().f1, result.loss);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    Options options;
    options.threads = available_threads();
    CLI::App app(
        "Fine-tunes BERT on spans under a recipe: it finds the answers of questions in their contexts. The questions "
        "are "
        "SQuAD's, or are made from a text: a name or number of a sentence is asked for. The program reports EM and F1 "
        "as SQuAD's evaluation does, beside what majorities alone can answer.");
    app.add_option("--model", options.model, "pre-trained weights: of train_bert, or published ones")
        ->default_str("random weights");
    app.add_option("--config", options.config, "config.json of the weights")
        ->default_str("the one beside them, if any");
    app.add_option("--vocabulary", options.vocabulary, "the weights' vocab.txt")
        ->default_str("trained on the questions' text, without --model");
    app.add_flag("--cased", options.cased, "the vocabulary has capitals and accents");
    app.add_option("--data", options.data,
                   "text files or folders, UTF-8, to make questions from: every line is a document; the last tenth is "
                   "for validation");
    app.add_option("--train", options.train, "questions to train on, as SQuAD's JSON file");
    app.add_option("--dev", options.dev, "questions to validate with, as SQuAD's JSON file");
    app.add_option("--save-train", options.save_train, "write the questions to train on to this file");
    app.add_option("--save-dev", options.save_dev, "write the questions to validate with to this file");
    app.add_option("--passage-words", options.cloze.passage_words, "words of a passage of --data")
        ->capture_default_str();
    app.add_option("--left-out", options.cloze.left_out, "share of words that questions of --data leave out")
        ->capture_default_str();
    app.add_option("--recipe", options.recipe, "low-precision method: a known name, or a JSON file")
        ->capture_default_str();
    app.add_option("--set", options.set, "a field of the recipe, key=value; may be repeated")->allow_extra_args(false);
    app.add_option("--vocabulary-size", options.pieces, "of a vocabulary that is trained")->capture_default_str();
    app.add_option("--width", options.width, "width of a model with random weights")->capture_default_str();
    app.add_option("--depth", options.depth, "blocks of a model with random weights")->capture_default_str();
    app.add_option("--heads", options.heads, "attention heads")
        ->default_str("from the file of weights or config.json; 2 without --model");
    app.add_option("--hidden", options.hidden, "feed-forward width of a model with random weights")
        ->default_str("4 times the width");
    app.add_option("--length", options.windows.length, "tokens in a row")->capture_default_str();
    app.add_option("--doc-stride", options.windows.stride, "tokens between the starts of windows of a long context")
        ->capture_default_str();
    app.add_option("--max-question", options.windows.question, "tokens of a question; the rest is cut off")
        ->capture_default_str();
    app.add_option("--max-answer", options.most_answer, "tokens of a predicted answer")->capture_default_str();
    app.add_option("--null-threshold", options.threshold,
                   "with impossible questions: no answer if its score is above the best span's by more than this")
        ->capture_default_str();
    app.add_option("--steps", options.steps, "updates")->capture_default_str();
    app.add_option("--lr", options.rate, "peak learning rate; it falls to 0 linearly")->default_str("the recipe's");
    app.add_option("--batch", options.batch, "rows in a step")->capture_default_str();
    app.add_option("--dropout", options.dropout, "of embedding, branches and attention")->capture_default_str();
    app.add_option("--optimiser", options.optimiser, "adam, sgd or lamb")->capture_default_str();
    app.add_option("--weight-decay", options.weight_decay, "of all but biases and gains")->capture_default_str();
    app.add_option("--seed", options.seed, "of questions, initial values and order")->capture_default_str();
    app.add_option("--threads", options.threads, "threads; the results do not depend on it")->capture_default_str();
    app.add_option("--eval-every", options.eval_every, "steps between evaluations")->capture_default_str();
    app.add_option("--predictions", options.predictions, "write the last evaluation's answers to this JSON file");
    app.add_option("--save", options.save, "write the weights to this safetensors file at the end");
    examples::require_not_negative(app, {"--passage-words", "--vocabulary-size", "--width", "--depth", "--heads",
                                         "--hidden", "--length", "--doc-stride", "--max-question", "--max-answer",
                                         "--steps", "--batch", "--seed", "--threads", "--eval-every"});
    return examples::run_program({"fine_tune_bert", examples::one_model_too_large}, app, argc, argv,
                                 [&] { return run(options); });
}
