// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/observer.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::analysis {

/// The root mean squares that a unit-scaled model should keep to at its initialisation.
struct ScaleBounds {
    double least = 0.1, most = 10.0;
    [[nodiscard]] bool hold(double rms) const noexcept { return rms == 0.0 || (rms >= least && rms <= most); }
};

/// A tensor that is out of bounds although all tensors that it was computed from are within.
struct ScaleWarning {
    std::string path{};       ///< of the op that computed it, or the name of the input or parameter
    Pass pass = Pass::value;  ///< `gradient`: the op's backward function computed it
    std::string tensor{};     ///< of a gradient: path or name of the tensor that it is the gradient of
    double rms = 0.0;
};

/// Where scale goes wrong in a step: the ops at which values or gradients leave the bounds first. What follows from
/// such an op is not listed. The step is begun with `retain`, run, and taken back by `backward`:
///   tape.begin_step({.retain = true});
///   tape.backward(loss_of(model, batch));
///   for (const ScaleWarning& warning : check_scales(tape)) std::puts(to_text(warning).c_str());
/// Tensors that are all 0, such as new biases, pass, and so do losses and other single numbers. NaN does not.
/// Error: values of the step are freed; begin it with `retain`. Test: tests/analysis/scale_warnings_test.cpp
template <class T>
[[nodiscard]] std::vector<ScaleWarning> check_scales(Tape<T>& tape, const ScaleBounds& bounds = {}) {
    check(tape.step_options().retain, "check_scales: begin the step with {.retain = true}");
    std::vector<ScaleWarning> warnings;
    std::vector<bool> value_holds(tape.slot_count()), gradient_holds(tape.slot_count());
    std::vector<double> values(tape.slot_count()), gradients(tape.slot_count());
    const auto measured = [](const Tensor<T>& x) { return x.size() == 1 ? 0.0 : root_mean_square(x); };
    const auto name_of = [&](std::uint32_t i) -> std::string {
        const Slot<T>& slot = tape.slot(i);
        if (slot.source != nullptr) return slot.source->name();
        return slot.producer == Slot<T>::no_producer ? "input" : tape.state().path(tape.node(slot.producer).site);
    };
    for (std::uint32_t i = 0; i < tape.slot_count(); ++i) {
        const Slot<T>& slot = tape.slot(i);
        values[i] = measured(*slot.value);
        const bool of_parameter = slot.parameter != nullptr && slot.parameter->has_gradient();
        if (of_parameter) gradients[i] = measured(std::as_const(*slot.parameter).gradient());
        else if (slot.has_gradient) gradients[i] = measured(slot.gradient);
        value_holds[i] = bounds.hold(values[i]);
        gradient_holds[i] = bounds.hold(gradients[i]);
        if (slot.producer == Slot<T>::no_producer && !value_holds[i])
            warnings.push_back({.path = name_of(i), .tensor = name_of(i), .rms = values[i]});
    }
    const auto all = [](const std::vector<bool>& hold, const std::vector<std::uint32_t>& slots) {
        for (const std::uint32_t slot : slots)
            if (!hold[slot]) return false;
        return true;
    };
    for (std::size_t n = 0; n < tape.node_count(); ++n) {
        const Node<T>& node = tape.node(n);
        if (!all(value_holds, node.inputs)) continue;
        for (const std::uint32_t output : node.outputs)
            if (!value_holds[output])
                warnings.push_back({.path = name_of(output), .tensor = name_of(output), .rms = values[output]});
    }
    std::vector<bool> listed(tape.slot_count(), false);
    for (std::size_t n = tape.node_count(); n-- > 0;) {
        const Node<T>& node = tape.node(n);
        if (!all(gradient_holds, node.outputs)) continue;
        for (const std::uint32_t input : node.inputs) {
            if (gradient_holds[input] || listed[input]) continue;
            listed[input] = true;
            warnings.push_back({.path = name_of(node.outputs.front()),
                                .pass = Pass::gradient,
                                .tensor = name_of(input),
                                .rms = gradients[input]});
        }
    }
    return warnings;
}

/// A warning as a line: `decoder/block0/ffn/sigmoid: its value has rms 2.6`.
[[nodiscard]] inline std::string to_text(const ScaleWarning& warning) {
    char rms[32];
    std::snprintf(rms, sizeof rms, "%.3g", warning.rms);
    if (warning.pass == Pass::gradient)
        return concatenate(warning.path, ": the gradient that it sends to ", warning.tensor, " has rms ", rms);
    return concatenate(warning.path, ": its value has rms ", rms);
}

}  // namespace unitscale::analysis
