// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/scaling/communication.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/join_codes.hpp>
#include <unitscale/train/join_elements.hpp>
#include <unitscale/train/micro_batch_tree.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/shared_facts.hpp>
#include <unitscale/train/step.hpp>
#include <unitscale/train/step_gradients.hpp>

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
/// Under a recipe's `communication` each micro-batch is a worker, whose gradients travel as codes (`Communication`). A
/// process then sends a part for each of its micro-batches, and keeps their gradients until the step ends. A block of
/// a gradient that is not finite in one of them becomes NaN. The remainders of error feedback are in memory alone: a
/// run that is resumed begins without them.
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
                                                       std::size_t micro_batches, double seed) override {
        const std::size_t size = group_->size(), rank = group_->rank();
        check(size <= micro_batches, "TreeReducer: ", size, " processes for ", micro_batches,
              " micro-batches; expected at least one micro-batch for each process");
        step_.group = group_.get();
        step_.tape = &tape;
        if (micro_batches != step_.count) join_codes_.forget();  // other processes hold them now
        step_.count = micro_batches;
        seed_ = seed;
        step_.sent_bytes = 0;
        if (!std::ranges::equal(parameters, step_.parameters)) {
            step_.parameters.assign(parameters.begin(), parameters.end());
            places_.clear();
            for (std::size_t p = 0; p < step_.parameters.size(); ++p) places_[step_.parameters[p]] = p;
            step_.sums.resize(step_.parameters.size());
            join_codes_.forget();
        }
        for (auto& sum : step_.sums) sum.clear();
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
        for (std::size_t p = 0; p < step_.sums.size(); ++p)  // parameters that the micro-batch did not reach
            if (step_.sums[p].nodes().empty() || step_.sums[p].nodes().back().range.end == micro_batch)
                add_part(p, micro_batch, std::nullopt);
    }

    [[nodiscard]] double finish() override {
        if (group_->size() > 1 || rule() != nullptr) {
            share_state();
            join_gradients();
        } else {
            for (std::size_t i = 0; i < step_.count; ++i) add_loss_of(i, own_losses_[i]);
            for (std::size_t p = 0; p < step_.sums.size(); ++p)
                if (Gradient& whole = step_.sums[p].nodes().front().part) give(p, std::move(*whole));
        }
        for (auto& sum : step_.sums) sum.clear();
        return losses_.nodes().front().part;
    }

    [[nodiscard]] bool writes_files() const noexcept override { return group_->rank() == 0; }

    /// Bytes of gradients that this process has sent to others in the last step: parts of its nodes or micro-batches,
    /// and the sums of its own part to each.
    [[nodiscard]] std::size_t sent_bytes() const noexcept { return step_.sent_bytes; }

