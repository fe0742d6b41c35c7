// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/caches.hpp>
#include <unitscale/base/cpu.hpp>
#include <unitscale/base/crc32.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/base/version.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/products/pair_kernels.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/micro_batch_tree.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace unitscale::train {

/// The facts that decide the bits of a computation beside its inputs: library, compiler, kernels and caches.
[[nodiscard]] inline SharedFact build_fact() {
    std::string text = concatenate("unitscale ", version, ", ");
#ifdef __VERSION__
    text += concatenate("compiler ", __VERSION__, ", ");
#endif
    const products::PairKernel pairs = products::active_pair_kernel();
    return {"build", concatenate(text, "kernels ", name(active_isa()),
                                 pairs == products::PairKernel::matrix ? " and AMX"
                                 : pairs == products::PairKernel::dot  ? " and pairs"
                                                                       : "",
                                 ", caches ", unitscale::text(active_caches()))};
}
/// The whole recipe, as JSON.
[[nodiscard]] inline SharedFact recipe_fact(const Recipe& recipe) {
    return {"recipe", io::recipe_to_json(recipe).dump()};
}

/// Names, shapes and a checksum of the values of all parameters.
template <class T>
[[nodiscard]] std::vector<SharedFact> parameter_facts(std::span<Parameter<T>* const> parameters) {
    std::string shapes;
    std::uint32_t sum = 0;
    for (const Parameter<T>* parameter : parameters) {
        shapes += concatenate(parameter->name(), ' ', shape_text(parameter->shape()), ' ');
        if (parameter->coded_value() != nullptr) continue;  // trained by nobody
        const double scale = parameter->scale();
        sum = crc32(std::as_bytes(std::span(&scale, 1)), sum);
        sum = crc32(std::as_bytes(std::span(parameter->value().data(), parameter->size())), sum);
    }
    return {{"model", std::move(shapes)}, {"start", concatenate("parameters with checksum ", sum)}};
}

/// Adds the micro-batches of a step in one fixed binary tree (`are_siblings`), whichever process computed them:
///   gradient = (g0 + g1) + (g2 + g3), each sum rounded to T once; losses likewise, in double
/// A step therefore has equal bits in 1, 2 or more processes. Process r of R computes micro-batches from k r / R up to
/// k (r + 1) / R. Scales of gradients follow the rule of the recipe in every sum (`scale_of_sum`). A parameter that a
/// micro-batch did not reach adds nothing there.
///
/// Each process is left with the sums of its own nodes. Of these, process r gets its share of every gradient's elements
/// from all, adds it in the rest of the tree, and gives the sums to all. So every process sends and receives about
/// twice the size of the gradients. All processes then have equal gradients, and take equal updates.
///
/// Magnitudes that scales of later steps follow are the largest of all processes (`Magnitudes`).
/// At most log2(k) + 1 gradients of a parameter are held at a time.
///
/// Before its first step the group compares builds, recipes, seeds, steps, parameters, and facts of the caller's own.
/// Errors: facts that differ (`check_same`); more processes than micro-batches; processes that are at different steps.
/// Test: tests/train/tree_reducer_test.cpp
template <class T>
class TreeReducer final : public StepReducer<T> {
public:
    explicit TreeReducer(std::shared_ptr<ProcessGroup> group = std::make_shared<ProcessGroup>(),
                         std::vector<SharedFact> facts = {})
        : group_(std::move(group)), facts_(std::move(facts)) {}

    [[nodiscard]] typename StepReducer<T>::Share begin(Tape<T>& tape, std::span<Parameter<T>* const> parameters,
                                                       std::size_t micro_batches) override {
        const std::size_t size = group_->size(), rank = group_->rank();
        check(size <= micro_batches, "TreeReducer: ", size, " processes for ", micro_batches,
              " micro-batches; expected at least one micro-batch for each process");
        tape_ = &tape;
        count_ = micro_batches;
        if (!std::ranges::equal(parameters, parameters_)) {
            parameters_.assign(parameters.begin(), parameters.end());
            places_.clear();
            for (std::size_t p = 0; p < parameters_.size(); ++p) places_[parameters_[p]] = p;
            sums_.resize(parameters_.size());
        }
        for (auto& sum : sums_) sum.clear();
        losses_.clear();
        own_losses_.clear();
        if (!compared_) compare();
        share_ = share_of(rank);
        return {share_.begin, share_.end};
    }

