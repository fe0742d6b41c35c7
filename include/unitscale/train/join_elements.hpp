// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/backward.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/micro_batch_tree.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/step_gradients.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace unitscale::train {

/// When the processes know which micro-batches have reached the parameters of an ElementJoin.
enum class JoinTime {
    at_end,  ///< before the join: only gradients that exist are sent
    early,  ///< by the join: a message begins with its sender's entries, and holds zeros for gradients that are missing
};

/// Adds the gradients of all processes for some parameters, in three parts, so that a process may work between them.
/// Process r of R adds elements n r / R up to n (r + 1) / R of each gradient in the tree over micro-batches, and gives
/// the sums to all. Where parameters have owners, the owner adds a whole gradient, and it alone has the sum.
/// Every process makes its joins in the same order, of equal parameters. The constructor takes this process's gradients
/// and sends them; other processes' parts arrive while the process does other work.
/// Test: tests/train/join_elements_test.cpp
template <class T>
class ElementJoin {
public:
    using Part = typename StepGradients<T>::Part;

    ElementJoin(StepGradients<T>& step, std::vector<std::size_t> bucket, JoinTime time)
        : step_(step), bucket_(std::move(bucket)), early_(time == JoinTime::early) {
        const std::size_t size = step.group->size(), rank = step.group->rank();
        std::vector<std::size_t> send_bytes(size, 0), receive_bytes(size, 0);
        for (const ProcessNode& node : step.nodes) {
            receive_bytes[node.rank] += message_bytes(node, rank);
            for (std::size_t r = 0; node.rank == rank && r < size; ++r) send_bytes[r] += message_bytes(node, r);
        }
        buffers_ = std::make_unique<Buffers>(step.tape->execution(), sum_of(send_bytes), sum_of(receive_bytes));
        std::byte* to = buffers_->send.data();
        for (std::size_t r = 0; r < size; ++r) to = pack(r, to);
        for (const std::size_t p : bucket_)
            for (auto& node : step.sums[p].nodes()) node.part.reset();  // gives its memory back
        buffers_->exchange =
            step.group->begin_exchange(buffers_->send.span(), send_bytes, buffers_->receive.span(), receive_bytes);
        step.count_sent(send_bytes, own_elements(rank) * sizeof(T));
    }
    ElementJoin(const ElementJoin&) = delete;
    ElementJoin& operator=(const ElementJoin&) = delete;
    /// Memory that the exchange still uses is never given back: the process is ending by an error.
    ~ElementJoin();

    [[nodiscard]] std::span<const std::size_t> bucket() const noexcept { return bucket_; }

    /// Adds what has arrived, if everything has.
    void progress() {
        if (buffers_ != nullptr && buffers_->exchange->is_done()) add();
    }

    /// Waits for the parts of all processes, and returns the sums in the order of the parameters: those that this
    /// process gets, of parameters that some micro-batch has reached.
    [[nodiscard]] std::vector<Part> sums() {
        if (buffers_ != nullptr) {
            buffers_->exchange->wait();
            add();
        }
        std::vector<Part> wholes(bucket_.size());
        for (std::size_t b = 0; b < bucket_.size(); ++b) {
            if (!scales_[b] || !step_.gets(bucket_[b])) continue;
            wholes[b].emplace(step_.parameters[bucket_[b]]->shape(), step_.tape->pool());
            wholes[b]->set_scale(scales_[b]->scale);
            wholes[b]->set_any_scale(scales_[b]->any);
        }
        const std::size_t size = step_.group->size(), rank = step_.group->rank();
        const auto take = [&](std::size_t r, const T* sums) {
            for (std::size_t b = 0; b < bucket_.size(); ++b) {
                if (wholes[b]) std::copy_n(sums, elements(b, r), wholes[b]->data() + begin(b, r));
                sums += elements(b, r);
            }
            return sums;
        };
        if (step_.owners.empty()) {
            std::vector<std::size_t> bytes(size);
            for (std::size_t r = 0; r < size; ++r) bytes[r] = own_elements(r) * sizeof(T);
            Scratch<T> all(step_.tape->execution(), sum_of(bytes) / sizeof(T));
            step_.group->collect(std::as_bytes(own_->span()), std::as_writable_bytes(all.span()), bytes);
            const T* sums = all.data();
            for (std::size_t r = 0; r < size; ++r) sums = take(r, sums);
        } else {
            take(rank, own_->data());
        }
        own_.reset();
        return wholes;
    }

private:
    struct Buffers {
        Buffers(const Execution& execution, std::size_t send_bytes, std::size_t receive_bytes)
            : send(execution, send_bytes), receive(execution, receive_bytes) {}
        Scratch<std::byte> send, receive;
        std::unique_ptr<PendingExchange> exchange{};
    };

