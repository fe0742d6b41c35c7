// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/graph.hpp>
#include <unitscale/autograd/op_info.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace unitscale {

/// The ops and tensors of one step, in the order of recording: what a tape writes and a planner reads. Its memory is kept
/// from step to step.
/// Test: tests/autograd/recorded_graph_test.cpp
template <class T>
class RecordedGraph {
public:
    RecordedGraph() = default;
    RecordedGraph(const RecordedGraph&) = delete;
    RecordedGraph& operator=(const RecordedGraph&) = delete;
    ~RecordedGraph() { clear(); }

    [[nodiscard]] ReusedList<Node<T>>& nodes() noexcept { return nodes_; }
    [[nodiscard]] const ReusedList<Node<T>>& nodes() const noexcept { return nodes_; }
    [[nodiscard]] ReusedList<Slot<T>>& slots() noexcept { return slots_; }
    [[nodiscard]] const ReusedList<Slot<T>>& slots() const noexcept { return slots_; }
    [[nodiscard]] std::uint32_t last_slot() const noexcept { return static_cast<std::uint32_t>(slots_.size() - 1); }
    /// The slots of parameters, in order of first use.
    [[nodiscard]] const std::vector<std::uint32_t>& parameter_slots() const noexcept { return parameter_slots_; }

    /// A tensor without a value yet.
    Slot<T>& add_slot(const char* origin, bool requires_gradient) {
        Slot<T>& slot = slots_.add();
        slot.origin = origin;
        slot.value = nullptr;
        slot.parameter = nullptr;
        slot.source = nullptr;
        slot.uses = 0;
        slot.producer = Slot<T>::no_producer;
        slot.requires_gradient = requires_gradient;
        slot.has_gradient = slot.leaf = false;
        return slot;
    }

    void add_input(Tensor<T>&& tensor, bool requires_gradient) {
        Slot<T>& slot = add_slot("input", requires_gradient);
        slot.owned = std::move(tensor);
        slot.value = &slot.owned;
        slot.leaf = true;
    }

    /// The slot of a parameter, made at first use; `trained` is null where no gradient is wanted.
    struct Found {
        std::uint32_t slot = 0;
        bool is_new = false;
    };
    Found parameter(const Parameter<T>& source, Parameter<T>* trained) {
        for (const std::uint32_t index : parameter_slots_)
            if (slots_[index].source == &source && slots_[index].parameter == trained) return {index, false};
        Slot<T>& slot = add_slot("parameter", trained != nullptr);
        slot.source = &source;
        slot.parameter = trained;
        slot.value = &source.value();
        slot.leaf = true;
        parameter_slots_.push_back(last_slot());
        return {last_slot(), true};
    }

    /// An op without inputs and outputs yet.
    Node<T>& add_node(const OpInfo& op) {
        Node<T>& node = nodes_.add();
        node.op = op.name;
        node.site = op.site;
        node.alpha = op.alpha;
        node.betas.assign(op.betas.values().begin(), op.betas.values().end());
        node.output_weights.assign(op.output_weights.values().begin(), op.output_weights.values().end());
        node.joined_by = op.joined_by;
        node.multiply_adds = op.multiply_adds;
        node.inputs.clear();
        node.outputs.clear();
        node.edges.clear();
        return node;
    }

    void connect(std::uint32_t input, Node<T>& node) {
        node.inputs.push_back(input);
        ++slots_[input].uses;
    }

    /// The next output of the last op: `output`, or the value of another tensor again.
    const Slot<T>& add_output(Node<T>& node, Tensor<T>&& output, const Tensor<T>* repeated) {
        bool requires_gradient = false;
        for (const std::uint32_t input : node.inputs) requires_gradient = requires_gradient || slots_[input].requires_gradient;
        Slot<T>& slot = add_slot(node.op, requires_gradient);
        slot.owned = std::move(output);
        slot.value = repeated != nullptr ? repeated : &slot.owned;
        slot.producer = static_cast<std::uint32_t>(nodes_.size() - 1);
        node.outputs.push_back(last_slot());
        return slot;
    }

    /// Keeps the backward function if a gradient will flow through the op.
    template <class Backward>
    void keep_backward(Node<T>& node, Backward&& backward) {
        using Closure = std::decay_t<Backward>;
        if (!slots_[node.outputs.front()].requires_gradient) return;
        node.closure = arena_.make(Closure(std::forward<Backward>(backward)));
        node.run = [](void* closure, BackwardContext<T>& context) { (*static_cast<Closure*>(closure))(context); };
        node.destroy = [](void* closure) { static_cast<Closure*>(closure)->~Closure(); };
    }

    /// Gives a tensor's memory back.
    static void free(Slot<T>& slot) {
        slot.gradient = Tensor<T>();
        slot.has_gradient = false;
        slot.owned = Tensor<T>();
        slot.value = nullptr;
    }

    void clear() noexcept {
        for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].drop_closure();
        for (std::size_t i = 0; i < slots_.size(); ++i) free(slots_[i]);
        nodes_.clear();
        slots_.clear();
        parameter_slots_.clear();
        arena_.reset();
    }

private:
    ReusedList<Node<T>> nodes_{};
    ReusedList<Slot<T>> slots_{};
    Arena arena_{};
    std::vector<std::uint32_t> parameter_slots_{};
};

}  // namespace unitscale
