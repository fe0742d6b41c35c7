// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>

namespace unitscale::ops {

/// The factors of an op with N inputs: alpha of its value, and one beta for the gradient of each input, in the order of
/// the inputs. A rule gives the ideal ones, `Op::set_factors` makes them those that the op is recorded with. All are 1
/// unless given; in a list of betas in braces that is too short, the missing ones are 0, which `set_factors` refuses.
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
