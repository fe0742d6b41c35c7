// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/multiply_add.hpp>
#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/unary.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace unitscale::ops {

struct ClampOptions {
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
    std::optional<Factors<1>> unit{};        ///< ideal factors under `unit` instead of those for unit-normal x
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// The share of a unit normal that lies within [low, high], and the moments of the clamped variable: see `clamp`.
struct ClampedNormal {
    double inside = 1.0, mean = 0.0, variance = 1.0;
};
[[nodiscard]] inline ClampedNormal clamped_normal(double low, double high) noexcept {
    const auto normal_low = kernels::normal_values(low), normal_high = kernels::normal_values(high);
    const double below = normal_low.cdf, above = kernels::normal_values(-high).cdf;
    const auto add = [](double bound, double weight, double to) {  // no infinity times 0
        return weight == 0.0 ? to : multiply_add(bound, weight, to);
    };
    const double inside = normal_high.cdf - normal_low.cdf;
    const double mean = add(low, below, add(high, above, normal_low.density - normal_high.density));
    // a (a Phi(a) + phi(a)) + b (b Phi(-b) - phi(b)) + inside
    const double low_part = add(low, below, normal_low.density), high_part = add(high, above, -normal_high.density);
    const double square = add(low, low_part, add(high, high_part, inside));
    return {.inside = inside, .mean = mean, .variance = multiply_add(-mean, mean, square)};
}

/// Values held within [low, high]: hardtanh with bounds -1 and 1.
///   y = alpha min(max(x, low), high)     dx = beta_x dy where low <= x <= high, else 0     x, y [any shape]
/// Factors under `unit`, our derivation, x unit normal, a = low, b = high, inside = Phi(b) - Phi(a):
/// the mean is mu = a Phi(a) + b Phi(-b) + phi(a) - phi(b),
/// the mean square is q = a^2 Phi(a) + b^2 Phi(-b) + inside + a phi(a) - b phi(b),
/// hence alpha = (q - mu^2)^-1/2, and as the share `inside` of the gradient passes, beta_x = inside^-1/2. Without
/// bounds both are 1; with low = 0 they are the factors of relu. They share one value by the constraint.
/// Scale under `propagate`: s_x; the data is held within the bounds over s_x. Gradients keep dy's.
/// Errors: low not below high; under `unit` an interval that holds less than a hundredth of a unit normal, without
/// `.unit`.
/// Test: tests/ops/clamp_test.cpp
template <class T>
[[nodiscard]] Variable<T> clamp(Variable<T> x, const ClampOptions& options) {
    auto op = begin_op("clamp", x);
    check(options.low < options.high, "clamp: low is ", options.low, " and high is ", options.high,
          "; expected low below high");
    Factors<1> ideal = options.unit.value_or(Factors<1>{});
    if (op.tape().unit_scaled() && !options.unit) {
        const ClampedNormal moments = clamped_normal(options.low, options.high);
        check(moments.inside >= 0.01, "clamp: no rule for scaling 'unit' with bounds [", options.low, ",", options.high,
              "], which unit-normal inputs hardly meet; state its factors with {.unit = Factors<1>{.alpha = a, .betas "
              "= {b}}}");
        ideal = {.alpha = 1.0 / std::sqrt(moments.variance), .betas = {1.0 / std::sqrt(moments.inside)}};
    }
    op.set_factors(ideal, options.constraint);
    const double scale = op.input(0).scale();
    return record_pointwise(op, UnaryScales{.value = scale},
                            kernels::ClampFunction<double>{options.low / scale, options.high / scale});
}

}  // namespace unitscale::ops
