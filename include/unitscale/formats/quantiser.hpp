// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise.hpp>

namespace unitscale {

/// How a tensor is rounded: element format, rounding, overflow. Recipes hold one per operand of a product. Matrix
/// products saturate by default: a value out of range becomes the largest finite one.
/// Test: tests/formats/quantiser_test.cpp
struct Quantiser {
    FloatFormat format = fp32;
    Rounding rounding = Rounding::nearest_even;
    Overflow overflow = Overflow::saturate;
    int bits = 16;  ///< random bits of stochastic rounding

    friend constexpr bool operator==(const Quantiser&, const Quantiser&) = default;

    /// The options for a call of `quantise`. Its random words (stochastic rounding only) come from `key`.
    [[nodiscard]] constexpr QuantiseOptions options(RandomKey key = {}) const noexcept {
        return {.rounding = rounding, .overflow = overflow, .bits = bits, .key = key, .first_index = 0};
    }
};

}  // namespace unitscale
