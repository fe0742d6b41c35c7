// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace unitscale::kernels {

/// The largest magnitude of n numbers, as float (a double is rounded up, so that it still bounds the numbers); NaN if one is NaN; 0
/// for n = 0. By bits, so that fast-math changes nothing; the same for any thread count, as a maximum has no order.
/// Test: tests/kernels/amax_test.cpp
template <class T>
[[nodiscard]] float amax(const Execution& execution, const T* x, std::ptrdiff_t n) {
    constexpr std::ptrdiff_t most_parts = 64;
    std::array<std::uint32_t, static_cast<std::size_t>(most_parts)> largest{};
    const std::ptrdiff_t parts = std::clamp<std::ptrdiff_t>(n / work_threshold, 1, most_parts);
    const auto magnitude = [](T value) {
        if constexpr (std::is_same_v<T, double>) {
            const auto nearest = static_cast<float>(std::abs(value));
            const std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
            return bits + (static_cast<double>(nearest) < std::abs(value) && bits < 0x7F800000u ? 1u : 0u);
        } else {
            return std::bit_cast<std::uint32_t>(static_cast<float>(widen(value))) & 0x7FFFFFFFu;
        }
    };
    parallel_for(execution.threads, parts, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t part = begin; part < end; ++part) {
            std::uint32_t most = 0;
            for (std::ptrdiff_t i = n * part / parts; i < n * (part + 1) / parts; ++i) most = std::max(most, magnitude(x[i]));
            largest[static_cast<std::size_t>(part)] = most;
        }
    });
    return std::bit_cast<float>(*std::max_element(largest.begin(), largest.end()));
}

}  // namespace unitscale::kernels
