// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/products/block_sizes.hpp>
#include <unitscale/products/coded_rows.hpp>
#include <unitscale/products/few_rows.hpp>
#include <unitscale/products/pack.hpp>
#include <unitscale/products/pack_source.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>

namespace unitscale::products {

/// A product may be computed in ranges of k, whose sums add up. Between two ranges the sums are kept here, without any
/// factor. So C has the bits of the product with all of k. For products of pairs only.
template <class P>
struct CarriedSums {
    P* sums = nullptr;            ///< [m and n in whole tiles], tile by tile; null: A and B have all of k
    std::ptrdiff_t k_before = 0;  ///< length of k before this range, a multiple of 32
    bool ends = true;             ///< no range follows
};

/// A product with B in panels, in the calling thread:
///   C = alpha (row_scale[i] col_scale[j] (A B) + bias) + gamma C        A [m,k]   B [k,n]   C [m,n]
/// bias and col_scale [n rounded up to the tile's width] may be null. So may row_scale [m rounded up to the tile's
/// height].
template <class TC>
struct BlockProduct {
    using P = Accum<TC>;
    std::ptrdiff_t m = 0;
    std::ptrdiff_t above = 0,
                   below = 0;    ///< rows of A and C before and after these, of the same thread; for times only
    std::ptrdiff_t first_k = 0;  ///< of all of k. Sums begin there: a multiple of 32, before which A or B is zero
    CarriedSums<P> carried{};
    PackSource<P> a;
    const Quantiser* round_a = nullptr;
    RightPanels<P> b;
    MatrixView<TC> c;
    P alpha = 1, gamma = 0;
    const P* bias = nullptr;
    const P* row_scale = nullptr;
    const P* col_scale = nullptr;
};

/// Elements between packed tiles of A. Without the sixteen, the tiles of 512 columns of k would begin in one set of
/// level 1, which holds fewer.
[[nodiscard]] constexpr std::ptrdiff_t left_panel_size(std::ptrdiff_t tile_rows, std::ptrdiff_t k) noexcept {
    return tile_rows * std::min(k, block_depth) + 16;
}
/// Elements that `rows` packed rows of A take.
[[nodiscard]] constexpr std::ptrdiff_t packed_left_size(std::ptrdiff_t tile_rows, std::ptrdiff_t rows,
                                                        std::ptrdiff_t k) noexcept {
    return round_up((rows + tile_rows - 1) / tile_rows * left_panel_size(tile_rows, k), 16);
}

/// Longest k for which a transposed A is read in place. Its tiles then read so many lines of memory.
inline constexpr std::ptrdiff_t short_depth = 64;

/// Columns of a transposed A that `pack_left_by_lines` packs together, each for all tiles.
inline constexpr std::ptrdiff_t left_lines_at_once = 16;

/// Whether `left_columns` can pack a transposed A. It reads whole lines for all tiles.
template <class P>
[[nodiscard]] bool splits_lines(Isa isa, const PackSource<P>& a, const Quantiser* quantiser) noexcept {
    return isa == Isa::avx2 && a.functions->left_columns != nullptr && quantises_in_register(quantiser);
}

/// Packs `rows` rows and k columns of a transposed A into tiles that are `panel_size` elements apart: some columns for
/// all tiles, then the next columns. A column is a line in memory. A tile has the layout of `pack_left`.
template <class P>
void pack_left_by_lines(Isa isa, const PackSource<P>& a, std::ptrdiff_t rows, std::ptrdiff_t k,
                        const Quantiser* quantiser, std::ptrdiff_t tile_rows, std::ptrdiff_t panel_size, P* out) {
    for (std::ptrdiff_t p = 0; p < k; p += left_lines_at_once) {
        const std::ptrdiff_t lines = std::min(left_lines_at_once, k - p);
        for (std::ptrdiff_t i = 0, q = 0; i < rows; i += tile_rows, ++q) {
            if (i % 16 == 0)  // asks for the cache lines after the next
                for (std::ptrdiff_t l = 0; l < lines; ++l)
                    __builtin_prefetch(a.block(std::min(i + 32, rows - 1), p + l).data);
            const std::ptrdiff_t count = std::min(tile_rows, rows - i);
            static_cast<void>(a.functions->left(isa, a.block(i, p), count, lines, quantiser,
                                                out + q * panel_size + p * round_up(count, 4)));
        }
    }
}

/// Elements of scratch that `multiply_block` needs: packed rows of A, and sums in P where C cannot hold them.
template <class TC>
[[nodiscard]] std::ptrdiff_t block_scratch_size(Isa isa, std::ptrdiff_t m, std::ptrdiff_t n,
                                                std::ptrdiff_t k) noexcept {
    const std::ptrdiff_t rows = std::min(round_up(m, 4), block_sizes().rows);
    const bool sums = !std::is_same_v<TC, Accum<TC>> && k > block_depth;
    return packed_left_size(tile_shape(isa).rows, rows, k) +
           (sums ? rows * round_up(n, tile_shape(isa).template columns<Accum<TC>>()) : 0);
}

/// C as tiles read and write it that are not computed in place.
template <class TC>
struct TileOutput {
    using P = Accum<TC>;
    Isa isa;
    MatrixView<TC> c;

