// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/scaling/communication.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/early_joins.hpp>
#include <unitscale/train/join_codes.hpp>
#include <unitscale/train/join_elements.hpp>
#include <unitscale/train/micro_batch_tree.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/remainders.hpp>
#include <unitscale/train/sharding.hpp>
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

struct TreeReducerOptions {
    Sharding sharding = Sharding::none;
    /// Gradients are sent while the last micro-batch's backward pass goes on. It changes no bit. Gradients that travel
    /// as codes wait for the end of the step.
    bool overlap = false;
    /// Elements of gradients that are sent at a time: few sends, and little memory beside the gradients.
    std::size_t bucket_elements = std::size_t{1} << 22;
};

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
/// Where processes share state (`Sharding`), each updates the parameters that it owns (`owners_of`), and gives their
/// values to all. Under `gradients` the owner adds a parameter's whole gradient, and no other process gets the sum. A
/// step's bits stay: norms of gradients are added in the order of parameters, as in one process. Every process must
/// call `Trainer::save` then.
///
/// Under a recipe's `communication` each micro-batch is a worker, whose gradients travel as codes (`Communication`). A
/// process then sends a part for each of its micro-batches, and keeps their gradients until the step ends. A block of
/// a gradient that is not finite in one of them becomes NaN. With error feedback each process holds the remainders of
/// its own micro-batches, and every process must call `Trainer::save`.
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
                         std::vector<SharedFact> facts = {}, const TreeReducerOptions& options = {});
    ~TreeReducer() override;

    [[nodiscard]] typename StepReducer<T>::Share begin(Tape<T>& tape, std::span<Parameter<T>* const> parameters,
                                                       std::size_t micro_batches, double seed) override {
        const std::size_t size = group_->size(), rank = group_->rank();
        check(size <= micro_batches, "TreeReducer: ", size, " processes for ", micro_batches,
              " micro-batches; expected at least one micro-batch for each process");
        step_.group = group_.get();
        step_.tape = &tape;
        join_codes_.remainders().begin(micro_batches);
        step_.count = micro_batches;
        seed_ = seed;
        step_.sent_bytes = 0;
        if (!std::ranges::equal(parameters, step_.parameters)) {
            if (!step_.parameters.empty()) join_codes_.remainders().forget();
            step_.parameters.assign(parameters.begin(), parameters.end());
            places_.clear();
            for (std::size_t p = 0; p < step_.parameters.size(); ++p) places_[step_.parameters[p]] = p;
            step_.sums.resize(step_.parameters.size());
            owners_ = owners_of(sizes_of(parameters), size);
            if (options_.sharding == Sharding::gradients) step_.owners = owners_;
        }
        for (auto& sum : step_.sums) sum.clear();
        losses_.clear();
        own_losses_.clear();
        reached_.assign(parameters.size(), false);
        if (!compared_) compare();
        if (size > 1) check_same_step();
        step_.nodes.clear();
        for (std::size_t r = 0; r < size; ++r)
            for (const MicroBatchRange range : ends_with(share_of(micro_batches, r, size)))
                step_.nodes.push_back({r, range, std::vector<NodeEntry>(step_.sums.size())});
        share_ = share_of(micro_batches, rank, size);
        if (joins_early()) early_joins_.begin(step_, options_.bucket_elements);
        return {share_.begin, share_.end};
    }

    void add_gradient(std::size_t micro_batch, Parameter<T>& parameter) override {
        const auto found = places_.find(&parameter);
        if (found == places_.end()) return;  // the optimiser does not train it
        recipe_ = parameter.gradient_recipe();
        Gradient part(std::move(parameter.gradient()));
        parameter.clear_gradient();
        add_part(found->second, micro_batch, std::move(part));
        if (!joins_early()) return;
        if (micro_batch + 1 == share_.end) early_joins_.complete(found->second);
        early_joins_.progress();
    }

    void add_loss(std::size_t micro_batch, double loss) override {
        own_losses_.push_back(loss);
        for (std::size_t p = 0; p < step_.sums.size(); ++p)  // parameters that the micro-batch did not reach
            if (step_.sums[p].nodes().empty() || step_.sums[p].nodes().back().range.end == micro_batch)
                add_part(p, micro_batch, std::nullopt);
        if (joins_early() && micro_batch + 1 == share_.end) early_joins_.complete_all();
    }

    [[nodiscard]] double finish() override {
        if (group_->size() > 1 || rule() != nullptr) {
            share_state();
            if (joins_early())
                early_joins_.end([this](auto bucket, auto&& sums) { take_sums(bucket, std::move(sums)); });
            else join_gradients();
        } else {
            for (std::size_t i = 0; i < step_.count; ++i) add_loss_of(i, own_losses_[i]);
            for (std::size_t p = 0; p < step_.sums.size(); ++p)
                if (Gradient& whole = step_.sums[p].nodes().front().part) give(p, std::move(*whole));
        }
        for (auto& sum : step_.sums) sum.clear();
        return losses_.nodes().front().part;
    }

    [[nodiscard]] std::vector<bool> owned(std::span<Parameter<T>* const> parameters) const override {
        if (!shares_state()) return {};
        const auto owners = owners_of(sizes_of(parameters), group_->size());
        std::vector<bool> own;
        for (const std::size_t owner : owners) own.push_back(owner == group_->rank());
        return own;
    }
    void sum(std::span<double> numbers) override {
        if (options_.sharding == Sharding::gradients) group_->sum(numbers);
    }
    void share_values() override {
        if (!shares_state()) return;
        std::vector<Parameter<T>*> updated;
        std::vector<std::size_t> owners;
        for (std::size_t p = 0; p < step_.parameters.size(); ++p) {
            if (!reached_[p] || !step_.parameters[p]->requires_gradient()) continue;
            updated.push_back(step_.parameters[p]);
            owners.push_back(owners_[p]);
        }
        step_.sent_bytes +=
            train::share_values<T>(*group_, step_.tape->execution(), updated, owners, options_.bucket_elements);
    }
    [[nodiscard]] ProcessGroup* state_group(const Recipe& recipe) const noexcept override {
        const bool feeds_back = recipe.communication && recipe.communication->error_feedback;
        return shares_state() || (feeds_back && group_->size() > 1) ? group_.get() : nullptr;
    }
    [[nodiscard]] Remainders* remainders() noexcept override { return &join_codes_.remainders(); }
    [[nodiscard]] bool writes_files() const noexcept override { return group_->rank() == 0; }

    /// Bytes of gradients that this process has sent to others in the last step: parts of its nodes or micro-batches,
    /// and the sums of its own part to each. Where processes share state, values that it has sent are counted too.
    [[nodiscard]] std::size_t sent_bytes() const noexcept { return step_.sent_bytes; }

