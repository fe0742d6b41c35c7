// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/scaling/communication.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/gradient_codes.hpp>
#include <unitscale/train/micro_batch_tree.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/remainders.hpp>
#include <unitscale/train/step_gradients.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace unitscale::train {

/// `join_elements` for gradients that travel as codes (`Communication`): each node is one micro-batch, a worker.
/// Process r adds the blocks of `part_begin`, decoded, in float; or all blocks of the parameters that it owns.
/// Scales follow the largest magnitudes of all processes. The object keeps the remainders of error feedback.
/// Test: tests/train/join_codes_test.cpp
template <class T>
class JoinCodes {
public:
    explicit JoinCodes(const ProcessGroup& group) : remainders_(group.rank(), group.size()) {}

    /// The sums for the parameters of these numbers, in their order. `seed`: of the step's backward pass.
    [[nodiscard]] std::vector<typename StepGradients<T>::Part> operator()(StepGradients<T>& step,
                                                                          std::span<const std::size_t> bucket,
                                                                          const Communication& how, double seed) {
        const std::size_t size = step.group->size(), rank = step.group->rank(), bytes = code_bytes(how);
        const Execution execution = step.tape->execution();
        // Parameter b of the bucket has elements at[b] .. at[b + 1] and blocks block_at[b] .. block_at[b + 1] there.
        std::vector<std::size_t> at(bucket.size() + 1, 0), block_at(bucket.size() + 1, 0);
        std::vector<CarriedScale> scales;
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            const std::size_t elements = step.parameters[bucket[b]]->size();
            at[b + 1] = at[b] + elements;
            block_at[b + 1] = block_at[b] + block_count(how, elements);
            scales.push_back(step.scale_of_all(bucket[b]));
        }
        const auto begin_of = [&](std::size_t b, std::size_t r) {
            return step.part_begin(bucket[b], r, part_begin(how, at[b + 1] - at[b], r, size));
        };
        const auto has = [&](const ProcessNode& node, std::size_t b) { return node.entries[bucket[b]].present; };

        // The gradients of this process's micro-batches in float, under the scale of all, and the magnitudes of all.
        std::vector<const ProcessNode*> own;
        for (const ProcessNode& node : step.nodes)
            if (node.rank == rank) own.push_back(&node);
        Scratch<float> values(execution, own.size() * at.back());
        std::vector<float> largest(block_at.back(), 0.0f);
        for (std::size_t l = 0; l < own.size(); ++l)
            for (std::size_t b = 0; b < bucket.size(); ++b) {
                if (!has(*own[l], b)) continue;
                float* const x = values.data() + l * at.back() + at[b];
                auto& gradient = step.sums[bucket[b]].nodes()[l].part;
                const double factor = gradient->scale() / scales[b].scale;
                for (std::size_t i = 0; i < gradient->size(); ++i)
                    x[i] = static_cast<float>(static_cast<double>(static_cast<Accum<T>>(gradient->data()[i])) * factor);
                gradient.reset();
                if (how.error_feedback) add_remainder(step, bucket[b], own[l]->range.begin, scales[b].scale / seed, x);
                measure_blocks(how, x, 0, at[b + 1] - at[b], largest.data() + block_at[b]);
            }
        step.group->maximise(largest);

