// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/recorded_graph.hpp>
#include <unitscale/autograd/variable.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

// Segments: parts of a step that keep only their input. `Tape::recompute` runs them again in the backward pass.
namespace unitscale {

/// Nodes [first, last) of the recorded graph, and the closure that computes their values again.
struct Segment {
    std::size_t first = 0, last = 0;
    std::size_t first_slot = 0;
    std::uint32_t input = 0;
    void* closure = nullptr;  ///< in the graph's arena
    void (*run)(void*) = nullptr;
    void (*destroy)(void*) = nullptr;
};

/// The segments of a step in the order of recording. Test: tests/autograd/recompute_test.cpp
template <class T>
class Segments {
public:
    Segments() = default;
    Segments(const Segments&) = delete;
    Segments& operator=(const Segments&) = delete;
    ~Segments() { clear(); }

    /// Adds `segment`, given without its functions; f(x) records its nodes. The input counts as read until the segment
    /// has run.
    template <class F>
    void add(RecordedGraph<T>& graph, Segment segment, Variable<T>&& x, F&& f) {
        struct Closure {
            Variable<T> x;
            F f;
        };
        segment.closure = graph.arena().make(Closure{std::move(x), std::forward<F>(f)});
        segment.run = [](void* closure) {
            auto& own = *static_cast<Closure*>(closure);
            static_cast<void>(own.f(std::exchange(own.x, {})));
        };
        segment.destroy = [](void* closure) { static_cast<Closure*>(closure)->~Closure(); };
        ++graph.root(segment.input).readers;
        segments_.push_back(segment);
    }

    /// Whether the last segment that has not run ends before this node number.
    [[nodiscard]] bool ends_at(std::size_t node) const noexcept {
        return !segments_.empty() && segments_.back().last == node;
    }
    [[nodiscard]] const Segment& back() const noexcept { return segments_.back(); }
    void pop() noexcept {
        segments_.back().destroy(segments_.back().closure);
        segments_.pop_back();
    }
    void clear() noexcept {
        while (!segments_.empty()) pop();
    }

private:
    std::vector<Segment> segments_{};
};

/// The position in a segment that runs again. The segment's ops find their nodes and tensors instead of adding new
/// ones.
template <class T>
class Replay {
public:
    [[nodiscard]] bool active() const noexcept { return active_; }

    void run(RecordedGraph<T>& graph, const Segment& segment) {
        node_ = segment.first;
        last_ = segment.last;
        slot_ = segment.first_slot;
        active_ = true;
        segment.run(segment.closure);
        active_ = false;
        check(node_ == last_, "recompute: ", last_ - node_, " ops of the forward pass were not run again");
        --graph.root(segment.input).readers;
    }
    void stop() noexcept { active_ = false; }

    /// The site of the op that runs next.
    [[nodiscard]] Site site(RecordedGraph<T>& graph, const char* op) const {
        check_same(node_ < last_ && std::string_view(graph.nodes()[node_].op) == op, op);
        return graph.nodes()[node_].site;
    }

    /// The node of the op that is recorded again.
    [[nodiscard]] Node<T>& node(RecordedGraph<T>& graph, const OpInfo& op, std::size_t inputs) {
        check_same(node_ < last_, op.name);
        Node<T>& node = graph.nodes()[node_++];
        check_same(node.site == op.site && std::string_view(node.op) == op.name && node.inputs.size() == inputs,
                   op.name);
        output_ = 0;
        return node;
    }
    void check_same(bool same, const char* op) const {
        check(same, "recompute: ", op, " is run in the backward pass in another place than in the forward pass");
    }

    /// The slot of the node's next output, with its value restored.
    [[nodiscard]] std::uint32_t output(RecordedGraph<T>& graph, const Node<T>& node, Tensor<T>&& value) {
        const std::uint32_t index = node.outputs[output_++];
        Slot<T>& slot = graph.slots()[index];
        if (slot.root == index) graph.set_value(slot, std::move(value));
        else slot.value = graph.slots()[slot.root].value;
        return index;
    }

    /// The slot of the next tensor that the segment puts on the tape.
    [[nodiscard]] std::uint32_t input(RecordedGraph<T>& graph, Tensor<T>&& value) {
        const auto is_input = [&](const Slot<T>& slot) {
            return slot.producer == Slot<T>::no_producer && slot.source == nullptr;
        };
        while (slot_ < graph.slots().size() && !is_input(graph.slots()[slot_])) ++slot_;
        check_same(slot_ < graph.slots().size() && graph.slots()[slot_].shape == value.shape(), "input");
        graph.set_value(graph.slots()[slot_], std::move(value));
        return static_cast<std::uint32_t>(slot_++);
    }

private:
    std::size_t node_ = 0, last_ = 0, slot_ = 0, output_ = 0;
    bool active_ = false;
};

}  // namespace unitscale
