// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/coding.hpp>
#include <unitscale/kernels/round.hpp>
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

/// An operand of an op's products, with the memory that its form needs. It is one of
///   the tensor, rounded on its way into the product;
///   the codes that the tape has kept instead of an input (`reads_codes`);
///   a copy that is rounded by rows or columns already, if the recipe scales these.
/// Test: tests/record/prepared_operand_test.cpp
template <class T>
class PreparedOperand {
public:
    /// A tensor. `known`: the result of `all.quantiser` for it. `columns`: the length of its rows.
    PreparedOperand(const std::shared_ptr<MemoryPool>& pool, const OperandRounding& all, OperandRole role,
                    const Tensor<T>& tensor, std::size_t columns, RandomKey key, const std::optional<Quantiser>& known)
        : operand_{{tensor.data()}, known, key} {
        if (all.by_lines(role)) round_lines(pool, *all.formats().of(role), all.formats().scale(role), tensor, columns);
    }
    /// Input i of an op, in its backward function: the tensor or its codes.
    PreparedOperand(const BackwardContext<T>& g, std::size_t i, const OperandRounding& all, OperandRole role,
                    std::size_t columns, RandomKey key, const std::optional<Quantiser>& known)
        : operand_{{}, known, key} {
        if (const Tensor<std::uint8_t>* kept = g.codes(i)) {
            operand_.codes = products::CodedMatrix{{kept->data()}, known->format};
            return;
        }
        operand_.view.data = g.input(i).data();
        if (all.by_lines(role))
            round_lines(g.pool(), *all.formats().of(role), all.formats().scale(role), g.input(i), columns);
    }

    /// The operand as a matrix, or as a batch of matrices, with these strides (MatrixView).
    [[nodiscard]] products::Operand<T> matrix(std::ptrdiff_t row_stride, std::ptrdiff_t col_stride,
                                              std::ptrdiff_t batch_stride = 0) const {
        products::Operand<T> operand = operand_;
        operand.view = {operand.view.data, row_stride, col_stride, batch_stride};
        if (operand.codes) operand.codes->codes = {operand.codes->codes.data, row_stride, col_stride, batch_stride};
        return operand;
    }

private:
    /// Rounds every row or column with its own bias, from its largest magnitude.
    void round_lines(const std::shared_ptr<MemoryPool>& pool, const Quantiser& quantiser, const ScaleRule& rule,
                     const Tensor<T>& tensor, std::size_t columns) {
        const std::size_t rows = columns == 0 ? 0 : tensor.size() / columns;
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
        // The numbers are rounded already. With at most 8 bits of significand they are bf16 numbers, which bf16 kernels
        // take without further rounding.
        operand_.quantiser.reset();
        if (quantiser.format.mantissa_bits <= 7) operand_.quantiser = Quantiser{.format = bf16};
    }

    products::Operand<T> operand_;
    Tensor<T> lines_{};
};

}  // namespace unitscale::ops