private:
    using Gradient = typename StepGradients<T>::Part;

    [[nodiscard]] MicroBatchRange share_of(std::size_t rank) const noexcept {
        return {step_.count * rank / group_->size(), step_.count * (rank + 1) / group_->size()};
    }

    /// The rule of gradients that travel as codes; null: they travel as they are.
    [[nodiscard]] const Communication* rule() const noexcept {
        const auto& how = step_.tape->recipe().communication;
        return how ? &*how : nullptr;
    }
    /// The nodes with which a process that holds these micro-batches ends.
    [[nodiscard]] std::vector<MicroBatchRange> ends_with(MicroBatchRange share) const {
        if (rule() == nullptr) return nodes_of(share, step_.count);
        std::vector<MicroBatchRange> each;
        for (std::size_t i = share.begin; i < share.end; ++i) each.push_back({i, i + 1});
        return each;
    }

    void compare() {
        std::vector<SharedFact> facts = {
            build_fact(), recipe_fact(step_.tape->recipe()), {"seed", concatenate(step_.tape->state().seed())}};
        facts.insert(facts.end(), facts_.begin(), facts_.end());
        facts.emplace_back("step", concatenate(step_.tape->state().step()));
        for (SharedFact& fact : parameter_facts<T>(step_.parameters)) facts.push_back(std::move(fact));
        check_same(*group_, facts);
        compared_ = true;
    }

    void add_part(std::size_t p, std::size_t micro_batch, Gradient&& part) {
        if (rule() != nullptr) return step_.sums[p].append({micro_batch, micro_batch + 1}, std::move(part));
        step_.sums[p].add({micro_batch, micro_batch + 1}, std::move(part), step_.count,
                          [&](Gradient& left, Gradient&& right, MicroBatchRange node) {
                              if (!right) return;
                              if (!left) left = std::move(right);
                              else
                                  add_scaled_tensor(step_.tape->execution(), *left, *right, step_.rounding(),
                                                    step_.scale_word(p, node));
                              right.reset();  // gives its memory back
                          });
    }
    void add_loss_of(std::size_t micro_batch, double loss) {
        losses_.add({micro_batch, micro_batch + 1}, std::move(loss), step_.count,
                    [](double& left, double&& right, MicroBatchRange) { left += right; });
    }

    /// Gives a parameter the gradient of the whole step.
    void give(std::size_t p, Tensor<T>&& gradient) {
        step_.parameters[p]->add_gradient(std::move(gradient));
        step_.parameters[p]->set_gradient_recipe(recipe_);
        if (rule() != nullptr) step_.parameters[p]->mark(GradientStep::communicate);
    }

    /// Tells all processes the losses of this one, its nodes' entries, and the magnitudes that it has measured.
    void share_state() {
        std::vector<std::byte> mine;
        const auto put = [&](const auto& value) {
            static_assert(std::is_trivially_copyable_v<std::remove_cvref_t<decltype(value)>>);
            const auto bytes = std::as_bytes(std::span(&value, 1));
            mine.insert(mine.end(), bytes.begin(), bytes.end());
        };
        put(static_cast<std::uint64_t>(step_.count));
        put(step_.tape->state().step());
        for (const double loss : own_losses_) put(loss);
        for (auto& sum : step_.sums)
            for (const auto& node : sum.nodes())
                put(node.part ? NodeEntry{node.part->scale(), true, node.part->any_scale()} : NodeEntry{});
        step_.tape->state().for_each_magnitude(
            [&](const std::string& path, std::size_t place, float largest, std::size_t history) {
                put(static_cast<std::uint64_t>(path.size()));
                const auto letters = std::as_bytes(std::span(path));
                mine.insert(mine.end(), letters.begin(), letters.end());
                put(static_cast<std::uint64_t>(place));
                put(largest);
                put(static_cast<std::uint64_t>(history));
            });

        const auto parts = group_->gather(mine);
        step_.nodes.clear();
        for (std::size_t rank = 0; rank < parts.size(); ++rank) {
            std::span<const std::byte> rest = parts[rank];
            const auto take = [&]<class V>(V value) {
                check(rest.size() >= sizeof value, "TreeReducer: rank ", rank, " has sent too little");
                std::memcpy(&value, rest.data(), sizeof value);
                rest = rest.subspan(sizeof value);
                return value;
            };
            const auto count = take(std::uint64_t{}), step = take(std::uint64_t{});
            check(count == step_.count && step == step_.tape->state().step(), "TreeReducer: rank ", rank,
                  " is at step ", step, " with ", count, " micro-batches, rank ", group_->rank(), " at step ",
                  step_.tape->state().step(), " with ", step_.count);
            const MicroBatchRange share = share_of(rank);
            for (std::size_t i = share.begin; i < share.end; ++i) add_loss_of(i, take(0.0));
            const std::size_t first = step_.nodes.size();
            for (const MicroBatchRange range : ends_with(share))
                step_.nodes.push_back({rank, range, std::vector<NodeEntry>(step_.sums.size())});
            for (std::size_t p = 0; p < step_.sums.size(); ++p)
                for (std::size_t n = first; n < step_.nodes.size(); ++n) step_.nodes[n].entries[p] = take(NodeEntry{});
            while (!rest.empty()) {
                std::string path(take(std::uint64_t{}), ' ');
                check(rest.size() >= path.size(), "TreeReducer: rank ", rank, " has sent too little");
                std::memcpy(path.data(), rest.data(), path.size());
                rest = rest.subspan(path.size());
                const auto place = take(std::uint64_t{});
                const float largest = take(0.0f);
                const auto history = take(std::uint64_t{});
                step_.tape->state().raise_magnitude(path, place, largest, history);
            }
        }
    }

    /// Adds the gradients of all processes, some parameters at a time.
    void join_gradients() {
        std::vector<std::size_t> bucket;
        std::size_t elements = 0;
        for (std::size_t p = 0; p < step_.sums.size(); ++p) {
            const bool reached =
                std::ranges::any_of(step_.nodes, [p](const auto& node) { return node.entries[p].present; });
            if (!reached) continue;
            bucket.push_back(p);
            elements += step_.parameters[p]->size();
            if (elements < bucket_elements) continue;
            join(bucket);
            bucket.clear();
            elements = 0;
        }
        if (!bucket.empty()) join(bucket);
    }
    void join(std::span<const std::size_t> bucket) {
        std::vector<Tensor<T>> wholes =
            rule() != nullptr ? join_codes_(step_, bucket, *rule(), seed_) : join_elements(step_, bucket);
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            step_.sums[bucket[b]].clear();
            give(bucket[b], std::move(wholes[b]));
        }
    }

    /// Elements of gradients that are sent at a time: few sends, and little memory beside the gradients.
    static constexpr std::size_t bucket_elements = std::size_t{1} << 22;

    std::shared_ptr<ProcessGroup> group_;
    std::vector<SharedFact> facts_;
    bool compared_ = false;
    MicroBatchRange share_{0, 0};
    double seed_ = 1.0;
    StepGradients<T> step_{};
    std::unordered_map<const Parameter<T>*, std::size_t> places_{};  ///< of the parameters in step_
    std::vector<double> own_losses_{};
    TreeSum<double> losses_{};
    JoinCodes<T> join_codes_{};
    std::shared_ptr<const Recipe> recipe_{};
};

}  // namespace unitscale::train
