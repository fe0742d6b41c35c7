// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/operand_statistics.hpp>
#include <unitscale/analysis/row_groups.hpp>
#include <unitscale/analysis/statistics.hpp>
#include <unitscale/analysis/track.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace unitscale::analysis {

struct TrackerOptions {
    std::string name{};                         ///< of the run
    std::size_t every = 10;                     ///< steps from one tracked step to the next; the first step is tracked
    std::uint64_t last_step = 0;                ///< also tracked
    std::vector<std::string> patterns = {"*"};  ///< of the paths to track; `*` stands for any text
    /// Formats that every tensor is tested against, for underflow, overflow and noise. Empty: operands tell what
    /// rounding does to a tensor.
    std::optional<FloatFormat> value_format{}, gradient_format{};
    bool watch = true;       ///< looks for non-finite elements in every step, not only in tracked steps
    std::size_t sample = 8;  ///< noise and histograms use one of so many blocks of 2048 elements; the rest uses all
    int threads = 1;
    std::vector<std::string> row_patterns = {"*"};  ///< of the paths whose row groups are tracked, if there are any
};

/// Records the statistics of every tensor of training, of every operand that a product rounds, and the first value that
/// is not finite.
///   Tracker<float> tracker({.every = 20});
///   tape.set_observer(&tracker);
///   ... train ...
///   write_html_report("report.html", std::array{tracker.finish()}, "a run");
/// In a step of several micro-batches it records the first one; for parameters it records the sum of gradients over
/// all. Evaluations and steps without a backward pass are ignored. Without a tracker a step pays one branch per op and
/// operand. A tracker changes no bit of training.
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
        if constexpr (CodedElement<T>) track_.storage = format_of<T>;
        else if constexpr (std::is_same_v<T, float>) track_.storage = fp32;
    }

    /// From the next step on, the statistics of these rows of every tensor that has them. Rows may differ in each step.
    void set_row_groups(RowGroups groups) { groups_ = std::move(groups); }

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
        (event.pass == Pass::value ? entry.value_scale : entry.gradient_scale) = event.tensor.scale();
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

    void observe_operand(const OperandEvent<T>& event) override {
        if (!tracked_ && !watched_) return;
        const std::size_t place = find(event);
        last_quantisers_[place] = event.quantiser;
        TrackedOperand& operand = track_.operands[place];
        if (!tracked_ || step_.micro_batch != 0 || !operand.selected) return;
        const TrackedOperand* const alike = rounded_alike(event, place);
        if (alike == nullptr && event.tensor == nullptr) return;
        if (alike != nullptr) {
            operand.steps.push_back(alike->steps.back());
            operand.last = alike->last;
        } else {
            const OperandStatistics statistics = operand_statistics(event, options_.threads);
            operand.steps.push_back({step_.step, statistics});
            operand.last = statistics.scale_exponents;
        }
        if (operand.steps.size() == 1) operand.first = operand.last;
    }

    /// The record so far.
    [[nodiscard]] const Track& track() const noexcept { return track_; }

    /// The record at the end. Errors: no training step was observed; a pattern matched no tensor.
    [[nodiscard]] const Track& finish() const {
        check(!track_.tensors.empty(), "tracker: no training step was observed; attach it with Tape::set_observer");
        for (std::size_t i = 0; i < matched_.size(); ++i)
            check(matched_[i], "tracker: pattern '", options_.patterns[i],
                  "' matched no tensor; the model's tensors begin ", first_paths());
        check(groups_.empty() || has_rows_, "tracker: no tensor with ", groups_.rows(),
              " rows matched a row pattern; the row groups are of so many rows");
        return track_;
    }

