// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace unitscale {

/// How an op's forward factor alpha and the gradient factors beta of the inputs that are not cut-edges become one value.
/// Unequal factors on such inputs would mix the gradients of several paths in wrong proportions (Unit Scaling, theorem
/// 5.2), so the op's ideal factors {alpha, beta_1, ...} are replaced by
///   none: themselves (right for cut-edges only)
///   gmean, hmean, amean: their geometric, harmonic or arithmetic mean
///   to_output_scale: alpha, so that the forward pass is unit-scaled exactly
///   to_grad_input_scale: beta of the only input
///   to_left_grad_scale, to_right_grad_scale: beta of the first or second input
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5.2. Test: tests/scaling/constraint_test.cpp
enum class Constraint {
    none,
    gmean,
    hmean,
    amean,
    to_output_scale,
    to_grad_input_scale,
    to_left_grad_scale,
    to_right_grad_scale
};

inline constexpr std::array<std::string_view, 8> constraint_names = {
    "none", "gmean", "hmean", "amean", "to_output_scale", "to_grad_input_scale", "to_left_grad_scale", "to_right_grad_scale"};

[[nodiscard]] constexpr std::string_view name(Constraint constraint) noexcept {
    return constraint_names[static_cast<std::size_t>(constraint)];
}

/// The constraint of that name; Error lists the known ones.
[[nodiscard]] inline Constraint parse_constraint(std::string_view text) {
    std::string known;
    for (std::size_t i = 0; i < constraint_names.size(); ++i) {
        if (constraint_names[i] == text) return static_cast<Constraint>(i);
        if (i > 0) known += ", ";
        known += constraint_names[i];
    }
    fail("constraint: unknown rule '", text, "'; expected one of ", known);
}

/// Replaces alpha and the betas by one value, as the constraint says. `op` names the op in errors: a rule for one input
/// on an op with several, or for a second input on an op with one.
template <class... Betas>
void constrain(const char* op, Constraint constraint, double& alpha, Betas&... betas) {
    constexpr std::size_t inputs = sizeof...(Betas);
    static_assert(inputs >= 1);
    const std::array<double, inputs> beta = {betas...};
    double value = alpha;
    switch (constraint) {
        case Constraint::none:
            return;
        case Constraint::gmean:
            value = std::exp((std::log(alpha) + (std::log(betas) + ...)) / (inputs + 1));
            break;
        case Constraint::hmean:
            value = (inputs + 1) / (1.0 / alpha + ((1.0 / betas) + ...));
            break;
        case Constraint::amean:
            value = (alpha + (betas + ...)) / (inputs + 1);
            break;
        case Constraint::to_output_scale:
            break;
        case Constraint::to_grad_input_scale:
            check(inputs == 1, op, ": constraint to_grad_input_scale needs an op with one constrained input, this one has ",
                  inputs);
            value = beta[0];
            break;
        case Constraint::to_left_grad_scale:
        case Constraint::to_right_grad_scale:
            check(inputs == 2, op, ": constraint ", name(constraint), " needs an op with two constrained inputs, this one has ",
                  inputs);
            value = constraint == Constraint::to_left_grad_scale ? beta[0] : beta[inputs - 1];
            break;
    }
    alpha = value;
    ((betas = value), ...);
}

}  // namespace unitscale
