// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/coding.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/kernels/round_blocks.hpp>
#include <unitscale/products/limited_matmul.hpp>
#include <unitscale/products/operand.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/record/operand_rounding.hpp>
#include <unitscale/scaling/code_rule.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace unitscale::ops {

/// Whether the backward function of the op about to be recorded can take x as codes of at most 8 bits. The op's
/// products round x. The tape may then keep the codes instead of x (Tape::read_rounded).
template <class T>
[[nodiscard]] bool reads_codes(Tape<T>& tape, const Variable<T>& x, const std::optional<Quantiser>& rounding,
                               RandomKey key) {
    return rounding && rounding->format.code_bits() <= 8 && tape.read_rounded(x, {*rounding, key, &kernels::encode<T>});
}

/// The dimension of a slot's tensor that its product contracts. x [rows,in], w [out,in], dy [rows,out].
[[nodiscard]] constexpr kernels::Contracted contracted(OperandSlot slot) noexcept {
    return slot == OperandSlot::input_gradient_w || slot == OperandSlot::weight_gradient_dy ||
                   slot == OperandSlot::weight_gradient_x
               ? kernels::Contracted::rows
               : kernels::Contracted::columns;
}

/// Whether limited sums of a slot's product are formed run by run, without the scales of blocks: both operands have
/// blocks as long as the runs.
[[nodiscard]] inline bool sums_by_runs(const OperandRounding& all, OperandSlot slot) {
    const auto sums = all.formats().sums(slot);
    if (!sums || sums->run_length == 0) return false;
    const auto fits = [&](std::size_t place) {
        const auto blocks = all.rule(static_cast<OperandSlot>(place)).scale.blocks;
        return blocks && blocks->along == sums->run_length;
    };
    const std::size_t left = static_cast<std::size_t>(slot) / 2 * 2;
    return fits(left) && fits(left + 1);
}

/// The bias of an operand that is scaled as a whole: its format is the rule's format, shifted.
template <class T>
[[nodiscard]] int operand_bias(const products::Operand<T>& operand, const std::optional<Quantiser>& rule) noexcept {
    if (!rule || !(operand.codes || operand.quantiser)) return 0;
    return (operand.codes ? operand.codes->format : operand.quantiser->format).bias - rule->format.bias;
}

/// The sums of operands that are multiplied by 2^bias together before they meet. Here numbers are never multiplied: a
/// product of shifted formats is the scaled product, over 2^bias. So are its sums, in shifted formats. The accumulator
/// then overflows where the scaled sums would.
[[nodiscard]] inline Accumulate shifted_sums(Accumulate sums, int bias) noexcept {
    if (bias == 0 || sums.summation == Summation::aligned) return sums;  // aligned sums have float's exponents
    for (FloatFormat* format : {&sums.sums, &sums.products, &sums.totals})
        if (format->min_exponent() != fp32.min_exponent()) *format = shifted(*format, bias);
    return sums;
}

/// The product that a slot belongs to, with the sums that the recipe has for it.
template <class T>
void multiply_operands(const Execution& execution, const OperandRounding& all, OperandSlot slot,
                       const products::MatmulArguments<T>& product) {
    const auto sums = all.formats().sums(slot);
    if (!sums) return products::matmul<T>(execution, product);
    check(product.b.weight == nullptr, "product: sums in ", name(sums->sums),
          " with a weight that is kept as codes; expected elements");
    const auto left = static_cast<OperandSlot>(static_cast<std::size_t>(slot) / 2 * 2),
               right = static_cast<OperandSlot>(static_cast<std::size_t>(left) + 1);
    const int bias = operand_bias(product.a, all.rule(left).element) + operand_bias(product.b, all.rule(right).element);
    products::matmul_limited<T>(execution, shifted_sums(*sums, bias), product);
}

/// The operand of a weight that is kept as codes.
template <class T>
[[nodiscard]] products::Operand<T> coded_operand(const CodedWeight& codes) {
    products::Operand<T> operand;
    operand.weight = &codes;
    // As numbers in blocks: bf16 instructions take them without the tensor's factor.
    operand.weight_apart =
        products::usable_pairs<T>(products::active_pair_kernel(), true, true) != products::PairKernel::none;
    return operand;
}

