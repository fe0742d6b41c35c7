// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace unitscale::kernels {

/// The largest magnitude of n numbers, in Accum<T>; NaN if one is NaN; 0 for n = 0. Computed on bits, so fast-math
/// changes nothing. A maximum has no order, so it does not depend on the thread count.
/// Test: tests/kernels/amax_test.cpp
template <class T>
[[nodiscard]] Accum<T> largest_magnitude(const Execution& execution, const T* x, std::ptrdiff_t n) {
    using Bits = std::conditional_t<std::is_same_v<Accum<T>, double>, std::uint64_t, std::uint32_t>;
    using Signed = std::make_signed_t<Bits>;  // older instruction sets have no maximum of unsigned words
    constexpr Bits all_but_sign = ~Bits{0} >> 1;
    constexpr std::ptrdiff_t most_parts = 64;
    std::array<Bits, static_cast<std::size_t>(most_parts)> largest{};
    const std::ptrdiff_t parts = std::clamp<std::ptrdiff_t>(n / work_threshold, 1, most_parts);
    parallel_for(execution.threads, parts, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t part = begin; part < end; ++part) {
            constexpr std::ptrdiff_t lanes = 16;  // a fixed count, so that the loop is vectorised
            std::array<Signed, lanes> most{};
            const auto word = [](Accum<T> v) { return static_cast<Signed>(std::bit_cast<Bits>(v) & all_but_sign); };
            std::array<Accum<T>, static_cast<std::size_t>(lanes)> values;
            const std::ptrdiff_t last = n * (part + 1) / parts;
            std::ptrdiff_t i = n * part / parts;
            for (; i + lanes <= last; i += lanes) {
                load_lanes<static_cast<std::size_t>(lanes)>(x + i, values.data());
                for (std::size_t l = 0; l < lanes; ++l) {
                    const Signed found = word(values[l]);
                    most[l] = found > most[l] ? found : most[l];
                }
            }
            for (; i < last; ++i) most[0] = std::max(most[0], word(widen(x[i])));
            largest[static_cast<std::size_t>(part)] = static_cast<Bits>(*std::max_element(most.begin(), most.end()));
        }
    });
    return std::bit_cast<Accum<T>>(*std::max_element(largest.begin(), largest.end()));
}

/// The largest magnitude as float. For doubles it is rounded up, so that it still bounds the numbers.
template <class T>
[[nodiscard]] float amax(const Execution& execution, const T* x, std::ptrdiff_t n) {
    const Accum<T> exact = largest_magnitude(execution, x, n);
    if constexpr (std::is_same_v<T, double>) {
        const auto nearest = static_cast<float>(exact);
        const std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
        return std::bit_cast<float>(bits + (static_cast<double>(nearest) < exact && bits < 0x7F800000u ? 1u : 0u));
    } else {
        return exact;
    }
}

}  // namespace unitscale::kernels
