// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/products/micro_kernel.hpp>
#include <unitscale/products/quantise_lines.hpp>
#include <unitscale/tensor/backend.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/coded_weight.hpp>
#include <unitscale/tensor/half_lanes.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

// Operands on their way into the micro-kernels, and results on their way out. Only these functions of a product see
// element types, strides and formats. Everything between them is Accum<T> in panels.
namespace unitscale::products {

/// One matrix, or a batch of matrices. Element (i, j) is at data[i row_stride + j col_stride], batch item b at data + b
/// batch_stride. Strides count elements; they have any sign or are 0.
template <class T>
struct MatrixView {
    T* data = nullptr;
    std::ptrdiff_t row_stride = 0;
    std::ptrdiff_t col_stride = 1;
    std::ptrdiff_t batch_stride = 0;

    [[nodiscard]] T* at(std::ptrdiff_t i, std::ptrdiff_t j) const noexcept {
        return data + i * row_stride + j * col_stride;
    }
    [[nodiscard]] MatrixView block(std::ptrdiff_t i, std::ptrdiff_t j) const noexcept {
        return {at(i, j), row_stride, col_stride, batch_stride};
    }
    [[nodiscard]] MatrixView item(std::ptrdiff_t b) const noexcept {
        return {data + b * batch_stride, row_stride, col_stride, batch_stride};
    }
    [[nodiscard]] MatrixView transposed() const noexcept { return {data, col_stride, row_stride, batch_stride}; }
    operator MatrixView<const T>() const noexcept { return {data, row_stride, col_stride, batch_stride}; }
};

#if UNITSCALE_X86
/// Converts eight elements at a time and leaves the rest to the caller. Returns the number of converted elements.
UNITSCALE_TARGET_AVX2 inline std::ptrdiff_t widen_half_avx2(const Half* in, std::ptrdiff_t n, float* out) {
    std::ptrdiff_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
    return i;
}
UNITSCALE_TARGET_AVX2 inline std::ptrdiff_t narrow_half_avx2(const float* in, std::ptrdiff_t n, Half* out) {
    std::ptrdiff_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}
#elif defined(__aarch64__)
/// The same four at a time, by instructions that every 64-bit ARM processor has.
inline std::ptrdiff_t widen_half_neon(const Half* in, std::ptrdiff_t n, float* out) {
    std::ptrdiff_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(out + i, vcvt_f32_f16(vld1_f16(reinterpret_cast<const __fp16*>(in + i))));
    return i;
}
inline std::ptrdiff_t narrow_half_neon(const float* in, std::ptrdiff_t n, Half* out) {
    std::ptrdiff_t i = 0;
    for (; i + 4 <= n; i += 4) vst1_f16(reinterpret_cast<__fp16*>(out + i), vcvt_f16_f32(vld1q_f32(in + i)));
    return i;
}
#endif

/// Converts consecutive elements to Accum<T>; exact.
template <class T>
void widen_line(Isa isa, const T* in, std::ptrdiff_t n, Accum<T>* out) noexcept {
    std::ptrdiff_t i = 0;
    if constexpr (std::is_same_v<T, Accum<T>>) {
        if (n > 0) std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(T));
        return;
    }
#if UNITSCALE_X86
    if constexpr (std::is_same_v<T, Half>)
        if (isa != Isa::baseline) i = widen_half_avx2(in, n, out);
#elif defined(__aarch64__)
    if constexpr (std::is_same_v<T, Half>) i = widen_half_neon(in, n, out);
#endif
    if constexpr (std::is_same_v<T, BFloat16>)
        for (; i + 16 <= n; i += 16) load_lanes<16>(in + i, out + i);
    (void)isa;
    for (; i < n; ++i) out[i] = element_cast<Accum<T>>(in[i]);
}

/// Converts consecutive elements back to T, rounded to nearest even.
template <class T>
void narrow_line(Isa isa, const Accum<T>* in, std::ptrdiff_t n, T* out) noexcept {
    std::ptrdiff_t i = 0;
    if constexpr (std::is_same_v<T, Accum<T>>) {
        if (n > 0) std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(T));
        return;
    }
