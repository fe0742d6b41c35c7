// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/rotation.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/block_lines.hpp>
#include <unitscale/kernels/block_strips.hpp>
#include <unitscale/kernels/hadamard.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/products/pack.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

namespace unitscale::kernels {

/// The dimension of a matrix that a product contracts, along which blocks run.
enum class Contracted { columns, rows };

/// Whether all floats are exact in bf16, and none is subnormal there.
[[nodiscard]] inline bool are_exact_in_bf16(const float* x, std::ptrdiff_t n) noexcept {
    std::uint32_t lost = 0, subnormal = 0;
    for (std::ptrdiff_t i = 0; i < n; ++i) {
        const std::uint32_t word = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu;
        lost |= word & 0xFFFFu;
        subnormal |= static_cast<std::uint32_t>(word - 1 < 0x007FFFFFu);  // neither 0 nor normal
    }
    return lost == 0 && subnormal == 0;
}

/// What is to know of a matrix that was quantised by blocks.
struct RoundedBlocks {
    bool exact_in_bf16 = true;  ///< all its numbers are
    float factor = 1;           ///< of all numbers: the tensor's factor, left to the product
    bool transposed = false;    ///< the numbers are in the order of x's columns
};

/// Replaces numbers by elements, and writes what decodes each block of each line: scales [lines,blocks].
[[gnu::cold, gnu::noinline]] inline void split_blocks(const BlockFormat& format, const MatrixLines<float>& x,
                                                      const BlockOptions& options, float* scales) {
    BlockCodes codes;
    encode_blocks(format, x, codes, options);
    TensorNumbers tensor = decode_numbers(format, codes.number);
    tensor.apart = options.tensor_apart;
    for (std::size_t line = 0; line < x.lines; ++line) {
        decode(format.element, std::span<const std::uint8_t>(codes.codes).subspan(line * x.length, x.length),
               std::span(x.data + line * x.stride, x.length));
        for (std::size_t c = 0; c < codes.block_columns; ++c) {
            const std::size_t row = line * codes.block_rows / x.lines;
            const BlockFactor factor = decode_factor(format, scale_value(codes, row, c), tensor);
            *scales++ = factor.divides ? rounded_quotient(1.0f, factor.value) : factor.value;
        }
    }
}

/// Quantises one matrix: the work of `round_blocks`.
template <class T>
class BlockRounding {
public:
    using P = Accum<T>;

    BlockRounding(const Execution& execution, const BlockFormat& format, const BlockOptions& options,
                  const std::optional<HadamardRotation>& rotation, const T* x, P* y, std::ptrdiff_t rows,
                  std::ptrdiff_t columns, Contracted contracted, float* scales)
        : execution_(execution),
          format_(format),
          options_(options),
          rotation_(rotation),
          x_(x),
          y_(y),
          rows_(rows),
          columns_(columns),
          turned_(contracted == Contracted::rows),
          lines_(turned_ ? columns : rows),
          length_(turned_ ? rows : columns),
          along_(format.along == whole_dimension ? length_ : format.along),
          blocks_((length_ + along_ - 1) / along_),
          scales_(scales) {
        options_.pool = execution.pool;
        options_.tensor_apart = false;
        if constexpr (std::is_same_v<P, float>) floats_ = y;
        else floats_ = widened_.emplace(execution, static_cast<std::size_t>(rows * columns)).data();
        const bool by_tensor = format.along == whole_dimension && format.across == whole_dimension;
        // Bands of `across` lines share scales. With one scale for the tensor, its amax makes every cut possible.
        across_ = by_tensor ? 16 : format.across == whole_dimension ? lines_ : format.across;
        group_ = across_ * ((15 + across_) / across_);
        fast_ = format.four_over_six == FourOverSix::off && !options.transformer_engine_bits;
        // Rows keep their order unless the order of random pieces or of double numbers asks for lines.
        strips_ = turned_ && fast_ && !std::is_same_v<T, double> && options.element.rounding != Rounding::stochastic &&
                  !(by_tensor && (rotation || scales != nullptr));
        measure(by_tensor);
        find_factors(by_tensor, options.tensor_apart);
        strips_ = strips_ && (fast_ || !by_tensor);
        result_.transposed = turned_ && !strips_;
        if (by_tensor && strips_) along_ = std::min<std::ptrdiff_t>(along_, 16);
    }