private:
    /// Facts about a tensor in this step, besides the statistics.
    struct Entry {
        const Tensor<T>* parameter = nullptr;
        double largest_value = 0.0, largest_gradient = 0.0;
        double value_scale = 1.0, gradient_scale = 1.0;
        std::vector<std::size_t> consumers{};
        /// Of the op's first inputs: x and w of a product; q, k and v of attention.
        std::array<std::size_t, 3> sources{TrackedOperand::no_tensor, TrackedOperand::no_tensor,
                                           TrackedOperand::no_tensor};
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
        for (std::size_t i = 0; i < event.inputs.size(); ++i) {
            const EventInput<T>& input = event.inputs[i];
            const auto source = places_.find(key(input.path, input.op, input.index));
            if (source == places_.end()) continue;
            tensor.inputs.push_back(source->second);
            entries_[source->second].consumers.push_back(place);
            if (i < entries_[place].sources.size()) entries_[place].sources[i] = source->second;
        }
        for (TrackedOperand& operand : track_.operands)  // those of the forward pass come before their op's output
            if (event.index == 0 && operand.path == event.path && operand.op == event.op) link(operand, place);
        return place;
    }

    /// The place of the event's operand in the track. The first event of an operand adds it.
    std::size_t find(const OperandEvent<T>& event) {
        auto& places = operand_places_.try_emplace(std::string(event.path), no_operands()).first->second;
        std::size_t& place = places[static_cast<std::size_t>(event.slot)];
        if (place != TrackedOperand::no_tensor) return place;
        place = track_.operands.size();
        TrackedOperand& operand = track_.operands.emplace_back(TrackedOperand{.path = std::string(event.path),
                                                                              .op = std::string(event.op),
                                                                              .slot = event.slot,
                                                                              .rule = event.rule,
                                                                              .rotation = event.rotation});
        last_quantisers_.emplace_back();
        for (const std::string& pattern : options_.patterns)
            operand.selected = operand.selected || matches(pattern, event.path);
        if (const auto known = places_.find(key(event.path, event.op, 0)); known != places_.end())
            link(operand, known->second);
        return place;
    }
    static std::array<std::size_t, slot_count> no_operands() noexcept {
        std::array<std::size_t, slot_count> places{};
        places.fill(TrackedOperand::no_tensor);
        return places;
    }
    /// Notes which tensor an operand of the op with output `output` rounds.
    void link(TrackedOperand& operand, std::size_t output) const {
        if (is_output_gradient(operand.slot)) operand.tensor = output;
        else if (const auto input = input_of(operand.slot)) operand.tensor = entries_[output].sources[*input];
    }

    /// The other operand of this op that is the same tensor, if it was recorded in this step with equal numbers. A
    /// random stream belongs to a tensor, so that operands with one bias and one quantiser are equal.
    [[nodiscard]] const TrackedOperand* rounded_alike(const OperandEvent<T>& event, std::size_t place) const {
        if (!event.quantiser) return nullptr;
        for (const std::size_t other : operand_places_.at(std::string(event.path))) {
            if (other == TrackedOperand::no_tensor || other == place) continue;
            const TrackedOperand& operand = track_.operands[other];
            if (first_use(operand.slot) == first_use(event.slot) && last_quantisers_[other] == event.quantiser &&
                operand.rule.element->format.bias == event.rule.element->format.bias && !operand.steps.empty() &&
                operand.steps.back().step == step_.step)
                return &operand;
        }
        return nullptr;
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
        if (groups_.empty() || tensor.is_parameter() ||
            std::none_of(options_.row_patterns.begin(), options_.row_patterns.end(),
                         [&](const std::string& pattern) { return matches(pattern, event.path); }))
            return;
        groups_.record(event.tensor, event.pass, step_.step,
                       {.format = track_.format(event.pass), .threads = options_.threads}, tensor.rows);
        has_rows_ = has_rows_ || !tensor.rows.empty();
    }

    /// The format that rounds an operand: a number times `factor` is a number of the operand's data.
    struct Range {
        std::optional<FloatFormat> format{};
        double factor = 1.0;
    };
    /// The range of the first operand among `slots` that the op at `path` has and that `is_wanted` accepts, or of the
    /// format that all tensors are tested against.
    template <class Wanted>
    [[nodiscard]] Range range_at(const std::string& path, std::span<const OperandSlot> slots, Pass pass,
                                 Wanted&& is_wanted) const {
        if (const auto& tested = track_.format(pass)) return {tested, 1.0};
        const auto places = operand_places_.find(path);
        if (places == operand_places_.end()) return {};
        for (const OperandSlot slot : slots) {
            const std::size_t place = places->second[static_cast<std::size_t>(slot)];
            if (place == TrackedOperand::no_tensor || !is_wanted(slot)) continue;
            if (!last_quantisers_[place]) return {};
            const FloatFormat element = track_.operands[place].rule.element->format;
            return {element, std::ldexp(1.0, element.bias - last_quantisers_[place]->format.bias)};
        }
        return {};
    }
    /// The operands of an op's forward pass, and of the gradient of its input `input`.
    [[nodiscard]] static std::span<const OperandSlot> forward_slots() noexcept {
        using enum OperandSlot;
        static constexpr std::array slots = {forward_x, forward_w, logits_q, logits_k, output_v};
        return slots;
    }
    [[nodiscard]] static std::span<const OperandSlot> gradient_slots(std::size_t input) noexcept {
        using enum OperandSlot;
        static constexpr std::array of_x = {input_gradient_dy, input_gradient_w, probability_gradient_dy,
                                            probability_gradient_v, query_gradient_k},
                                    of_w = {weight_gradient_dy, weight_gradient_x, probability_gradient_dy,
                                            probability_gradient_v, key_gradient_q};
        static constexpr std::array of_v = {value_gradient_dy};
        if (input == 2) return of_v;
        return input == 1 ? of_w : of_x;
    }

    /// The statistics of a tensor as recorded in this step. Without a record, its magnitude only.
    [[nodiscard]] Cause seen(std::size_t place, Pass pass, const Range& range) const {
        const TrackedTensor& tensor = track_.tensors[place];
        const Entry& entry = entries_[place];
        const bool tested = track_.format(pass).has_value();
        Cause cause{.label = tensor.label(),
                    .pass = pass,
                    .largest = pass == Pass::value ? entry.largest_value : entry.largest_gradient,
                    .format = range.format};
        if (!tested) cause.factor = range.factor * (pass == Pass::value ? entry.value_scale : entry.gradient_scale);
        if (const auto& steps = tensor.side(pass).steps; !steps.empty() && steps.back().step == step_.step) {
            cause.summary = steps.back().summary;
            if (tested) cause.beyond = cause.summary->overflow;
        }
        return cause;
    }
    [[nodiscard]] Cause measured(std::string label, const Tensor<T>& value, const Range& range) const {
        const TensorSummary summary = measure(value, Pass::value);
        Cause cause{.label = std::move(label), .largest = summary.largest, .summary = summary, .format = range.format};
        if (!range.format) return cause;
        if (!track_.value_format) cause.factor = range.factor * value.scale();
        const double limit = largest_kept(*range.format) * cause.factor;
        cause.beyond = 0;
        for (const T& element : value.span()) {
            const double size = std::abs(static_cast<double>(element) * value.scale());
            *cause.beyond += OperandStatistics::is_finite(size) && size > limit ? 1U : 0U;
        }
        return cause;
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
            for (std::size_t i = 0; i < event.inputs.size(); ++i) {
                const EventInput<T>& input = event.inputs[i];
                if (input.value == nullptr) continue;
                found.causes.push_back(measured(
                    input.index == 0 ? std::string(input.path) : concatenate(input.path, '[', input.index, ']'),
                    *input.value, range_at(tensor.path, forward_slots(), Pass::value,
                                           [i](OperandSlot slot) { return input_of(slot) == i; })));
            }
            if (tensor.is_parameter()) {
                found.source = "the last update";
                const auto range = range_at({}, {}, Pass::gradient, is_output_gradient);
                found.causes.push_back(seen(place, Pass::gradient, range));
            }
        } else {  // sent by the consumers, from their output gradients and other inputs
            found.source =
                entries_[place].consumers.empty() ? "the seed of the backward pass" : "the backward pass of ";
            for (const std::size_t consumer : entries_[place].consumers) {
                if (!found.causes.empty()) found.source += " or ";
                const std::string& path = track_.tensors[consumer].path;
                found.source += concatenate(track_.tensors[consumer].op, " at ", path);
                // A tensor that is several inputs of the consumer counts as the last of them.
                const auto& sources = entries_[consumer].sources;
                std::size_t own = sources.size() - 1;
                while (own > 0 && sources[own] != place) --own;
                const std::span<const OperandSlot> slots = gradient_slots(own);
                found.causes.push_back(
                    seen(consumer, Pass::gradient, range_at(path, slots, Pass::gradient, is_output_gradient)));
                for (const std::size_t input : track_.tensors[consumer].inputs) {
                    const Range range = range_at(path, slots, Pass::value, [&](OperandSlot slot) {
                        const auto number = input_of(slot);
                        return number && sources[*number] == input;
                    });
                    if (entries_[input].parameter != nullptr)
                        found.causes.push_back(
                            measured(track_.tensors[input].label(), *entries_[input].parameter, range));
                    else if (input != place || tensor.is_parameter())
                        found.causes.push_back(seen(input, Pass::value, range));
                }
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
    std::unordered_map<std::string, std::array<std::size_t, slot_count>> operand_places_{};  ///< by the op's path
    std::vector<std::optional<Quantiser>> last_quantisers_{};  ///< of operands with one bias, with that bias
    RowGroups groups_{};
    ObservedStep step_{};
    bool tracked_ = false, watched_ = false, has_rows_ = false;
};

}  // namespace unitscale::analysis