    /// Reads the tile's old values, for rows and columns that exist. The rest of the tile is left unchanged.
    void load(std::ptrdiff_t i, std::ptrdiff_t j, std::ptrdiff_t rows, std::ptrdiff_t cols, P* tile,
              std::ptrdiff_t tile_row) const {
        for (std::ptrdiff_t r = 0; r < rows; ++r) {
            P* const out = tile + r * tile_row;
            if (c.col_stride == 1) widen_line(isa, c.at(i + r, j), cols, out);
            else
                for (std::ptrdiff_t l = 0; l < cols; ++l) out[l] = element_cast<P>(*c.at(i + r, j + l));
        }
    }
    void store(std::ptrdiff_t i, std::ptrdiff_t j, std::ptrdiff_t rows, std::ptrdiff_t cols, const P* tile,
               std::ptrdiff_t tile_row) const {
        for (std::ptrdiff_t r = 0; r < rows; ++r) {
            const P* const in = tile + r * tile_row;
            if (c.col_stride == 1) narrow_line(isa, in, cols, c.at(i + r, j));
            else
                for (std::ptrdiff_t l = 0; l < cols; ++l) *c.at(i + r, j + l) = element_cast<TC>(in[l]);
        }
    }
};

/// Runs the product with `scratch` (block_scratch_size elements). Every element of C is computed by equal operations in
/// equal order wherever it stands in C, so m and n may be cut anywhere. Test: tests/products/block_test.cpp
template <class TC>
void multiply_block(Isa isa, const BlockProduct<TC>& product, Accum<TC>* scratch) {
    using P = Accum<TC>;
    const TileShape shape = tile_shape(isa);
    const RightPanels<P>& b = product.b;
    const std::ptrdiff_t k = b.k, tile_rows = shape.rows, lanes = b.lanes, most_rows = block_sizes().rows;
    const std::ptrdiff_t panel_size = left_panel_size(tile_rows, k);
    const bool coded = b.coded.weight != nullptr;           // of one row of A
    const bool any_rows = coded || b.in_place_column != 0;  // tiles of any number of rows, which lie along k
    // A is read in place if its elements have type P and are not quantised: rows along k, and columns where k is short.
    // Not so where rows are whole pages apart, or columns quarters of pages: few sets of level 1 would hold them.
    const bool along = product.a.col_stride == 1, across = product.a.row_stride == 1 && !along;
    const bool crowds = product.m > 4 && whole_pages_apart<P>(product.a.row_stride);
    const bool short_columns = across && !any_rows && k <= short_depth &&
                               product.a.col_stride * static_cast<std::ptrdiff_t>(sizeof(P)) % 1024 != 0;
    const bool in_place = product.a.widened() && product.round_a == nullptr && ((along && !crowds) || short_columns);
    const bool splits = !in_place && across && splits_lines(isa, product.a, product.round_a);
    // With tiles of four rows, a tile's part of a line of a transposed A is a quarter of a cache line (half of it in
    // double). Where lines are half a page apart or more, level 1 would lose the rest before the next tile is packed.
    const bool apart = !in_place && across && !splits && tile_rows * static_cast<std::ptrdiff_t>(sizeof(P)) < 48 &&
                       product.a.col_stride * product.a.functions->element_bytes >= 2048;
    const bool direct_c = std::is_same_v<TC, P> && product.c.col_stride == 1;
    // Where k is cut into parts, tiles pass their sums from part to part in P: in C, or here if C's type is narrower.
    P* const sums = !std::is_same_v<TC, P> && k > block_depth
                        ? scratch + packed_left_size(tile_rows, std::min(round_up(product.m, 4), most_rows), k)
                        : nullptr;
    const std::ptrdiff_t sums_row = b.count() * b.width;
    alignas(64) std::array<P, static_cast<std::size_t>(max_tile_rows * max_tile_columns<P>)> buffer;
    std::array<LeftPanel<P>, static_cast<std::size_t>(block_rows / 4)> left;

    for (std::ptrdiff_t i0 = 0; i0 < product.m; i0 += most_rows) {
        const std::ptrdiff_t height = std::min(most_rows, product.m - i0);
        std::ptrdiff_t p0 = product.first_k;
        do {  // runs once for k = 0 too
            const std::ptrdiff_t depth = std::min(block_depth - p0 % block_depth, k - p0);
            if (splits)
                product.a.functions->left_columns(product.a.block(i0, p0), height, depth,
                                                  register_quantiser(product.round_a), panel_size, scratch);
            else if (apart)
                pack_left_by_lines(isa, product.a.block(i0, p0), height, depth, product.round_a, tile_rows, panel_size,
                                   scratch);
            for (std::ptrdiff_t i = 0, q = 0; i < height; i += tile_rows, ++q) {
                const PackSource<P> rows = product.a.block(i0 + i, p0);
                const std::ptrdiff_t count = std::min(tile_rows, height - i);
                auto& panel = left[static_cast<std::size_t>(q)];
                P* const packed = scratch + q * panel_size;
                if (splits || apart) panel = {packed, 1, round_up(count, 4)};
                else if (in_place && (any_rows || count % 4 == 0))
                    panel = {rows.template view<P>().data, rows.row_stride, rows.col_stride};
                else panel = rows.functions->left(isa, rows, count, depth, product.round_a, packed);
            }
            const TileOutput<TC> output{isa, product.c.block(i0, 0)};
            const bool first = p0 == product.first_k, last = p0 + depth == k;
            TileProduct<P> tile;
            tile.k = depth;
            tile.alpha = product.alpha;
            tile.gamma = first ? product.gamma : P{1};
            for (std::ptrdiff_t q = 0; q < b.count(); ++q) {
                const std::ptrdiff_t j = q * b.width, cols = b.columns(q), padded_cols = b.padded_columns(q);
                tile.b_step = b.row_step(q);
                tile.b = b.panel(q) + p0 * tile.b_step;
                tile.bias = first && product.bias != nullptr ? product.bias + j : nullptr;
                tile.col_scale = product.col_scale != nullptr ? product.col_scale + j : nullptr;
                for (std::ptrdiff_t i = 0, r = 0; i < height; i += tile_rows, ++r) {
                    const auto& panel = left[static_cast<std::size_t>(r)];
                    const std::ptrdiff_t count = std::min(tile_rows, height - i),
                                         padded = any_rows ? count : round_up(count, 4);
                    tile.a = panel.data;
                    tile.a_row = panel.row;
                    tile.a_step = panel.step;
                    tile.row_scale = product.row_scale != nullptr ? product.row_scale + i0 + i : nullptr;
                    bool direct = false;
                    if constexpr (std::is_same_v<TC, P>) {
                        direct = direct_c && count == padded && cols == padded_cols;
                        if (direct) {
                            tile.c = output.c.at(i, j);
                            tile.c_row = output.c.row_stride;
                        }
                    }
                    if (!direct) {
                        tile.c = sums != nullptr ? sums + i * sums_row + j : buffer.data();
                        tile.c_row = sums != nullptr ? sums_row : padded_cols;
                        if (tile.gamma != 0 && (sums == nullptr || first)) {
                            for (std::ptrdiff_t l = 0; l < padded; ++l)
                                std::fill_n(tile.c + l * tile.c_row, padded_cols, P{0});
                            output.load(i, j, count, cols, tile.c, tile.c_row);
                        }
                    }
                    if (coded) coded_product(isa, b.coded.block(p0, j), tile, cols);
                    else if (any_rows)
                        column_major_product(isa,
                                             ColumnMajorTile<P>{tile, count, cols, b.in_place_column, b.quantiser});
                    else tile_product(isa, static_cast<int>(padded / 4), static_cast<int>(padded_cols / lanes), tile);
                    if (!direct && (sums == nullptr || last)) output.store(i, j, count, cols, tile.c, tile.c_row);
                }
            }
            p0 += depth;
        } while (p0 < k);
    }
}

}  // namespace unitscale::products
