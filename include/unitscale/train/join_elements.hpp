// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/backward.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/micro_batch_tree.hpp>
#include <unitscale/train/step_gradients.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace unitscale::train {

/// Adds the gradients of all processes for the parameters of these numbers, and returns the sums in their order.
/// Process r of R adds elements n r / R up to n (r + 1) / R of each gradient in the tree over micro-batches, and gives
/// the sums to all. Every process calls it with equal numbers, of parameters that some process has a gradient of.
/// Test: tests/train/join_elements_test.cpp
template <class T>
[[nodiscard]] std::vector<Tensor<T>> join_elements(StepGradients<T>& step, std::span<const std::size_t> bucket) {
    const std::size_t size = step.group->size(), rank = step.group->rank();
    // The elements of parameter p whose sums process r computes: from here up to the bound of the next process.
    const auto bound = [&](std::size_t p, std::size_t r) { return step.parameters[p]->size() * r / size; };
    const auto bytes_of = [](Scratch<T>& numbers) { return std::as_writable_bytes(numbers.span()); };
    // Elements that process `from` sends to process `to`, and that process `to` computes.
    const auto sent = [&](std::size_t from, std::size_t to) {
        std::size_t count = 0;
        for (const auto& node : step.nodes)
            for (const std::size_t p : bucket)
                if (node.rank == from && node.entries[p].present) count += bound(p, to + 1) - bound(p, to);
        return count;
    };
    std::vector<std::size_t> send_bytes(size), receive_bytes(size), result_bytes(size, 0);
    std::size_t send_count = 0, receive_count = 0, result_count = 0;
    for (std::size_t r = 0; r < size; ++r) {
        send_count += sent(rank, r);
        receive_count += sent(r, rank);
        send_bytes[r] = sent(rank, r) * sizeof(T);
        receive_bytes[r] = sent(r, rank) * sizeof(T);
        for (const std::size_t p : bucket) result_bytes[r] += (bound(p, r + 1) - bound(p, r)) * sizeof(T);
        result_count += result_bytes[r] / sizeof(T);
    }
    Scratch<T> send(step.tape->execution(), send_count), receive(step.tape->execution(), receive_count),
        results(step.tape->execution(), result_count), own(step.tape->execution(), result_bytes[rank] / sizeof(T));

    const auto own_nodes = static_cast<std::size_t>(
        std::ranges::count_if(step.nodes, [=](const ProcessNode& node) { return node.rank == rank; }));
    T* to = send.data();
    for (std::size_t r = 0; r < size; ++r)
        for (std::size_t n = 0; n < own_nodes; ++n)
            for (const std::size_t p : bucket)
                if (const auto& part = step.sums[p].nodes()[n].part)
                    to = std::copy(part->data() + bound(p, r), part->data() + bound(p, r + 1), to);
    step.group->exchange(bytes_of(send), send_bytes, bytes_of(receive), receive_bytes);
    step.count_sent(send_bytes, result_bytes[rank]);

    // The received parts of a parameter, a part for each node that has one.
    std::vector<std::vector<T*>> parts(step.nodes.size(), std::vector<T*>(bucket.size()));
    T* from = receive.data();
    for (std::size_t n = 0; n < step.nodes.size(); ++n)
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            if (!step.nodes[n].entries[bucket[b]].present) continue;
            parts[n][b] = from;
            from += bound(bucket[b], rank + 1) - bound(bucket[b], rank);
        }
    std::vector<CarriedScale> scales;
    to = own.data();
    for (std::size_t b = 0; b < bucket.size(); ++b) {
        const std::size_t p = bucket[b], elements = bound(p, rank + 1) - bound(p, rank);
        struct Part {
            T* data;
            CarriedScale scale;
        };
        TreeSum<Part> sum;
        for (std::size_t n = 0; n < step.nodes.size(); ++n)
            sum.add(step.nodes[n].range, {parts[n][b], {step.nodes[n].entries[p].scale, step.nodes[n].entries[p].any}},
                    step.count, [&](Part& left, Part&& right, MicroBatchRange node) {
                        if (right.data == nullptr) return;
                        if (left.data == nullptr) {
                            left = right;
                            return;
                        }
                        const CarriedScale whole =
                            scale_of_sum(left.scale, right.scale, step.rounding(), step.scale_word(p, node));
                        add_scaled_elements(step.tape->execution(), left.data, std::as_const(right.data), elements,
                                            left.scale.scale / whole.scale, right.scale.scale / whole.scale);
                        left.scale = whole;
                    });
        const Part& whole = sum.nodes().front().part;
        scales.push_back(whole.scale);
        to = std::copy(whole.data, whole.data + elements, to);
    }
    step.group->collect(bytes_of(own), bytes_of(results), result_bytes);

    std::vector<Tensor<T>> wholes;
    for (std::size_t b = 0; b < bucket.size(); ++b) {
        wholes.emplace_back(step.parameters[bucket[b]]->shape(), step.tape->pool());
        wholes[b].set_scale(scales[b].scale);
        wholes[b].set_any_scale(scales[b].any);
    }
    const T* result = results.data();
    for (std::size_t r = 0; r < size; ++r)
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            const std::size_t begin = bound(bucket[b], r), elements = bound(bucket[b], r + 1) - begin;
            std::copy(result, result + elements, wholes[b].data() + begin);
            result += elements;
        }
    return wholes;
}

}  // namespace unitscale::train
