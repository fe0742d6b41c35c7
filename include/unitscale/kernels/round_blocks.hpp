// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/rotation.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/block_lines.hpp>
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

/// Quantises a matrix by blocks that share scales, after a rotation if there is one. Lines of the result are contiguous
/// along the contracted dimension:
///   x [rows,columns]     y [rows,columns] where columns are contracted, else [columns,rows], transposed
/// `quantise_blocks` defines the numbers. With `options.tensor_apart` the tensor's factor is not in the numbers: it is
/// returned. The factor is `tensor_factor` of two levels, or the scale of a tensor that has one scale. So the numbers
/// of nvfp4 stay exact in bf16. A factor below 2^-60 or above 2^60 stays in the numbers. A double is rounded to float
/// first. Stochastic rounding takes piece i of the stream for element i of y. The sign of a zero is not defined.
/// `scales` [lines,blocks], if not null: y holds elements, and scales[l blocks + c] decodes block c of line l.
/// Bits do not depend on the number of threads.
/// Errors, before anything is written: as `quantise_blocks` for the format and the options; as `check_rotation`.
/// Test: tests/kernels/round_blocks_test.cpp
template <class T>
RoundedBlocks round_blocks(const Execution& execution, const BlockFormat& format, const BlockOptions& options,
                           const std::optional<HadamardRotation>& rotation, const T* x, Accum<T>* y,
                           std::ptrdiff_t rows, std::ptrdiff_t columns, Contracted contracted,
                           float* scales = nullptr) {
    using P = Accum<T>;
    const bool turned = contracted == Contracted::rows;
    const std::ptrdiff_t lines = turned ? columns : rows, length = turned ? rows : columns, n = lines * length;
    quantise_blocks(format, MatrixLines<const float>{}, MatrixLines<float>{}, options);  // checks format and options
    if (rotation) check_rotation("round_blocks", *rotation);
    if (n == 0) return {};
    std::optional<Scratch<float>> scratch;
    float* floats = nullptr;
    if constexpr (std::is_same_v<P, float>) floats = y;
    else floats = scratch.emplace(execution, static_cast<std::size_t>(n)).data();

    // Bands of `across` lines share scales. With one scale for the tensor, its amax makes every cut possible.
    const bool by_tensor = format.along == whole_dimension && format.across == whole_dimension;
    const std::ptrdiff_t across = by_tensor                           ? 16
                                  : format.across == whole_dimension ? lines
                                                                     : static_cast<std::ptrdiff_t>(format.across);
    const std::ptrdiff_t group = across * ((15 + across) / across);  // lines that a thread widens at a time
    const std::ptrdiff_t groups = (lines + group - 1) / group;
    const Isa isa = active_isa();

    // y = x in float, rotated.
    const products::MatrixView<const T> view{x, turned ? 1 : columns, turned ? columns : 1};
    const auto load = [&](std::ptrdiff_t first, std::ptrdiff_t count) {
        float* const out = floats + first * length;
        if constexpr (std::is_same_v<T, double>)
            for (std::ptrdiff_t line = 0; line < count; ++line)
                for (std::ptrdiff_t k = 0; k < length; ++k)
                    out[line * length + k] = static_cast<float>(*view.at(first + line, k));
        else products::widen_block(isa, view.block(first, 0), count, length, length, out, length);
        if (rotation) rotate<float>(Execution{}, *rotation, out, count, length, length, 1);
    };
    const auto for_groups = [&](auto&& use) {
        parallel_for(execution.threads, groups, row_grain(group * length),
                     [&](std::ptrdiff_t first, std::ptrdiff_t last) {
                         use(first * group, std::min(last * group, lines));
                     });
    };

    BlockOptions own = options;
    own.pool = execution.pool;
    const bool needs_amax = (format.tensor_scale || by_tensor) && !own.tensor_amax;
    const bool loaded = needs_amax && (rotation || std::is_same_v<T, double>);
    if (loaded)
        for_groups([&](std::ptrdiff_t first, std::ptrdiff_t last) {
            for (std::ptrdiff_t at = first; at < last; at += group) load(at, std::min(group, last - at));
        });
    if (needs_amax) own.tensor_amax = loaded ? amax(execution, floats, n) : amax(execution, x, n);

    TensorNumbers numbers = tensor_numbers(format, own.tensor_amax.value_or(1.0f));
    const auto moderate = [](float factor) {
        const std::uint32_t word = magnitude_word(factor);
        return word >= 0x21800000u && word <= 0x5D800000u;  // 2^-60 to 2^60; no NaN
    };
    bool fast = format.four_over_six == FourOverSix::off && !own.transformer_engine_bits;
    RoundedBlocks result;
    std::optional<float> whole;
    own.tensor_apart = false;
    if (by_tensor && !options.tensor_apart) {
        fast = false;
    } else if (by_tensor) {
        const BlockScale scale = block_scale(format, own.tensor_amax.value_or(0.0f), numbers);
        const BlockFactor& decode = scale.decode;
        const float factor = decode.divides ? rounded_quotient(1.0f, decode.value) : decode.value;
        fast = fast && moderate(factor) && moderate(scale.encode.value) && !scale.encode.divides;
        if (fast) {
            whole = scale.encode.value;
            result.factor = factor;
        }
    } else if (format.tensor_scale && options.tensor_apart && moderate(tensor_factor(format, numbers))) {
        result.factor = tensor_factor(format, numbers);
        numbers.apart = own.tensor_apart = true;
    }
    const std::ptrdiff_t along = format.along == whole_dimension ? length : format.along;
    const std::ptrdiff_t blocks = (length + along - 1) / along;
    std::atomic<bool> exact{true};
    for_groups([&](std::ptrdiff_t first, std::ptrdiff_t last) {
        std::optional<BlockLines> quantiser;
        if (fast) quantiser.emplace(isa, execution, format, numbers, own.element, length, whole);
        bool part_is_exact = true;
        for (std::ptrdiff_t at = first; at < last; at += group) {
            if (!loaded) load(at, std::min(group, last - at));
            for (std::ptrdiff_t band = at; band < std::min(at + group, last); band += across) {
                const std::ptrdiff_t count = std::min(across, last - band);
                float* const own_lines = floats + band * length;
                BlockLines::Result done = BlockLines::Result::refused;
                float* const own_scales = scales != nullptr ? scales + band * blocks : nullptr;
                if (fast) done = quantiser->quantise(own_lines, band, count, own_scales);
                if (own_scales != nullptr && done != BlockLines::Result::refused)
                    for (std::ptrdiff_t line = 1; line < count; ++line)
                        std::copy_n(own_scales, blocks, own_scales + line * blocks);
                bool band_is_exact = done == BlockLines::Result::exact_in_bf16;
                if (done == BlockLines::Result::refused) {
                    BlockOptions part = own;
                    part.element.first_index += static_cast<std::uint64_t>(band * length);
                    const auto size = static_cast<std::size_t>(length);
                    const MatrixLines<float> matrix{own_lines, static_cast<std::size_t>(count), size, size};
                    if (own_scales != nullptr) split_blocks(format, matrix, part, own_scales);
                    else quantise_blocks(format, matrix, matrix, part);
                    band_is_exact = are_exact_in_bf16(own_lines, count * length);
                }
                part_is_exact = part_is_exact && band_is_exact;
                if constexpr (!std::is_same_v<P, float>) std::copy_n(own_lines, count * length, y + band * length);
            }
        }
        if (!part_is_exact) exact.store(false, std::memory_order_relaxed);
    });
    result.exact_in_bf16 = exact;
    return result;
}

}  // namespace unitscale::kernels
