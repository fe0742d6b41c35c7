// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/products/coded_matrix.hpp>
#include <unitscale/products/pack_source.hpp>
#include <unitscale/products/packed_right.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace unitscale::products {

/// Numbers in the type of the sums, for operands that were quantised before, such as operands in blocks.
template <class P>
struct QuantisedNumbers {
    MatrixView<const P> view{};
    bool exact_in_bf16 =
        false;     ///< every number is a bf16 number and not subnormal there: bf16 instructions may take it
    P factor = 1;  ///< of all numbers: the product's sums are multiplied by it
    /// Limited sums only: the format of the numbers, and scales of runs. Run r of line l, which is a row of A or a
    /// column of B, has the scale run_scales[l run_stride + r].
    FloatFormat format = fp32;
    const float* run_scales = nullptr;
    std::ptrdiff_t run_stride = 0;
};

/// An operand of a product, in one of five forms:
///   elements      `view`, each quantised on its way into the product if there is a `quantiser`
///   numbers       quantised before, in Accum<T>
///   codes         of at most 8 bits, decoded on the way; the bits of the product equal those of the decoded elements
///   packed        B only: quantised and packed before, for many products (`pack_weights`)
///   weight        B only: the transpose of a weight that is kept as codes with scales, read where it stands
/// The memory is borrowed. Stochastic rounding takes, for the element at view.data[o], piece o (`random_piece`) of the
/// stream `key`. Test: tests/products/operand_test.cpp
template <class T>
struct Operand {
    MatrixView<const T> view{};
    std::optional<Quantiser> quantiser{};
    RandomKey key{};
    std::optional<QuantisedNumbers<Accum<T>>> numbers{};  ///< in place of view and quantiser
    std::optional<CodedMatrix> codes{};                   ///< in place of view, quantiser and numbers
    const PackedRight<T>* packed = nullptr;               ///< in place of all the others
    const CodedWeight* weight = nullptr;                  ///< in place of all the others
    bool weight_apart = false;  ///< the weight's factor is left to the sums (`CodedWeight::factor`)

    /// Whether all numbers that the product multiplies are exact in bf16, as bf16 instructions take them.
    [[nodiscard]] bool is_exact_in_bf16() const noexcept {
        if (weight != nullptr) return weight->exact_in_bf16() && (weight_apart || weight->factor() == 1);
        if (codes) return products::exact_in_bf16(codes->format);
        if (numbers) return numbers->exact_in_bf16;
        return quantiser && products::exact_in_bf16(quantiser->format);
    }
    /// Whether the elements are multiplied as they stand in memory.
    [[nodiscard]] bool is_plain() const noexcept {
        return !codes && !numbers && !quantiser && packed == nullptr && weight == nullptr;
    }
    /// The factor that sums of products are multiplied by.
    [[nodiscard]] Accum<T> factor() const noexcept {
        if (weight != nullptr) return weight_apart ? static_cast<Accum<T>>(weight->factor()) : 1;
        return numbers && packed == nullptr ? numbers->factor : 1;
    }
    [[nodiscard]] bool is_stochastic() const noexcept {
        return !codes && !numbers && weight == nullptr && quantiser && quantiser->rounding == Rounding::stochastic;
    }
};

/// Quantises the elements of an operand into `out`, in memory order, batch items one after the other. Stochastic
/// rounding takes this separate pass. Returns the view of the result.
template <class T>
[[nodiscard]] MatrixView<const Accum<T>> quantise_operand(const Execution& execution, Isa isa,
                                                          const MatrixView<const T>& view, std::ptrdiff_t rows,
                                                          std::ptrdiff_t cols, std::ptrdiff_t batch,
                                                          const Quantiser& quantiser, RandomKey key, Accum<T>* out) {
    using P = Accum<T>;
    if (view.row_stride == 1 && view.col_stride != 1)
        return quantise_operand(execution, isa, view.transposed(), cols, rows, batch, quantiser, key, out).transposed();
    const std::ptrdiff_t items = view.batch_stride == 0 ? 1 : batch;
    parallel_for(execution.threads, items * rows, 16384 / std::max<std::ptrdiff_t>(cols, 1) + 1,
                 [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t r = begin; r < end; ++r) {
                         const MatrixView<const T> row = view.item(r / rows).block(r % rows, 0);
                         const std::span<P> values(out + r * cols, static_cast<std::size_t>(cols));
                         widen_block(isa, row, 1, cols, cols, values.data(), cols);
                         QuantiseOptions options = quantiser.options(key);
                         options.first_index = static_cast<std::uint64_t>(row.data - view.data);
                         if (view.col_stride == 1) {
                             quantise(quantiser.format, std::span<const P>(values), values, options);
                         } else {
                             for (std::ptrdiff_t j = 0; j < cols; ++j)
                                 values[static_cast<std::size_t>(j)] =
                                     quantise(quantiser.format, values[static_cast<std::size_t>(j)], options,
                                              static_cast<std::uint64_t>(j * view.col_stride));
                         }
                     }
                 });
    return {out, cols, 1, items == 1 ? 0 : rows * cols};
}

