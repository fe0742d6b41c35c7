// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/graph.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace unitscale {

/// The settings of one step.
struct StepOptions {
    std::size_t micro_batches = 1;  ///< parts of the step's batch, each with a begin_step of its own
    std::size_t micro_batch = 0;    ///< the part that begins, from 0
    bool training = true;           ///< false: dropout keeps every value, random streams do not advance
    bool gradients = true;          ///< false: no backward pass follows, so nothing is kept for it
    bool retain = false;            ///< true: the backward pass frees no values and no gradients
    bool true_gradients = false;    ///< true: every beta is its op's alpha: gradients of the scaled function itself
};

/// Which of a tensor's two passes was observed: its value or its gradient.
enum class Pass { value, gradient };

/// An input of an observed op: the output `index` of the op at `path`, a parameter, or a tensor put on the tape. For a
/// parameter `op` is "parameter" and `path` its name; for a tensor put on the tape both are "input". `value` is null
/// once the tape has freed it.
template <class T>
struct EventInput {
    std::string_view path{};
    std::string_view op{};
    std::size_t index = 0;
    const Tensor<T>* value = nullptr;
};

/// A tensor that a step has just completed: the output `index` of the op at `path`, or a parameter (`op` is
/// "parameter", `path` its name). A gradient is complete when every consumer has added its part.
template <class T>
struct TensorEvent {
    std::string_view path{};
    std::string_view op{};
    std::size_t index = 0;
    Pass pass = Pass::value;
    const Tensor<T>& tensor;
    std::span<const EventInput<T>> inputs{};  ///< of the op, in both passes; valid during the call of `observe`
};

/// An operand that a product is about to round, of the op at `path`. The product's own numbers follow from these facts.
/// Ops with products have x as input 0 and w as input 1; attention has q, k and v as inputs 0, 1 and 2. Attention does
/// not show p and ds, which are never in memory as a whole.
template <class T>
struct OperandEvent {
    std::string_view path{};
    std::string_view op{};
    OperandSlot slot = OperandSlot::forward_x;
    OperandRule rule{};
    std::optional<HadamardRotation> rotation{};
    /// Of an operand with one bias: its format has this step's bias (`shifted`). Empty for rows, columns and blocks.
    std::optional<Quantiser> quantiser{};
    RandomKey key{};
    /// Before rounding, in rows of `columns` elements; valid during the call of `observe_operand`. Null if the tape has
    /// kept codes only: then the forward pass has shown the tensor, rounded by an equal rule.
    const Tensor<T>* tensor = nullptr;
    std::size_t columns = 0;
    std::size_t matrices = 1;     ///< the tensor holds so many matrices, each with products of its own
    bool contracts_rows = false;  ///< the product contracts a matrix's rows, else its columns
};

/// The step, or the micro-batch of a step, to which the following events belong.
struct ObservedStep {
    std::uint64_t step = 0;  ///< training steps begun so far, this one included
    bool training = false;   ///< false: an evaluation, a dry record, a step without gradients
    std::size_t micro_batch = 0, micro_batches = 1;
};

/// Observes every tensor of a step while the tensor is alive, and every operand that a product rounds. An observer is
/// attached to a tape. Without one the tape pays one branch per op and operand.
/// Test: tests/autograd/observer_test.cpp
template <class T>
class Observer {
public:
    Observer() = default;
    Observer(const Observer&) = delete;
    Observer& operator=(const Observer&) = delete;
    virtual ~Observer() = default;
    virtual void begin_step(const ObservedStep&) {}
    virtual void observe(const TensorEvent<T>& event) = 0;
    virtual void observe_operand(const OperandEvent<T>&) {}

    /// For the tape: observes the output `index` of a recorded op.
    void observe_output(const ScalingState& state, const ReusedList<Node<T>>& nodes, const ReusedList<Slot<T>>& slots,
                        const Node<T>& node, std::size_t index, Pass pass, const Tensor<T>& tensor) {
        inputs_.clear();
        for (const std::uint32_t input : node.inputs) {
            const Slot<T>& slot = slots[input];
            if (slot.producer == Slot<T>::no_producer) {
                const std::string_view path =
                    slot.source != nullptr ? std::string_view(slot.source->name()) : slot.origin;
                inputs_.push_back({path, slot.origin, 0, slot.value});
                continue;
            }
            const Node<T>& producer = nodes[slot.producer];
            const auto place =
                std::find(producer.outputs.begin(), producer.outputs.end(), input) - producer.outputs.begin();
            inputs_.push_back({state.path(producer.site), producer.op, static_cast<std::size_t>(place), slot.value});
        }
        observe({state.path(node.site), node.op, index, pass, tensor, inputs_});
    }

private:
    std::vector<EventInput<T>> inputs_{};
};

}  // namespace unitscale
