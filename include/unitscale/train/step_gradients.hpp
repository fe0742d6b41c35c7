// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/micro_batch_tree.hpp>
#include <unitscale/train/process_group.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace unitscale::train {

/// A node's gradient of one parameter, without its data.
struct NodeEntry {
    double scale = 1.0;
    bool present = false;  ///< false: none of the node's micro-batches has reached the parameter
    bool any = false;      ///< `Tensor::any_scale`
};

/// A node of the tree over micro-batches that a process holds, as all processes know it.
struct ProcessNode {
    std::size_t rank;
    MicroBatchRange range;
    std::vector<NodeEntry> entries;  ///< by parameter
};

/// The gradients of a step whose micro-batches several processes hold, before and while the processes add them.
/// Test: tests/train/step_gradients_test.cpp
template <class T>
struct StepGradients {
    using Part = std::optional<Tensor<T>>;  ///< empty: no micro-batch has reached the parameter

    ProcessGroup* group = nullptr;
    Tape<T>* tape = nullptr;
    std::size_t count = 0;  ///< micro-batches of the step
    std::vector<Parameter<T>*> parameters{};
    std::vector<TreeSum<Part>> sums{};  ///< by parameter: the nodes of this process
    std::vector<ProcessNode> nodes{};   ///< of all processes, from left to right
    /// By parameter, the process that alone gets the sum; empty: all get it, and each computes a part.
    std::vector<std::size_t> owners{};
    std::size_t sent_bytes = 0;  ///< of gradients, by this process to others

    [[nodiscard]] ScaleRounding rounding() const {
        return tape->propagates() ? tape->recipe().propagate.rounding : ScaleRounding::down;
    }
    /// A uniform word for the scale of a node's sum, under `stochastic`.
    [[nodiscard]] std::uint32_t scale_word(std::size_t p, MicroBatchRange node) const {
        if (rounding() != ScaleRounding::stochastic) return 0;
        const ScalingState& state = tape->state();
        const std::uint64_t place = mix(hash_name(parameters[p]->name()), state.step());
        return random_word({state.seed(), mix(place, mix(node.begin, node.end))}, 0);
    }
    /// The entry of node n of this process.
    [[nodiscard]] NodeEntry entry(std::size_t p, std::size_t n) {
        const Part& part = sums[p].nodes()[n].part;
        return part ? NodeEntry{part->scale(), true, part->any_scale()} : NodeEntry{};
    }
    /// The scale that the sum of a parameter's gradients has.
    [[nodiscard]] CarriedScale scale_of_all(std::size_t p) const {
        using Scale = std::optional<CarriedScale>;
        TreeSum<Scale> sum;
        for (const ProcessNode& node : nodes) {
            const NodeEntry& entry = node.entries[p];
            sum.add(node.range, entry.present ? Scale({entry.scale, entry.any}) : Scale(), count,
                    [&](Scale& left, Scale&& right, MicroBatchRange range) {
                        if (!left) left = right;
                        else if (right) left = scale_of_sum(*left, *right, rounding(), scale_word(p, range));
                    });
        }
        return sum.nodes().front().part.value_or(CarriedScale{});
    }
    /// Whether this process gets the sum of a parameter's gradients.
    [[nodiscard]] bool gets(std::size_t p) const { return owners.empty() || owners[p] == group->rank(); }
    /// The first element of parameter p whose sum process r computes: it ends where the next process begins. `shared`:
    /// this element where all processes compute a part.
    [[nodiscard]] std::size_t part_begin(std::size_t p, std::size_t r, std::size_t shared) const {
        return owners.empty() ? shared : r > owners[p] ? parameters[p]->size() : 0;
    }
    /// Counts the parts that this process sends to others, and the sums of its own part, which it sends to each that
    /// gets them.
    void count_sent(std::span<const std::size_t> part_bytes, std::size_t own_bytes) noexcept {
        for (std::size_t r = 0; r < part_bytes.size(); ++r)
            if (r != group->rank()) sent_bytes += part_bytes[r] + (owners.empty() ? own_bytes : 0);
    }
};

}  // namespace unitscale::train
