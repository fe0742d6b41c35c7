// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/activations.hpp>
#include <unitscale/ops/operands.hpp>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>

namespace unitscale::ops {

struct GeluOptions {
    double mult = 1.0;                       ///< m, the multiplier before the non-linearity (alpha_ffn_act in u-µP)
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

struct ActivationFactors {
    double alpha = 1.0, beta_x = 1.0;
};

/// Ideal factors of gelu under `unit`: see `gelu`.
[[nodiscard]] inline ActivationFactors gelu_unit_factors(double m) noexcept {
    const double a = 1.0 / (1.0 + 0.25 / (m * m));
    return {.alpha = logint(a, 2.0, std::sqrt(2.0 / (1.0 - 1.0 / std::numbers::pi))),
            .beta_x = logint(a, 2.0, std::numbers::sqrt2)};
}

/// Unit-scaled Gaussian error linear unit.
///   y = alpha gelu(m x) / m, gelu(z) = z Phi(z)    dx = beta dy (Phi(m x) + m x phi(m x))    x, y [any shape]
/// Factors under `unit`, x unit normal: for m -> 0 gelu is x/2, hence 2 and 2; for m -> infinity it is a relu, hence
/// sqrt(2 / (1 - 1/pi)) and sqrt 2; between them logint with weight 1 / (1 + 1/(4 m^2)), a fit that puts the standard
/// deviations within 4 % of 1 for m in 0.25 to 4. Alpha and beta share one value by the constraint.
/// Errors: mult not positive.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/gelu_test.cpp
template <class T>
[[nodiscard]] Variable<T> gelu(Variable<T> x, const GeluOptions& options = {}) {
    Tape<T>& tape = x.tape("gelu");
    const Tensor<T>& input = x.value();
    check(options.mult > 0.0, "gelu: mult is ", options.mult, "; expected a positive number");
    ActivationFactors factors{};
    if (tape.unit_scaled()) {
        factors = gelu_unit_factors(options.mult);
        constrain("gelu", effective_constraint(tape, options.constraint), factors.alpha, factors.beta_x);
    }
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    const auto m = static_cast<Accum<T>>(options.mult);
    Tensor<T> output = tape.make(input.shape());
    kernels::gelu_forward<T>(tape.execution(), input.data(), output.data(), count, m, static_cast<Accum<T>>(factors.alpha));
    return tape.record({"gelu", tape.next_site("gelu"), factors.alpha, {factors.beta_x}}, {x}, std::move(output),
                       [=](BackwardContext<T>& g) {
                           Tensor<T> dx = g.take_output_gradient();
                           kernels::gelu_backward<T>(g.execution(), g.input(0).data(), dx.data(), dx.data(), count, m,
                                                     static_cast<Accum<T>>(g.beta(0)));
                           g.add(0, std::move(dx));
                       });
}

}  // namespace unitscale::ops
