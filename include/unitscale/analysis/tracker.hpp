// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/statistics.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace unitscale::analysis {

/// A tensor's statistics in one step.
struct TrackedStep {
    std::uint64_t step = 0;
    TensorSummary summary{};
};

/// One side of a tensor, its value or its gradient, over training: the statistics of every tracked step, and the
/// exponents of the first and of the latest tracked step.
struct TrackedPass {
    std::vector<TrackedStep> steps{};
    ExponentHistogram first{}, last{};
};

/// A tensor of the model: the output `index` of the op at `path`, or a parameter (`op` is "parameter").
struct TrackedTensor {
    std::string path{};
    std::string op{};
    std::size_t index = 0;
    Shape shape{};
    std::vector<std::size_t> inputs{};  ///< of its op, as places in Track::tensors; tensors put on the tape are absent
    bool selected = false;              ///< a pattern matches; other tensors have no statistics
    TrackedPass value{}, gradient{};

    [[nodiscard]] bool is_parameter() const noexcept { return op == "parameter"; }
    /// The path, and the number of the output if it is not the first: `decoder/block0/residual_split[1]`.
    [[nodiscard]] std::string label() const { return index == 0 ? path : concatenate(path, '[', index, ']'); }
    [[nodiscard]] const TrackedPass& side(Pass pass) const noexcept { return pass == Pass::value ? value : gradient; }
    [[nodiscard]] TrackedPass& side(Pass pass) noexcept { return pass == Pass::value ? value : gradient; }
};

/// "activation", "weight", "gradient" or "weight gradient".
[[nodiscard]] inline std::string_view role(const TrackedTensor& tensor, Pass pass) noexcept {
    if (tensor.is_parameter()) return pass == Pass::value ? "weight" : "weight gradient";
    return pass == Pass::value ? "activation" : "gradient";
}

/// A tensor that went into the computation of the first non-finite tensor.
struct Cause {
    std::string label{};
    Pass pass = Pass::value;
    double largest = 0.0;                    ///< magnitude
    std::optional<TensorSummary> summary{};  ///< absent if only the magnitude was measured in that step
};

/// The first tensor with an element that is not finite.
struct NonFinite {
    std::uint64_t step = 0;
    std::size_t micro_batch = 0;
    Pass pass = Pass::value;
    std::string label{};
    std::string op{};    ///< the op that made the tensor, or "parameter"
    std::string path{};  ///< of that op
    /// The computation: `linear at decoder/readout/linear`. For a gradient, the ops that sent it back.
    std::string source{};
    Shape shape{};
    TensorSummary summary{};
    std::vector<Cause> causes{};
};

/// Everything that a Tracker records of a run.
struct Track {
    std::string name{};  ///< of the run, for reports
    std::optional<FloatFormat> value_format{}, gradient_format{};
    std::vector<TrackedTensor> tensors{};  ///< in model order
    std::optional<NonFinite> non_finite{};

    [[nodiscard]] const std::optional<FloatFormat>& format(Pass pass) const noexcept {
        return pass == Pass::value ? value_format : gradient_format;
    }
};

/// A cause in plain words:
/// `decoder/block0/ffn/gelu: largest 2e+05, rms 1.1e+03, 7 of 4096 elements beyond fp16's 6.55e+04`.
[[nodiscard]] inline std::string explain(const Cause& cause, const Track& track) {
    const auto number = [](double x) {
        char text[32];
        std::snprintf(text, sizeof text, "%.3g", x);
        return std::string(text);
    };
    std::string text =
        concatenate(cause.pass == Pass::value ? "" : "gradient of ", cause.label, ": largest ", number(cause.largest));
    if (cause.summary) text += concatenate(", rms ", number(cause.summary->rms));
    const auto& format = track.format(cause.pass);
    if (!format) return text;
    if (cause.summary && cause.summary->overflow > 0)
        text += concatenate(", ", cause.summary->overflow, " of ", cause.summary->count, " elements");
    else if (cause.summary || !RangeLimits(*format).overflows(cause.largest)) return text;
    text += concatenate(cause.summary ? " beyond " : ", beyond ", name(*format), "'s ",
                        number(static_cast<double>(format->max())));
    return text;
}

/// The first non-finite value in plain words: step, pass, tensor, op and causes.
[[nodiscard]] inline std::string explain(const NonFinite& found, const Track& track) {
    std::string text = concatenate("step ", found.step, ": the ", found.pass == Pass::value ? "value" : "gradient",
                                   " of ", found.label, ' ', to_string(found.shape), " has ", found.summary.nans,
                                   " NaN and ", found.summary.infinities, " infinite of ", found.summary.count,
                                   " elements; computed by ", found.source);
    for (const Cause& cause : found.causes) text += concatenate("; ", explain(cause, track));
    return text;
}

