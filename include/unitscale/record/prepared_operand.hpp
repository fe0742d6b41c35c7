// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/coding.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/kernels/round_blocks.hpp>
#include <unitscale/products/operand.hpp>
#include <unitscale/record/operand_rounding.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

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

/// An operand of an op's products, with the memory that its form needs. It is one of
///   the tensor, rounded on its way into the product;
///   the codes that the tape has kept instead of an input (`reads_codes`);
///   a copy that is rounded already, if the recipe scales rows, columns or blocks.
/// Test: tests/record/prepared_operand_test.cpp
template <class T>
class PreparedOperand {
public:
    /// A tensor, as rows of `columns` elements. `known`: the result of `all.quantiser` for it. `source`: the tape, or
    /// the context of the backward function.
    template <class Source>
    PreparedOperand(const Source& source, const OperandRounding& all, OperandSlot slot, const Tensor<T>& tensor,
                    std::size_t columns, RandomKey key, const std::optional<Quantiser>& known)
        : operand_{{tensor.data()}, known, key}, columns_(static_cast<std::ptrdiff_t>(columns)) {
        show(source, all, slot, &tensor);
        prepare(source.execution(), source.pool(), all, slot, tensor);
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
        prepare(g.execution(), g.pool(), all, slot, g.input(i));
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

    void prepare(const Execution& execution, const std::shared_ptr<MemoryPool>& pool, const OperandRounding& all,
                 OperandSlot slot, const Tensor<T>& tensor) {
        const OperandRule rule = all.rule(slot);
        if (!rule.element || rule.scale.by_tensor()) return;
        const auto rows = columns_ == 0 ? 0 : static_cast<std::ptrdiff_t>(tensor.size()) / columns_;
        operand_.quantiser.reset();
        if (!rule.scale.blocks) return round_lines(pool, *rule.element, rule.scale, tensor, rows);
        numbers_ = Tensor<Accum<T>>(tensor.shape(), pool);
        const kernels::Contracted dimension = contracted(slot);
        const BlockFormat& blocks = *rule.scale.blocks;
        const Quantiser& element = *rule.element;
        const bool exact = kernels::round_blocks<T>(execution, blocks, block_options(blocks, element, operand_.key),
                                                    all.formats().rotation(slot), tensor.data(), numbers_.data(), rows,
                                                    columns_, dimension);
        products::MatrixView<const Accum<T>> view{numbers_.data(), columns_, 1};
        if (dimension == kernels::Contracted::rows) view = {numbers_.data(), 1, rows};  // element (i, j) at j rows + i
        operand_.numbers = products::QuantisedNumbers<Accum<T>>{view, exact};
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
    Tensor<Accum<T>> numbers_{};  ///< quantised by blocks
    Tensor<T> lines_{};           ///< quantised by rows or columns
};

}  // namespace unitscale::ops
