// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/graph.hpp>
#include <unitscale/autograd/op_info.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace unitscale {

/// The ops and tensors of one step, in the order of recording. A tape writes the graph, and a planner reads it. Its
/// memory is kept from step to step. The graph knows which values backward functions will read, and gives up the
/// others.
/// Test: tests/autograd/recorded_graph_test.cpp
template <class T>
class RecordedGraph {
public:
    RecordedGraph() = default;
    RecordedGraph(const RecordedGraph&) = delete;
    RecordedGraph& operator=(const RecordedGraph&) = delete;
    ~RecordedGraph();

    [[nodiscard]] ReusedList<Node<T>>& nodes() noexcept { return nodes_; }
    [[nodiscard]] const ReusedList<Node<T>>& nodes() const noexcept { return nodes_; }
    [[nodiscard]] ReusedList<Slot<T>>& slots() noexcept { return slots_; }
    [[nodiscard]] const ReusedList<Slot<T>>& slots() const noexcept { return slots_; }
    [[nodiscard]] Slot<T>& root(std::uint32_t slot) noexcept { return slots_[slots_[slot].root]; }
    [[nodiscard]] std::uint32_t last_slot() const noexcept { return static_cast<std::uint32_t>(slots_.size() - 1); }
    /// The slots of parameters, in order of first use.
    [[nodiscard]] const std::vector<std::uint32_t>& parameter_slots() const noexcept { return parameter_slots_; }
    /// The memory of this step's closures.
    [[nodiscard]] Arena& arena() noexcept { return arena_; }

    /// Adds a tensor that has no value yet.
    Slot<T>& add_slot(const char* origin, bool requires_gradient) {
        Slot<T>& slot = slots_.add();
        slot.origin = origin;
        slot.value = nullptr;
        slot.parameter = nullptr;
        slot.source = nullptr;
        slot.uses = slot.passed = slot.readers = slot.rounded_readers = 0;
        slot.root = last_slot();
        slot.next_repeat = Slot<T>::none;
        slot.rounding.reset();
        slot.item.reset();
        slot.producer = Slot<T>::no_producer;
        slot.requires_gradient = requires_gradient;
        slot.has_gradient = slot.leaf = false;
        return slot;
    }

    void add_input(Tensor<T>&& tensor, bool requires_gradient) {
        Slot<T>& slot = add_slot("input", requires_gradient);
        set_value(slot, std::move(tensor));
        slot.leaf = true;
    }

    /// The slot of a parameter, made at first use; `trained` is null if no gradient is wanted.
    struct Found {
        std::uint32_t slot = 0;
        bool is_new = false;
    };
    Found parameter(const Parameter<T>& source, Parameter<T>* trained) {
        for (const std::uint32_t index : parameter_slots_)
            if (slots_[index].source == &source && slots_[index].parameter == trained) return {index, false};
        Slot<T>& slot = add_slot("parameter", trained != nullptr);
        slot.source = &source;
        slot.version = source.version();
        slot.parameter = trained;
        slot.value = source.coded_value() != nullptr ? nullptr : &source.value();
        slot.shape = source.shape();
        slot.scale = source.scale();
        slot.leaf = true;
        parameter_slots_.push_back(last_slot());
        return {last_slot(), true};
    }

    /// Error: a parameter was written since the step first used it. Its gradient would mix both values.
    void check_versions() const {
        for (const std::uint32_t index : parameter_slots_)
            check(slots_[index].source->version() == slots_[index].version, "backward: parameter ",
                  slots_[index].source->name(), " was written after the forward pass; expected that pass's values");
    }

    /// Adds an op that has no inputs and outputs yet.
    Node<T>& add_node(const OpInfo& op) {
        Node<T>& node = nodes_.add();
        node.op = op.name;
        node.site = op.site;
        node.alpha = op.alpha;
        node.betas.assign(op.betas.values().begin(), op.betas.values().end());
        node.output_weights.assign(op.output_weights.values().begin(), op.output_weights.values().end());
        node.joined_by = op.joined_by;
        node.multiply_adds = op.multiply_adds;
        node.reads = op.reads;
        node.propagates = op.propagates;
        node.item = op.item;
        node.inputs.clear();
        node.outputs.clear();
        node.edges.clear();
        return node;
    }

    void connect(std::uint32_t input, Node<T>& node) {
        node.inputs.push_back(input);
        ++slots_[input].uses;
    }

    /// Adds the next output of the last op: `output`, or a repeat of the tensor in slot `repeated`.
    const Slot<T>& add_output(Node<T>& node, Tensor<T>&& output, std::uint32_t repeated = Slot<T>::none) {
        bool requires_gradient = false;
        for (const std::uint32_t input : node.inputs)
            requires_gradient = requires_gradient || slots_[input].requires_gradient;
        Slot<T>& slot = add_slot(node.op, requires_gradient);
        slot.producer = static_cast<std::uint32_t>(nodes_.size() - 1);
        node.outputs.push_back(last_slot());
        slot.item = node.item;
        if (repeated == Slot<T>::none) {
            set_value(slot, std::move(output));
        } else {
            Slot<T>& root = slots_[slots_[repeated].root];
            slot.root = slots_[repeated].root;
            slot.next_repeat = std::exchange(root.next_repeat, last_slot());
            slot.value = root.value;
            slot.shape = root.shape;
            slot.scale = root.scale;
        }
        return slot;
    }

