// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/products/block.hpp>
#include <unitscale/products/operand.hpp>
#include <unitscale/products/pair_kernels.hpp>
#include <unitscale/products/product.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace unitscale::products {

/// A product C = alpha A B that is computed by rows.   A [m,k]   B [k,n]   C [m,n]
/// The constructor packs B. Each call of `rows` computes some rows of C in the calling thread. So a caller can use
/// rows of C while they are in a cache, and can leave out a range of k where A is zero. If A has few rows, B is read in
/// place where its layout allows it. C has the bits that `matmul` gives.
/// Operands are neither packed, nor coded weights, nor rounded stochastically.
/// Test: tests/products/blocked_product_test.cpp
template <class T>
class BlockedProduct {
public:
    using P = Accum<T>;

    /// Elements of the memory that packed B takes.
    [[nodiscard]] static std::ptrdiff_t right_size(Isa isa, std::ptrdiff_t k, std::ptrdiff_t n) noexcept {
        const std::ptrdiff_t floats = packed_right_size<P>(isa, k, n),
                             pairs = std::is_same_v<P, float> ? pair_buffer + packed_right_pairs_size(k, n) : 0;
        return round_up(std::max(floats, pairs), 16) + round_up(n, max_tile_columns<P>);
    }
    /// Elements of scratch that `rows` takes for `count` rows.
    [[nodiscard]] static std::ptrdiff_t scratch_size(Isa isa, std::ptrdiff_t count, std::ptrdiff_t k,
                                                     std::ptrdiff_t n) noexcept {
        const std::ptrdiff_t pairs = std::is_same_v<P, float> ? pair_scratch_size<T>(count, n, k) : 0;
        return round_up(std::max(block_scratch_size<T>(isa, count, n, k), pairs), 16);
    }

    /// Checks both operands and packs B into `memory` (right_size elements).
    /// Errors: as `matmul`.
    BlockedProduct(const Execution& execution, Isa isa, PairKernel pairs, const Operand<T>& a, const Operand<T>& b,
                   std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k, P* memory)
        : isa_(isa),
          pairs_(usable_pairs<T>(pairs, a.is_exact_in_bf16(), b.is_exact_in_bf16())),
          a_(a),
          source_(execution, isa, a_, m, k, 1) {
        check_operand("matmul: a", a, m, k, 1);
        check_operand("matmul: b", b, k, n, 1);
        const OperandSource<T> right(execution, isa, b, k, n, 1);
        const PackSource<P>& from = right.source();
        if constexpr (UNITSCALE_X86 && std::is_same_v<P, float>) {
            if (pairs_ != PairKernel::none)
                panel_pairs_ = from.functions->right_pairs(from, k, n, right.quantiser(),
                                                           reinterpret_cast<Pair*>(memory + pair_buffer), memory);
        }
        if (pairs_ == PairKernel::none) {
            if (from.widened() && columns_in_place(isa, m, from.template view<P>(), right.quantiser()))
                panels_ = right_columns_in_place(isa, from.template view<P>(), k, n,
                                                 column_major_vectors<P>(isa, m, from.col_stride), right.quantiser());
            else panels_ = from.functions->right(isa, from, k, n, right.quantiser(), memory);
        }
        if (const P factor = a.factor() * b.factor(); factor != 1) {
            P* const scale = memory + right_size(isa, k, n) - round_up(n, max_tile_columns<P>);
            std::fill_n(scale, round_up(n, max_tile_columns<P>), factor);
            col_scale_ = scale;
        }
    }
    BlockedProduct(const BlockedProduct&) = delete;
    BlockedProduct& operator=(const BlockedProduct&) = delete;

    /// Elements of the sums of m rows that `rows` carries from one range of k to the next.
    [[nodiscard]] static std::ptrdiff_t sums_size(PairKernel pairs, std::ptrdiff_t m, std::ptrdiff_t n) noexcept {
        return round_up(m, pair_tile_rows(pairs)) * carried_row(n);
    }
    /// Whether sums over a range of `k` can be carried: products of pairs can, if C or one block of k keeps their sums.
    [[nodiscard]] static bool can_carry(PairKernel pairs, const Operand<T>& a, const Operand<T>& b,
                                        std::ptrdiff_t k) noexcept {
        return usable_pairs<T>(pairs, a.is_exact_in_bf16(), b.is_exact_in_bf16()) != PairKernel::none &&
               (std::is_same_v<T, float> || k <= pair_block_depth);
    }

    /// The part of a product that `rows` computes.
    struct Part {
        std::ptrdiff_t first = 0, count = 0;  ///< rows of A and C
        std::ptrdiff_t columns = 0;           ///< at least so many columns of C, of which B has as many
        std::ptrdiff_t first_k = 0, k = 0;  ///< the range of A's columns that are not zero; `first_k`: as BlockProduct
        CarriedSums<P> carried{};           ///< of all rows of C, if A and B are a range of a longer k
    };
    /// C's rows [first, first + count). `c` begins with row `first`; a row has room for n elements.
    void rows(const Part& part, const MatrixView<T>& c, P alpha, P* scratch) const {
        BlockProduct<T> product;
        product.m = part.count;
        product.first_k = std::min(part.first_k, part.carried.k_before + part.k);
        product.a = source_.source().block(part.first, 0);
        product.round_a = source_.quantiser();
        product.c = c;
        product.alpha = alpha;
        product.col_scale = col_scale_;
        product.carried = part.carried;
        if constexpr (UNITSCALE_X86 && std::is_same_v<P, float>)
            if (pairs_ != PairKernel::none) {
                const RightPairs b = panel_pairs_.first_rows(part.k).first_columns(part.columns);
                if (product.carried.sums != nullptr) product.carried.sums += part.first * carried_row(b.n);
                return multiply_block_pairs(pairs_, product, b, scratch);
            }
        check(part.carried.sums == nullptr, "blocked product: only products of pairs carry sums");
        product.b = panels_.first_rows(part.k).first_columns(part.columns);
        multiply_block(isa_, product, scratch);
    }

private:
    Isa isa_;
    PairKernel pairs_;
    Operand<T> a_;
    OperandSource<T> source_;
    RightPanels<P> panels_{};
    RightPairs panel_pairs_{};
    const P* col_scale_ = nullptr;
};

}  // namespace unitscale::products