    [[nodiscard]] RoundedBlocks run() {
        if (strips_) quantise_strips();
        else quantise_lines();
        result_.exact_in_bf16 = exact_;
        return result_;
    }

private:
    /// Finds the tensor's amax, if that is needed. Rotated numbers and doubles are loaded for it.
    void measure(bool by_tensor) {
        const bool needs_amax = (format_.tensor_scale || by_tensor) && !options_.tensor_amax;
        if (strips_ && rotation_) {
            load_rows();
        } else if (needs_amax && (rotation_ || std::is_same_v<T, double>)) {
            for_groups([&](std::ptrdiff_t first, std::ptrdiff_t last) {
                for (std::ptrdiff_t at = first; at < last; at += group_) load(at, std::min(group_, last - at));
            });
            loaded_ = true;
        }
        const std::ptrdiff_t n = rows_ * columns_;
        if (needs_amax) options_.tensor_amax = loaded_ ? amax(execution_, floats_, n) : amax(execution_, x_, n);
    }
    /// All of x in float, rotated down its columns.
    void load_rows() {
        if constexpr (std::is_same_v<P, float>)
            parallel_for(execution_.threads, rows_, row_grain(columns_), [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
                products::widen_block(isa_, row_view().block(begin, 0), end - begin, columns_, columns_,
                                      floats_ + begin * columns_, columns_);
            });
        rotate<float>(execution_, *rotation_, floats_, columns_, rows_, 1, columns_);
        loaded_ = true;
    }
    /// Finds the tensor's numbers, its factor, and whether blocks need no more than plain products.
    void find_factors(bool by_tensor, bool apart) {
        numbers_ = tensor_numbers(format_, options_.tensor_amax.value_or(1.0f));
        const auto moderate = [](float factor) {
            const std::uint32_t word = magnitude_word(factor);
            return word >= 0x21800000u && word <= 0x5D800000u;  // 2^-60 to 2^60; no NaN
        };
        if (by_tensor) {
            const BlockScale scale = block_scale(format_, options_.tensor_amax.value_or(0.0f), numbers_);
            const BlockFactor& decode = scale.decode;
            const float factor = decode.divides ? rounded_quotient(1.0f, decode.value) : decode.value;
            fast_ = fast_ && moderate(factor) && moderate(scale.encode.value) && !scale.encode.divides &&
                    (apart || !decode.divides);
            if (!fast_) return;
            whole_ = WholeScale{scale.encode.value, apart ? 1.0f : factor};
            if (apart) result_.factor = factor;
        } else if (format_.tensor_scale && apart && moderate(tensor_factor(format_, numbers_))) {
            result_.factor = tensor_factor(format_, numbers_);
            numbers_.apart = options_.tensor_apart = true;
        }
    }
    [[nodiscard]] products::MatrixView<const T> row_view() const noexcept { return {x_, columns_, 1}; }
    /// Lines `first` and following of x in float, rotated.
    void load(std::ptrdiff_t first, std::ptrdiff_t count) const {
        const products::MatrixView<const T> view = turned_ ? row_view().transposed() : row_view();
        float* const out = floats_ + first * length_;
        if constexpr (std::is_same_v<T, double>)
            for (std::ptrdiff_t line = 0; line < count; ++line)
                for (std::ptrdiff_t k = 0; k < length_; ++k)
                    out[line * length_ + k] = static_cast<float>(*view.at(first + line, k));
        else products::widen_block(isa_, view.block(first, 0), count, length_, length_, out, length_);
        if (rotation_) rotate<float>(Execution{}, *rotation_, out, count, length_, length_, 1);
    }
    template <class Use>
    void for_groups(Use&& use) const {
        parallel_for(
            execution_.threads, (lines_ + group_ - 1) / group_, row_grain(group_ * length_),
            [&](std::ptrdiff_t first, std::ptrdiff_t last) { use(first * group_, std::min(last * group_, lines_)); });
    }

