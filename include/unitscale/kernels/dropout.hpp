// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/random_words.hpp>
#include <unitscale/kernels/vector_math.hpp>

namespace unitscale::kernels {

/// Inverted dropout:
///   y = alpha x keep / (1 - p), keep[i] = uniform(word first_index + i of the stream) >= p.   x, y [n]
/// The mask is a function of (key, index) alone and is not stored: the backward pass is the same call on dy with beta,
///   dx = beta dy keep / (1 - p).
/// p in [0, 1). y may be x. first_index a multiple of 4 is faster. Test: tests/kernels/dropout_test.cpp
template <class T>
void dropout(const Execution& execution, const T* x, T* y, std::ptrdiff_t n, double p, RandomKey key, Accum<T> alpha,
             std::uint64_t first_index = 0) {
    using A = Accum<T>;
    const A kept = static_cast<A>(static_cast<double>(alpha) / (1.0 - p));
    const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
    const Isa isa = active_isa();
    parallel_for(execution.threads, n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        constexpr std::ptrdiff_t words_at_once = 4 * block_size;
        std::array<std::uint32_t, static_cast<std::size_t>(words_at_once)> words;
        Block<A> values;
        for (std::ptrdiff_t start = begin; start < end; start += words_at_once) {
            random_words(isa, key, first_index + static_cast<std::uint64_t>(start), words);
            for (std::ptrdiff_t i = start; i < std::min(end, start + words_at_once); i += block_size) {
                const std::ptrdiff_t count = std::min(block_size, end - i);
                const std::uint32_t* const own = words.data() + (i - start);
                load_block(x + i, count, values);
                for_lanes(count, [&](std::size_t l) { values[l] *= own[l] >> 8 < threshold ? A(0) : kept; });
                store_block(values, count, y + i);
            }
        }
    });
}

}  // namespace unitscale::kernels
