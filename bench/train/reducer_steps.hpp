// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/communication_cost.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/tree_reducer.hpp>

#include "measured_costs.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

// Steps of a TreeReducer without a model, measured: by the processes that there are, or by one that hears itself.
namespace unitscale::bench {

/// A group of any size in one process. Where other processes would send a message, it receives a copy of its own.
class Echo final : public train::ProcessGroup {
public:
    explicit Echo(std::size_t size) : size_(size) {}
    [[nodiscard]] std::size_t size() const noexcept override { return size_; }
    void exchange(std::span<const std::byte> send, std::span<const std::size_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::size_t> receive_bytes) override {
        repeat(send.first(send_bytes[0]), receive, receive_bytes);
    }
    void collect(std::span<const std::byte> mine, std::span<std::byte> all,
                 std::span<const std::size_t> bytes) override {
        repeat(mine, all, bytes);
    }
    double seconds = 0;  ///< of copies in place of messages

private:
    void repeat(std::span<const std::byte> part, std::span<std::byte> to, std::span<const std::size_t> bytes) {
        const auto start = Clock::now();
        for (const std::size_t size : bytes) {
            const std::size_t same = std::min(size, part.size());  // parts differ by an element
            std::copy_n(part.begin(), same, to.begin());
            std::fill_n(to.begin() + static_cast<std::ptrdiff_t>(same), size - same, std::byte{0});
            to = to.subspan(size);
        }
        seconds += seconds_since(start);
    }
    std::size_t size_;
};

/// Steps of a reducer without a model: gradients are given by hand.
class Steps {
public:
    Steps(std::shared_ptr<train::ProcessGroup> group, const train::GradientPlan& plan)
        : recipe_(find_recipe("fp32")),
          micro_batches_(plan.micro_batches),
          own_(plan.micro_batches / plan.processes),
          reducer_(std::move(group), {},
                   {.sharding = plan.sharding, .overlap = plan.overlap, .bucket_elements = plan.bucket_elements}) {
        recipe_.communication = plan.communication;
        tape_ = std::make_unique<Tape<float>>(recipe_, state_);
        for (const std::size_t size : plan.sizes) {
            owned_.push_back(
                std::make_unique<Parameter<float>>(concatenate("p", owned_.size()), Shape{size}, ParameterFacts{}));
            parameters_.push_back(owned_.back().get());
            std::ranges::fill(parameters_.back()->write().span(), 0.5f);
        }
    }
    /// The time of a step's communication in this process. Gradients are made before it.
    double step() {
        state_.set_step(state_.step() + 1);
        std::vector<std::vector<Tensor<float>>> gradients;
        for (Parameter<float>* const parameter : parameters_) parameter->clear_gradient();
        for (std::size_t i = 0; i < own_; ++i) {
            gradients.emplace_back();
            for (const Parameter<float>* parameter : parameters_) {
                gradients.back().emplace_back(parameter->shape(), tape_->pool());
                const std::span<float> elements = gradients.back().back().span();
                for (std::size_t e = 0; e < elements.size(); ++e)
                    elements[e] = 1e-5f * (static_cast<float>(e % 1021) - 500.0f);
            }
        }
        MPI_Barrier(MPI_COMM_WORLD);
        const auto start = Clock::now();
        const auto share = reducer_.begin(*tape_, parameters_, micro_batches_, 1.0);
        for (std::size_t i = share.first; i < share.last; ++i) {
            for (std::size_t p = parameters_.size(); p-- > 0;) {
                parameters_[p]->add_gradient(std::move(gradients[i - share.first][p]));
                reducer_.add_gradient(i, *parameters_[p]);
            }
            reducer_.add_loss(i, 1.0);
        }
        static_cast<void>(reducer_.finish());
        reducer_.share_values();
        return seconds_since(start);
    }
    [[nodiscard]] std::size_t sent_bytes() const { return reducer_.sent_bytes(); }

private:
    Recipe recipe_;
    std::size_t micro_batches_, own_;  ///< of all processes, and of this one
    ScalingState state_{1};
    std::unique_ptr<Tape<float>> tape_{};
    std::vector<std::unique_ptr<Parameter<float>>> owned_{};
    std::vector<Parameter<float>*> parameters_{};
    train::TreeReducer<float> reducer_;
};

/// The median time of a step's communication: of the slowest process in each step.
[[nodiscard]] inline double measured_seconds(Steps& steps, std::size_t repetitions) {
    std::vector<double> times;
    static_cast<void>(steps.step());  // compares facts, and fills the memory pool
    for (std::size_t i = 0; i < repetitions; ++i) times.push_back(most_of_all(steps.step()));
    return median(times);
}

/// The median time of a process's own work in a step of a group of any size.
[[nodiscard]] inline double work_seconds(const train::GradientPlan& plan, std::size_t repetitions) {
    auto echo = std::make_shared<Echo>(plan.processes);
    Steps steps(echo, plan);
    std::vector<double> times;
    static_cast<void>(steps.step());
    for (std::size_t i = 0; i < repetitions; ++i) {
        echo->seconds = 0;
        const double whole = steps.step();
        times.push_back(most_of_all(whole - echo->seconds));
    }
    return median(times);
}

}  // namespace unitscale::bench
