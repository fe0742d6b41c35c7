// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>

namespace unitscale {

/// condition ? a : b in integer arithmetic, without a jump. Two conditionals in a row would become jumps, and the loop
/// around them would not be vectorised. Test: tests/base/select_test.cpp
[[nodiscard, gnu::always_inline]] inline std::uint32_t select(bool condition, std::uint32_t a,
                                                              std::uint32_t b) noexcept {
    const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
    return (a & mask) | (b & ~mask);
}
[[nodiscard, gnu::always_inline]] inline float select(bool condition, float a, float b) noexcept {
    return std::bit_cast<float>(select(condition, std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b)));
}

}  // namespace unitscale