struct TrackerOptions {
    std::string name{};                         ///< of the run
    std::size_t every = 10;                     ///< steps from one tracked step to the next; the first step is tracked
    std::uint64_t last_step = 0;                ///< also tracked
    std::vector<std::string> patterns = {"*"};  ///< of the paths to track; `*` stands for any text
    std::optional<FloatFormat> value_format{}, gradient_format{};  ///< for underflow, overflow and noise
    bool watch = true;       ///< looks for non-finite elements in every step, not only in tracked steps
    std::size_t sample = 8;  ///< noise and histograms use one of so many blocks of 2048 elements; the rest uses all
    int threads = 1;
};

/// Records the statistics of every tensor of training, and the first value that is not finite.
///   Tracker<float> tracker({.every = 20, .value_format = e4m3, .gradient_format = e5m2});
///   tape.set_observer(&tracker);
///   ... train ...
///   write_html_report("report.html", std::array{tracker.finish()}, "a run");
/// In a step of several micro-batches it records the first one; for parameters it records the sum of gradients over
/// all. Evaluations and steps without a backward pass are ignored. Without a tracker a step pays one branch per op.
/// Errors: a step of 0, a format for unsigned numbers; in `finish`, a pattern that matched nothing.
/// Test: tests/analysis/tracker_test.cpp
template <class T>
class Tracker : public Observer<T> {
public:
    explicit Tracker(TrackerOptions options = {})
        : options_(std::move(options)), matched_(options_.patterns.size(), false) {
        check(options_.every >= 1, "tracker: every is 0; expected at least 1");
        check(options_.sample >= 1, "tracker: sample is 0; expected at least 1");
        for (const auto& format : {options_.value_format, options_.gradient_format})
            if (format) static_cast<void>(RangeLimits(*format));
        track_.name = options_.name;
        track_.value_format = options_.value_format;
        track_.gradient_format = options_.gradient_format;
    }

    void begin_step(const ObservedStep& step) override {
        step_ = step;
        tracked_ = step.training && ((step.step - 1) % options_.every == 0 || step.step == options_.last_step);
        watched_ = step.training && options_.watch && !track_.non_finite;
    }

    void observe(const TensorEvent<T>& event) override {
        if (!tracked_ && !watched_) return;
        const std::size_t place = find(event);
        Entry& entry = entries_[place];
        if (event.op == "parameter" && event.pass == Pass::value) entry.parameter = &event.tensor;
        const bool sums_up = event.op == "parameter" && event.pass == Pass::gradient;
        const bool of_step = sums_up ? step_.micro_batch + 1 == step_.micro_batches : step_.micro_batch == 0;
        TrackedTensor& tensor = track_.tensors[place];
        double& largest = event.pass == Pass::value ? entry.largest_value : entry.largest_gradient;
        bool finite = true;
        if (tracked_ && of_step && tensor.selected) {
            record(event, tensor);
            const TensorSummary& summary = tensor.side(event.pass).steps.back().summary;
            largest = summary.largest;
            finite = summary.non_finite() == 0;
        } else if (watched_) {
            largest = largest_magnitude(event.tensor);
            finite = std::isfinite(largest);
        }
        if (!finite && watched_) keep_non_finite(event, place);
    }

    /// The record so far.
    [[nodiscard]] const Track& track() const noexcept { return track_; }

    /// The record at the end. Errors: no training step was observed; a pattern matched no tensor.
    [[nodiscard]] const Track& finish() const {
        check(!track_.tensors.empty(), "tracker: no training step was observed; attach it with Tape::set_observer");
        for (std::size_t i = 0; i < matched_.size(); ++i)
            check(matched_[i], "tracker: pattern '", options_.patterns[i],
                  "' matched no tensor; the model's tensors begin ", first_paths());
        return track_;
    }

private:
    /// Facts about a tensor in this step, besides the statistics.
    struct Entry {
        const Tensor<T>* parameter = nullptr;
        double largest_value = 0.0, largest_gradient = 0.0;
        std::vector<std::size_t> consumers{};
    };

    static std::string key(std::string_view path, std::string_view op, std::size_t index) {
        return concatenate(path, '\n', op, '\n', index);
    }

    /// The place of the event's tensor in the track. The first event of a tensor adds it.
    std::size_t find(const TensorEvent<T>& event) {
        const std::string wanted = key(event.path, event.op, event.index);
        if (const auto known = places_.find(wanted); known != places_.end()) return known->second;
        const std::size_t place = track_.tensors.size();
        places_.emplace(wanted, place);
        track_.tensors.push_back({.path = std::string(event.path),
                                  .op = std::string(event.op),
                                  .index = event.index,
                                  .shape = event.tensor.shape()});
        entries_.emplace_back();
        TrackedTensor& tensor = track_.tensors.back();
        for (std::size_t i = 0; i < options_.patterns.size(); ++i)
            if (matches(options_.patterns[i], event.path)) matched_[i] = tensor.selected = true;
        for (const EventInput<T>& input : event.inputs) {
            const auto source = places_.find(key(input.path, input.op, input.index));
            if (source == places_.end()) continue;
            tensor.inputs.push_back(source->second);
            entries_[source->second].consumers.push_back(place);
        }
        return place;
    }