    /// Quantises lines that `quantise_blocks` can take only. They are in place. Returns whether they are exact in bf16.
    [[gnu::cold, gnu::noinline]] bool quantise_slowly(float* x, std::ptrdiff_t first, std::ptrdiff_t count,
                                                      std::ptrdiff_t length, float* scales) const {
        BlockOptions part = options_;
        part.element.first_index += static_cast<std::uint64_t>(first * length);
        const auto size = static_cast<std::size_t>(length);
        const MatrixLines<float> matrix{x, static_cast<std::size_t>(count), size, size};
        if (scales != nullptr) split_blocks(format_, matrix, part, scales);
        else quantise_blocks(format_, matrix, matrix, part);
        return are_exact_in_bf16(x, count * length);
    }

    void quantise_lines() {
        for_groups([&](std::ptrdiff_t first, std::ptrdiff_t last) {
            std::optional<BlockLines> quantiser;
            if (fast_) quantiser.emplace(isa_, execution_, format_, numbers_, options_.element, length_, whole_);
            // Floats in the order of their lines are read where they stand.
            const bool in_place = loaded_ || rotation_ || turned_ || !fast_ || !std::is_same_v<T, float>;
            bool part_is_exact = true;
            for (std::ptrdiff_t at = first; at < last; at += group_) {
                if (in_place && !loaded_) load(at, std::min(group_, last - at));
                for (std::ptrdiff_t band = at; band < std::min(at + group_, last); band += across_) {
                    const std::ptrdiff_t count = std::min(across_, last - band);
                    float* const own = floats_ + band * length_;
                    const float* in = own;
                    if constexpr (std::is_same_v<T, float>)
                        if (!in_place) in = x_ + band * length_;
                    float* const own_scales = scales_ != nullptr ? scales_ + band * blocks_ : nullptr;
                    BlockResult done = BlockResult::refused;
                    if (fast_) done = quantiser->quantise(in, own, band, count, own_scales);
                    if (own_scales != nullptr && done != BlockResult::refused)
                        for (std::ptrdiff_t line = 1; line < count; ++line)
                            std::copy_n(own_scales, blocks_, own_scales + line * blocks_);
                    bool band_is_exact = done == BlockResult::exact_in_bf16;
                    if (done == BlockResult::refused) {
                        if (!in_place) load(band, count);
                        band_is_exact = quantise_slowly(own, band, count, length_, own_scales);
                    }
                    part_is_exact = part_is_exact && band_is_exact;
                    if constexpr (!std::is_same_v<P, float>) std::copy_n(own, count * length_, y_ + band * length_);
                }
            }
            if (!part_is_exact) exact_.store(false, std::memory_order_relaxed);
        });
    }

    /// Tiles of a strip and some columns, at most 64 KiB of them if blocks allow that.
    void quantise_strips() {
        const std::ptrdiff_t wanted = std::max<std::ptrdiff_t>((1 << 14) / along_, 64);
        const std::ptrdiff_t width = std::min(products::round_up(wanted, across_), columns_);
        const std::ptrdiff_t chunks = (columns_ + width - 1) / width, strips = (rows_ + along_ - 1) / along_;
        parallel_for(execution_.threads, strips * chunks, row_grain(along_ * width),
                     [&](std::ptrdiff_t first, std::ptrdiff_t last) {
                         BlockStrips quantiser(isa_, execution_, format_, numbers_, options_.element, width, whole_);
                         bool part_is_exact = true;
                         for (std::ptrdiff_t tile = first; tile < last; ++tile)
                             part_is_exact =
                                 quantise_tile(quantiser, tile / chunks, tile % chunks * width, width) && part_is_exact;
                         if (!part_is_exact) exact_.store(false, std::memory_order_relaxed);
                     });
    }
    [[nodiscard]] bool quantise_tile(BlockStrips& quantiser, std::ptrdiff_t strip, std::ptrdiff_t j,
                                     std::ptrdiff_t width) const {
        const std::ptrdiff_t i = strip * along_, rows = std::min(along_, rows_ - i),
                             columns = std::min(width, columns_ - j), at = i * columns_ + j;
        float* const out = floats_ + at;
        const float* in = out;
        if constexpr (std::is_same_v<T, float>) {
            if (!loaded_) in = x_ + at;
        } else if constexpr (!std::is_same_v<T, double>) {
            if (!loaded_) products::widen_block(isa_, row_view().block(i, j), rows, columns, columns, out, columns_);
        }
        float* const scales = scales_ != nullptr ? scales_ + j * blocks_ + strip : nullptr;
        const BlockResult done = quantiser.quantise(in, columns_, out, columns_, rows, columns, scales, blocks_);
        if (done != BlockResult::refused) return done == BlockResult::exact_in_bf16;
        // A transposed copy, for `quantise_blocks`.
        Scratch<float> lines(execution_, static_cast<std::size_t>(rows * columns)),
            own_scales(execution_, static_cast<std::size_t>(columns));
        products::transpose_block(in, columns_, rows, columns, lines.data(), rows);
        const bool exact = quantise_slowly(lines.data(), 0, columns, rows, scales ? own_scales.data() : nullptr);
        products::transpose_block(lines.data(), rows, columns, rows, out, columns_);
        for (std::ptrdiff_t c = 0; scales != nullptr && c < columns; ++c) scales[c * blocks_] = own_scales.data()[c];
        return exact;
    }

