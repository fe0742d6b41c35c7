// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/round.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace unitscale::ops {

/// How a product rounds its operands in this step. The formats belong to the product's site. Each format gets the bias
/// that its scale rule finds for the operand. Backward functions keep a copy, in order to round gradients. The scaling
/// state must outlive the tape.
/// Test: tests/record/operand_rounding_test.cpp
class OperandRounding {
public:
    template <class T>
    OperandRounding(Tape<T>& tape, Site site, ProductKind kind)
        : state_(&tape.state()),
          site_(site),
          formats_(tape.state().formats(site, kind, tape.recipe())),
          training_(tape.step_options().training) {}

    [[nodiscard]] const ProductFormats& formats() const noexcept { return formats_; }

    /// The operand's quantiser; empty if the operand is not rounded. With a bias, its format is the shifted one
    /// (`shifted`).
    template <class T>
    [[nodiscard]] std::optional<Quantiser> quantiser(const Execution& execution, OperandRole role,
                                                     const Tensor<T>& operand) const {
        return quantiser(execution, role, role, operand);
    }
    /// The operand's quantiser, with its bias kept under the role `remembered`. In a product of two activations the
    /// second one is remembered as a weight.
    template <class T>
    [[nodiscard]] std::optional<Quantiser> quantiser(const Execution& execution, OperandRole role,
                                                     OperandRole remembered, const Tensor<T>& operand) const {
        std::optional<Quantiser> result = formats_.of(role);
        const ScaleRule& rule = formats_.scale(role);
        if (!result || rule.source == ScaleSource::none || rule.granularity != ScaleGranularity::tensor) return result;
        const int bias = state_->operand_bias(site_, remembered, result->format, rule, training_, [&] {
            return kernels::amax(execution, operand.data(), static_cast<std::ptrdiff_t>(operand.size()));
        });
        result->format = shifted(result->format, bias);
        return result;
    }

    /// Error, in the name of `op`: a rule by rows or columns, which only linear layers support.
    void check_by_tensor(const char* op) const {
        for (const OperandRole role : {OperandRole::activation, OperandRole::weight, OperandRole::gradient})
            check(!by_lines(role), op, ": scale of the ", name(role), " by ", name(formats_.scale(role).granularity),
                  "; rows and columns are those of linear layers");
    }
    /// Whether an operand is rounded row by row, or column by column, before the product.
    [[nodiscard]] bool by_lines(OperandRole role) const noexcept {
        return formats_.of(role).has_value() && formats_.scale(role).granularity != ScaleGranularity::tensor;
    }

private:
    ScalingState* state_;
    Site site_;
    ProductFormats formats_;
    bool training_;
};

/// Parts of a site's random stream: one per operand role of its products, and one for their results.
inline constexpr std::uint64_t activation_part = 1, weight_part = 2, gradient_part = 3, result_part = 4;

/// Rounds the result of a product in place, if the recipe says so.
template <class T>
[[gnu::noinline]] void round_result(const Execution& execution, const ProductFormats& formats, RandomKey key,
                                    Tensor<T>& result) {
    if (formats.result)
        kernels::round_elements<T>(execution, "product", *formats.result, key, result.data(), result.data(),
                                   static_cast<std::ptrdiff_t>(result.size()));
}

}  // namespace unitscale::ops