#if UNITSCALE_X86
    if constexpr (std::is_same_v<T, Half>)
        if (isa != Isa::baseline) i = narrow_half_avx2(in, n, out);
#elif defined(__aarch64__)
    if constexpr (std::is_same_v<T, Half>) i = narrow_half_neon(in, n, out);
#endif
    (void)isa;
    if constexpr (std::is_same_v<T, BFloat16>) {  // one function for all elements, which keeps the bits of every NaN
        for (; i + 16 <= n; i += 16) store_lanes<16>(in + i, out + i);
        for (; i < n; ++i) out[i] = narrow<T>(in[i]);
    }
    for (; i < n; ++i) out[i] = element_cast<T>(in[i]);
}

/// out[j, i] = in[i, j] for the square that fits a 128-bit vector: 4 x 4 floats, 2 x 2 doubles.
template <class T>
[[gnu::always_inline]] inline void transpose_square(const T* in, std::ptrdiff_t in_row, T* out,
                                                    std::ptrdiff_t out_row) noexcept {
    using Vector = typename Vector128<T>::unaligned;
    const auto load = [&](std::ptrdiff_t i) { return *reinterpret_cast<const Vector*>(in + i * in_row); };
    const auto store = [&](std::ptrdiff_t j, Vector v) { *reinterpret_cast<Vector*>(out + j * out_row) = v; };
    if constexpr (sizeof(T) == 4) {
        const Vector r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
        const Vector low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
                     high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
        const Vector low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
                     high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
        store(0, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
        store(1, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
        store(2, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
        store(3, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
    } else {
        const Vector r0 = load(0), r1 = load(1);
        store(0, __builtin_shufflevector(r0, r1, 0, 2));
        store(1, __builtin_shufflevector(r0, r1, 1, 3));
    }
}

/// out[j out_row + i] = in[i in_row + j] for i < rows, j < cols.
template <class T>
void transpose_block(const T* in, std::ptrdiff_t in_row, std::ptrdiff_t rows, std::ptrdiff_t cols, T* out,
                     std::ptrdiff_t out_row) noexcept {
    constexpr std::ptrdiff_t side = 16 / sizeof(T);
    const std::ptrdiff_t whole_rows = rows / side * side, whole_cols = cols / side * side;
    for (std::ptrdiff_t j = 0; j < whole_cols; j += side)
        for (std::ptrdiff_t i = 0; i < whole_rows; i += side)
            transpose_square(in + i * in_row + j, in_row, out + j * out_row + i, out_row);
    for (std::ptrdiff_t j = 0; j < cols; ++j)
        for (std::ptrdiff_t i = j < whole_cols ? whole_rows : 0; i < rows; ++i)
            out[j * out_row + i] = in[i * in_row + j];
}

/// `transpose_block` with the kernels of an instruction set.
template <class T>
void transpose_block(Isa isa, const T* in, std::ptrdiff_t in_row, std::ptrdiff_t rows, std::ptrdiff_t cols, T* out,
                     std::ptrdiff_t out_row) noexcept {
#if UNITSCALE_X86
    if constexpr (std::is_same_v<T, float>)
        if (isa == Isa::avx512) {
            const std::ptrdiff_t whole_rows = rows / 16 * 16, whole_cols = cols / 16 * 16;
            for (std::ptrdiff_t j = 0; j < whole_cols; j += 16)
                for (std::ptrdiff_t i = 0; i < whole_rows; i += 16)
                    transpose_square_avx512(in + i * in_row + j, in_row, out + j * out_row + i, out_row);
            if (whole_rows < rows)
                transpose_block(in + whole_rows * in_row, in_row, rows - whole_rows, whole_cols, out + whole_rows,
                                out_row);
            if (whole_cols < cols)
                transpose_block(in + whole_cols, in_row, rows, cols - whole_cols, out + whole_cols * out_row, out_row);
            return;
        }
#endif
    static_cast<void>(isa);
    transpose_block(in, in_row, rows, cols, out, out_row);
}

/// Copies rows of `cols` consecutive elements, if `cols` is one of Counts: without a call of memcpy for each row.
template <std::ptrdiff_t... Counts, class T>
bool copy_rows(const T* in, std::ptrdiff_t in_row, std::ptrdiff_t rows, std::ptrdiff_t cols, T* out,
               std::ptrdiff_t out_row) noexcept {
    const auto copy = [&](auto count) {
        for (std::ptrdiff_t i = 0; i < rows; ++i) std::memcpy(out + i * out_row, in + i * in_row, count() * sizeof(T));
        return true;
    };
    return ((cols == Counts && copy(std::integral_constant<std::size_t, std::size_t{Counts}>{})) || ...);
}

/// out[i out_row + j] = a(i, j) in Accum<T>, for any strides of a. Columns of out from `cols` to `padded_cols` become
/// 0.
template <class T>
void widen_block(Isa isa, const MatrixView<const T>& a, std::ptrdiff_t rows, std::ptrdiff_t cols,
                 std::ptrdiff_t padded_cols, Accum<T>* out, std::ptrdiff_t out_row) noexcept {
    using P = Accum<T>;
    if (a.col_stride == 1) {
        bool copied = false;
        if constexpr (std::is_same_v<T, P>)  // the usual widths of panels
            copied = copy_rows<32, 24, 16, 12, 8, 4>(a.data, a.row_stride, rows, cols, out, out_row);
        for (std::ptrdiff_t i = 0; !copied && i < rows; ++i)
            widen_line(isa, a.data + i * a.row_stride, cols, out + i * out_row);
    } else if (a.row_stride == 1) {
        if constexpr (std::is_same_v<T, P>) {
            transpose_block(isa, a.data, a.col_stride, cols, rows, out, out_row);
        } else {
            constexpr std::ptrdiff_t strip = 64;
            alignas(64) std::array<P, static_cast<std::size_t>(strip * max_tile_columns<P>)> buffer;
            for (std::ptrdiff_t i = 0; i < rows; i += strip)
                for (std::ptrdiff_t j = 0; j < cols; j += max_tile_columns<P>) {
                    const std::ptrdiff_t height = std::min(strip, rows - i),
                                         width = std::min(max_tile_columns<P>, cols - j);
                    for (std::ptrdiff_t l = 0; l < width; ++l)
                        widen_line(isa, a.at(i, j + l), height, buffer.data() + l * strip);
                    transpose_block(isa, buffer.data(), strip, width, height, out + i * out_row + j, out_row);
                }
        }
    } else {
        for (std::ptrdiff_t i = 0; i < rows; ++i)
            for (std::ptrdiff_t j = 0; j < cols; ++j) out[i * out_row + j] = element_cast<P>(*a.at(i, j));
    }
    if (cols < padded_cols)
        for (std::ptrdiff_t i = 0; i < rows; ++i)
            std::fill(out + i * out_row + cols, out + i * out_row + padded_cols, P{0});
}

/// Quantises packed values in place. Zeros of the padding stay zero.
template <class P>
void quantise_packed(Isa isa, const Quantiser* quantiser, P* values, std::ptrdiff_t count) {
    if (quantiser == nullptr || count == 0) return;
    const std::span<P> span(values, static_cast<std::size_t>(count));
    if constexpr (std::is_same_v<P, float>) {
#if UNITSCALE_X86
        if (isa != Isa::baseline && quantises_in_register(*quantiser))
            return copy_lines<float>(isa, {values, count, 1, count, count, values, count},
                                     register_quantiser(quantiser));
#endif
        quantise_span(isa, quantiser->format, span, span, quantiser->options());
    } else {
        quantise(quantiser->format, std::span<const P>(span), span, quantiser->options());
    }
}

/// `widen_block` of any view that it accepts, with each element quantised once. The result is a sequence of lines of
/// padded_cols elements.
template <class P, class View>
void pack_block(Isa isa, const View& a, std::ptrdiff_t rows, std::ptrdiff_t cols, std::ptrdiff_t padded_cols,
                const Quantiser* quantiser, P* out) {
    widen_block(isa, a, rows, cols, padded_cols, out, padded_cols);
    quantise_packed(isa, quantiser, out, rows * padded_cols);
}
template <class P, class T>
void pack_block(Isa isa, const MatrixView<const T>& a, std::ptrdiff_t rows, std::ptrdiff_t cols,
                std::ptrdiff_t padded_cols, const Quantiser* quantiser, P* out) {
#if UNITSCALE_X86
    if constexpr (is_line_element<T>)
        if (isa != Isa::baseline && quantises_in_register(quantiser)) {
            const RegisterQuantiser constants = register_quantiser(quantiser);
            if (a.col_stride == 1)
                return copy_lines<T>(isa, {a.data, a.row_stride, rows, cols, padded_cols, out, padded_cols}, constants);
            if (a.row_stride == 1)
                return transpose_lines<T>(isa, {a.data, a.col_stride, cols, rows, padded_cols, out, padded_cols},
                                          constants);
        }
#endif
    pack_block<P, MatrixView<const T>>(isa, a, rows, cols, padded_cols, quantiser, out);
}

/// Rows of A as a micro-kernel reads them: A[i,p] at data[i row + p step].
template <class P>
struct LeftPanel {
    const P* data = nullptr;
    std::ptrdiff_t row = 0, step = 1;
};

/// Packs `rows` rows of A, k columns, into out (round_up(rows, 4) k elements; rows of padding are zero), in the order
/// of A in memory. With a quantiser, each element is quantised once, on the way.
template <class T>
[[nodiscard]] LeftPanel<Accum<T>> pack_left(Isa isa, const MatrixView<const T>& a, std::ptrdiff_t rows,
                                            std::ptrdiff_t k, const Quantiser* quantiser, Accum<T>* out) {
    const std::ptrdiff_t padded = round_up(rows, 4);
    LeftPanel<Accum<T>> panel{out, k, 1};
    if (a.row_stride == 1 && a.col_stride != 1) {
        panel = {out, 1, padded};
        pack_block(isa, a.transposed(), k, rows, padded, quantiser, out);
    } else {
        pack_block(isa, a, rows, k, k, quantiser, out);
        std::fill(out + rows * k, out + padded * k, Accum<T>{0});
    }
    return panel;
}

/// A part of a coded weight w as a right operand B = w^T, from B's row p and column j on.
struct CodedRight {
    const CodedWeight* weight = nullptr;
    std::ptrdiff_t p = 0, j = 0;
    bool apart = false;  ///< numbers are without the tensor's factor

    [[nodiscard]] CodedRight block(std::ptrdiff_t row, std::ptrdiff_t column) const noexcept {
        return {weight, p + row, j + column, apart};
    }
};

/// B [k,n] in panels of `width` columns; the last panel has as many whole vectors as it needs. Four layouts:
/// - Packed: a panel has k rows of consecutive columns, with element (p, j) of panel q at panel(q)[p row_step(q) + j].
/// - Row-major in place: as packed, with `in_place_row` as the row stride. n is a number of whole vectors.
/// - Column-major in place: element (p, j) is at panel(q)[j in_place_column + p], to be quantised by `quantiser`.
/// - Coded: `coded` is decoded in registers (coded_rows.hpp).
template <class P>
struct RightPanels {
    const P* data = nullptr;
    std::ptrdiff_t k = 0, n = 0, width = 0, lanes = 1;
    std::ptrdiff_t packed_k = 0;         ///< rows that packed panels hold; k of them are used
    std::ptrdiff_t in_place_row = 0;     ///< 0: packed
    std::ptrdiff_t in_place_column = 0;  ///< 0: not column-major
    RegisterQuantiser quantiser{};
    CodedRight coded{};

    [[nodiscard]] std::ptrdiff_t columns(std::ptrdiff_t q) const noexcept { return std::min(width, n - q * width); }
    [[nodiscard]] std::ptrdiff_t padded_columns(std::ptrdiff_t q) const noexcept { return round_up(columns(q), lanes); }
    [[nodiscard]] std::ptrdiff_t row_step(std::ptrdiff_t q) const noexcept {
        return in_place_column != 0 ? 1 : in_place_row != 0 ? in_place_row : padded_columns(q);
    }
    [[nodiscard]] const P* panel(std::ptrdiff_t q) const noexcept {
        return data + q * width * (in_place_column != 0 ? in_place_column : in_place_row != 0 ? 1 : packed_k);
    }
    [[nodiscard]] std::ptrdiff_t count() const noexcept { return (n + width - 1) / width; }

    /// The first rows of B, as a B of its own.
    [[nodiscard]] RightPanels first_rows(std::ptrdiff_t rows) const noexcept {
        return {data, rows, n, width, lanes, packed_k, in_place_row, in_place_column, quantiser, coded};
    }
    /// The first columns, up to the end of the last panel that holds any of them.
    [[nodiscard]] RightPanels first_columns(std::ptrdiff_t cols) const noexcept {
        return {
            data,      k,    std::min(n, round_up(cols, width)), width, lanes, packed_k, in_place_row, in_place_column,
            quantiser, coded};
    }
};

/// B in place, for few rows of A, which do not repay packing. Columns are consecutive, and n is a number of whole
/// vectors.
template <class P>
[[nodiscard]] RightPanels<P> right_in_place(Isa isa, const MatrixView<const P>& b, std::ptrdiff_t k,
                                            std::ptrdiff_t n) noexcept {
    const TileShape shape = tile_shape(isa);
    return {b.data, k, n, shape.columns<P>(), shape.lanes<P>(), 0, b.row_stride};
}

/// B in place with consecutive rows (column-major), in panels of `vectors` vectors. Elements are quantised when read.
template <class P>
[[nodiscard]] RightPanels<P> right_columns_in_place(Isa isa, const MatrixView<const P>& b, std::ptrdiff_t k,
                                                    std::ptrdiff_t n, std::ptrdiff_t vectors,
                                                    const Quantiser* quantiser) noexcept {
    const std::ptrdiff_t lanes = tile_shape(isa).lanes<P>();
    return {b.data, k, n, vectors * lanes, lanes, 0, 0, b.col_stride, register_quantiser(quantiser)};
}

/// Number of elements that pack_right writes.
template <class P>
[[nodiscard]] std::ptrdiff_t packed_right_size(Isa isa, std::ptrdiff_t k, std::ptrdiff_t n) noexcept {
    return k * round_up(n, tile_shape(isa).lanes<P>());
}

/// Rows of a row-major B that are packed together, each for all panels. Memory is then read along the rows, which may
/// be pages apart (docs/benchmarks.md, "On a Zen 4"). A B of one or two panels has short rows and is packed whole.
inline constexpr std::ptrdiff_t right_lines_at_once = 16;

/// Packs B and quantises each element once on the way. Columns of padding are zero. `View`: any view that widen_block
/// accepts.
template <class P, class View>
[[nodiscard]] RightPanels<P> pack_right_from(Isa isa, const View& b, std::ptrdiff_t k, std::ptrdiff_t n,
                                             const Quantiser* quantiser, P* out) {
    const TileShape shape = tile_shape(isa);
    const RightPanels<P> panels{out, k, n, shape.columns<P>(), shape.lanes<P>(), k, 0};
    const std::ptrdiff_t lines = b.col_stride == 1 && panels.count() > 2 ? std::min(k, right_lines_at_once) : k;
    for (std::ptrdiff_t p = 0; p < k; p += lines)
        for (std::ptrdiff_t q = 0; q < panels.count(); ++q) {
            const std::ptrdiff_t step = panels.padded_columns(q);
            pack_block(isa, b.block(p, q * panels.width), std::min(lines, k - p), panels.columns(q), step, quantiser,
                       out + q * panels.width * k + p * step);
        }
    return panels;
}
template <class T>
[[nodiscard]] RightPanels<Accum<T>> pack_right(Isa isa, const MatrixView<const T>& b, std::ptrdiff_t k,
                                               std::ptrdiff_t n, const Quantiser* quantiser, Accum<T>* out) {
#if UNITSCALE_X86
    if constexpr (is_line_element<T>)
        if (isa == Isa::avx2 && b.col_stride == 1 && quantises_in_register(quantiser)) {
            constexpr std::ptrdiff_t width = tile_shape(Isa::avx2).columns<float>(), lanes = 8;
            split_lines_avx2<width>(LineBlock<T>{b.data, b.row_stride, k, n, round_up(n, lanes), out, width * k},
                                    register_quantiser(quantiser));
            return {out, k, n, width, lanes, k, 0};
        }
#endif
    return pack_right_from<Accum<T>>(isa, b, k, n, quantiser, out);
}

}  // namespace unitscale::products
