// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/formats/rounding.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace unitscale {

/// The number of elements that a format could not hold. Counts of parts of a tensor add up to the count of the tensor.
struct QuantiseCounts {
    /// Magnitudes above the largest finite number, infinity included; negative ones, where unsigned.
    std::size_t saturated = 0;
    std::size_t underflown = 0;  ///< numbers other than zero that became zero, unless counted as saturated

    constexpr QuantiseCounts& operator+=(const QuantiseCounts& other) noexcept {
        saturated += other.saturated;
        underflown += other.underflown;
        return *this;
    }
    friend constexpr bool operator==(const QuantiseCounts&, const QuantiseCounts&) = default;
};

/// `quantise` that also counts: equal results, errors and random words, in a little more time. The count of saturated
/// elements depends on the input alone. It depends neither on the rounding nor on the result of an overflow (largest
/// number, infinity, NaN). A NaN is not counted. A format without zero (e8m0) has no underflow, and takes magnitudes.
/// in and out may share memory.
/// Test: tests/formats/counts_test.cpp
inline QuantiseCounts quantise_and_count(const FloatFormat& format, std::span<const float> in, std::span<float> out,
                                         const QuantiseOptions& options = {}) {
    check_options("quantise", format, options);
    check_spans("quantise", in, out.size());
    check_no_nan("quantise", format, in);
    const auto max_word = std::bit_cast<std::uint32_t>(format.max());
    const std::uint32_t clipped_sign = format.is_signed() || !format.has_zero() ? 0u : 0x80000000u;
    constexpr std::uint32_t infinity = 0x7F800000u;
    QuantiseCounts counts;
    QuantiseOptions chunk_options = options;
    std::array<std::uint32_t, 1024> words;
    for (std::size_t begin = 0; begin < in.size(); begin += words.size()) {
        const std::size_t count = std::min(words.size(), in.size() - begin);
        for (std::size_t i = 0; i < count; ++i) words[i] = std::bit_cast<std::uint32_t>(in[begin + i]);
        chunk_options.first_index = options.first_index + begin;
        quantise(format, in.subspan(begin, count), out.subspan(begin, count), chunk_options);
        std::uint32_t saturated = 0, underflown = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t a = words[i] & 0x7FFFFFFFu;
            const std::uint32_t number = a - 1u < infinity ? 1u : 0u;  // neither zero nor NaN
            const std::uint32_t outside = number & ((a > max_word ? 1u : 0u) | ((words[i] & clipped_sign) >> 31));
            const std::uint32_t zero = (std::bit_cast<std::uint32_t>(out[begin + i]) & 0x7FFFFFFFu) == 0 ? 1u : 0u;
            saturated += outside;
            underflown += zero & number & (outside ^ 1u);
        }
        counts += {saturated, underflown};
    }
    return counts;
}

}  // namespace unitscale
