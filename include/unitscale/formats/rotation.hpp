// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <cstdint>
#include <string_view>

namespace unitscale {

/// A rotation of runs of `size` numbers: of 16 or 32, by Sylvester's Hadamard matrix H with signs S on its rows.
///   y = x S H / size^1/2      x, y row vectors [size]    S = diag(s)    H[i][j] = (-1)^popcount(i & j)
/// S H / size^1/2 is orthogonal. If both operands of a product are rotated along the contracted dimension, the rotation
/// cancels. Each run's largest numbers are spread over the run, which helps formats with few bits. A short last run of
/// a line is not rotated.
/// Bit i of `signs` negates element i. In a recipe `drawn` gives every product of every layer signs of its own, from
/// the run's seed; `signs` is not read then. Test: tests/formats/rotation_test.cpp
struct HadamardRotation {
    int size = 16;
    std::uint32_t signs = 0;
    bool drawn = false;

    friend constexpr bool operator==(const HadamardRotation&, const HadamardRotation&) = default;
};

/// The signs of TransformerEngine's rotation of 16: + + + - + - - - - - - + - + - -.
inline constexpr HadamardRotation transformer_engine_rotation{.size = 16, .signs = 0b1101011111101000};

/// Error, in the name of `operation`: a size other than 16 and 32.
inline void check_rotation(std::string_view operation, const HadamardRotation& rotation) {
    check(rotation.size == 16 || rotation.size == 32, operation, ": rotation of ", rotation.size,
          "; expected 16 or 32");
}

}  // namespace unitscale
