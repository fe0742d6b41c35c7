// SPDX-License-Identifier: MIT
#include "experiments/language_run.hpp"

#include <unitscale/analysis/scale_warnings.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_log.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/parameter_table.hpp>
#include <unitscale/train/precision_table.hpp>
#include <unitscale/train/recipe_switch.hpp>

#include "experiments/resources.hpp"
#include "experiments/run_in_parts.hpp"
#include "experiments/words.hpp"

#include <chrono>
#include <cmath>
#include <functional>
#include <type_traits>
#include <utility>

namespace unitscale::experiments {

namespace {

using Clock = RunCourse::Clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// An Error during the run, such as a full disk, becomes RunFailed: the arguments are not its cause.
template <class F>
void or_run_failed(F&& act) {
    try {
        act();
    } catch (const Error& error) {
        throw RunFailed(error.what());
    }
}

/// Calls use(LanguageRun<T>&) with the part of the run's next step.
template <class Use>
auto with_next_part(const LanguageRunOptions& options, const Use& use) {
    const RunPart part = next_part(options);
    const std::vector<Recipe> recipes = recipes_of(options);
    return train::with_element(part == RunPart::first ? recipes.front() : recipes.back(),
                               [&]<class T>(std::type_identity<T>) {
                                   LanguageRun<T> run(options, part);
                                   return use(run);
                               });
}

}  // namespace

template <class T>
LanguageRun<T>::LanguageRun(const LanguageRunOptions& options, RunPart part, std::optional<SwitchedRun> before)
    : options_(options_of_process(options)),
      recipes_(recipes_of(options)),
      part_(part),
      recipe_(part == RunPart::first ? recipes_.front() : recipes_.back()),
      course_(before ? std::move(before->course) : RunCourse{}),
      data_(course_.data ? course_.data : std::make_shared<const LanguageData>(options)),
      model_(options.decoder(data_->vocabulary.size())),
      trainer_(model_, recipe_,
               {.seed = options.seed,
                .threads = options.threads,
                .schedule = schedule(),
                .initial = options.initial_options(recipe_)},
               options.optimiser_options(optimiser_memory_)),
      continues_(before.has_value()) {
    if (!options_.log.empty() && !continues_)
        course_.log = std::make_unique<io::JsonLog>(options_.log, !options.resume.empty());
    if (options_.group != nullptr)
        reducer_ = std::make_shared<train::TreeReducer<T>>(
            options_.group, shared_facts(options_, *data_),
            train::TreeReducerOptions{train::parse_sharding(options_.shard), options_.overlap});
    if (reducer_) trainer_.set_reducer(reducer_);
    if (continues_) or_run_failed([&] { train::enter_recipe(before->carried, trainer_.parts(), recipe_); });
}

template <class T>
LanguageRun<T>::~LanguageRun() = default;

template <class T>
void LanguageRun<T>::plan() {
    train::plan_factors(model_, tape(), first_batch(), options_.micro_batches);
}

template <class T>
void LanguageRun<T>::take_steps(const StepWatcher& watch) {
    check_one_part();
    restore(stdout);
    Progress silent(stdout, options_.steps, true);
    train(stdout, silent, watch);
}

template <class T>
std::string LanguageRun<T>::description() {
    return concatenate(settings_text(options_, recipes_, part_, *data_, model_.parameter_count(), trainer_.schedule()),
                       '\n', products_text());
}

template <class T>
std::string LanguageRun<T>::parameters() {
    if (!options_.resume.empty()) restore(nullptr);
    return train::parameter_table(trainer_.optimiser(), recipe_,
                                  trainer_.schedule().at(std::min<std::size_t>(state().step() + 1, options_.steps)));
}

template <class T>
analysis::Audit LanguageRun<T>::audit() {
    plan();
    const train::Batch batch = first_batch();
    tape().begin_step({.micro_batches = options_.micro_batches, .training = false, .retain = true});
    const Variable<T> loss = ops::softmax_cross_entropy(model_(tape(), batch.ids), batch.labels);
    if (tape().uses_factors()) tape().backward(loss);
    analysis::Audit audit = analysis::audit(tape(), loss);
    if (!tape().unit_scaled()) return audit;
    for (const analysis::ScaleWarning& warning : analysis::check_scales(tape()))
        audit.warnings.push_back(analysis::to_text(warning));
    return audit;
}

template <class T>
LanguageRunResult LanguageRun<T>::run(std::FILE* out, std::FILE* progress_stream, const StepWatcher& watch) {
    check_one_part();
    return run_part(out, progress_stream, watch);
}

template <class T>
LanguageRunResult LanguageRun<T>::run_part(std::FILE* out, std::FILE* progress_stream, const StepWatcher& watch) {
    if (!continues_) {
        course_.begin = Clock::now();
        if (!options_.save.empty() && writes_files()) io::check_writable("checkpoint", options_.save);
        restore(out);
    }
    if (continues_ && !options_.quiet)
        std::fprintf(out, "step %zu: switched from %s to %s\n\n%s\n%s\n", *options_.switch_at,
                     recipes_.front().name.c_str(), recipe_.name.c_str(), recipe_text(recipe_).c_str(),
                     products_text().c_str());
    if (!continues_ && !options_.quiet) std::fprintf(out, "%s\n", description().c_str());

    LanguageRunResult result{.recipe = recipes_.front().name,
                             .steps = options_.steps,
                             .switch_at = options_.switch_at.value_or(0),
                             .switch_to = options_.switch_at ? recipes_.back().name : ""};
    data_->add_bytes(result);
    Progress progress(progress_stream, options_.steps, options_.quiet, {.measured = loss_unit(data_->vocabulary)});
    const bool last = last_step() == options_.steps;
    try {
        result.tokens_per_s = train(out, progress, watch);
        result.step_bytes = course_.step_bytes = std::max(course_.step_bytes, tape().pool()->peak_bytes());
        if (reducer_) result.sent_bytes = reducer_->sent_bytes();
        if (last) result.valid_bpc = loss_on("validation", split().validation, options_.steps);
        if (last && options_.test) result.test_bpc = loss_on("test", split().test, options_.steps);
    } catch (const RunFailed&) {
        progress.finish();
        throw;
    }
    progress.finish();
    if (!last) return result;
    result.train_bpc = course_.numbers["tail_sum"] / static_cast<double>(tail_steps());
    result.skipped = trainer_.scaler().skipped();
    if (result.skipped > 0 && !options_.quiet)
        std::fprintf(out, "%zu of %zu steps were not taken: their loss scale was too large\n",
                     static_cast<std::size_t>(result.skipped), options_.steps);
    for (const Parameter<T>* parameter : model_.parameters())
        result.weight_bytes += parameter->value().span().size_bytes();
    result.state_bytes = optimiser_memory_->live_bytes();
    if (options_.group != nullptr) {
        const std::string table = memory_table(*options_.group, result);
        if (!options_.quiet) std::fprintf(out, "\n%s", table.c_str());
    }
    if (options_.sample > 0) write_sample(result);
    result.peak_rss_mb = peak_resident_megabytes();
    result.seconds = seconds_since(course_.begin);
    return result;
}

template <class T>
SwitchedRun LanguageRun<T>::leave() {
    course_.data = data_;
    return {std::move(course_), train::leave_recipe(trainer_.parts(), recipe_)};
}

template <class T>
void LanguageRun<T>::fill(train::Batch& batch, std::size_t step, std::size_t index) const {
    train::fill_random(batch, split().training, data_key(), step, index * rows());
    train::mask_first(batch, options_.masked);
}

template <class T>
train::Batch LanguageRun<T>::first_batch() const {
    train::Batch batch = train::make_batch(rows(), options_.seq);
    fill(batch, 1, 0);
    return batch;
}

template <class T>
void LanguageRun<T>::check_one_part() const {
    check(!options_.switch_at, "LanguageRun: a run with a switch of recipes has two parts; see run_in_parts");
}

template <class T>
std::string LanguageRun<T>::products_text() {
    plan();
    static_cast<void>(train::evaluate(model_, tape(), split().validation, options_.seq, 1, 1));
    return train::precision_table(state()) + "attention's products without a line here are not rounded\n";
}

template <class T>
double LanguageRun<T>::train(std::FILE* out, Progress& progress, const StepWatcher& watch) {
    std::vector<train::Batch> batches;
    for (std::size_t i = 0; i < options_.micro_batches; ++i) batches.push_back(train::make_batch(rows(), options_.seq));
    double &tail_sum = course_.numbers["tail_sum"], &smooth = course_.numbers["smooth"];
    double &seconds = course_.seconds, speed = 0.0;
    const std::size_t done = course_.done;
    for (std::size_t step = state().step() + 1; step <= last_step(); ++step) {
        const Clock::time_point begin = Clock::now();
        for (std::size_t i = 0; i < batches.size(); ++i) fill(batches[i], step, i);
        LanguageStep now{.step = step, .learning_rate = trainer_.schedule().at(step)};
        data_->add_bytes(now);
        if (continues_ && step == *options_.switch_at + 1) now.switched_to = recipe_.name;
        if (scales_loss()) now.loss_scale = trainer_.scaler().scale();
        train::StepResult result;
        do {
            state().set_step(step - 1);  // a step that is taken again draws the same random numbers
            result = trainer_.step(
                [&](Tape<T>& tape, std::size_t i) {
                    return ops::softmax_cross_entropy(model_(tape, batches[i].ids), batches[i].labels);
                },
                batches.size());
        } while (options_.repeat_skipped && result.skipped &&
                 trainer_.scaler().skipped_in_a_row() <= train::most_skipped_steps);
        if (train::has_failed(result, trainer_.scaler(), options_.steps))
            fail_step(result.loss, result.gradient_norm, step, trainer_.schedule().peak);
        seconds += seconds_since(begin);
        speed = static_cast<double>((step - done) * options_.batch * options_.seq) / seconds;

        now.train_bpc = result.loss * train::bits_per_nat;
        now.tokens_per_s = speed;
        now.skipped = trainer_.scaler().skipped();
        if (scales_loss() || recipe_.clip_norm > 0.0) now.gradient_norm = result.gradient_norm;
        if (reducer_) now.sent_bytes = reducer_->sent_bytes();
        smooth = step == 1 ? now.train_bpc : 0.9 * smooth + 0.1 * now.train_bpc;
        if (step + tail_steps() > options_.steps) tail_sum += now.train_bpc;
        if (options_.eval_every > 0 && step % options_.eval_every == 0 && step != options_.steps) {
            now.valid_bpc_part = loss_on("validation", split().validation, step, 10 * options_.batch);
            progress.finish();
            if (!options_.quiet)
                std::fprintf(out, "step %zu: %s on part of the validation text\n", step,
                             data_->validation_text(*now.valid_bpc_part).c_str());
        }
        if (course_.log) or_run_failed([&] { course_.log->write(now.json()); });
        progress.update(step, smooth, speed,
                        seconds / static_cast<double>(step - done) * static_cast<double>(options_.steps - step));
        if (watch) watch(now, state());
        const bool due = step == options_.steps || (options_.save_every > 0 && step % options_.save_every == 0);
        if (due && !options_.save.empty()) or_run_failed([&] { save(); });
    }
    return speed;
}

template <class T>
double LanguageRun<T>::loss_on(const char* part, std::span<const std::int32_t> tokens, std::size_t step,
                               std::size_t most) {
    const double loss = train::evaluate(model_, tape(), tokens, options_.seq, options_.batch, most, options_.masked);
    if (!std::isfinite(loss))
        throw Diverged(concatenate("train: the ", part, " loss is ", loss, " after step ", step,
                                   "; try a lower --lr (it is ", trainer_.schedule().peak, ")"));
    return loss;
}

template <class T>
void LanguageRun<T>::write_sample(LanguageRunResult& result) {
    const auto prompt = split().validation.first(std::max<std::size_t>(options_.seq / 2, 1));
    result.sample = data_->vocabulary.decode(train::generate(model_, tape(), prompt,
                                                             {.tokens = options_.sample,
                                                              .temperature = options_.temperature,
                                                              .top_k = options_.top_k,
                                                              .seed = options_.seed}));
    const auto seen = std::u32string_view(data_->text).substr(0, data_->tokenised.training_characters);
    result.words = count_known_words(result.sample, io::encode_utf8(seen));
}

template <class T>
std::map<std::string, std::string> LanguageRun<T>::texts() const {
    return {{train::tokeniser_key(data_->vocabulary), data_->vocabulary.to_text()},
            {"model", train::decoder_to_json(model_.config()).dump()}};
}

template <class T>
void LanguageRun<T>::save() {
    auto all = texts();
    all.merge(optimiser_texts(options_));
    if (options_.switch_at) all["switch"] = switch_text(options_, recipes_);
    trainer_.save(options_.save, course_.numbers, all);
}

template <class T>
void LanguageRun<T>::restore(std::FILE* out) {
    const auto seed = static_cast<double>(options_.seed);
    if (!options_.weights.empty())
        for (const std::string& note :
             train::load_weights(options_.weights, model_.parameters(), recipe_.scaling != Scaling::propagate))
            std::fprintf(out, "%s\n", note.c_str());
    if (options_.resume.empty()) {
        course_.numbers = {{"seed", seed}, {"tail_sum", 0.0}, {"smooth", 0.0}};
        return;
    }
    check_resumed_optimiser(options_);
    check_resumed_switch(options_, recipes_);
    course_.numbers = train::load_run(options_.resume, trainer_.parts(), texts());
    check(state().step() <= options_.steps, "--resume: ", options_.resume, " is at step ", state().step(),
          ", after the run's ", options_.steps, " steps");
    const double saved = course_.numbers["seed"];
    check(saved == seed, "--resume: ", options_.resume, " was trained with --seed ", saved, ", not ", options_.seed);
    course_.done = state().step();
}

template class LanguageRun<float>;
template class LanguageRun<Half>;
template class LanguageRun<BFloat16>;

LanguageRunResult run_language(const LanguageRunOptions& options, std::FILE* out, std::FILE* progress,
                               const StepWatcher& watch) {
    return run_in_parts(options, out, progress, watch, [](auto&, const std::function<void()>& take) { take(); });
}

std::string describe_language(const LanguageRunOptions& options) {
    return with_next_part(options, [](auto& run) { return run.description(); });
}

std::string parameters_of_language(const LanguageRunOptions& options) {
    return with_next_part(options, [](auto& run) { return run.parameters(); });
}

analysis::Audit audit_language(const LanguageRunOptions& options) {
    return train::with_element(recipe_of(options),
                               [&]<class T>(std::type_identity<T>) { return LanguageRun<T>(options).audit(); });
}

}  // namespace unitscale::experiments

namespace unitscale {

template class train::SavedModel<float>;
template class train::SavedModel<Half>;
template class train::SavedModel<BFloat16>;
template class analysis::Tracker<float>;
template class analysis::Tracker<Half>;
template class analysis::Tracker<BFloat16>;

}  // namespace unitscale