    [[nodiscard]] TensorStatistics measure(const Tensor<T>& tensor, Pass pass) const {
        return tensor_statistics(
            tensor, {.format = track_.format(pass), .sample = options_.sample, .threads = options_.threads});
    }

    void record(const TensorEvent<T>& event, TrackedTensor& tensor) {
        TrackedPass& side = tensor.side(event.pass);
        const bool first = side.steps.empty();
        const TrackedTensor* same = nullptr;  // the op passes its input on: reuse the input's statistics
        if (event.pass == Pass::value)
            for (const EventInput<T>& input : event.inputs)
                if (input.value == &event.tensor)
                    if (const auto known = places_.find(key(input.path, input.op, input.index)); known != places_.end())
                        same = &track_.tensors[known->second];
        if (same != nullptr && !same->value.steps.empty() && same->value.steps.back().step == step_.step) {
            side.steps.push_back(same->value.steps.back());
            side.last = same->value.last;
        } else {
            const TensorStatistics statistics = measure(event.tensor, event.pass);
            side.steps.push_back({step_.step, statistics});
            side.last = statistics.exponents;
        }
        if (first) side.first = side.last;
    }

    /// The statistics of a tensor as recorded in this step. Without a record, its magnitude only.
    [[nodiscard]] Cause seen(std::size_t place, Pass pass) const {
        const TrackedTensor& tensor = track_.tensors[place];
        const Entry& entry = entries_[place];
        Cause cause{.label = tensor.label(),
                    .pass = pass,
                    .largest = pass == Pass::value ? entry.largest_value : entry.largest_gradient};
        if (const auto& steps = tensor.side(pass).steps; !steps.empty() && steps.back().step == step_.step)
            cause.summary = steps.back().summary;
        return cause;
    }
    [[nodiscard]] Cause measured(std::string label, const Tensor<T>& value) const {
        const TensorSummary summary = measure(value, Pass::value);
        return {.label = std::move(label), .largest = summary.largest, .summary = summary};
    }

    void keep_non_finite(const TensorEvent<T>& event, std::size_t place) {
        const TrackedTensor& tensor = track_.tensors[place];
        NonFinite found{.step = step_.step,
                        .micro_batch = step_.micro_batch,
                        .pass = event.pass,
                        .label = tensor.label(),
                        .op = tensor.op,
                        .path = tensor.path,
                        .source = concatenate(tensor.op, " at ", tensor.path),
                        .shape = event.tensor.shape(),
                        .summary = measure(event.tensor, event.pass)};
        if (event.pass == Pass::value) {
            for (const EventInput<T>& input : event.inputs)
                if (input.value != nullptr)
                    found.causes.push_back(measured(
                        input.index == 0 ? std::string(input.path) : concatenate(input.path, '[', input.index, ']'),
                        *input.value));
            if (tensor.is_parameter()) {
                found.source = "the last update";
                found.causes.push_back(seen(place, Pass::gradient));
            }
        } else {  // sent by the consumers, from their output gradients and other inputs
            found.source =
                entries_[place].consumers.empty() ? "the seed of the backward pass" : "the backward pass of ";
            for (const std::size_t consumer : entries_[place].consumers) {
                if (!found.causes.empty()) found.source += " or ";
                found.source += concatenate(track_.tensors[consumer].op, " at ", track_.tensors[consumer].path);
                found.causes.push_back(seen(consumer, Pass::gradient));
                for (const std::size_t input : track_.tensors[consumer].inputs)
                    if (entries_[input].parameter != nullptr)
                        found.causes.push_back(measured(track_.tensors[input].label(), *entries_[input].parameter));
                    else if (input != place || tensor.is_parameter()) found.causes.push_back(seen(input, Pass::value));
            }
        }
        track_.non_finite = std::move(found);
        watched_ = false;
    }

    [[nodiscard]] std::string first_paths() const {
        std::string text;
        for (std::size_t i = 0; i < std::min<std::size_t>(track_.tensors.size(), 3); ++i)
            text += concatenate(i == 0 ? "" : ", ", track_.tensors[i].path);
        return text += track_.tensors.size() > 3 ? ", ..." : "";
    }

    TrackerOptions options_;
    std::vector<bool> matched_;
    Track track_{};
    std::vector<Entry> entries_{};
    std::unordered_map<std::string, std::size_t> places_{};
    ObservedStep step_{};
    bool tracked_ = false, watched_ = false;
};

}  // namespace unitscale::analysis