        // Codes of micro-batches, to the processes that sum them.
        Scratch<std::byte> codes(execution, own.size() * at.back() * bytes),
            sent(execution, own.size() * at.back() * bytes);
        for (std::size_t l = 0; l < own.size(); ++l)
            for (std::size_t b = 0; b < bucket.size(); ++b) {
                if (!has(*own[l], b)) continue;
                float* const x = values.data() + l * at.back() + at[b];
                const std::size_t elements = at[b + 1] - at[b], micro_batch = own[l]->range.begin;
                std::byte* const to = codes.data() + (l * at.back() + at[b]) * bytes;
                const float* const blocks = largest.data() + block_at[b];
                encode_blocks(execution, how, x, 0, elements, blocks, code_key(step, bucket[b], micro_batch), to);
                if (how.error_feedback) keep_remainder(step, how, bucket[b], micro_batch, x, to, blocks);
            }
        std::vector<std::size_t> send_bytes(size, 0), receive_bytes(size, 0), result_bytes(size, 0);
        std::byte* to = sent.data();
        for (std::size_t r = 0; r < size; ++r)
            for (std::size_t l = 0; l < own.size(); ++l)
                for (std::size_t b = 0; b < bucket.size(); ++b) {
                    if (!has(*own[l], b)) continue;
                    const std::byte* const from = codes.data() + (l * at.back() + at[b]) * bytes;
                    to = std::copy(from + begin_of(b, r) * bytes, from + begin_of(b, r + 1) * bytes, to);
                    send_bytes[r] += (begin_of(b, r + 1) - begin_of(b, r)) * bytes;
                }
        std::size_t part = 0;  // elements of the bucket that this process sums
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            part += begin_of(b, rank + 1) - begin_of(b, rank);
            for (const ProcessNode& node : step.nodes)
                if (has(node, b)) receive_bytes[node.rank] += (begin_of(b, rank + 1) - begin_of(b, rank)) * bytes;
            for (std::size_t r = 0; r < size; ++r) result_bytes[r] += (begin_of(b, r + 1) - begin_of(b, r)) * bytes;
        }
        Scratch<std::byte> received(execution,
                                    std::accumulate(receive_bytes.begin(), receive_bytes.end(), std::size_t{0}));
        step.group->exchange({sent.data(), static_cast<std::size_t>(to - sent.data())}, send_bytes, received.span(),
                             receive_bytes);
        step.count_sent(send_bytes, result_bytes[rank]);

        // The tree of the decoded parts, and the magnitudes of the sums.
        std::vector<TreeSum<std::vector<float>>> sums(bucket.size());
        const std::byte* from = received.data();
        for (const ProcessNode& node : step.nodes)
            for (std::size_t b = 0; b < bucket.size(); ++b) {
                std::vector<float> x;
                if (has(node, b)) {
                    const std::size_t first = begin_of(b, rank), last = begin_of(b, rank + 1);
                    x.resize(last - first);
                    decode_blocks(execution, how, from, first, last, largest.data() + block_at[b], x.data());
                    from += x.size() * bytes;
                }
                sums[b].add(node.range, std::move(x), step.count,
                            [](std::vector<float>& left, std::vector<float>&& right, MicroBatchRange) {
                                if (left.empty()) left = std::move(right);
                                else
                                    for (std::size_t i = 0; i < right.size(); ++i) left[i] += right[i];
                            });
            }
        std::fill(largest.begin(), largest.end(), 0.0f);
        for (std::size_t b = 0; b < bucket.size(); ++b)
            measure_blocks(how, sums[b].nodes().front().part.data(), begin_of(b, rank), begin_of(b, rank + 1),
                           largest.data() + block_at[b]);
        const bool shared = step.owners.empty();  // the sums go to all
        if (shared) step.group->maximise(largest);

        // Codes of the sums.
        Scratch<std::byte> mine(execution, part * bytes), all(execution, shared ? at.back() * bytes : 0);
        to = mine.data();
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            const std::size_t first = begin_of(b, rank), last = begin_of(b, rank + 1);
            encode_blocks(execution, how, sums[b].nodes().front().part.data(), first, last,
                          largest.data() + block_at[b], code_key(step, bucket[b], step.count), to);
            to += (last - first) * bytes;
        }
        if (shared) step.group->collect(mine.span(), all.span(), result_bytes);
        from = shared ? all.data() : mine.data();
        std::vector<typename StepGradients<T>::Part> wholes(bucket.size());
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            if (!step.gets(bucket[b])) continue;
            wholes[b].emplace(step.parameters[bucket[b]]->shape(), step.tape->pool());
            wholes[b]->set_scale(scales[b].scale);
            wholes[b]->set_any_scale(scales[b].any);
        }
        for (std::size_t r = 0; r < size; ++r)
            for (std::size_t b = 0; b < bucket.size(); ++b) {
                if (!shared && r != rank) continue;
                const std::size_t first = begin_of(b, r), last = begin_of(b, r + 1);
                std::vector<float> x(last - first);
                decode_blocks(execution, how, from, first, last, largest.data() + block_at[b], x.data());
                from += x.size() * bytes;
                if (!wholes[b]) continue;
                std::transform(x.begin(), x.end(), wholes[b]->data() + first,
                               [](float number) { return static_cast<T>(static_cast<Accum<T>>(number)); });
            }
        return wholes;
    }

    [[nodiscard]] Remainders& remainders() noexcept { return remainders_; }

private:
    /// The random stream of a micro-batch's codes, and of the sum's, for which `sender` is the number of micro-batches.
    [[nodiscard]] static RandomKey code_key(const StepGradients<T>& step, std::size_t p, std::size_t sender) {
        const ScalingState& state = step.tape->state();
        constexpr std::uint64_t codes = 0xC0DE5;
        return {state.seed(), mix(mix(hash_name(step.parameters[p]->name()), state.step()), mix(codes, sender))};
    }

    [[nodiscard]] Tensor<float>& remainder_of(const StepGradients<T>& step, std::size_t p, std::size_t micro_batch) {
        return remainders_.of(micro_batch, step.parameters[p]->name(), step.parameters[p]->shape());
    }
    /// x += remainder. `unit`: of x, without the seed of the backward pass, which may change from step to step.
    void add_remainder(const StepGradients<T>& step, std::size_t p, std::size_t micro_batch, double unit, float* x) {
        Tensor<float>& left = remainder_of(step, p, micro_batch);
        const double factor = left.scale() / unit;
        left.set_scale(unit);
        for (std::size_t i = 0; i < left.size(); ++i) {
            left.data()[i] = static_cast<float>(static_cast<double>(left.data()[i]) * factor);
            x[i] += left.data()[i];
        }
    }
    /// remainder := x less the numbers of its codes. Blocks that are not finite keep theirs.
    void keep_remainder(const StepGradients<T>& step, const Communication& how, std::size_t p, std::size_t micro_batch,
                        const float* x, const std::byte* codes, const float* largest) {
        Tensor<float>& left = remainder_of(step, p, micro_batch);
        std::vector<float> got(left.size());
        decode_blocks(step.tape->execution(), how, codes, 0, got.size(), largest, got.data());
        for (std::size_t i = 0; i < got.size(); ++i)
            if (got[i] == got[i]) left.data()[i] = x[i] - got[i];
    }

    Remainders remainders_;
};

}  // namespace unitscale::train