/// Error, in the name of `op`, unless the recipe's rule for the weight has the format of its codes, or the recipe does
/// not round the weight.
inline void check_coded_rule(const char* op, const OperandRounding& all, const CodedWeight& codes) {
    const OperandRule rule = all.rule(OperandSlot::forward_w);
    if (!rule.element) return;
    check(has_form(codes, rule) && !all.rotation(OperandSlot::forward_w), op, ": the weight is kept as codes of ",
          name(element_format(codes, rule)), codes.blocks() ? " in blocks" : "", "; the recipe rounds it to ",
          name(rule.element->format), rule.scale.blocks ? " in blocks" : "", " by a rule of its own");
}

/// An operand of an op's products, with the memory that its form needs. It is one of
///   the tensor, rounded on its way into the product;
///   the codes that the tape has kept instead of an input (`reads_codes`);
///   a copy that is rounded already, if the recipe scales rows, columns or blocks.
/// Test: tests/record/prepared_operand_test.cpp
template <class T>
class PreparedOperand {
public:
    /// A tensor, as rows of `columns` elements. `known`: the result of `all.quantiser` for it. `source`: the tape, or
    /// the context of the backward function. `parameter`: null, or the parameter whose value the tensor is. It then
    /// keeps numbers in blocks until its value changes.
    template <class Source>
    PreparedOperand(const Source& source, const OperandRounding& all, OperandSlot slot, const Tensor<T>& tensor,
                    std::size_t columns, RandomKey key, const std::optional<Quantiser>& known,
                    const Parameter<T>* parameter = nullptr)
        : operand_{{tensor.data()}, known, key}, columns_(static_cast<std::ptrdiff_t>(columns)) {
        show(source, all, slot, &tensor);
        prepare(source.execution(), source.pool(), all, slot, tensor, parameter);
    }
    /// Input i of an op, in its backward function: the tensor or its codes.
    PreparedOperand(const BackwardContext<T>& g, std::size_t i, const OperandRounding& all, OperandSlot slot,
                    std::size_t columns, RandomKey key, const std::optional<Quantiser>& known)
        : operand_{{}, known, key}, columns_(static_cast<std::ptrdiff_t>(columns)) {
        if (const Tensor<std::uint8_t>* kept = g.codes(i)) {
            show(g, all, slot, nullptr);
            operand_.codes = products::CodedMatrix{{kept->data()}, known->format};
            return;
        }
        operand_.view.data = g.input(i).data();
        show(g, all, slot, &g.input(i));
        prepare(g.execution(), g.pool(), all, slot, g.input(i), nullptr);
    }

    /// The operand as a matrix of the tensor's rows and columns, or transposed. With a batch stride: a batch of them.
    [[nodiscard]] products::Operand<T> matrix(std::ptrdiff_t batch_stride = 0) const {
        return with_strides(columns_, 1, batch_stride);
    }
    [[nodiscard]] products::Operand<T> transposed(std::ptrdiff_t batch_stride = 0) const {
        products::Operand<T> operand = with_strides(1, columns_, batch_stride);
        if (operand.numbers) operand.numbers->view = operand.numbers->view.transposed();
        return operand;
    }

private:
    [[nodiscard]] products::Operand<T> with_strides(std::ptrdiff_t row, std::ptrdiff_t column,
                                                    std::ptrdiff_t batch) const {
        products::Operand<T> operand = operand_;
        operand.view = {operand.view.data, row, column, batch};
        if (operand.codes) operand.codes->codes = {operand.codes->codes.data, row, column, batch};
        return operand;
    }

    template <class Source>
    void show(const Source& source, const OperandRounding& all, OperandSlot slot, const Tensor<T>* tensor) const {
        all.show(source, slot, tensor, static_cast<std::size_t>(columns_), operand_.key, operand_.quantiser,
                 contracted(slot) == kernels::Contracted::rows);
    }

    /// Numbers in blocks.
    struct Blocks {
        Tensor<Accum<T>> numbers;
        std::vector<float> scales;  ///< of runs, if the sums are formed by runs
        kernels::RoundedBlocks facts;
    };

