// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/statistics.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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
/// the backward pass. A gradient that a product takes as operand is also counted as the product rounds it: with the
/// product's format and bias, to nearest. Operands that are rounded row by row or column by column count as they are
/// stored. Tensors of one element, mainly losses, are left out.
///   GradientZeros<Half> zeros(state, 20, 1000);
///   tape.set_observer(&zeros);
/// In a step of several micro-batches it counts the first one; for parameters it counts the sum of gradients over all.
/// The state must outlive it.
/// Error: a step of 0. Test: tests/analysis/gradient_zeros_test.cpp
template <class T>
class GradientZeros : public Observer<T> {
public:
    GradientZeros(const ScalingState& state, std::size_t every, std::uint64_t last_step = 0)
        : state_(&state), every_(every), last_step_(last_step) {
        check(every >= 1, "gradient zeros: every is 0; expected at least 1");
    }

    void begin_step(const ObservedStep& step) override {
        step_ = step;
        counted_ = step.training && ((step.step - 1) % every_ == 0 || step.step == last_step_);
        if (!counted_ || step.micro_batch != 0) return;
        counts_.clear();
        products_.clear();
        as_now_.reset();
        counted_step_ = step.step;
    }

    void observe(const TensorEvent<T>& event) override {
        if (!counted_ || event.pass != Pass::gradient || event.tensor.size() <= 1) return;
        const bool of_parameter = event.op == "parameter";
        if (of_parameter ? step_.micro_batch + 1 != step_.micro_batches : step_.micro_batch != 0) return;
        if (!as_now_) {
            as_now_ = *state_;
            for (const ScalingState::Product& product : as_now_->products())  // all were registered in the forward pass
                products_.emplace(as_now_->path(product.site), product);
        }
        ZeroCount count{.elements = event.tensor.size()};
        for (const T& element : event.tensor.span()) count.stored += static_cast<double>(element) == 0.0 ? 1U : 0U;
        count.rounded = count.stored;
        if (!of_parameter)
            if (const auto product = products_.find(event.path); product != products_.end())
                count.rounded += underflow(product->second, event.tensor);
        counts_[std::string(event.op)] += count;
    }

    /// The latest counted step (0 before the first) and its counts.
    [[nodiscard]] std::uint64_t counted_step() const noexcept { return counted_step_; }
    [[nodiscard]] const GradientZeroCounts& counts() const noexcept { return counts_; }

private:
    /// Elements other than zero that the product rounds to zero.
    [[nodiscard]] std::uint64_t underflow(const ScalingState::Product& product, const Tensor<T>& gradient) {
        const bool attention = product.kind == ProductKind::attention;
        const OperandRule rule = attention ? product.formats.rule(AttentionSlot::probability_gradient_dy)
                                           : product.formats.rule(OperandSlot::input_gradient_dy);
        if (!rule.element || rule.scale.granularity != ScaleGranularity::tensor) return 0;
        if (rule.scale.blocks) return underflow_in_blocks(*rule.scale.blocks, *rule.element, gradient);
        const FloatFormat& format = rule.element->format;
        const std::size_t operand =
            attention ? first_attention_name + static_cast<std::size_t>(AttentionSlot::probability_gradient_dy)
                      : static_cast<std::size_t>(OperandRole::gradient);
        const int bias = as_now_->operand_bias(product.site, operand, format, rule.scale, true, [&] {
            double largest = 0.0;
            for (const T& element : gradient.span())
                largest = std::max(largest, std::abs(static_cast<double>(element)));
            return static_cast<float>(largest);
        });
        const RangeLimits limits(shifted(format, bias));
        std::uint64_t lost = 0;
        for (const T& element : gradient.span()) {
            const double magnitude = std::abs(static_cast<double>(element));
            lost += magnitude != 0.0 && limits.underflows(magnitude) ? 1U : 0U;
        }
        return lost;
    }

    /// Elements other than zero that are zero in blocks along the last dimension, as the input's gradient rounds them.
    [[nodiscard]] static std::uint64_t underflow_in_blocks(const BlockFormat& blocks, const Quantiser& element,
                                                           const Tensor<T>& gradient) {
        const std::size_t length = gradient.shape().empty() ? 1 : gradient.shape().back();
        std::vector<float> values(gradient.size());
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(gradient.data()[i]);
        std::vector<float> rounded = values;
        const std::size_t lines = length == 0 ? 0 : values.size() / length;
        quantise_blocks(blocks, MatrixLines<const float>{values.data(), lines, length, length},
                        MatrixLines<float>{rounded.data(), lines, length, length}, {.element = element.options()});
        std::uint64_t lost = 0;
        for (std::size_t i = 0; i < values.size(); ++i) lost += values[i] != 0.0f && rounded[i] == 0.0f ? 1U : 0U;
        return lost;
    }

    const ScalingState* state_;
    std::size_t every_;
    std::uint64_t last_step_;
    ObservedStep step_{};
    bool counted_ = false;
    std::uint64_t counted_step_ = 0;
    GradientZeroCounts counts_{};
    std::map<std::string, ScalingState::Product, std::less<>> products_{};
    /// A copy of the state: asking it for the bias that the product will use changes no history.
    std::optional<ScalingState> as_now_{};
};

}  // namespace unitscale::analysis