    void add_gradient(std::size_t micro_batch, Parameter<T>& parameter) override {
        const auto found = places_.find(&parameter);
        if (found == places_.end()) return;  // the optimiser does not train it
        recipe_ = parameter.gradient_recipe();
        Gradient part(std::move(parameter.gradient()));
        parameter.clear_gradient();
        add_part(found->second, micro_batch, std::move(part));
    }

    void add_loss(std::size_t micro_batch, double loss) override {
        own_losses_.push_back(loss);
        for (std::size_t p = 0; p < sums_.size(); ++p)  // parameters that the micro-batch did not reach
            if (sums_[p].nodes().empty() || sums_[p].nodes().back().range.end == micro_batch)
                add_part(p, micro_batch, std::nullopt);
    }

    [[nodiscard]] double finish() override {
        if (group_->size() > 1) {
            share_state();
            join_gradients();
        } else {
            for (std::size_t i = 0; i < count_; ++i) add_loss_of(i, own_losses_[i]);
            for (std::size_t p = 0; p < sums_.size(); ++p)
                if (Gradient& whole = sums_[p].nodes().front().part) give(p, std::move(*whole));
        }
        for (auto& sum : sums_) sum.clear();
        return losses_.nodes().front().part;
    }

    [[nodiscard]] bool writes_files() const noexcept override { return group_->rank() == 0; }

private:
    using Gradient = std::optional<Tensor<T>>;  ///< empty: no micro-batch has reached the parameter
    /// A node's gradient of one parameter, without its data.
    struct Entry {
        double scale = 1.0;
        bool present = false;
        bool any = false;
    };

    [[nodiscard]] MicroBatchRange share_of(std::size_t rank) const noexcept {
        return {count_ * rank / group_->size(), count_ * (rank + 1) / group_->size()};
    }

    void compare() {
        std::vector<SharedFact> facts = {
            build_fact(), recipe_fact(tape_->recipe()), {"seed", concatenate(tape_->state().seed())}};
        facts.insert(facts.end(), facts_.begin(), facts_.end());
        facts.emplace_back("step", concatenate(tape_->state().step()));
        for (SharedFact& fact : parameter_facts<T>(parameters_)) facts.push_back(std::move(fact));
        check_same(*group_, facts);
        compared_ = true;
    }

    [[nodiscard]] ScaleRounding rounding() const {
        return tape_->propagates() ? tape_->recipe().propagate.rounding : ScaleRounding::down;
    }
    /// A uniform word for the scale of a node's sum, under `stochastic`.
    [[nodiscard]] std::uint32_t scale_word(std::size_t p, MicroBatchRange node) const {
        if (rounding() != ScaleRounding::stochastic) return 0;
        const ScalingState& state = tape_->state();
        const std::uint64_t place = mix(hash_name(parameters_[p]->name()), state.step());
        return random_word({state.seed(), mix(place, mix(node.begin, node.end))}, 0);
    }

    void add_part(std::size_t p, std::size_t micro_batch, Gradient&& part) {
        sums_[p].add({micro_batch, micro_batch + 1}, std::move(part), count_,
                     [&](Gradient& left, Gradient&& right, MicroBatchRange node) {
                         if (!right) return;
                         if (!left) left = std::move(right);
                         else add_scaled_tensor(tape_->execution(), *left, *right, rounding(), scale_word(p, node));
                         right.reset();  // gives its memory back
                     });
    }
    void add_loss_of(std::size_t micro_batch, double loss) {
        losses_.add({micro_batch, micro_batch + 1}, std::move(loss), count_,
                    [](double& left, double&& right, MicroBatchRange) { left += right; });
    }