    void prepare(const Execution& execution, const std::shared_ptr<MemoryPool>& pool, const OperandRounding& all,
                 OperandSlot slot, const Tensor<T>& tensor, const Parameter<T>* parameter) {
        const OperandRule rule = all.rule(slot);
        if (!rule.element || rule.scale.by_tensor()) return;
        const auto rows = columns_ == 0 ? 0 : static_cast<std::ptrdiff_t>(tensor.size()) / columns_;
        operand_.quantiser.reset();
        if (!rule.scale.blocks) return round_lines(pool, *rule.element, rule.scale, tensor, rows);
        const kernels::Contracted dimension = contracted(slot);
        const auto rotation = all.rotation(slot);
        // bf16 instructions take short numbers; other kernels multiply the very numbers that blocks decode to.
        const bool in_pairs =
            products::usable_pairs<T>(products::active_pair_kernel(), true, true) != products::PairKernel::none;
        const bool runs = sums_by_runs(all, slot);
        const bool by_rows = dimension == kernels::Contracted::rows;
        const std::ptrdiff_t lines = by_rows ? columns_ : rows, length = by_rows ? rows : columns_;
        const std::ptrdiff_t run_count = runs ? (length + rule.scale.blocks->along - 1) / rule.scale.blocks->along : 0;
        const auto make = [&](const Tensor<T>& values) {
            const BlockFormat& blocks = *rule.scale.blocks;
            const Quantiser& element = *rule.element;
            BlockOptions options = block_options(blocks, element, operand_.key);
            options.tensor_apart = in_pairs;
            Blocks made{Tensor<Accum<T>>(values.shape(), pool),
                        std::vector<float>(static_cast<std::size_t>(lines * run_count)),
                        {}};
            made.facts =
                kernels::round_blocks<T>(execution, blocks, options, rotation, values.data(), made.numbers.data(), rows,
                                         columns_, dimension, runs ? made.scales.data() : nullptr);
            return made;
        };
        if (parameter != nullptr && rule.element->rounding != Rounding::stochastic) {
            struct Key {
                OperandRule rule;
                std::optional<HadamardRotation> rotation;
                kernels::Contracted dimension;
                bool in_pairs, runs;
                bool operator==(const Key&) const = default;
            };
            blocks_ = parameter->template cached<Blocks>(Key{rule, rotation, dimension, in_pairs, runs}, make);
        } else {
            blocks_ = std::make_shared<const Blocks>(make(tensor));
        }
        products::MatrixView<const Accum<T>> view{blocks_->numbers.data(), columns_, 1};
        if (blocks_->facts.transposed) view = {blocks_->numbers.data(), 1, rows};  // element (i, j) at j rows + i
        operand_.numbers = products::QuantisedNumbers<Accum<T>>{view, blocks_->facts.exact_in_bf16,
                                                                static_cast<Accum<T>>(blocks_->facts.factor)};
        if (runs) {
            operand_.numbers->format = rule.element->format;
            operand_.numbers->run_scales = blocks_->scales.data();
            operand_.numbers->run_stride = run_count;
        }
    }

    /// Rounds every row or column with its own bias, from its largest magnitude.
    void round_lines(const std::shared_ptr<MemoryPool>& pool, const Quantiser& quantiser, const ScaleRule& rule,
                     const Tensor<T>& tensor, std::ptrdiff_t row_count) {
        const auto rows = static_cast<std::size_t>(row_count), columns = static_cast<std::size_t>(columns_);
        const RandomKey key = operand_.key;
        lines_ = Tensor<T>(tensor.shape(), pool);
        const auto round = [&](const T* in, T* out, std::size_t count, std::size_t first) {
            const auto n = static_cast<std::ptrdiff_t>(count);
            Quantiser own = quantiser;
            own.format = shifted(own.format, amax_bias(own.format, kernels::amax(Execution{}, in, n), rule.margin));
            kernels::round_elements<T>(Execution{}, "product", own, {key.seed, mix(key.stream, first)}, in, out, n);
        };
        if (rule.granularity == ScaleGranularity::row) {
            for (std::size_t i = 0; i < rows; ++i)
                round(tensor.data() + i * columns, lines_.data() + i * columns, columns, i);
        } else {
            Tensor<T> column({rows}, pool);
            for (std::size_t j = 0; j < columns; ++j) {
                for (std::size_t i = 0; i < rows; ++i) column.data()[i] = tensor.data()[i * columns + j];
                round(column.data(), column.data(), rows, j);
                for (std::size_t i = 0; i < rows; ++i) lines_.data()[i * columns + j] = column.data()[i];
            }
        }
        operand_.view.data = lines_.data();
    }

    products::Operand<T> operand_;
    std::ptrdiff_t columns_;
    std::shared_ptr<const Blocks> blocks_{};  ///< of the rule's blocks
    Tensor<T> lines_{};                       ///< quantised by rows or columns
};

}  // namespace unitscale::ops
