// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/multiply_add.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace unitscale {

/// Where the factors of gelu under `unit` come from. fitted: a formula for every multiplier.
/// unit_scaling_paper: the constants 1.701 and 1.481 of table A.2, for the multiplier 1.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257.
enum class GeluConstants { fitted, unit_scaling_paper };

inline constexpr std::array<std::string_view, 2> gelu_constants_names = {"fitted", "unit_scaling_paper"};
[[nodiscard]] constexpr std::string_view name(GeluConstants constants) noexcept {
    return gelu_constants_names[static_cast<std::size_t>(constants)];
}

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

/// The share of n rows, rounded, but at least one row.
[[nodiscard]] inline std::size_t share_of_rows(std::size_t n, double share) noexcept {
    if (share == 1.0 || n == 0) return n;
    return static_cast<std::size_t>(std::max(1.0, std::round(share * static_cast<double>(n))));
}

}  // namespace unitscale
