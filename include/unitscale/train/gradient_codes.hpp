// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/scaling/communication.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

// Parts of gradients as the codes that processes send (scaling/communication.hpp): elements `begin` up to `end` of a
// gradient of `size` elements, in blocks that begin at multiples of the rule's block.
// Test: tests/train/gradient_codes_test.cpp
namespace unitscale::train {

/// The number of a gradient's blocks.
[[nodiscard]] constexpr std::size_t block_count(const Communication& rule, std::size_t size) noexcept {
    return rule.block == 0 ? 1 : (size + rule.block - 1) / rule.block;
}
/// The first of the elements that process `rank` of `processes` sums: the begin of a block, where there are blocks.
[[nodiscard]] constexpr std::size_t part_begin(const Communication& rule, std::size_t size, std::size_t rank,
                                               std::size_t processes) noexcept {
    if (rule.block == 0) return size * rank / processes;
    return std::min(block_count(rule, size) * rank / processes * rule.block, size);
}
/// Bytes of a code. Numbers of more than 16 bits are sent as float.
[[nodiscard]] constexpr std::size_t code_bytes(const Communication& rule) noexcept {
    const int bits = rule.element.format.code_bits();
    return bits <= 8 ? 1 : bits <= 16 ? 2 : 4;
}

/// Calls use(i, count, block) for pieces of elements i .. i + count of a block, in parallel.
template <class Use>
void for_each_piece(const Execution& execution, const Communication& rule, std::size_t begin, std::size_t end,
                    const Use& use) {
    constexpr std::size_t most = 4096;
    const std::size_t step = rule.block == 0 ? most : std::min(rule.block, most);
    const auto pieces = static_cast<std::ptrdiff_t>((end - begin + step - 1) / step);
    parallel_for(execution.threads, pieces, 8, [&](std::ptrdiff_t first, std::ptrdiff_t last) {
        for (auto piece = static_cast<std::size_t>(first); piece < static_cast<std::size_t>(last); ++piece) {
            const std::size_t i = begin + piece * step;
            use(i, std::min(step, end - i), rule.block == 0 ? 0 : i / rule.block);
        }
    });
}

/// largest[block] := max(largest[block], |x|) for elements x[0 .. end - begin). An infinite or NaN element counts as
/// infinity, so that every process learns of it.
inline void measure_blocks(const Communication& rule, const float* x, std::size_t begin, std::size_t end,
                           float* largest) {
    for_each_piece(Execution{}, rule, begin, end, [&](std::size_t i, std::size_t count, std::size_t block) {
        float most = largest[block];
        for (std::size_t l = 0; l < count; ++l) {
            const float size = std::abs(x[i - begin + l]);
            if (!(size <= std::numeric_limits<float>::max())) most = std::numeric_limits<float>::infinity();
            else most = std::max(most, size);
        }
        largest[block] = most;
    });
}

/// The format of a block: its own, with the power of two for a block of this largest magnitude.
[[nodiscard]] constexpr FloatFormat block_format(const Communication& rule, float largest) noexcept {
    if (!rule.scales()) return rule.element.format;
    return shifted(rule.element.format, amax_bias(rule.element.format, largest, rule.margin));
}

/// codes[0 .. end - begin) = the codes of x, `code_bytes` each. `largest`: of the whole gradient's blocks. Stochastic
/// rounding takes piece i of the stream `key` for element i of the gradient. A block with an element that is not finite
/// has codes of zero: `decode_blocks` gives NaN there.
inline void encode_blocks(const Execution& execution, const Communication& rule, const float* x, std::size_t begin,
                          std::size_t end, const float* largest, RandomKey key, std::byte* codes) {
    const auto encode_as = [&]<class Code>(Code) {
        for_each_piece(execution, rule, begin, end, [&](std::size_t i, std::size_t count, std::size_t block) {
            const std::span<Code> out(reinterpret_cast<Code*>(codes) + (i - begin), count);
            if (!(largest[block] <= std::numeric_limits<float>::max()))
                return std::fill(out.begin(), out.end(), Code{});
            QuantiseOptions options = rule.element.options(key);
            options.first_index = i;
            const std::span<const float> in(x + (i - begin), count);
            if constexpr (std::is_same_v<Code, float>) quantise(block_format(rule, largest[block]), in, out, options);
            else unitscale::encode(block_format(rule, largest[block]), in, out, options);
        });
    };
    const std::size_t bytes = code_bytes(rule);
    if (bytes == 1) encode_as(std::uint8_t{});
    else if (bytes == 2) encode_as(std::uint16_t{});
    else encode_as(float{});
}

/// x[0 .. end - begin) = the numbers of codes that `encode_blocks` has made with the same `largest`.
inline void decode_blocks(const Execution& execution, const Communication& rule, const std::byte* codes,
                          std::size_t begin, std::size_t end, const float* largest, float* x) {
    const auto decode_as = [&]<class Code>(Code) {
        for_each_piece(execution, rule, begin, end, [&](std::size_t i, std::size_t count, std::size_t block) {
            const std::span<float> out(x + (i - begin), count);
            if (!(largest[block] <= std::numeric_limits<float>::max()))
                return std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
            const std::span<const Code> in(reinterpret_cast<const Code*>(codes) + (i - begin), count);
            if constexpr (std::is_same_v<Code, float>) std::copy(in.begin(), in.end(), out.begin());
            else unitscale::decode(block_format(rule, largest[block]), in, out);
        });
    };
    const std::size_t bytes = code_bytes(rule);
    if (bytes == 1) decode_as(std::uint8_t{});
    else if (bytes == 2) decode_as(std::uint16_t{});
    else decode_as(float{});
}

}  // namespace unitscale::train