    [[nodiscard]] static std::size_t sum_of(std::span<const std::size_t> numbers) {
        return std::accumulate(numbers.begin(), numbers.end(), std::size_t{0});
    }
    /// The first element of parameter b whose sum process r computes, and their number.
    [[nodiscard]] std::size_t begin(std::size_t b, std::size_t r) const {
        const std::size_t all = step_.parameters[bucket_[b]]->size();
        return step_.part_begin(bucket_[b], r, all * r / step_.group->size());
    }
    [[nodiscard]] std::size_t elements(std::size_t b, std::size_t r) const { return begin(b, r + 1) - begin(b, r); }
    [[nodiscard]] std::size_t own_elements(std::size_t r) const {
        std::size_t count = 0;
        for (std::size_t b = 0; b < bucket_.size(); ++b) count += elements(b, r);
        return count;
    }
    /// Bytes of a node in the message to process `to`.
    [[nodiscard]] std::size_t message_bytes(const ProcessNode& node, std::size_t to) const {
        std::size_t bytes = 0;
        for (std::size_t b = 0; b < bucket_.size(); ++b) {
            if (early_) bytes += sizeof(NodeEntry);
            if (early_ || node.entries[bucket_[b]].present) bytes += elements(b, to) * sizeof(T);
        }
        return bytes;
    }

    /// Writes the message to process r. Returns its end.
    std::byte* pack(std::size_t r, std::byte* to) const {
        const auto put = [&to](const void* data, std::size_t bytes) {
            std::memcpy(to, data, bytes);
            to += bytes;
        };
        const std::size_t nodes = step_.sums[bucket_.front()].nodes().size();
        for (std::size_t n = 0; early_ && n < nodes; ++n)
            for (const std::size_t p : bucket_) {
                const NodeEntry entry = step_.entry(p, n);
                put(&entry, sizeof entry);
            }
        for (std::size_t n = 0; n < nodes; ++n)
            for (std::size_t b = 0; b < bucket_.size(); ++b) {
                const std::size_t bytes = elements(b, r) * sizeof(T);
                if (const Part& part = step_.sums[bucket_[b]].nodes()[n].part) put(part->data() + begin(b, r), bytes);
                else if (early_) to = std::fill_n(to, bytes, std::byte{0});
            }
        return to;
    }

    /// Adds the parts that have arrived.
    void add() {
        const std::size_t rank = step_.group->rank();
        std::byte* from = buffers_->receive.data();
        std::vector<std::vector<T*>> parts(step_.nodes.size(), std::vector<T*>(bucket_.size()));  // null: none
        for (std::size_t n = 0; n < step_.nodes.size();) {
            const std::size_t first = n, sender = step_.nodes[n].rank;
            while (n < step_.nodes.size() && step_.nodes[n].rank == sender) ++n;
            for (std::size_t i = first; early_ && i < n; ++i)
                for (const std::size_t p : bucket_) {
                    std::memcpy(&step_.nodes[i].entries[p], from, sizeof(NodeEntry));
                    from += sizeof(NodeEntry);
                }
            for (std::size_t i = first; i < n; ++i)
                for (std::size_t b = 0; b < bucket_.size(); ++b) {
                    const bool present = step_.nodes[i].entries[bucket_[b]].present;
                    if (present) parts[i][b] = reinterpret_cast<T*>(from);
                    if (early_ || present) from += elements(b, rank) * sizeof(T);
                }
        }
        own_.emplace(step_.tape->execution(), own_elements(rank));
        T* to = own_->data();
        for (std::size_t b = 0; b < bucket_.size(); ++b) {
            const std::size_t p = bucket_[b], count = elements(b, rank);
            struct Sum {
                T* data;
                CarriedScale scale;
            };
            TreeSum<Sum> sum;
            for (std::size_t n = 0; n < step_.nodes.size(); ++n)
                sum.add(step_.nodes[n].range,
                        {parts[n][b], {step_.nodes[n].entries[p].scale, step_.nodes[n].entries[p].any}}, step_.count,
                        [&](Sum& left, Sum&& right, MicroBatchRange node) {
                            if (right.data == nullptr) return;
                            if (left.data == nullptr) {
                                left = right;
                                return;
                            }
                            const CarriedScale whole =
                                scale_of_sum(left.scale, right.scale, step_.rounding(), step_.scale_word(p, node));
                            add_scaled_elements(step_.tape->execution(), left.data, std::as_const(right.data), count,
                                                left.scale.scale / whole.scale, right.scale.scale / whole.scale);
                            left.scale = whole;
                        });
            const Sum& whole = sum.nodes().front().part;
            scales_.push_back(whole.data == nullptr ? std::nullopt : std::optional(whole.scale));
            if (whole.data != nullptr) std::copy_n(whole.data, count, to);
            to += count;
        }
        buffers_.reset();
    }

    StepGradients<T>& step_;
    std::vector<std::size_t> bucket_;
    bool early_;
    std::unique_ptr<Buffers> buffers_{};                 ///< until the parts are added
    std::optional<Scratch<T>> own_{};                    ///< the sums that this process has computed
    std::vector<std::optional<CarriedScale>> scales_{};  ///< of the sums; empty: reached by no micro-batch
};

template <class T>  // out of the class, so that users of unitscale::compiled do not compile it
ElementJoin<T>::~ElementJoin() {
    if (buffers_ != nullptr && !buffers_->exchange->is_done()) static_cast<void>(buffers_.release());
}

}  // namespace unitscale::train
