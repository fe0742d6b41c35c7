// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/operand_statistics.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

namespace unitscale::analysis {

/// Elements of gradients that are zero.
struct ZeroCount {
    std::uint64_t elements = 0;
    std::uint64_t stored = 0;   ///< zeros in the stored tensor
    std::uint64_t rounded = 0;  ///< zeros after a product has rounded its operand; at least `stored`

    ZeroCount& operator+=(const ZeroCount& other) noexcept {
        elements += other.elements;
        stored += other.stored;
        rounded += other.rounded;
        return *this;
    }
    [[nodiscard]] double share(std::uint64_t count) const noexcept {
        return elements == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(elements);
    }
    friend bool operator==(const ZeroCount&, const ZeroCount&) = default;
};

/// Zero counts by kind. The kind of an output's gradient is the op (`linear`, `gelu`, ...); for parameters it is
/// `parameter`.
using GradientZeroCounts = std::map<std::string, ZeroCount>;

/// Counts the zeros of every gradient in the first, every `every`-th and the last step: the loss of low precision in
/// the backward pass. A gradient that a product rounds also counts the elements that are zero in the product: in the
/// input's gradient, else in the weight's. Tensors of one element, mainly losses, are left out.
///   GradientZeros<Half> zeros(20, 1000);
///   tape.set_observer(&zeros);
/// In a step of several micro-batches it counts the first one; for parameters it counts the sum of gradients over all.
/// Error: a step of 0. Test: tests/analysis/gradient_zeros_test.cpp
template <class T>
class GradientZeros : public Observer<T> {
public:
    explicit GradientZeros(std::size_t every, std::uint64_t last_step = 0) : every_(every), last_step_(last_step) {
        check(every >= 1, "gradient zeros: every is 0; expected at least 1");
    }

    void begin_step(const ObservedStep& step) override {
        step_ = step;
        counted_ = step.training && ((step.step - 1) % every_ == 0 || step.step == last_step_);
        if (!counted_ || step.micro_batch != 0) return;
        counts_.clear();
        rounded_.clear();
        counted_step_ = step.step;
    }

    void observe(const TensorEvent<T>& event) override {
        if (!counted_ || event.pass != Pass::gradient || event.tensor.size() <= 1) return;
        if (event.op == "parameter" ? step_.micro_batch + 1 != step_.micro_batches : step_.micro_batch != 0) return;
        ZeroCount count{.elements = event.tensor.size()};
        for (const T& element : event.tensor.span()) count.stored += static_cast<double>(element) == 0.0 ? 1U : 0U;
        count.rounded = count.stored;
        counts_[std::string(event.op)] += count;
    }

    void observe_operand(const OperandEvent<T>& event) override {
        if (!counted_ || step_.micro_batch != 0 || role_of(event.slot) != OperandRole::gradient ||
            event.tensor->size() <= 1 || !rounded_.emplace(event.path).second)
            return;
        counts_[std::string(event.op)].rounded += operand_statistics(event).flushed;
    }

    /// The latest counted step (0 before the first) and its counts.
    [[nodiscard]] std::uint64_t counted_step() const noexcept { return counted_step_; }
    [[nodiscard]] const GradientZeroCounts& counts() const noexcept { return counts_; }

private:
    std::size_t every_;
    std::uint64_t last_step_;
    ObservedStep step_{};
    bool counted_ = false;
    std::uint64_t counted_step_ = 0;
    GradientZeroCounts counts_{};
    std::set<std::string, std::less<>> rounded_{};  ///< paths of the products whose gradient is counted
};

}  // namespace unitscale::analysis
