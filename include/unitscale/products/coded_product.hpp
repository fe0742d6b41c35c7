// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/products/coded_matrix.hpp>
#include <unitscale/products/product.hpp>

#include <cstddef>
#include <optional>
#include <string_view>

namespace unitscale::products {

/// Operands that are given by codes, in place of operands in the arguments of a product. Null: this operand has no
/// codes.
struct CodedOperands {
    const CodedMatrix* a = nullptr;  ///< in place of a and round_a
    const CodedMatrix* b = nullptr;  ///< in place of b, round_b and packed_b
};

/// Error unless the format of the codes is valid and has at most 8 bits.
inline void check_codes(std::string_view name, const CodedMatrix& coded) {
    if (const auto message = problem(coded.format); !message.empty()) fail(name, ": format: ", message);
    check(coded.format.code_bits() <= 8, name, ": codes of ", unitscale::name(coded.format), " do not fit a byte");
}

/// `matmul_coded` with the kernels of one instruction set, as in `matmul_with`.
template <class T>
void matmul_coded_with(Isa isa, const Execution& execution, MatmulArguments<T> args, const CodedOperands& coded,
                       PairKernel pairs = PairKernel::none) {
    using P = Accum<T>;
    const CodedMatrix *const a = coded.a, *const b = coded.b;
    if (a == nullptr && b == nullptr) return matmul_with(isa, execution, args, pairs);
    if (args.m <= 0 || args.n <= 0 || args.batch <= 0) return;
    if (b != nullptr) args.packed_b = nullptr;
    if (a != nullptr) check_codes("matmul: a", *a);
    else check_quantiser("matmul: a", args.a, args.m, args.k, args.batch, args.round_a);
    const FloatFormat* const format_a = a != nullptr ? &a->format : format_of(args.round_a);
    if (args.packed_b != nullptr) {
        args.packed_b->check_fits(args.k, args.n, format_a);
        isa = args.packed_b->isa, pairs = args.packed_b->pairs;
        args.round_b = nullptr;
    } else {
        if (b != nullptr) check_codes("matmul: b", *b);
        else check_quantiser("matmul: b", args.b, args.k, args.n, args.batch, args.round_b);
        pairs = usable_pairs<T>(pairs, format_a, b != nullptr ? &b->format : format_of(args.round_b));
    }
    std::optional<CodeTable<P>> numbers_a, numbers_b;
    CodedView<P> codes_a, codes_b;
    if (a != nullptr) codes_a = {a->codes, &numbers_a.emplace(a->format)};
    if (b != nullptr) codes_b = {b->codes, &numbers_b.emplace(b->format)};
    if (a != nullptr && b != nullptr)
        return matmul_packed<T>(execution, isa, pairs, args, codes_a, codes_b, nullptr, nullptr);

    // One operand is given by codes. Stochastic rounding of the other operand is a separate pass.
    const Quantiser* const quantiser = a != nullptr ? args.round_b : args.round_a;
    if (!is_stochastic(quantiser)) {
        if (a != nullptr) matmul_packed<T>(execution, isa, pairs, args, codes_a, args.b, nullptr, quantiser);
        else matmul_packed<T>(execution, isa, pairs, args, args.a, codes_b, quantiser, nullptr);
        return;
    }
    const MatrixView<const T>& other = a != nullptr ? args.b : args.a;
    const std::ptrdiff_t rows = a != nullptr ? args.k : args.m, cols = a != nullptr ? args.n : args.k;
    Scratch<P> rounded(execution, static_cast<std::size_t>(rows * cols * (other.batch_stride == 0 ? 1 : args.batch)));
    const MatrixView<const P> view = quantise_operand(execution, isa, other, rows, cols, args.batch, quantiser,
                                                      a != nullptr ? args.key_b : args.key_a, rounded.data());
    if (a != nullptr) matmul_packed<T>(execution, isa, pairs, args, codes_a, view, nullptr, nullptr);
    else matmul_packed<T>(execution, isa, pairs, args, view, codes_b, nullptr, nullptr);
}

/// `matmul` with A, B or both given by codes. The bits equal the bits of `matmul` on the decoded numbers with round_a
/// and round_b of their formats.
///   matmul_coded(execution, args, {.a = &coded_a, .b = &coded_b});
/// Errors: as for `matmul`; a format of more than 8 bits. Test: tests/products/coded_product_test.cpp
template <class T>
void matmul_coded(const Execution& execution, const MatmulArguments<T>& args, const CodedOperands& coded) {
    matmul_coded_with(active_isa(), execution, args, coded, active_pair_kernel());
}

}  // namespace unitscale::products
