// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/coding.hpp>
#include <unitscale/products/coded_product.hpp>
#include <unitscale/record/operand_rounding.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace unitscale::ops {

/// Whether the backward function of the op about to be recorded can take x as codes of at most 8 bits. The op's
/// products round x. The tape may then keep the codes instead of x (Tape::read_rounded).
template <class T>
[[nodiscard]] bool reads_codes(Tape<T>& tape, const Variable<T>& x, const std::optional<Quantiser>& rounding,
                               RandomKey key) {
    return rounding && rounding->format.code_bits() <= 8 && tape.read_rounded(x, {*rounding, key, &kernels::encode<T>});
}

/// Positions of the elements of a matrix, or of a batch of matrices: see MatrixView.
struct MatrixStrides {
    std::ptrdiff_t row = 0, col = 1, batch = 0;
};

/// An input of an op as its backward products read it: the value, or the codes that the tape has kept instead.
/// Test: tests/record/saved_operand_test.cpp
template <class T>
struct SavedOperand {
    products::MatrixView<const T> value{};
    std::optional<products::CodedMatrix> codes{};
    std::optional<Quantiser> round{};  ///< how the product rounds the value
    std::optional<PreparedOperand<T>> lines{};

    /// Input i of an op; the op's products round it with `rounding`.
    SavedOperand(const BackwardContext<T>& g, std::size_t i, const MatrixStrides& strides,
                 const std::optional<Quantiser>& rounding) {
        round = rounding;
        if (const Tensor<std::uint8_t>* kept = g.codes(i))
            codes = products::CodedMatrix{{kept->data(), strides.row, strides.col, strides.batch}, rounding->format};
        else value = {g.input(i).data(), strides.row, strides.col, strides.batch};
    }

    /// Input i of an op that may round it by rows or columns (PreparedOperand). The row stride is the length of a row.
    SavedOperand(const BackwardContext<T>& g, std::size_t i, const MatrixStrides& strides, const OperandRounding& all,
                 OperandRole role, const std::optional<Quantiser>& rounding, RandomKey key)
        : SavedOperand(g, i, strides, rounding) {
        if (!all.by_lines(role)) return;
        lines.emplace(g.pool(), all, role, g.input(i), static_cast<std::size_t>(strides.row), key, rounding);
        value.data = lines->data;
        round = lines->rounding;
    }

    [[nodiscard]] const products::CodedMatrix* coded() const noexcept { return codes ? &*codes : nullptr; }
};

/// The products A B of `args`, with a saved operand in place of A, or in place of B.
template <class T>
void multiply_saved_left(const Execution& execution, products::MatmulArguments<T> args, const SavedOperand<T>& a) {
    args.a = a.value;
    args.round_a = a.round ? &*a.round : nullptr;
    products::matmul_coded<T>(execution, args, {.a = a.coded()});
}
template <class T>
void multiply_saved_right(const Execution& execution, products::MatmulArguments<T> args, const SavedOperand<T>& b) {
    args.b = b.value;
    args.round_b = b.round ? &*b.round : nullptr;
    products::matmul_coded<T>(execution, args, {.b = b.coded()});
}

}  // namespace unitscale::ops
