// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/round.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

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

/// An operand of a product as the kernel takes it: the tensor, with its rounding on the way into the product. If it is
/// rounded by rows or columns, it is a copy that is rounded already.   rows of `columns` elements
template <class T>
struct PreparedOperand {
    const T* data = nullptr;
    std::optional<Quantiser> rounding{};
    Tensor<T> lines{};

    /// `known`: the result of `all.quantiser` for this operand.
    PreparedOperand(const std::shared_ptr<MemoryPool>& pool, const OperandRounding& all, OperandRole role,
                    const Tensor<T>& operand, std::size_t columns, RandomKey key, const std::optional<Quantiser>& known)
        : data(operand.data()), rounding(known) {
        if (!all.by_lines(role)) return;
        const Quantiser quantiser = *all.formats().of(role);
        const ScaleRule& rule = all.formats().scale(role);
        const std::size_t rows = columns == 0 ? 0 : operand.size() / columns;
        lines = Tensor<T>(operand.shape(), pool);
        const auto round = [&](const T* in, T* out, std::size_t count, std::size_t first) {
            Quantiser own = quantiser;
            own.format = shifted(
                own.format,
                amax_bias(own.format, kernels::amax(Execution{}, in, static_cast<std::ptrdiff_t>(count)), rule.margin));
            kernels::round_elements<T>(Execution{}, "product", own, {key.seed, mix(key.stream, first)}, in, out,
                                       static_cast<std::ptrdiff_t>(count));
        };
        if (rule.granularity == ScaleGranularity::row) {
            for (std::size_t i = 0; i < rows; ++i)
                round(operand.data() + i * columns, lines.data() + i * columns, columns, i);
        } else {
            Tensor<T> column({rows}, pool);
            for (std::size_t j = 0; j < columns; ++j) {
                for (std::size_t i = 0; i < rows; ++i) column.data()[i] = operand.data()[i * columns + j];
                round(column.data(), column.data(), rows, j);
                for (std::size_t i = 0; i < rows; ++i) lines.data()[i * columns + j] = column.data()[i];
            }
        }
        data = lines.data();
        // The numbers are rounded already. With at most 8 bits of significand they are bf16 numbers, which bf16 kernels
        // take without further rounding.
        rounding =
            quantiser.format.mantissa_bits <= 7 ? std::optional<Quantiser>(Quantiser{.format = bf16}) : std::nullopt;
    }
    [[nodiscard]] const Quantiser* round() const noexcept { return rounding ? &*rounding : nullptr; }
};

/// A pointer to a quantiser, or null: how kernels take an operand's rounding.
[[nodiscard]] inline const Quantiser* pointer(const std::optional<Quantiser>& quantiser) noexcept {
    return quantiser ? &*quantiser : nullptr;
}

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
