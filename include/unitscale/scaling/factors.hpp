// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/multiply_add.hpp>

#include <cmath>
#include <cstddef>

namespace unitscale {

/// The interpolation between `low` and `high` that is linear in the logarithm:
///   logint(a, low, high) = exp(a ln high + (1 - a) ln low),   a = 0 gives low, a = 1 gives high.
/// Factors of ops with a pre-activation multiplier m interpolate between two limits. For m -> 0 the op is linear.
/// For m -> infinity it is a relu or an arg max.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/scaling/factors_test.cpp
[[nodiscard]] inline double logint(double a, double low, double high) noexcept {
    return std::exp(multiply_add(a, std::log(high), (1.0 - a) * std::log(low)));
}

/// n^-1/2: the factor that gives unit variance to a sum of n independent terms of zero mean and unit variance. 1 for n
/// = 0, where there is nothing to scale.
[[nodiscard]] inline double rsqrt_count(std::size_t n) noexcept {
    return n == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(n));
}

}  // namespace unitscale
