// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/vectors.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace unitscale::kernels {

/// The word of a magnitude: as an integer it is in the order of magnitudes, with NaN above infinity. Signed, because
/// older instruction sets have no maximum of unsigned words.
template <class T>
using MagnitudeWord = std::conditional_t<std::is_same_v<Accum<T>, double>, std::int64_t, std::int32_t>;

/// The largest word of n magnitudes; 0 for n = 0. It is a function of its own, on vectors that every processor has:
/// inlined in a parallel loop, a loop over numbers was vectorised or not by chance.
template <class T>
[[gnu::noinline]] MagnitudeWord<T> largest_magnitude_word(const T* x, std::ptrdiff_t n) noexcept {
    using Word = MagnitudeWord<T>;
    using Words = typename Vector128<Word>::type;
    constexpr std::size_t lanes = 64, of_vector = 16 / sizeof(Word), vectors = 4;
    constexpr Word all_but_sign = std::numeric_limits<Word>::max();
    std::array<Words, vectors> most{};
    const auto include = [&](const Accum<T>* values) {
#pragma GCC unroll 32
        for (std::size_t v = 0; v < lanes / of_vector; ++v) {
            Words words;
            std::memcpy(&words, values + v * of_vector, sizeof(words));
            words &= all_but_sign;
            Words& found = most[v % vectors];
            found = words > found ? words : found;
        }
    };
    std::ptrdiff_t i = 0;
    for (; i + std::ptrdiff_t{lanes} <= n; i += std::ptrdiff_t{lanes}) {
        if constexpr (std::is_same_v<T, Accum<T>>) {
            include(x + i);
        } else {
            std::array<Accum<T>, lanes> values;
            load_lanes<lanes>(x + i, values.data());
            include(values.data());
        }
    }
    Word largest = 0;
    for (const Words& words : most)
        for (std::size_t l = 0; l < of_vector; ++l) largest = std::max<Word>(largest, words[l]);
    for (; i < n; ++i) largest = std::max(largest, std::bit_cast<Word>(widen(x[i])) & all_but_sign);
    return largest;
}

/// The largest magnitude of n numbers, in Accum<T>; NaN if one is NaN; 0 for n = 0. Computed on bits, so fast-math
/// changes nothing. A maximum has no order, so it does not depend on the thread count.
/// Test: tests/kernels/amax_test.cpp
template <class T>
[[nodiscard]] Accum<T> largest_magnitude(const Execution& execution, const T* x, std::ptrdiff_t n) {
    constexpr std::ptrdiff_t most_parts = 64;
    std::array<MagnitudeWord<T>, static_cast<std::size_t>(most_parts)> largest{};
    const std::ptrdiff_t parts = std::clamp<std::ptrdiff_t>(n / work_threshold, 1, most_parts);
    parallel_for(execution.threads, parts, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t part = begin; part < end; ++part) {
            const std::ptrdiff_t first = n * part / parts, last = n * (part + 1) / parts;
            largest[static_cast<std::size_t>(part)] = largest_magnitude_word(x + first, last - first);
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
