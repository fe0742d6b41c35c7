// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/products/pair_kernels.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

// A right operand that was packed before, for many products.
namespace unitscale::products {

/// The length of k that is packed at a time. C holds the sums between depths if C is as precise as the sums.
template <class T>
[[nodiscard]] constexpr std::ptrdiff_t right_depth(PairKernel pairs, std::ptrdiff_t k) noexcept {
    if (!std::is_same_v<T, Accum<T>>) return k;
    return std::min(k, pairs != PairKernel::none ? pair_block_depth : block_depth);
}

/// B [k,n] quantised and packed once, for many products (`pack_weights`). Owns its memory.
/// Test: tests/products/packed_right_test.cpp
template <class T>
struct PackedRight {
    using P = Accum<T>;
    Isa isa = Isa::baseline;  ///< the kernels of this instruction set read it
    PairKernel pairs = PairKernel::none;
    std::ptrdiff_t k = 0, n = 0, depth = 0;
    std::ptrdiff_t block = 0;  ///< elements of a depth
    std::vector<P, PoolAllocator<P>> data{};

    /// Columns j to j + cols of rows p to p + depth. p is a multiple of depth, and j is a multiple of a panel's width.
    /// The end is n or the end of a panel.
    [[nodiscard]] RightPanels<P> panels(std::ptrdiff_t p, std::ptrdiff_t j, std::ptrdiff_t cols) const noexcept {
        const TileShape shape = tile_shape(isa);
        const std::ptrdiff_t rows = std::min(depth, k - p);
        return {at(p) + j * rows, rows, cols, shape.columns<P>(), shape.lanes<P>(), rows, 0};
    }
    [[nodiscard]] RightPairs pair_panels(std::ptrdiff_t p, std::ptrdiff_t j, std::ptrdiff_t cols) const noexcept {
        const std::ptrdiff_t rows = std::min(depth, k - p);
        return {
            reinterpret_cast<const Pair*>(at(p)) + j * pairs_of(rows), rows, cols, pair_columns, 16, pairs_of(rows), 0};
    }

    /// Error unless a product of this k and n can use the packed B. `a_is_exact`: A is exact in bf16.
    void check_fits(std::ptrdiff_t product_k, std::ptrdiff_t product_n, bool a_is_exact) const {
        check(k == product_k && n == product_n, "matmul: packed b is [", k, ",", n, "]; expected [", product_k, ",",
              product_n, "]");
        check(pairs == PairKernel::none || a_is_exact,
              "matmul: b was packed for an operand a that is rounded to a format of up to 8 bits");
    }

private:
    [[nodiscard]] const P* at(std::ptrdiff_t p) const noexcept {
        return data.data() + (p == 0 ? 0 : p / depth * block);
    }
};

/// B packed for the kernels of `isa` and `pairs`. The product must use these kernels.
template <class T>
[[nodiscard]] PackedRight<T> pack_right_once(Isa isa, PairKernel pairs, const MatrixView<const T>& b, std::ptrdiff_t k,
                                             std::ptrdiff_t n, const Quantiser* quantiser) {
    using P = Accum<T>;
    PackedRight<T> packed{isa, pairs, k, n, right_depth<T>(pairs, k), 0, {}};
    const bool paired = pairs != PairKernel::none;
    packed.block = paired ? packed_right_pairs_size(packed.depth, n) : packed_right_size<P>(isa, packed.depth, n);
    const std::ptrdiff_t depths = packed.depth == 0 ? 0 : (k + packed.depth - 1) / packed.depth;
    packed.data.resize(static_cast<std::size_t>(depths * packed.block));
    for (std::ptrdiff_t d = 0; d < depths; ++d) {
        const std::ptrdiff_t p = d * packed.depth, rows = std::min(packed.depth, k - p);
        P* const out = packed.data.data() + d * packed.block;
#if UNITSCALE_X86
        if constexpr (std::is_same_v<P, float>)
            if (paired) {
                std::array<float, static_cast<std::size_t>(pair_buffer)> buffer;
                static_cast<void>(
                    pack_right_pairs(b.block(p, 0), rows, n, quantiser, reinterpret_cast<Pair*>(out), buffer.data()));
                continue;
            }
#endif
        static_cast<void>(pack_right(isa, b.block(p, 0), rows, n, quantiser, out));
    }
    return packed;
}

}  // namespace unitscale::products
