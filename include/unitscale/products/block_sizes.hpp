// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/caches.hpp>
#include <unitscale/base/cpu.hpp>

#include <algorithm>
#include <cstddef>

namespace unitscale::products {

/// Most rows of A that are packed together by the float kernels; a multiple of every tile's rows.
inline constexpr std::ptrdiff_t block_rows = 120;
/// Length of k after which the float kernels store a sum in C. Unlike the sizes below it does not follow the caches:
/// factors are applied where a sum is stored, so another length has other bits.
inline constexpr std::ptrdiff_t block_depth = 512;

/// Whether lines of elements of type P, `stride` elements apart, are whole pages apart. Such lines fall into one set of
/// level 1, which holds eight to twelve.
template <class P>
[[nodiscard]] constexpr bool whole_pages_apart(std::ptrdiff_t stride) noexcept {
    return stride * static_cast<std::ptrdiff_t>(sizeof(P)) % 4096 == 0;
}

/// Sizes of the blocks of a product, in elements. They change times, never bits.
struct BlockSizes {
    std::ptrdiff_t rows = block_rows;       ///< rows of A that the float kernels pack together
    std::ptrdiff_t right = 0;               ///< B that a thread packs at a time, as floats
    std::ptrdiff_t right_of_one_block = 0;  ///< likewise, where all rows of A are packed together
    std::ptrdiff_t right_pairs = 0;         ///< likewise, as pairs of bf16
    std::ptrdiff_t right_of_few_rows = 0;   ///< likewise, for few rows of A
    friend constexpr bool operator==(const BlockSizes&, const BlockSizes&) = default;
};

/// The sizes for some caches. Packed B is as large as a core's share of level 2, or a quarter of its share of level 3.
/// Half of level 2 was 5 % slower at n = 2048 on a Zen 4, a quarter of it 15 %: A is packed again for every part of B.
/// Packed B is at most 1 MB of floats, with which a processor with 2 MB was measured. In level 3 it may be 2 MB for
/// tiles of shorter vectors than AVX-512's: they take longer for as much of B. With 2 MB a Zen 3 was 2 to 5 % faster at
/// n = 1024 and 2048. Packed rows of A take half of level 2. Few rows of A read packed B once, and packing B is most of
/// their work. So packed B must not leave level 2. Test: tests/products/block_sizes_test.cpp
[[nodiscard]] constexpr BlockSizes block_sizes_for(const Caches& caches, Isa isa) noexcept {
    constexpr auto element = static_cast<std::ptrdiff_t>(sizeof(float));
    const auto level2 = static_cast<std::ptrdiff_t>(caches.level(2).share());
    const auto level3 = static_cast<std::ptrdiff_t>(caches.level(3).share());
    const std::ptrdiff_t rows = level2 / 2 / (block_depth * element) / 12 * 12;
    return {.rows = std::clamp<std::ptrdiff_t>(rows, 12, block_rows),
            .right = std::max(std::min<std::ptrdiff_t>(level2 / element, 1 << 18),
                              std::min<std::ptrdiff_t>(level3 / 4 / element, isa == Isa::avx512 ? 1 << 18 : 1 << 19)),
            .right_of_one_block = std::min<std::ptrdiff_t>(level2 / element, 1 << 18),
            .right_pairs = level2 / (element / 2),
            .right_of_few_rows = std::min<std::ptrdiff_t>(level2 / 4 / element, 1 << 17)};
}

/// The sizes for the caches and the instruction set in use (active_caches, active_isa).
[[nodiscard]] inline const BlockSizes& block_sizes() {
    static const BlockSizes sizes = block_sizes_for(active_caches(), active_isa());
    return sizes;
}

}  // namespace unitscale::products
