// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>

namespace unitscale::ops {

/// The factors of an op with N inputs: alpha for its value, and one beta for each input's gradient, in the inputs'
/// order. A rule gives the ideal factors; `Op::set_factors` turns them into the factors that are recorded. All are 1
/// unless given. If a list of betas in braces is too short, the missing betas are 0, which `set_factors` refuses.
/// Test: tests/record/factors_test.cpp
template <std::size_t N>
struct Factors {
    static constexpr std::array<double, N> ones = [] {
        std::array<double, N> values{};
        values.fill(1.0);
        return values;
    }();

    double alpha = 1.0;
    std::array<double, N> betas = ones;

    bool operator==(const Factors&) const = default;
};

}  // namespace unitscale::ops
