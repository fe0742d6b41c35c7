// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/operand_statistics.hpp>
#include <unitscale/analysis/statistics.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The data that a Tracker records of a run, and words for it.
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

/// A group of a tensor's rows over training (`RowGroup`).
struct TrackedRows {
    std::string name{};
    TrackedPass value{}, gradient{};

    [[nodiscard]] const TrackedPass& side(Pass pass) const noexcept { return pass == Pass::value ? value : gradient; }
    [[nodiscard]] TrackedPass& side(Pass pass) noexcept { return pass == Pass::value ? value : gradient; }
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
    std::vector<TrackedRows> rows{};  ///< groups of its rows, if the tracker was given any

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

/// The rounding of an operand in one step.
struct TrackedRounding {
    std::uint64_t step = 0;
    OperandSummary summary{};
};

/// A rounded operand of a product over training: the statistics of every tracked step, and the exponents of the scales
/// in the first and in the latest tracked step.
struct TrackedOperand {
    static constexpr std::size_t no_tensor = std::numeric_limits<std::size_t>::max();

    std::string path{};  ///< of the product's op
    std::string op{};
    OperandSlot slot = OperandSlot::forward_x;
    OperandRule rule{};
    std::optional<HadamardRotation> rotation{};
    std::size_t tensor = no_tensor;  ///< the rounded tensor, as a place in Track::tensors; absent if put on the tape
    bool selected = false;           ///< a pattern matches the path; other operands have no statistics
    std::vector<TrackedRounding> steps{};
    ExponentHistogram first{}, last{};

    /// The side of the tensor that is rounded.
    [[nodiscard]] Pass pass() const noexcept {
        return role_of(slot) == OperandRole::gradient ? Pass::gradient : Pass::value;
    }
    /// The name of its elements' format, or of its blocks.
    [[nodiscard]] std::string format_name() const {
        return rule.scale.blocks ? name(*rule.scale.blocks) : name(rule.element->format);
    }
    /// The statistics of a step; null if it was not tracked.
    [[nodiscard]] const OperandSummary* at(std::uint64_t step) const noexcept {
        for (const TrackedRounding& one : steps)
            if (one.step == step) return &one.summary;
        return nullptr;
    }
};

/// The scales of an operand in words: `bias 5`, `biases 3 to 6`, `scales 2^-9 to 2^-6`.
[[nodiscard]] inline std::string scale_text(const TrackedOperand& operand, const OperandSummary& summary) {
    const auto range = [](const char* prefix, int low, int high) {
        return low == high ? concatenate(prefix, low) : concatenate(prefix, low, " to ", prefix, high);
    };
    if (operand.rule.scale.blocks)
        return concatenate(summary.lowest_scale == summary.highest_scale ? "scale " : "scales ",
                           range("2^", summary.lowest_scale, summary.highest_scale));
    return concatenate(summary.lowest_scale == summary.highest_scale ? "bias " : "biases ",
                       range("", -summary.highest_scale, -summary.lowest_scale));
}

/// A tensor that went into the computation of the first non-finite tensor.
struct Cause {
    std::string label{};
    Pass pass = Pass::value;
    double largest = 0.0;                    ///< magnitude
    std::optional<TensorSummary> summary{};  ///< absent if only the magnitude was measured in that step
    std::optional<FloatFormat> format{};     ///< that rounds the tensor there, or that it is tested against
    double factor = 1.0;                     ///< the format's numbers times it are numbers of the tensor
    std::optional<std::size_t> beyond{};     ///< elements beyond the format's range, where they were counted
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

/// Everything that a Tracker records of a run. Test: tests/analysis/track_test.cpp
struct Track {
    std::string name{};  ///< of the run, for reports
    /// Formats that every tensor is tested against, whatever rounds it. Empty: a tensor is judged by the operands that
    /// round it.
    std::optional<FloatFormat> value_format{}, gradient_format{};
    /// The format that tensors are stored in; empty for double. A stored tensor has lost nothing that it could lose
    /// again. It judges tensors that no product rounds.
    std::optional<FloatFormat> storage{};
    std::vector<TrackedTensor> tensors{};    ///< in model order
    std::vector<TrackedOperand> operands{};  ///< in the order of their first use
    std::optional<NonFinite> non_finite{};

    [[nodiscard]] const std::optional<FloatFormat>& format(Pass pass) const noexcept {
        return pass == Pass::value ? value_format : gradient_format;
    }
    /// The operands that round one side of a tensor.
    [[nodiscard]] std::vector<const TrackedOperand*> roundings(const TrackedTensor& tensor, Pass pass) const {
        const auto place = static_cast<std::size_t>(&tensor - tensors.data());
        std::vector<const TrackedOperand*> result;
        for (const TrackedOperand& operand : operands)
            if (operand.tensor == place && operand.pass() == pass) result.push_back(&operand);
        return result;
    }
};

/// A cause in plain words:
/// `decoder/block0/ffn/gelu: largest 2e+05, rms 1.1e+03, 7 of 4096 elements beyond fp16's 6.55e+04`.
[[nodiscard]] inline std::string explain(const Cause& cause) {
    const auto number = [](double x) {
        char text[32];
        std::snprintf(text, sizeof text, "%.3g", x);
        return std::string(text);
    };
    std::string text =
        concatenate(cause.pass == Pass::value ? "" : "gradient of ", cause.label, ": largest ", number(cause.largest));
    if (cause.summary) text += concatenate(", rms ", number(cause.summary->rms));
    if (!cause.format) return text;
    if (cause.beyond && cause.summary) {
        if (*cause.beyond == 0) return text;
        text += concatenate(", ", *cause.beyond, " of ", cause.summary->count, " elements beyond ");
    } else {
        if (!(cause.largest > largest_kept(*cause.format) * cause.factor)) return text;
        text += ", beyond ";
    }
    text += concatenate(name(*cause.format), "'s ", number(static_cast<double>(cause.format->max())));
    if (cause.factor != 1.0) text += concatenate(" times ", number(cause.factor));
    return text;
}

/// The first non-finite value in plain words: step, pass, tensor, op and causes.
[[nodiscard]] inline std::string explain(const NonFinite& found) {
    std::string text = concatenate("step ", found.step, ": the ", found.pass == Pass::value ? "value" : "gradient",
                                   " of ", found.label, ' ', to_string(found.shape), " has ", found.summary.nans,
                                   " NaN and ", found.summary.infinities, " infinite of ", found.summary.count,
                                   " elements; computed by ", found.source);
    for (const Cause& cause : found.causes) text += concatenate("; ", explain(cause));
    return text;
}

}  // namespace unitscale::analysis
