// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

namespace unitscale::kernels {

/// Error, in the name of `operation`: the format has no NaN, and one of n elements is NaN.
template <class T>
void check_no_nan(std::string_view operation, const FloatFormat& format, const T* x, std::ptrdiff_t n) {
    if (format.has_nan()) return;
    std::ptrdiff_t at = 0;
    if constexpr (std::is_same_v<T, Accum<T>>) {
        at = static_cast<std::ptrdiff_t>(find_nan(std::span(x, static_cast<std::size_t>(n))));
    } else {
        Block<Accum<T>> block;
        for (std::size_t found = 0, size = 0; at < n && found == size; at += static_cast<std::ptrdiff_t>(found)) {
            size = static_cast<std::size_t>(std::min(block_size, n - at));
            load_block(x + at, static_cast<std::ptrdiff_t>(size), block);
            found = find_nan(std::span<const Accum<T>>(block).first(size));
        }
    }
    if (at < n) fail(operation, ": ", name(format), " has no NaN: element ", at, " is NaN");
}

/// y[i] = x[i] quantised, then rounded to T where the format holds more than T.   x, y [n], y may be x Stochastic
/// rounding takes piece i of the stream `key` for element i (`random_piece`). Bits do not depend on the thread count.
/// Errors, in the name of `operation`: an invalid quantiser; NaN to a format without NaN.
/// Test: tests/kernels/round_test.cpp
template <class T>
void round_elements(const Execution& execution, std::string_view operation, const Quantiser& quantiser, RandomKey key,
                    const T* x, T* y, std::ptrdiff_t n) {
    using A = Accum<T>;
    const QuantiseOptions all = quantiser.options(key);
    check_options(operation, quantiser.format, all);
    check_no_nan(operation, quantiser.format, x, n);
    parallel_for(execution.threads, n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        QuantiseOptions options = all;
        if constexpr (std::is_same_v<T, A>) {
            options.first_index = static_cast<std::uint64_t>(begin);
            const auto size = static_cast<std::size_t>(end - begin);
            quantise(quantiser.format, std::span<const A>(x + begin, size), std::span<A>(y + begin, size), options);
        } else {
            Block<A> block;
            for (std::ptrdiff_t i = begin; i < end; i += block_size) {
                const std::ptrdiff_t count = std::min(block_size, end - i);
                load_block(x + i, count, block);
                options.first_index = static_cast<std::uint64_t>(i);
                const std::span<A> part = std::span<A>(block).first(static_cast<std::size_t>(count));
                quantise(quantiser.format, std::span<const A>(part), part, options);
                store_block(block, count, y + i);
            }
        }
    });
}

}  // namespace unitscale::kernels
