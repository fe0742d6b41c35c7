// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/kernels/round_blocks.hpp>
#include <unitscale/products/operand.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// Operands of attention's products (attention_products.hpp).
namespace unitscale::kernels {

/// How an operand of attention's products is rounded.
struct AttentionOperand {
    std::optional<Quantiser> quantiser{};  ///< with the bias of the whole tensor; empty: not rounded
    std::optional<BlockFormat> blocks{};   ///< scales of blocks along the contracted dimension, in place of a bias
    std::optional<float> amax{};           ///< of the whole tensor, for blocks under a scale of the tensor
    RandomKey key{};                       ///< element i of the tensor, by items, takes piece i
};

/// A matrix [rows,columns] of one item as an operand of its products. Rounding to nearest is left to the product.
/// Stochastic rounding and blocks need their numbers in memory. Test: tests/kernels/attention_operand_test.cpp
template <class T>
class AttentionOperandRows {
    using P = Accum<T>;

public:
    /// Whether an operand under the rule has to be rounded in memory, or checked for NaN. Items are then computed one
    /// after the other: their memory is allocated, and errors are thrown, outside parallel regions.
    [[nodiscard]] static bool has_own_pass(const AttentionOperand& rule) noexcept {
        return rule.quantiser &&
               (rule.blocks || rule.quantiser->rounding == Rounding::stochastic || !rule.quantiser->format.has_nan());
    }

    AttentionOperandRows(const Execution& execution, const AttentionOperand& rule, const T* x, std::ptrdiff_t item,
                         std::ptrdiff_t rows, std::ptrdiff_t columns, Contracted contracted)
        : operand_{{x, columns, 1}, rule.quantiser, rule.key} {
        if (!rule.quantiser || (!rule.blocks && rule.quantiser->rounding != Rounding::stochastic)) return;
        const std::ptrdiff_t size = rows * columns;
        P* const numbers = numbers_.emplace(execution, static_cast<std::size_t>(size)).data();
        QuantiseOptions options = rule.quantiser->options(rule.key);
        options.first_index = static_cast<std::uint64_t>(item * size);
        const FloatFormat& format = rule.quantiser->format;
        if (!rule.blocks) {
            products::check_quantiser<T>("attention", operand_.view, rows, columns, 1, *rule.quantiser);
            const Isa isa = active_isa();
            parallel_for(execution.threads, size, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                const std::span<P> part(numbers + begin, static_cast<std::size_t>(end - begin));
                products::widen_line(isa, x + begin, end - begin, part.data());
                QuantiseOptions own = options;
                own.first_index += static_cast<std::uint64_t>(begin);
                quantise(format, std::span<const P>(part), part, own);
            });
            operand_.numbers = products::QuantisedNumbers<P>{{numbers, columns, 1}, products::exact_in_bf16(format)};
            return;
        }
        const BlockOptions how{.element = options,
                               .transformer_engine_bits = format == e2m1 &&
                                                          rule.blocks->rule == BlockRule::transformer_engine &&
                                                          options.rounding == Rounding::stochastic && options.bits == 8,
                               .tensor_amax = rule.amax};
        const RoundedBlocks facts =
            round_blocks<T>(execution, *rule.blocks, how, std::nullopt, x, numbers, rows, columns, contracted);
        operand_.numbers = products::QuantisedNumbers<P>{{numbers, columns, 1}, facts.exact_in_bf16};
        if (facts.transposed) operand_.numbers->view = {numbers, 1, rows};
    }

    [[nodiscard]] const products::Operand<T>& matrix() const noexcept { return operand_; }
    /// The rows from `first` on.
    [[nodiscard]] products::Operand<T> from_row(std::ptrdiff_t first) const {
        products::Operand<T> result = operand_;
        result.view = result.view.block(first, 0);
        if (result.numbers) result.numbers->view = result.numbers->view.block(first, 0);
        return result;
    }
    [[nodiscard]] products::Operand<T> transposed() const {
        products::Operand<T> result = operand_;
        result.view = result.view.transposed();
        if (result.numbers) result.numbers->view = result.numbers->view.transposed();
        return result;
    }

private:
    products::Operand<T> operand_;
    std::optional<Scratch<P>> numbers_{};
};

}  // namespace unitscale::kernels