    void set_value(Slot<T>& slot, Tensor<T>&& value) {
        slot.owned = std::move(value);
        slot.value = &slot.owned;
        slot.shape = slot.owned.shape();
        slot.scale = slot.owned.scale();
        free_tensor(slot.plain);
        for (std::uint32_t i = slot.next_repeat; i != Slot<T>::none; i = slots_[i].next_repeat)
            slots_[i].value = slot.value;
    }

    /// Keeps the backward function if a gradient will flow through the op, and counts the values that it will read.
    template <class Backward>
    void keep_backward(Node<T>& node, Backward&& backward) {
        using Closure = std::decay_t<Backward>;
        if (!slots_[node.outputs.front()].requires_gradient) return;
        node.closure = arena_.make(Closure(std::forward<Backward>(backward)));
        node.run = [](void* closure, BackwardContext<T>& context) { (*static_cast<Closure*>(closure))(context); };
        node.destroy = [](void* closure) { static_cast<Closure*>(closure)->~Closure(); };
        count_readers(node);
    }

    /// Called when the backward function has run, or will not run. Frees it. Unless the step retains values, frees the
    /// values for which it was the last reader, and the node's own outputs with their gradients.
    void end_backward(Node<T>& node, bool retain) {
        if (node.closure != nullptr) {
            node.drop_closure();
            for_each_read(node, [&](Slot<T>& root, std::uint32_t& readers) {
                --readers;
                if (!retain && !root.leaf && root.readers + root.rounded_readers == 0) free_value(root);
            });
        }
        if (retain) return;
        for (const std::uint32_t output : node.outputs) {
            Slot<T>& slot = slots_[output];
            if (slot.leaf) continue;
            free_gradient(slot);
            if (slot.root == output) free_value(slot);
        }
    }

    /// Called when the last handle of a root's tensors is destroyed. Frees the value unless a backward function reads
    /// it. A value that is read only rounded is replaced by its codes.
    void release(std::uint32_t index, const Execution& execution, const std::shared_ptr<MemoryPool>& pool) {
        Slot<T>& slot = slots_[index];
        if (slot.leaf || slot.value != &slot.owned || slot.readers > 0) return;
        if (slot.rounded_readers > 0) {
            slot.codes = Tensor<std::uint8_t>(slot.shape, pool);
            slot.rounding->encode(execution, slot.owned.data(), slot.codes.data(),
                                  static_cast<std::ptrdiff_t>(slot.owned.size()), slot.rounding->quantiser,
                                  slot.rounding->key);
            slot.owned = Tensor<T>();
            slot.plain = Tensor<T>();
            forget_value(slot);
        } else {
            free_value(slot);
        }
    }

    /// Gives back the memory of a value, and of a gradient.
    void free_value(Slot<T>& slot) noexcept {
        free_tensor(slot.owned);
        free_tensor(slot.plain);
        free_tensor(slot.codes);
        forget_value(slot);
    }
    static void free_gradient(Slot<T>& slot) noexcept {
        free_tensor(slot.gradient);
        slot.has_gradient = false;
    }

    void clear() noexcept {
        for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].drop_closure();
        for (std::size_t i = 0; i < slots_.size(); ++i) {
            free_gradient(slots_[i]);
            free_value(slots_[i]);
        }
        nodes_.clear();
        slots_.clear();
        parameter_slots_.clear();
        arena_.reset();
    }

private:
    /// Most of a slot's tensors have no memory most of the time, and a step frees them several times.
    template <class E>
    static void free_tensor(Tensor<E>& tensor) noexcept {
        if (!tensor.empty()) tensor = Tensor<E>();
    }

    /// Out of line, because `keep_backward` is compiled for every op: each has a closure type of its own.
    [[gnu::noinline]] void count_readers(Node<T>& node) {
        for_each_read(node, [](Slot<T>&, std::uint32_t& readers) { ++readers; });
    }

    void forget_value(Slot<T>& slot) noexcept {
        slot.value = nullptr;
        for (std::uint32_t i = slot.next_repeat; i != Slot<T>::none; i = slots_[i].next_repeat)
            slots_[i].value = nullptr;
    }

    /// Calls `f(root, counter)` for every read of the node's backward function.
    template <class F>
    void for_each_read(Node<T>& node, F f) {
        for (std::size_t i = 0; i < node.inputs.size(); ++i) {
            Slot<T>& slot = root(node.inputs[i]);
            if (Reads::contains(node.reads.inputs, i)) f(slot, slot.readers);
            if (Reads::contains(node.reads.rounded, i)) f(slot, slot.rounded_readers);
        }
        for (std::size_t i = 0; i < node.outputs.size(); ++i)
            if (Slot<T>& slot = root(node.outputs[i]); Reads::contains(node.reads.outputs, i)) f(slot, slot.readers);
    }

    ReusedList<Node<T>> nodes_{};
    ReusedList<Slot<T>> slots_{};
    Arena arena_{};
    std::vector<std::uint32_t> parameter_slots_{};
};

template <class T>  // out of the class, so that users of unitscale::compiled do not compile it
RecordedGraph<T>::~RecordedGraph() {
    clear();
}

}  // namespace unitscale
