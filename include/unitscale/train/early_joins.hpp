// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/train/join_elements.hpp>
#include <unitscale/train/step_gradients.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace unitscale::train {

/// Joins of a step's gradients that begin while the backward pass of this process's last micro-batch goes on. Trained
/// parameters are in buckets, from the last to the first, as a backward pass reaches them. A bucket is sent as soon as
/// all its gradients are there, and all buckets before it were sent: every process keeps this order.
/// Test: tests/train/early_joins_test.cpp
template <class T>
class EarlyJoins {
public:
    /// Begins a step. A bucket ends with the parameter that brings it to `bucket_elements`.
    void begin(StepGradients<T>& step, std::size_t bucket_elements) {
        step_ = &step;
        joins_.clear();
        buckets_.clear();
        waits_for_.clear();
        bucket_of_.assign(step.parameters.size(), 0);
        std::size_t elements = 0;
        for (std::size_t p = step.parameters.size(); p-- > 0;) {
            if (!step.parameters[p]->requires_gradient()) continue;
            if (buckets_.empty() || elements >= bucket_elements) {
                buckets_.emplace_back();
                waits_for_.push_back(0);
                elements = 0;
            }
            bucket_of_[p] = buckets_.size() - 1;
            buckets_.back().push_back(p);
            ++waits_for_.back();
            elements += step.parameters[p]->size();
        }
    }
    /// The last gradient of parameter p is there. Begins the joins that have waited for it.
    void complete(std::size_t p) {
        --waits_for_[bucket_of_[p]];
        while (joins_.size() < buckets_.size() && waits_for_[joins_.size()] == 0) begin_next();
    }
    /// No more gradients come. Begins all joins.
    void complete_all() {
        while (joins_.size() < buckets_.size()) begin_next();
    }
    /// Lets the messages go on, and adds what has arrived.
    void progress() {
        for (const auto& join : joins_) join->progress();
    }
    /// The number of buckets that have begun to join.
    [[nodiscard]] std::size_t begun() const noexcept { return joins_.size(); }
    /// Waits for all joins. Calls take(bucket, sums) for each.
    template <class Take>
    void end(const Take& take) {
        for (const auto& join : joins_) take(join->bucket(), join->sums());
        joins_.clear();
    }

private:
    void begin_next() {
        joins_.push_back(std::make_unique<ElementJoin<T>>(*step_, buckets_[joins_.size()], JoinTime::early));
    }

    StepGradients<T>* step_ = nullptr;
    std::vector<std::vector<std::size_t>> buckets_{};  ///< numbers of parameters
    std::vector<std::size_t> bucket_of_{};             ///< by parameter
    std::vector<std::size_t> waits_for_{};             ///< by bucket: gradients that are not there
    std::vector<std::unique_ptr<ElementJoin<T>>> joins_{};
};

}  // namespace unitscale::train