    /// Gives a parameter the gradient of the whole step.
    void give(std::size_t p, Tensor<T>&& gradient) {
        parameters_[p]->add_gradient(std::move(gradient));
        parameters_[p]->set_gradient_recipe(recipe_);
    }

    /// Tells all processes the losses of this one, its nodes' entries, and the magnitudes that it has measured.
    void share_state() {
        std::vector<std::byte> mine;
        const auto put = [&](const auto& value) {
            static_assert(std::is_trivially_copyable_v<std::remove_cvref_t<decltype(value)>>);
            const auto bytes = std::as_bytes(std::span(&value, 1));
            mine.insert(mine.end(), bytes.begin(), bytes.end());
        };
        put(static_cast<std::uint64_t>(count_));
        put(tape_->state().step());
        for (const double loss : own_losses_) put(loss);
        for (auto& sum : sums_)
            for (const auto& node : sum.nodes())
                put(node.part ? Entry{node.part->scale(), true, node.part->any_scale()} : Entry{});
        tape_->state().for_each_magnitude(
            [&](const std::string& path, std::size_t place, float largest, std::size_t history) {
                put(static_cast<std::uint64_t>(path.size()));
                const auto letters = std::as_bytes(std::span(path));
                mine.insert(mine.end(), letters.begin(), letters.end());
                put(static_cast<std::uint64_t>(place));
                put(largest);
                put(static_cast<std::uint64_t>(history));
            });

        const auto parts = group_->gather(mine);
        nodes_.clear();
        for (std::size_t rank = 0; rank < parts.size(); ++rank) {
            std::span<const std::byte> rest = parts[rank];
            const auto take = [&]<class V>(V value) {
                check(rest.size() >= sizeof value, "TreeReducer: rank ", rank, " has sent too little");
                std::memcpy(&value, rest.data(), sizeof value);
                rest = rest.subspan(sizeof value);
                return value;
            };
            const auto count = take(std::uint64_t{}), step = take(std::uint64_t{});
            check(count == count_ && step == tape_->state().step(), "TreeReducer: rank ", rank, " is at step ", step,
                  " with ", count, " micro-batches, rank ", group_->rank(), " at step ", tape_->state().step(),
                  " with ", count_);
            const MicroBatchRange share = share_of(rank);
            for (std::size_t i = share.begin; i < share.end; ++i) add_loss_of(i, take(0.0));
            const std::size_t first = nodes_.size();
            for (const MicroBatchRange range : nodes_of(share, count_))
                nodes_.push_back({rank, range, std::vector<Entry>(sums_.size())});
            for (std::size_t p = 0; p < sums_.size(); ++p)
                for (std::size_t n = first; n < nodes_.size(); ++n) nodes_[n].entries[p] = take(Entry{});
            while (!rest.empty()) {
                std::string path(take(std::uint64_t{}), ' ');
                check(rest.size() >= path.size(), "TreeReducer: rank ", rank, " has sent too little");
                std::memcpy(path.data(), rest.data(), path.size());
                rest = rest.subspan(path.size());
                const auto place = take(std::uint64_t{});
                const float largest = take(0.0f);
                const auto history = take(std::uint64_t{});
                tape_->state().raise_magnitude(path, place, largest, history);
            }
        }
    }

    /// Adds the gradients of all processes, some parameters at a time.
    void join_gradients() {
        std::vector<std::size_t> bucket;
        std::size_t elements = 0;
        for (std::size_t p = 0; p < sums_.size(); ++p) {
            const bool reached = std::ranges::any_of(nodes_, [p](const auto& node) { return node.entries[p].present; });
            if (!reached) continue;
            bucket.push_back(p);
            elements += parameters_[p]->size();
            if (elements < bucket_elements) continue;
            join_bucket(bucket);
            bucket.clear();
            elements = 0;
        }
        if (!bucket.empty()) join_bucket(bucket);
    }

