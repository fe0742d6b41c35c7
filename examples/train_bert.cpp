// SPDX-License-Identifier: MIT
// Trains BERT on text: masked words, and whether one passage follows another. See --help.

#include <unitscale/base/parallel.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/sentences.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/wordpiece.hpp>
#include <unitscale/nn/bert.hpp>
#include <unitscale/optim/any_optimiser.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/masked_batches.hpp>
#include <unitscale/train/trainer.hpp>

#include "program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

struct Options {
    std::vector<std::filesystem::path> data{};
    std::string vocabulary{}, save_vocabulary{}, recipe = "us-fp16", optimiser = "lamb", save{};
    std::vector<std::string> set{};
    std::size_t pieces = 4000, width = 128, depth = 4, heads = 2, hidden = 0, batch = 32, eval_batches = 20;
    std::vector<std::size_t> lengths = {64, 128}, steps = {1600, 400};  // of each phase
    std::vector<double> rates{};                                        // empty: the recipe's
    double weight_decay = 0.01, masked_share = 0.15;
    std::uint64_t seed = 1;
    int threads = 1;
    std::size_t eval_every = 200;

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
        static_cast<void>(parse_optimiser_kind(optimiser));
    }
};

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

    Measured train() {
        Measured measured;
        for (std::size_t phase = 0; phase < options_.lengths.size(); ++phase) measured = train_phase(phase);
        if (!options_.save.empty()) train::save_weights(options_.save, bert_.parameters());
        return measured;
    }

private:
    using Trainer = train::Trainer<T, optim::AnyOptimiser<T>>;

    /// A phase has an optimiser of its own, as in the published training: only weights go from phase to phase.
    Measured train_phase(std::size_t phase) {
        const std::size_t length = options_.lengths[phase], steps = options_.steps[phase];
        Trainer trainer(bert_, recipe_,
                        {.seed = options_.seed,
                         .threads = options_.threads,
                         .schedule = {.kind = optim::ScheduleKind::linear,
                                      .peak = options_.rates.empty() ? 0.0 : options_.rates[phase],
                                      .steps = steps,
                                      .warmup = std::max<std::size_t>(steps / 10, 1),
                                      .final_share = 0.0},
                         .initialise = phase == 0},
                        {.kind = parse_optimiser_kind(options_.optimiser),
                         .weight_decay = options_.weight_decay,
                         .decay_bias_and_norm = false});
        std::printf("phase %zu: %zu steps of %zu x %zu tokens, on average %.1f without padding, learning rate %g\n",
                    phase + 1, steps, options_.batch, length,
                    train::mean_length(training_, length, {options_.seed, 7}, 1024, masking()),
                    trainer.schedule().peak);
        train::MaskedBatch batch = train::make_masked_batch(options_.batch, length);
        const auto begin = std::chrono::steady_clock::now();
        Measured measured;
        for (std::size_t step = 1; step <= steps; ++step) {
            train::fill_masked(batch, training_, pieces_.special(), {options_.seed, 100 + phase}, step, 0, masking());
            const auto result = trainer.step([&](Tape<T>& tape, std::size_t) { return loss(tape, batch); });
            if (!result.updated && !result.skipped)
                throw std::runtime_error(concatenate("the loss is ", result.loss, " at step ", step,
                                                     "; try a lower --lr (it is ", trainer.schedule().peak, ")"));
            if (step % options_.eval_every != 0 && step != steps) continue;
            measured = evaluate(trainer, length);
            const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            std::printf(
                "step %zu: masked words %.4f nats (frequencies alone %.4f), next passage %.1f %% right; "
                "%.0f tokens/s\n",
                step, measured.masked_loss, measured.unigram_loss, 100.0 * measured.next_accuracy,
                static_cast<double>(step * options_.batch * length) / seconds);
            std::fflush(stdout);
        }
        return measured;
    }

    [[nodiscard]] train::MaskedBatchOptions masking() const { return {.masked_share = options_.masked_share}; }

    [[nodiscard]] static nn::BertInput input_of(const train::MaskedBatch& batch) {
        return {.ids = batch.ids, .segments = batch.segments, .lengths = batch.lengths};
    }

    [[nodiscard]] Variable<T> loss(Tape<T>& tape, const train::MaskedBatch& batch) {
        const Variable<T> hidden = bert_(tape, input_of(batch));
        const Variable<T> next = bert_.next_sentence(bert_.pooled(hidden));
        return nn::bert_loss(bert_.masked_logits(hidden, batch.places), batch.labels, next, batch.follows);
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
                for (std::size_t row = 0; row < options_.batch; ++row) {
                    const bool follows = next.value()(row, 1) > next.value()(row, 0);
                    sum.next_accuracy += follows == (batch.follows.data()[row] == 1) ? 1.0 : 0.0;
                }
            });
            for (const std::int32_t label : batch.labels.span())
                sum.unigram_loss -= unigram[static_cast<std::size_t>(label)];
            words += count;
        }
        return {sum.masked_loss / words, sum.unigram_loss / words,
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
};

int run(const Options& options) {
    options.validate();
    Recipe recipe = io::load_recipe(options.recipe);
    for (const std::string& assignment : options.set) recipe = io::override_recipe(recipe, assignment);
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
    const Measured result = train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
        return Run<T>(options, recipe, pieces, training, validation).train();
    });
    std::printf("result recipe=%s masked_nats=%.4f unigram_nats=%.4f below_unigram=%.1f%% next_accuracy=%.1f%%\n",
                recipe.name.c_str(), result.masked_loss, result.unigram_loss,
                100.0 * (1.0 - result.masked_loss / result.unigram_loss), 100.0 * result.next_accuracy);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
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
    app.add_option("--batch", options.batch, "rows in a step")->capture_default_str();
    app.add_option("--optimiser", options.optimiser, "adam, sgd or lamb")->capture_default_str();
    app.add_option("--weight-decay", options.weight_decay, "of all but biases and gains")->capture_default_str();
    app.add_option("--masked-share", options.masked_share, "of the words in a row")->capture_default_str();
    app.add_option("--seed", options.seed, "of initial values and data")->capture_default_str();
    app.add_option("--threads", options.threads, "threads; the results do not depend on it")->capture_default_str();
    app.add_option("--eval-every", options.eval_every, "steps between evaluations")->capture_default_str();
    app.add_option("--eval-batches", options.eval_batches, "batches of an evaluation")->capture_default_str();
    app.add_option("--save", options.save, "write the weights to this safetensors file at the end");
    examples::require_not_negative(app, {"--vocabulary-size", "--width", "--depth", "--heads", "--hidden", "--batch",
                                         "--seed", "--threads", "--eval-every", "--eval-batches"});
    return examples::run_program({"train_bert", examples::one_model_too_large}, app, argc, argv,
                                 [&] { return run(options); });
}