private:
    using Gradient = typename StepGradients<T>::Part;

    [[nodiscard]] bool shares_state() const noexcept {
        return options_.sharding != Sharding::none && group_->size() > 1;
    }
    [[nodiscard]] bool joins_early() const noexcept {
        return options_.overlap && group_->size() > 1 && rule() == nullptr;
    }
    [[nodiscard]] static std::vector<std::size_t> sizes_of(std::span<Parameter<T>* const> parameters) {
        std::vector<std::size_t> sizes;
        for (const Parameter<T>* parameter : parameters) sizes.push_back(parameter->size());
        return sizes;
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
        facts.emplace_back("sharding", name(options_.sharding));
        facts.emplace_back("overlap", concatenate(options_.overlap, " by ", options_.bucket_elements));
        for (SharedFact& fact : parameter_facts<T>(step_.parameters)) facts.push_back(std::move(fact));
        check_same(*group_, facts);
        compared_ = true;
    }

    /// Error: other processes take another step, or divide it otherwise.
    void check_same_step() {
        const std::uint64_t mine[2] = {step_.count, step_.tape->state().step() + 1};
        std::vector<std::uint64_t> all(2 * group_->size());
        group_->collect(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)),
                        std::vector<std::size_t>(group_->size(), sizeof mine));
        for (std::size_t rank = 0; rank < group_->size(); ++rank)
            check(all[2 * rank] == mine[0] && all[2 * rank + 1] == mine[1], "TreeReducer: rank ", rank, " is at step ",
                  all[2 * rank + 1], " with ", all[2 * rank], " micro-batches, rank ", group_->rank(), " at step ",
                  mine[1], " with ", mine[0]);
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

    /// Tells all processes the losses of this one, the magnitudes that it has measured, and its nodes' entries, which
    /// early joins send themselves.
    void share_state() {
        std::vector<std::byte> mine;
        const auto put = [&](const auto& value) {
            static_assert(std::is_trivially_copyable_v<std::remove_cvref_t<decltype(value)>>);
            const auto bytes = std::as_bytes(std::span(&value, 1));
            mine.insert(mine.end(), bytes.begin(), bytes.end());
        };
        for (const double loss : own_losses_) put(loss);
        for (std::size_t p = 0; !joins_early() && p < step_.sums.size(); ++p)
            for (std::size_t n = 0; n < step_.sums[p].nodes().size(); ++n) put(step_.entry(p, n));
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
        auto nodes = step_.nodes.begin();  // of the process
        for (std::size_t rank = 0; rank < parts.size(); ++rank) {
            std::span<const std::byte> rest = parts[rank];
            const auto take = [&]<class V>(V value) {
                check(rest.size() >= sizeof value, "TreeReducer: rank ", rank, " has sent too little");
                std::memcpy(&value, rest.data(), sizeof value);
                rest = rest.subspan(sizeof value);
                return value;
            };
            const MicroBatchRange share = share_of(step_.count, rank, parts.size());
            for (std::size_t i = share.begin; i < share.end; ++i) add_loss_of(i, take(0.0));
            const auto end =
                std::find_if(nodes, step_.nodes.end(), [rank](const ProcessNode& node) { return node.rank != rank; });
            for (std::size_t p = 0; !joins_early() && p < step_.sums.size(); ++p)
                for (auto node = nodes; node != end; ++node) node->entries[p] = take(NodeEntry{});
            nodes = end;
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
            if (elements < options_.bucket_elements) continue;
            join(bucket);
            bucket.clear();
            elements = 0;
        }
        if (!bucket.empty()) join(bucket);
    }
    void join(std::span<const std::size_t> bucket) {
        if (rule() != nullptr) take_sums(bucket, join_codes_(step_, bucket, *rule(), seed_));
        else take_sums(bucket, ElementJoin<T>(step_, {bucket.begin(), bucket.end()}, JoinTime::at_end).sums());
    }
    void take_sums(std::span<const std::size_t> bucket, std::vector<Gradient>&& wholes) {
        for (std::size_t b = 0; b < bucket.size(); ++b) {
            const std::size_t p = bucket[b];
            step_.sums[p].clear();
            reached_[p] =
                std::ranges::any_of(step_.nodes, [p](const ProcessNode& node) { return node.entries[p].present; });
            if (wholes[b]) give(p, std::move(*wholes[b]));
        }
    }

    std::shared_ptr<ProcessGroup> group_;
    std::vector<SharedFact> facts_;
    TreeReducerOptions options_;
    bool compared_ = false;
    MicroBatchRange share_{0, 0};
    double seed_ = 1.0;
    StepGradients<T> step_{};
    std::unordered_map<const Parameter<T>*, std::size_t> places_{};  ///< of the parameters in step_
    std::vector<double> own_losses_{};
    TreeSum<double> losses_{};
    JoinCodes<T> join_codes_{*group_};
    std::vector<std::size_t> owners_{};  ///< by parameter
    std::vector<bool> reached_{};        ///< by parameter: it has a gradient of the step, here or at its owner
    EarlyJoins<T> early_joins_{};
    std::shared_ptr<const Recipe> recipe_{};
};

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
TreeReducer<T>::TreeReducer(std::shared_ptr<ProcessGroup> group, std::vector<SharedFact> facts,
                            const TreeReducerOptions& options)
    : group_(std::move(group)), facts_(std::move(facts)), options_(options) {
    check(options.bucket_elements > 0, "TreeReducer: bucket_elements is 0; expected a positive number");
}

template <class T>
TreeReducer<T>::~TreeReducer() = default;

}  // namespace unitscale::train