    /// Elements of parameter p whose sums process `rank` computes: from here up to the bound of the next process.
    [[nodiscard]] std::size_t bound(std::size_t p, std::size_t rank) const noexcept {
        return parameters_[p]->size() * rank / group_->size();
    }

    void join_bucket(std::span<const std::size_t> bucket) {
        const std::size_t size = group_->size(), rank = group_->rank();
        // Elements that process `from` sends to process `to`, and that process `to` computes.
        const auto sent = [&](std::size_t from, std::size_t to) {
            std::size_t count = 0;
            for (const auto& node : nodes_)
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
        Scratch<T> send(tape_->execution(), send_count), receive(tape_->execution(), receive_count),
            results(tape_->execution(), result_count), own(tape_->execution(), result_bytes[rank] / sizeof(T));

        T* to = send.data();
        for (std::size_t r = 0; r < size; ++r)
            for (std::size_t n = 0; n < nodes_of(share_, count_).size(); ++n)
                for (const std::size_t p : bucket)
                    if (const Gradient& part = sums_[p].nodes()[n].part)
                        to = std::copy(part->data() + bound(p, r), part->data() + bound(p, r + 1), to);
        group_->exchange(bytes_of(send), send_bytes, bytes_of(receive), receive_bytes);

        // The received parts of a parameter, a part for each node that has one.
        std::vector<std::vector<T*>> parts(nodes_.size(), std::vector<T*>(bucket.size()));
        T* from = receive.data();
        for (std::size_t n = 0; n < nodes_.size(); ++n)
            for (std::size_t b = 0; b < bucket.size(); ++b) {
                if (!nodes_[n].entries[bucket[b]].present) continue;
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
            for (std::size_t n = 0; n < nodes_.size(); ++n)
                sum.add(nodes_[n].range, {parts[n][b], {nodes_[n].entries[p].scale, nodes_[n].entries[p].any}}, count_,
                        [&](Part& left, Part&& right, MicroBatchRange node) {
                            if (right.data == nullptr) return;
                            if (left.data == nullptr) {
                                left = right;
                                return;
                            }
                            const CarriedScale whole =
                                scale_of_sum(left.scale, right.scale, rounding(), scale_word(p, node));
                            add_scaled_elements(tape_->execution(), left.data, std::as_const(right.data), elements,
                                                left.scale.scale / whole.scale, right.scale.scale / whole.scale);
                            left.scale = whole;
                        });
            const Part& whole = sum.nodes().front().part;
            scales.push_back(whole.scale);
            to = std::copy(whole.data, whole.data + elements, to);
        }
        group_->collect(bytes_of(own), bytes_of(results), result_bytes);

        std::vector<Tensor<T>> wholes;
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            wholes.emplace_back(parameters_[bucket[b]]->shape(), tape_->pool());
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
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            sums_[bucket[b]].clear();
            give(bucket[b], std::move(wholes[b]));
        }
    }
    [[nodiscard]] static std::span<std::byte> bytes_of(Scratch<T>& numbers) noexcept {
        return std::as_writable_bytes(numbers.span());
    }

    /// Elements of gradients that are sent at a time: few sends, and little memory beside the gradients.
    static constexpr std::size_t bucket_elements = std::size_t{1} << 22;

    struct SentNode {
        std::size_t rank;
        MicroBatchRange range;
        std::vector<Entry> entries;  ///< by parameter
    };

    std::shared_ptr<ProcessGroup> group_;
    std::vector<SharedFact> facts_;
    bool compared_ = false;
    Tape<T>* tape_ = nullptr;
    std::size_t count_ = 0;
    MicroBatchRange share_{0, 0};
    std::vector<Parameter<T>*> parameters_{};
    std::unordered_map<const Parameter<T>*, std::size_t> places_{};
    std::vector<TreeSum<Gradient>> sums_{};  ///< by parameter, of this process
    std::vector<double> own_losses_{};
    TreeSum<double> losses_{};
    std::vector<SentNode> nodes_{};  ///< of all processes, from left to right
    std::shared_ptr<const Recipe> recipe_{};
};

}  // namespace unitscale::train
