// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

namespace unitscale {

/// How an op's forward factor alpha and some of its gradient factors beta become one value. The betas concerned belong
/// to inputs that are not cut-edges. Unequal factors on such inputs would mix the gradients of several paths in wrong
/// proportions (Unit Scaling, theorem 5.2). The op's ideal factors {alpha, beta_1, ...} are therefore replaced by
///   automatic: the result of the recipe's rule for alpha and the betas of exactly these inputs, which the tape finds
///     itself
///   none: themselves (right for cut-edges only)
///   gmean, hmean, amean: their geometric, harmonic or arithmetic mean
///   to_output_scale: alpha, so that the forward pass is unit-scaled exactly
///   to_grad_input_scale: beta of the only input
///   to_left_grad_scale, to_right_grad_scale: beta of the first or second input
/// All but `automatic` join the inputs that the op names, whether they are cut-edges or not.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5.2. Test: tests/scaling/constraint_test.cpp
enum class Constraint {
    automatic,
    none,
    gmean,
    hmean,
    amean,
    to_output_scale,
    to_grad_input_scale,
    to_left_grad_scale,
    to_right_grad_scale
};

inline constexpr std::array<std::string_view, 9> constraint_names = {"automatic",
                                                                     "none",
                                                                     "gmean",
                                                                     "hmean",
                                                                     "amean",
                                                                     "to_output_scale",
                                                                     "to_grad_input_scale",
                                                                     "to_left_grad_scale",
                                                                     "to_right_grad_scale"};

[[nodiscard]] constexpr std::string_view name(Constraint constraint) noexcept {
    return constraint_names[static_cast<std::size_t>(constraint)];
}

/// The constraint with the given name. Error: an unknown name; the message lists the known ones.
[[nodiscard]] inline Constraint parse_constraint(std::string_view text) {
    std::string known;
    for (std::size_t i = 0; i < constraint_names.size(); ++i) {
        if (constraint_names[i] == text) return static_cast<Constraint>(i);
        if (i > 0) known += ", ";
        known += constraint_names[i];
    }
    fail("constraint: unknown rule '", text, "'; expected one of ", known);
}

/// The common value of `factors`, alpha first, by a rule that treats inputs alike: to_output_scale or a mean.
/// Error, in the name of `op`: any other rule.
[[nodiscard]] inline double joined_factor(const char* op, Constraint rule, std::span<const double> factors) {
    double logs = 0.0, inverses = 0.0, sum = 0.0;
    for (const double factor : factors) {
        logs += std::log(factor);
        inverses += 1.0 / factor;
        sum += factor;
    }
    const auto count = static_cast<double>(factors.size());
    switch (rule) {
        case Constraint::to_output_scale:
            return factors[0];
        case Constraint::gmean:
            return factors.size() == 1 ? factors[0] : std::exp(logs / count);
        case Constraint::hmean:
            return factors.size() == 1 ? factors[0] : count / inverses;
        case Constraint::amean:
            return sum / count;
        default:
            fail(op, ": constraint ", name(rule),
                 " does not join any number of factors; expected to_output_scale, gmean, hmean or amean");
    }
}

/// Replaces alpha and the betas by one value, as the constraint says; `automatic` and `none` leave them.
/// Errors, in the name of `op`: a rule for one input on an op with several; a rule for two inputs on an op with another
/// number of inputs; more than eight betas.
inline void constrain(const char* op, Constraint constraint, double& alpha, std::span<double> betas) {
    if (constraint == Constraint::automatic || constraint == Constraint::none) return;
    const std::size_t inputs = betas.size();
    std::array<double, 9> factors{alpha};
    check(inputs < factors.size(), op, ": a constraint joins ", inputs, " inputs; expected at most ",
          factors.size() - 1);
    std::copy(betas.begin(), betas.end(), factors.begin() + 1);
    switch (constraint) {
        case Constraint::to_grad_input_scale:
            check(inputs == 1, op,
                  ": constraint to_grad_input_scale needs an op with one constrained input, this one has ", inputs);
            alpha = factors[1];
            break;
        case Constraint::to_left_grad_scale:
        case Constraint::to_right_grad_scale:
            check(inputs == 2, op, ": constraint ", name(constraint),
                  " needs an op with two constrained inputs, this one has ", inputs);
            alpha = constraint == Constraint::to_left_grad_scale ? factors[1] : factors[2];
            break;
        default:
            alpha = joined_factor(op, constraint, std::span(factors).first(inputs + 1));
    }
    std::fill(betas.begin(), betas.end(), alpha);
}

}  // namespace unitscale
