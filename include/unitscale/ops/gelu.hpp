// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/activations.hpp>
#include <unitscale/ops/dynamic_rescale.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/unary.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>

namespace unitscale::ops {

enum class GeluForm { erf, tanh };
using unitscale::GeluConstants;

struct GeluOptions {
    double mult = 1.0;                         ///< m, the multiplier before the non-linearity (alpha_ffn_act in u-µP)
    GeluForm form = GeluForm::erf;             ///< tanh: the approximation of many published models
    std::optional<GeluConstants> constants{};  ///< source of the factors; empty: the recipe's
    std::optional<Constraint> constraint{};    ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Ideal factors of gelu under `unit`, fitted for every m: see `gelu`.
[[nodiscard]] inline Factors<1> gelu_unit_factors(double m) noexcept {
    const double a = 1.0 / (1.0 + 0.25 / (m * m));
    return {.alpha = logint(a, 2.0, std::sqrt(2.0 / (1.0 - 1.0 / std::numbers::pi))),
            .betas = {logint(a, 2.0, std::numbers::sqrt2)}};
}

/// Ideal factors of gelu as the Unit Scaling paper states them, for m = 1.
[[nodiscard]] constexpr Factors<1> gelu_paper_factors() noexcept { return {.alpha = 1.701, .betas = {1.481}}; }

/// Unit-scaled Gaussian error linear unit.
///   y = alpha gelu(m x) / m, gelu(z) = z Phi(z)    dx = beta dy (Phi(m x) + m x phi(m x))    x, y [any shape]
/// Factors under `unit`, x unit normal: for m -> 0 gelu is x/2, hence 2 and 2; for m -> infinity it is a relu, hence
/// sqrt(2 / (1 - 1/pi)) and sqrt 2; between them logint with weight 1 / (1 + 1/(4 m^2)), a fit that puts the standard
/// deviations within 4 % of 1 for m in 0.25 to 4. At m = 1 they are 1.767 and 1.516. The Unit Scaling paper has 1.701
/// and 1.481 there: `.constants`, or the recipe's `gelu_constants`. Alpha and beta share one value by the constraint.
/// Scale under `propagate`: s_x; m s_x is the multiplier of the data. Gradients keep dy's.
/// `.form = GeluForm::tanh`: gelu(z) = z (1 + tanh((2/pi)^1/2 (z + 0.044715 z^3))) / 2, with equal factors; it is
/// within 5e-4.
/// Errors: mult not positive; the paper's constants with a mult other than 1.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2; Blake et al. 2024, arXiv:2407.17465, appendix B.
/// Test: tests/ops/gelu_test.cpp
template <class T>
[[nodiscard]] Variable<T> gelu(Variable<T> x, const GeluOptions& options = {}) {
    x = record_rescaled_activation("gelu", x);
    auto op = begin_op("gelu", x);
    const GeluConstants constants = options.constants.value_or(op.tape().recipe().gelu_constants);
    const bool fitted = constants == GeluConstants::fitted, exact = options.form == GeluForm::erf;
    check_positive("gelu", "mult", options.mult);
    check(fitted || options.mult == 1.0, "gelu: mult is ", options.mult,
          ", but the constants of the Unit Scaling paper hold for 1 only");
    op.set_factors(fitted ? gelu_unit_factors(options.mult) : gelu_paper_factors(), options.constraint);
    const auto m = static_cast<Accum<T>>(options.mult);
    return record_unary(
        op, UnaryScale::activation,
        [=](const Execution& execution, const T* from, T* y, std::ptrdiff_t n, Accum<T> alpha, Accum<T> s) {
            if (exact) kernels::gelu_forward<T>(execution, from, y, n, m * s, alpha);
            else kernels::gelu_tanh_forward<T>(execution, from, y, n, m * s, alpha);
        },
        [=](const Execution& execution, const T* from, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta,
            Accum<T> s) {
            if (exact) kernels::gelu_backward<T>(execution, from, dy, dx, n, m * s, beta);
            else kernels::gelu_tanh_backward<T>(execution, from, dy, dx, n, m * s, beta);
        });
}

}  // namespace unitscale::ops
