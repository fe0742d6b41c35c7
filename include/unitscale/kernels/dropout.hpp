// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/random.hpp>
#include <unitscale/kernels/vector_math.hpp>

namespace unitscale::kernels {

/// Words index .. index + 63 of a stream, as `random_word` gives them, sixteen blocks side by side.
inline void random_words(RandomKey key, std::uint64_t index, Block<std::uint32_t>& out) noexcept {
    constexpr std::size_t blocks = static_cast<std::size_t>(block_size) / 4;
    if (index % 4 != 0) {
        fill_random_words(key, index, out);
        return;
    }
    std::array<std::uint32_t, blocks> c0, c1, c2, c3;
    for (std::size_t b = 0; b < blocks; ++b) {
        const std::uint64_t block = index / 4 + b;
        c0[b] = static_cast<std::uint32_t>(block);
        c1[b] = static_cast<std::uint32_t>(block >> 32);
        c2[b] = static_cast<std::uint32_t>(key.stream);
        c3[b] = static_cast<std::uint32_t>(key.stream >> 32);
    }
    auto k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        for (std::size_t b = 0; b < blocks; ++b) {
            const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c0[b];
            const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * c2[b];
            c0[b] = static_cast<std::uint32_t>(product1 >> 32) ^ c1[b] ^ k0;
            c1[b] = static_cast<std::uint32_t>(product1);
            c2[b] = static_cast<std::uint32_t>(product0 >> 32) ^ c3[b] ^ k1;
            c3[b] = static_cast<std::uint32_t>(product0);
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (std::size_t b = 0; b < blocks; ++b) {
        out[4 * b] = c0[b];
        out[4 * b + 1] = c1[b];
        out[4 * b + 2] = c2[b];
        out[4 * b + 3] = c3[b];
    }
}

/// Inverted dropout:  y = alpha x keep / (1 - p), keep[i] = uniform(word first_index + i of the stream) >= p.   x, y [n]
/// The mask is a function of (key, index) alone and is not stored: the backward pass is the same call on dy with beta,
///   dx = beta dy keep / (1 - p).
/// p in [0, 1). y may be x. first_index a multiple of 4 is faster. Test: tests/kernels/dropout_test.cpp
template <class T>
void dropout(const Execution& execution, const T* x, T* y, std::ptrdiff_t n, double p, RandomKey key, Accum<T> alpha,
             std::uint64_t first_index = 0) {
    using A = Accum<T>;
    const A kept = static_cast<A>(static_cast<double>(alpha) / (1.0 - p));
    const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
    parallel_for(execution.threads, n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        Block<A> values;
        Block<std::uint32_t> words;
        for (std::ptrdiff_t i = begin; i < end; i += block_size) {
            const std::ptrdiff_t count = std::min(block_size, end - i);
            load_block(x + i, count, values);
            random_words(key, first_index + static_cast<std::uint64_t>(i), words);
            for_lanes(count, [&](std::size_t l) { values[l] *= words[l] >> 8 < threshold ? A(0) : kept; });
            store_block(values, count, y + i);
        }
    });
}

}  // namespace unitscale::kernels
