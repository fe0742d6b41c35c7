// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/quantiser.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <span>
#include <string_view>

namespace unitscale::kernels {

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
    if (!quantiser.format.has_nan())
        for (std::ptrdiff_t i = 0; i < n; ++i)
            check(!is_nan(widen(x[i])), operation, ": ", name(quantiser.format), " has no NaN: element ", i, " is NaN");
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