    Execution execution_;
    const BlockFormat& format_;
    BlockOptions options_;
    const std::optional<HadamardRotation>& rotation_;
    const T* x_;
    P* y_;
    std::ptrdiff_t rows_, columns_;
    bool turned_;  ///< lines are columns of x
    std::ptrdiff_t lines_, length_;
    std::ptrdiff_t along_, blocks_;  ///< elements of a block on its line, blocks of a line
    float* scales_;
    Isa isa_ = active_isa();
    float* floats_ = nullptr;  ///< y, or where P is double a copy in float
    std::optional<Scratch<float>> widened_{};
    std::ptrdiff_t across_ = 1;  ///< lines that share scales
    std::ptrdiff_t group_ = 1;   ///< lines that a thread loads at a time
    bool fast_ = false;          ///< blocks need no more than plain products
    bool strips_ = false;        ///< numbers are quantised in the order of x, though rows are contracted
    bool loaded_ = false;        ///< rotated numbers or floats of doubles stand where the result will
    std::optional<WholeScale> whole_{};
    TensorNumbers numbers_{};
    RoundedBlocks result_{};
    std::atomic<bool> exact_{true};
};

/// Quantises a matrix by blocks that share scales, after a rotation if there is one.
///   x, y [rows,columns]     or, where rows are contracted and the result says `transposed`, y [columns,rows]
/// `quantise_blocks` defines the numbers; its lines run along the contracted dimension. With `options.tensor_apart` the
/// tensor's factor is not in the numbers: it is returned. The factor is `tensor_factor` of two levels, or the scale of
/// a tensor that has one scale. So the numbers of nvfp4 stay exact in bf16. A factor below 2^-60 or above 2^60 stays in
/// the numbers. A double is rounded to float first. Stochastic rounding takes piece i of the stream for element i of
/// the lines. The sign of a zero is not defined.
/// `scales` [lines,blocks], if not null: y holds elements, and scales[l blocks + c] decodes block c of line l.
/// Bits do not depend on the number of threads.
/// Errors, before anything is written: as `quantise_blocks` for the format and the options; as `check_rotation`.
/// Test: tests/kernels/round_blocks_test.cpp
template <class T>
RoundedBlocks round_blocks(const Execution& execution, const BlockFormat& format, const BlockOptions& options,
                           const std::optional<HadamardRotation>& rotation, const T* x, Accum<T>* y,
                           std::ptrdiff_t rows, std::ptrdiff_t columns, Contracted contracted,
                           float* scales = nullptr) {
    quantise_blocks(format, MatrixLines<const float>{}, MatrixLines<float>{}, options);  // checks format and options
    if (rotation) check_rotation("round_blocks", *rotation);
    if (rows == 0 || columns == 0) return {};
    return BlockRounding<T>(execution, format, options, rotation, x, y, rows, columns, contracted, scales).run();
}

}  // namespace unitscale::kernels
