// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/audit.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/text_table.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::analysis {

/// One use of a tensor by an op of an aligned model.
struct AlignedInput {
    std::string from{};             ///< path of the op that made it, name of the parameter, or "input"
    double sigma = 1.0;             ///< its scale: s1 of the op
    std::optional<double> share{};  ///< of a sum: this term's share of the sum's variance
};

/// One op of an aligned model.
struct AlignedOp {
    std::string path{}, op{};
    std::vector<AlignedInput> inputs{};
    double sigma = 1.0;                ///< scale of its value: s2 is 1 / sigma
    std::optional<double> gradient{};  ///< scale of the value's gradient; empty: none arrived
};

/// One gradient of a tensor that several ops use, and the weight of its data in the sum.
struct AlignedUse {
    std::string op{};  ///< path of the op that sends it
    double sigma = 1.0, weight = 1.0;
};

/// A parameter of an aligned model.
struct AlignedParameter {
    std::string name{};
    double sigma = 1.0;              ///< scale of its value: the standard model's initial standard deviation
    double gradient = 1.0;           ///< scale of its gradient; the data is the true gradient over this number
    std::vector<AlignedUse> uses{};  ///< one for each measured gradient
};

/// The constants that align a unit-scaled model with the standard one.
struct Alignment {
    std::vector<AlignedOp> ops{};
    std::vector<AlignedParameter> parameters{};
};

/// Reads the constants from a recorded step under `propagate`. The step is begun with `retain`, run and taken back:
///   tape.plan([&] { return loss_of(model, batch); });        // measures, if the recipe is an `aligned-*`
///   tape.begin_step({.retain = true});
///   tape.backward(loss_of(model, batch));
///   std::puts(to_text(alignment(tape)).c_str());
/// Under exact scales (`ScaleRounding::none`) the step computes the function of the standard model, and every tensor
/// is data of unit size times sigma. In the notation of the Unit Scaling paper, for data x:
///   an op f:                  f*(x) = s2 f(s1 x)      s1 = sigma of its input, s2 = 1 / sigma of its value
///   a sum of x and a branch:  (1 - a)^1/2 x + a^1/2 branch      a = `share` of the branch
///   a weight of two uses:     its gradient is the sum of both gradients' data, times `weight`
/// The sigmas are those that the plan has measured or a caller has stated (`ScalingState::set_plan`). Without a plan
/// they follow from the ops' rules.
/// Errors: another scaling; no backward pass; a step without `retain`.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, appendix H. Test: tests/analysis/alignment_test.cpp
template <class T>
[[nodiscard]] Alignment alignment(const Tape<T>& tape) {
    check(tape.propagates(), "alignment: the recipe '", tape.recipe().name, "' has the scaling ",
          name(tape.recipe().scaling), "; expected propagate");
    check(tape.step_options().retain && tape.backward_done(),
          "alignment: expected a step begun with {.retain = true}, and its backward pass");
    const ScalingState& state = tape.state();
    const auto name_of = [&](std::uint32_t i) -> std::string {
        const Slot<T>& slot = tape.slot(i);
        if (slot.source != nullptr) return slot.source->name();
        return slot.producer == Slot<T>::no_producer ? "input" : state.path(tape.node(slot.producer).site);
    };
    Alignment result;
    for (std::size_t n = 0; n < tape.node_count(); ++n) {
        const Node<T>& node = tape.node(n);
        const Slot<T>& output = tape.slot(node.outputs.front());
        AlignedOp op{.path = state.path(node.site), .op = node.op, .sigma = output.scale};
        if (output.has_gradient) op.gradient = output.gradient.scale();
        const std::string_view kind = node.op;
        const bool weighted = kind == "residual_add" || kind == "weighted_add", sum = kind == "add" || kind == "sub";
        double squares = 0.0;
        for (std::size_t i = 0; i < node.inputs.size(); ++i) {
            AlignedInput input{.from = name_of(node.inputs[i]), .sigma = tape.slot(node.inputs[i]).scale};
            if (sum || weighted) {  // the ideal betas of a weighted sum are 1 over its weights
                const double term = input.sigma / (weighted ? node.betas[i] : 1.0);
                input.share = term * term;
                squares += term * term;
            }
            op.inputs.push_back(std::move(input));
        }
        for (AlignedInput& input : op.inputs)
            if (input.share) *input.share /= squares;
        result.ops.push_back(std::move(op));
    }
    for (std::uint32_t i = 0; i < tape.slot_count(); ++i) {
        const Slot<T>& slot = tape.slot(i);
        if (slot.parameter == nullptr || !slot.parameter->has_gradient()) continue;
        AlignedParameter parameter{
            .name = slot.source->name(), .sigma = slot.scale, .gradient = slot.parameter->gradient().scale()};
        for (std::size_t n = 0; n < tape.node_count(); ++n)
            for (std::size_t k = 0; k < tape.node(n).inputs.size(); ++k)
                if (tape.node(n).inputs[k] == i)
                    if (const auto sigma = state.planned_gradient_scale(tape.node(n).site, k))
                        parameter.uses.push_back({.op = state.path(tape.node(n).site), .sigma = *sigma});
        double squares = 0.0;
        for (const AlignedUse& use : parameter.uses) squares += use.sigma * use.sigma;
        for (AlignedUse& use : parameter.uses) use.weight = use.sigma / std::sqrt(squares);
        result.parameters.push_back(std::move(parameter));
    }
    return result;
}

/// The alignment as text: a table of the ops in order of recording, then one of the parameters. Rows that the blocks of
/// a model repeat with equal numbers are one row (`folded`). Sigmas are those of the standard model.
[[nodiscard]] inline std::string to_text(const Alignment& alignment) {
    const auto number = [](double x) { return io::cell("%.4g", x); };
    std::vector<std::vector<std::string>> rows = {{"op", "sigma of inputs", "shares", "sigma", "sigma of gradient"}};
    for (const AlignedOp& op : alignment.ops) {
        std::string sigmas, shares;
        for (const AlignedInput& input : op.inputs) {
            (sigmas += sigmas.empty() ? "" : " ") += number(input.sigma);
            if (input.share) (shares += shares.empty() ? "" : " ") += io::cell("%.3f", input.share);
        }
        rows.push_back(
            {op.path, sigmas, shares.empty() ? "-" : shares, number(op.sigma), io::cell("%.4g", op.gradient)});
    }
    std::string text = io::text_table(folded(rows)) + '\n';
    rows = {{"parameter", "sigma", "sigma of gradient", "weights of gradients"}};
    for (const AlignedParameter& parameter : alignment.parameters) {
        std::string weights;
        for (const AlignedUse& use : parameter.uses) (weights += weights.empty() ? "" : " ") += number(use.weight);
        rows.push_back(
            {parameter.name, number(parameter.sigma), number(parameter.gradient), weights.empty() ? "-" : weights});
    }
    return text + io::text_table(folded(rows));
}

}  // namespace unitscale::analysis