/// Whether any of `count` consecutive elements is a NaN.
template <class T>
[[nodiscard]] bool line_contains_nan(const T* values, std::ptrdiff_t count) noexcept {
    const std::span<const T> span(values, static_cast<std::size_t>(count));
    if constexpr (std::is_same_v<T, float>) return contains_nan(active_isa(), span.data(), span.size());
    else if constexpr (std::is_same_v<T, double>) return find_nan(span) != span.size();
    else return std::any_of(span.begin(), span.end(), [](T x) { return is_nan(element_cast<float>(x)); });
}

/// Error, in the name of `name`, unless the elements can be quantised.
template <class T>
void check_quantiser(std::string_view name, const MatrixView<const T>& view, std::ptrdiff_t rows, std::ptrdiff_t cols,
                     std::ptrdiff_t batch, const Quantiser& quantiser) {
    check_options(name, quantiser.format, quantiser.options());
    if (quantiser.format.has_nan()) return;
    // Lines of memory are searched first, if there are any. Only if one holds a NaN, it is looked for in row order.
    const bool column_major = view.row_stride == 1 && view.col_stride != 1;
    const MatrixView<const T> lines = column_major ? view.transposed() : view;
    const std::ptrdiff_t count = column_major ? cols : rows, length = column_major ? rows : cols;
    for (std::ptrdiff_t b = 0; b < (view.batch_stride == 0 ? std::min<std::ptrdiff_t>(batch, 1) : batch); ++b) {
        bool found = lines.col_stride != 1;
        for (std::ptrdiff_t i = 0; i < count && !found; ++i) found = line_contains_nan(lines.item(b).at(i, 0), length);
        for (std::ptrdiff_t i = 0; i < rows && found; ++i)
            for (std::ptrdiff_t j = 0; j < cols; ++j)
                if (is_nan(element_cast<Accum<T>>(*view.item(b).at(i, j))))
                    fail(name, ": ", unitscale::name(quantiser.format), " has no NaN: element [", i, ",", j,
                         "] is NaN");
    }
}

/// Error, in the name of `name`, unless the product can take the operand: an invalid format, codes of more than 8 bits,
/// a NaN quantised to a format without NaN. The check runs before any thread starts.
template <class T>
void check_operand(std::string_view name, const Operand<T>& operand, std::ptrdiff_t rows, std::ptrdiff_t cols,
                   std::ptrdiff_t batch) {
    if (operand.weight != nullptr) {
        const auto out = static_cast<std::ptrdiff_t>(operand.weight->out()),
                   in = static_cast<std::ptrdiff_t>(operand.weight->in());
        check(in == rows && out == cols, name, ": coded weight [", out, ",", in, "]; expected [", cols, ",", rows, "]");
        return;
    }
    if (operand.codes) {
        const FloatFormat& format = operand.codes->format;
        if (const auto message = problem(format); !message.empty()) fail(name, ": format: ", message);
        if (format.code_bits() > 8) fail(name, ": codes of ", unitscale::name(format), " do not fit a byte");
    } else if (operand.quantiser && !operand.numbers) {
        check_quantiser(name, operand.view, rows, cols, batch, *operand.quantiser);
    }
}

/// An operand as packing reads it, with the memory that this needs: the numbers of codes, or elements that were rounded
/// stochastically in a pass of their own.
template <class T>
class OperandSource {
public:
    using P = Accum<T>;

    OperandSource(const Execution& execution, Isa isa, const Operand<T>& operand, std::ptrdiff_t rows,
                  std::ptrdiff_t cols, std::ptrdiff_t batch) {
        if (operand.packed != nullptr || operand.weight != nullptr) return;
        if (operand.codes) {
            source_ = CodedView<P>{operand.codes->codes, &numbers_.emplace(operand.codes->format)};
        } else if (operand.numbers) {
            source_ = operand.numbers->view;
        } else if (operand.is_stochastic()) {
            const std::ptrdiff_t items = operand.view.batch_stride == 0 ? 1 : batch;
            rounded_.emplace(execution, static_cast<std::size_t>(rows * cols * items));
            source_ = quantise_operand(execution, isa, operand.view, rows, cols, batch, *operand.quantiser, operand.key,
                                       rounded_->data());
        } else {
            source_ = operand.view;
            quantiser_ = operand.quantiser ? &*operand.quantiser : nullptr;
        }
    }

    [[nodiscard]] const PackSource<P>& source() const noexcept { return source_; }
    /// The rounding that is left to packing, or null.
    [[nodiscard]] const Quantiser* quantiser() const noexcept { return quantiser_; }

private:
    std::optional<CodeTable<P>> numbers_{};
    std::optional<Scratch<P>> rounded_{};
    PackSource<P> source_{};
    const Quantiser* quantiser_ = nullptr;
};

}  // namespace unitscale::products
