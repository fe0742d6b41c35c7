// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/rotation.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/hadamard.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
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

/// Quantises a matrix by blocks that share scales, after a rotation if there is one. Lines of the result are contiguous
/// along the contracted dimension:
///   x [rows,columns]     y [rows,columns] where columns are contracted, else [columns,rows], transposed
/// A double is rounded to float first. Stochastic rounding takes piece i of the stream for element i of y.
/// Bits do not depend on the number of threads. Returns whether all results are exact in bf16.
/// Errors, before anything is written: as `quantise_blocks` for the format and the options; as `check_rotation`.
/// Test: tests/kernels/round_blocks_test.cpp
template <class T>
bool round_blocks(const Execution& execution, const BlockFormat& format, const BlockOptions& options,
                  const std::optional<HadamardRotation>& rotation, const T* x, Accum<T>* y, std::ptrdiff_t rows,
                  std::ptrdiff_t columns, Contracted contracted) {
    using P = Accum<T>;
    const bool turned = contracted == Contracted::rows;
    const std::ptrdiff_t lines = turned ? columns : rows, length = turned ? rows : columns, n = lines * length;
    quantise_blocks(format, MatrixLines<const float>{}, MatrixLines<float>{}, options);  // checks format and options
    if (rotation) check_rotation("round_blocks", *rotation);
    if (n == 0) return true;
    std::optional<Scratch<float>> scratch;
    float* floats = nullptr;
    if constexpr (std::is_same_v<P, float>) floats = y;
    else floats = scratch.emplace(execution, static_cast<std::size_t>(n)).data();

    // Tiles of lines, so that a transposed copy reads and writes whole cache lines.
    constexpr std::ptrdiff_t tile = 16;
    parallel_for(execution.threads, (lines + tile - 1) / tile, row_grain(tile * length),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t item = begin; item < end; ++item) {
                         const std::ptrdiff_t first = item * tile, last = std::min(first + tile, lines);
                         if (!turned)
                             for (std::ptrdiff_t i = first * length; i < last * length; ++i)
                                 floats[i] = static_cast<float>(widen(x[i]));
                         for (std::ptrdiff_t k0 = 0; turned && k0 < length; k0 += tile)
                             for (std::ptrdiff_t line = first; line < last; ++line)
                                 for (std::ptrdiff_t k = k0; k < std::min(k0 + tile, length); ++k)
                                     floats[line * length + k] = static_cast<float>(widen(x[k * columns + line]));
                     }
                 });
    if (rotation) rotate<float>(execution, *rotation, floats, lines, length, length, 1);

    BlockOptions own = options;
    own.pool = execution.pool;
    const bool by_tensor = format.along == whole_dimension && format.across == whole_dimension;
    if ((format.tensor_scale || by_tensor) && !own.tensor_amax) own.tensor_amax = amax(execution, floats, n);
    const std::ptrdiff_t across = format.across == whole_dimension ? lines : format.across;
    const std::ptrdiff_t bands = (lines + across - 1) / across;
    std::atomic<bool> exact{true};
    parallel_for(
        execution.threads, bands, work_threshold / (across * length) + 1,
        [&](std::ptrdiff_t first_band, std::ptrdiff_t last_band) {
            const std::ptrdiff_t begin = first_band * across * length,
                                 end = std::min(last_band * across, lines) * length;
            BlockOptions part = own;
            part.element.first_index += static_cast<std::uint64_t>(begin);
            const auto size = static_cast<std::size_t>(length);
            const MatrixLines<float> matrix{floats + begin, static_cast<std::size_t>(end - begin) / size, size, size};
            quantise_blocks(format, matrix, matrix, part);
            if (!are_exact_in_bf16(floats + begin, end - begin)) exact.store(false, std::memory_order_relaxed);
            if constexpr (!std::is_same_v<P, float>) std::copy(floats + begin, floats + end, y + begin);
        });
    return exact;
}

}  // namespace unitscale::kernels
