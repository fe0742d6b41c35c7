// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/kernels/matmul_pairs.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

// Other forms in which a product takes its right operand: packed before, and as 8-bit codes.
namespace unitscale::kernels {

/// The length of k that is packed at a time. C holds the sums between depths if it is as precise as they are.
template <class T>
[[nodiscard]] constexpr std::ptrdiff_t right_depth(PairKernel pairs, std::ptrdiff_t k) noexcept {
    if (!std::is_same_v<T, Accum<T>>) return k;
    return std::min(k, pairs != PairKernel::none ? pair_block_depth : block_depth);
}

/// B [k,n] rounded and packed once, for many products (`pack_weights`). Owns its memory. Test: tests/kernels/matmul_right_test.cpp
template <class T>
struct PackedRight {
    using P = Accum<T>;
    Isa isa = Isa::baseline;  ///< whose kernels read it
    PairKernel pairs = PairKernel::none;
    std::ptrdiff_t k = 0, n = 0, depth = 0;
    std::ptrdiff_t block = 0;  ///< elements of a depth
    std::vector<P, PoolAllocator<P>> data{};

    /// Columns j to j + cols of rows p to p + depth. p is a multiple of depth, j of a panel's width; the end is n or at a panel's.
    [[nodiscard]] RightPanels<P> panels(std::ptrdiff_t p, std::ptrdiff_t j, std::ptrdiff_t cols) const noexcept {
        const TileShape shape = tile_shape(isa);
        const std::ptrdiff_t rows = std::min(depth, k - p);
        return {at(p) + j * rows, rows, cols, shape.columns<P>(), shape.lanes<P>(), rows, 0};
    }
    [[nodiscard]] RightPairs pair_panels(std::ptrdiff_t p, std::ptrdiff_t j, std::ptrdiff_t cols) const noexcept {
        const std::ptrdiff_t rows = std::min(depth, k - p);
        return {reinterpret_cast<const Pair*>(at(p)) + j * pairs_of(rows), rows, cols, pair_columns, 16, pairs_of(rows), 0};
    }

private:
    [[nodiscard]] const P* at(std::ptrdiff_t p) const noexcept { return data.data() + (p == 0 ? 0 : p / depth * block); }
};

/// B packed for the kernels of `isa` and `pairs`, which must be what the product will use.
template <class T>
[[nodiscard]] PackedRight<T> pack_right_once(Isa isa, PairKernel pairs, const MatrixView<const T>& b, std::ptrdiff_t k,
                                             std::ptrdiff_t n, const Quantiser* round) {
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
                static_cast<void>(pack_right_pairs(b.block(p, 0), rows, n, round, reinterpret_cast<Pair*>(out), buffer.data()));
                continue;
            }
#endif
        static_cast<void>(pack_right(isa, b.block(p, 0), rows, n, round, out));
    }
    return packed;
}

/// A matrix, or a batch of them, of codes of a format of at most 8 bits, one to a byte: a saved activation, a stored weight.
struct CodedMatrix {
    MatrixView<const std::uint8_t> codes;
    FloatFormat format;
};

/// The numbers of all codes.
template <class P>
[[nodiscard]] std::array<P, 256> code_values(const FloatFormat& format) {
    std::array<P, 256> values{};
    for (std::size_t code = 0; code < values.size(); ++code)
        values[code] = static_cast<P>(decode(format, static_cast<std::uint32_t>(code % format.code_count())));
    return values;
}

/// Codes as the packing reads them: element (i, j) is values[codes(i, j)].
template <class P>
struct CodedView {
    MatrixView<const std::uint8_t> codes;
    const P* values = nullptr;

    [[nodiscard]] CodedView block(std::ptrdiff_t i, std::ptrdiff_t j) const noexcept { return {codes.block(i, j), values}; }
    [[nodiscard]] CodedView item(std::ptrdiff_t b) const noexcept { return {codes.item(b), values}; }
};

#if UNITSCALE_X86
// Without optimisation GCC's gather is a macro, which converts the mask in the user's name.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
/// Sixteen at a time; the rest is the caller's. Returns how many were looked up.
UNITSCALE_TARGET_AVX512 inline std::ptrdiff_t look_up_avx512(const std::uint8_t* codes, std::ptrdiff_t n, const float* values,
                                                             float* out) noexcept {
    std::ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512i index = _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
        _mm512_storeu_ps(out + i, _mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xFFFF, index, values, 4));
    }
    return i;
}
#pragma GCC diagnostic pop
#endif

/// `widen_block` of codes.
template <class P>
void widen_block(Isa isa, const CodedView<P>& a, std::ptrdiff_t rows, std::ptrdiff_t cols, std::ptrdiff_t padded_cols, P* out,
                 std::ptrdiff_t out_row) noexcept {
    const MatrixView<const std::uint8_t>& codes = a.codes;
    if (codes.row_stride == 1 && codes.col_stride != 1) {  // through a buffer, in the order of memory
        constexpr std::ptrdiff_t strip = 64, width = 32;
        alignas(64) std::array<P, static_cast<std::size_t>(strip * width)> buffer;
        for (std::ptrdiff_t i = 0; i < rows; i += strip)
            for (std::ptrdiff_t j = 0; j < cols; j += width) {
                const std::ptrdiff_t height = std::min(strip, rows - i), count = std::min(width, cols - j);
                const CodedView<P> lines{codes.block(i, j).transposed(), a.values};
                widen_block(isa, lines, count, height, height, buffer.data(), strip);
                transpose(isa, buffer.data(), strip, count, height, out + i * out_row + j, out_row);
            }
    } else {
        for (std::ptrdiff_t i = 0; i < rows; ++i) {
            P* const line = out + i * out_row;
            std::ptrdiff_t j = 0;
#if UNITSCALE_X86
            if constexpr (std::is_same_v<P, float>)
                if (isa == Isa::avx512 && codes.col_stride == 1) j = look_up_avx512(codes.at(i, 0), cols, a.values, line);
#endif
            for (; j < cols; ++j) line[j] = a.values[*codes.at(i, j)];
        }
    }
    if (cols < padded_cols)
        for (std::ptrdiff_t i = 0; i < rows; ++i) std::fill(out + i * out_row + cols, out + i * out_row + padded_cols, P{0});
}

/// `pack_right` and `pack_right_pairs` of codes.
template <class P>
[[nodiscard]] RightPanels<P> pack_right(Isa isa, const CodedView<P>& b, std::ptrdiff_t k, std::ptrdiff_t n, const Quantiser*,
                                        P* out) {
    return pack_right_from<P>(isa, b, k, n, nullptr, out);
}
#if UNITSCALE_X86
[[nodiscard]] inline RightPairs pack_right_pairs(const CodedView<float>& b, std::ptrdiff_t k, std::ptrdiff_t n, const Quantiser*,
                                                 Pair* out, float* buffer) {
    return pack_right_pairs_buffered(b, k, n, nullptr, out, buffer);
}
#endif

}  // namespace unitscale::kernels
