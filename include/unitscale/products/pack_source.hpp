// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/products/coded_matrix.hpp>
#include <unitscale/products/pack.hpp>
#include <unitscale/products/pack_pairs.hpp>

#include <cstddef>
#include <type_traits>

// Only the functions that pack an operand know its element type. All later steps read panels. So a product is compiled
// once for each type of C, not once for each pair of operand types.
namespace unitscale::products {

template <class P>
struct PackSource;

/// The functions that pack one type of element. The functions for pairs are null where P is not float.
/// `left_columns` packs a transposed A into tiles of four rows, `panel_size` elements apart, for AVX2. It is null for
/// elements other than float, Half and BFloat16.
template <class P>
struct PackFunctions {
    std::ptrdiff_t element_bytes = 0;
    LeftPanel<P> (*left)(Isa, const PackSource<P>&, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser*,
                         P* out) = nullptr;
    RightPanels<P> (*right)(Isa, const PackSource<P>&, std::ptrdiff_t k, std::ptrdiff_t n, const Quantiser*,
                            P* out) = nullptr;
    void (*left_columns)(const PackSource<P>&, std::ptrdiff_t rows, std::ptrdiff_t k, const RegisterQuantiser&,
                         std::ptrdiff_t panel_size, P* out) = nullptr;
    void (*left_pairs)(const PackSource<P>&, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser*,
                       std::ptrdiff_t group, Pair* out, float* buffer) = nullptr;
    RightPairs (*right_pairs)(const PackSource<P>&, std::ptrdiff_t k, std::ptrdiff_t n, const Quantiser*, Pair* out,
                              float* buffer) = nullptr;
};

/// A matrix to be packed, or a batch of matrices. It holds codes, or elements of a type T with Accum<T> = P. Strides
/// count elements, as in the MatrixView that it is made of. Test: tests/products/pack_source_test.cpp
template <class P>
struct PackSource {
    const void* data = nullptr;
    std::ptrdiff_t row_stride = 0;
    std::ptrdiff_t col_stride = 1;
    std::ptrdiff_t batch_stride = 0;
    const CodeTable<P>* table = nullptr;  ///< of codes
    const PackFunctions<P>* functions = nullptr;

    PackSource() = default;
    template <class T>
    PackSource(const MatrixView<const T>& view) noexcept
        : data(view.data),
          row_stride(view.row_stride),
          col_stride(view.col_stride),
          batch_stride(view.batch_stride),
          functions(&functions_of<T>) {
        if constexpr (std::is_same_v<T, Coded<P>>) table = view.table;
    }

    /// Whether the element type is P: such elements can be read in place.
    [[nodiscard]] bool widened() const noexcept { return functions == &functions_of<P>; }
    /// The view that this source was made of.
    template <class T>
    [[nodiscard]] MatrixView<const T> view() const noexcept {
        if constexpr (std::is_same_v<T, Coded<P>>)
            return {{static_cast<const std::uint8_t*>(data), row_stride, col_stride, batch_stride}, table};
        else return {static_cast<const T*>(data), row_stride, col_stride, batch_stride};
    }
    [[nodiscard]] PackSource block(std::ptrdiff_t i, std::ptrdiff_t j) const noexcept {
        return moved(i * row_stride + j * col_stride);
    }
    [[nodiscard]] PackSource item(std::ptrdiff_t b) const noexcept { return moved(b * batch_stride); }

private:
    [[nodiscard]] PackSource moved(std::ptrdiff_t elements) const noexcept {
        PackSource source = *this;
        source.data = static_cast<const std::byte*>(data) + elements * functions->element_bytes;
        return source;
    }
    template <class T>
    [[nodiscard]] static constexpr PackFunctions<P> make_functions() noexcept {
        constexpr bool coded = std::is_same_v<T, Coded<P>>;
        PackFunctions<P> made;
        made.element_bytes = sizeof(std::conditional_t<coded, std::uint8_t, T>);
        made.left = [](Isa isa, const PackSource& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser* quantiser,
                       P* out) { return pack_left(isa, a.view<T>(), rows, k, quantiser, out); };
        made.right = [](Isa isa, const PackSource& b, std::ptrdiff_t k, std::ptrdiff_t n, const Quantiser* quantiser,
                        P* out) { return pack_right(isa, b.view<T>(), k, n, quantiser, out); };
#if UNITSCALE_X86
        if constexpr (is_line_element<T>)
            made.left_columns = [](const PackSource& a, std::ptrdiff_t rows, std::ptrdiff_t k,
                                   const RegisterQuantiser& quantiser, std::ptrdiff_t panel_size, P* out) {
                split_lines_avx2<4>(
                    LineBlock<T>{a.view<T>().data, a.col_stride, k, rows, round_up(rows, 4), out, panel_size},
                    quantiser);
            };
        if constexpr (std::is_same_v<P, float>) {
            made.left_pairs = [](const PackSource& a, std::ptrdiff_t rows, std::ptrdiff_t k, const Quantiser* quantiser,
                                 std::ptrdiff_t group, Pair* out, float* buffer) {
                pack_left_pairs(a.view<T>(), rows, k, quantiser, group, out, buffer);
            };
            made.right_pairs = [](const PackSource& b, std::ptrdiff_t k, std::ptrdiff_t n, const Quantiser* quantiser,
                                  Pair* out, float* buffer) {
                return pack_right_pairs(b.view<T>(), k, n, quantiser, out, buffer);
            };
        }
#endif
        return made;
    }
    template <class T>
    static constexpr PackFunctions<P> functions_of = make_functions<T>();
};

}  // namespace unitscale::products
