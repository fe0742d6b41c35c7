// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <string_view>
#include <utility>

namespace unitscale {

/// Philox-4x32 with 10 rounds: a bijection of the counter that depends on the key, used as a random number generator
/// without state. Word i of a stream is a function of (key, i) alone, so the numbers do not depend on thread count,
/// order or vector width.
/// Reference: Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
/// Test: tests/base/random_test.cpp (the known answers of the authors' test file).
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                                std::array<std::uint32_t, 2> key) noexcept {
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
        const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
        counter = {
            static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
            static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

/// Names one stream of 2^64 random words. `seed` is the user's; `stream` names the purpose of the words, for example a
/// site of the model and a step (see `mix`).
struct RandomKey {
    std::uint64_t seed = 0;
    std::uint64_t stream = 0;

    friend constexpr bool operator==(const RandomKey&, const RandomKey&) = default;
};

/// A 64-bit hash of two words (the SplitMix64 finaliser), for building stream numbers: mix(mix(site, step), part).
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
    std::uint64_t z = a * 0x9E3779B97F4A7C15u + b + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/// A 64-bit hash of a name (FNV-1a, then mixed).
[[nodiscard]] constexpr std::uint64_t hash_name(std::string_view name) noexcept {
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3u;
    return mix(hash, name.size());
}

/// Block `block` of a stream: words 4 block .. 4 block + 3.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> random_block(RandomKey key, std::uint64_t block) noexcept {
    return philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                       static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)},
                      {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)});
}

/// Word `index` of a stream.
[[nodiscard]] constexpr std::uint32_t random_word(RandomKey key, std::uint64_t index) noexcept {
    return random_block(key, index / 4)[index % 4];
}

/// Words first_index, first_index + 1, ... of a stream, each as `random_word` gives it, made by blocks.
constexpr void fill_random_words(RandomKey key, std::uint64_t first_index, std::span<std::uint32_t> out) noexcept {
    for (std::size_t i = 0; i < out.size();) {
        const std::uint64_t index = first_index + i;
        const auto block = random_block(key, index / 4);
        for (std::size_t lane = index % 4; lane < 4 && i < out.size(); ++lane, ++i) out[i] = block[lane];
    }
}

/// A word as a number in [0, 1), a multiple of 2^-24: exact in float.
[[nodiscard]] constexpr float uniform(std::uint32_t word) noexcept { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// A pair of values of a standard normal stream, as the radius and angle of a point in the plane. Box-Muller on the
/// words of block `pair`, in double:
///   radius sqrt(-2 ln u), angle 2 pi v, u in (0, 1], v in [0, 1)
struct NormalPair {
    double radius, angle;

    NormalPair(RandomKey key, std::uint64_t pair) noexcept {
        const auto block = random_block(key, pair);
        const double u = (static_cast<double>((std::uint64_t{block[0]} << 21) ^ (block[1] >> 11)) + 1.0) * 0x1p-53;
        const double v = static_cast<double>((std::uint64_t{block[2]} << 21) ^ (block[3] >> 11)) * 0x1p-53;
        radius = std::sqrt(-2.0 * std::log(u));
        angle = 2.0 * std::numbers::pi * v;
    }
    [[nodiscard]] double even() const noexcept { return radius * std::cos(angle); }
    [[nodiscard]] double odd() const noexcept { return radius * std::sin(angle); }
};

/// Value `index` of a standard normal stream: a coordinate of its pair.
[[nodiscard]] inline double random_normal(RandomKey key, std::uint64_t index) noexcept {
    const NormalPair pair(key, index / 2);
    return index % 2 == 0 ? pair.even() : pair.odd();
}

}  // namespace unitscale
