// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/record/operands.hpp>
#include <unitscale/scaling/power_of_two.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

namespace unitscale::ops {

/// Ideal factors of an op of N inputs: of its value, and of the gradient of each input.
template <std::size_t N>
struct IdealFactors {
    double alpha = 1.0;
    std::array<double, N> betas{};
};

/// The scale rule of an op f of N inputs x_i = s_i a_i, a_i being data and s_i its scale (1 but under `propagate`):
///   f(s_0 a_0, s_1 a_1, ...) = worth g(a_0, a_1, ...)
/// where g is what the op's loops compute from data. A square has g(a) = a^2 and worth s^2; a product s_0 s_1; a function like exp, of
/// which no scale can be taken out, has g(a) = exp(s a) and worth 1. The scales of gradients follow: df/dx_i = worth / s_i dg/da_i.
template <std::size_t N>
struct CustomRule {
    double worth = 1.0;
    std::optional<IdealFactors<N>>
        unit{};  ///< ideal factors of g: required under `unit`; under `propagate` 1 unless given
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_0, ...} under `unit`; empty: the recipe's rule
    Reads reads{};                           ///< which values the backward function reads
};

/// What the backward function of such an op works with: the members of BackwardContext, and factors and scales by the rule.
template <class T, std::size_t N>
class CustomGradients : public BackwardContext<T> {
public:
    CustomGradients(const BackwardContext<T>& g, double worth, double power)
        : BackwardContext<T>(g), rest_(worth / power) {
        for (std::size_t i = 0; i < N; ++i) scaled_[i] = BackwardContext<T>::scaled_beta(i, power / g.input_scale(i));
    }
    /// What the data of input i's gradient is multiplied by: the sum over y of dy dg/da_i, dy being data too.
    [[nodiscard]] Accum<T> factor(std::size_t i) const noexcept {
        return static_cast<Accum<T>>(scaled_[i].factor * rest_);
    }
    /// Adds to the gradient of input i; its scale is the rule's.
    void add(std::size_t i, Tensor<T>&& data) { BackwardContext<T>::add(i, std::move(data), scaled_[i].scale); }

private:
    std::array<Scaled, N> scaled_{};
    double rest_;  ///< of the rule's worth, over its power of two
};

/// The inputs of an op, as a list in braces.
template <class T, std::size_t N>
using InputList = const Variable<T> (&)[N];

/// An op of one's own with a scale rule: right under `none`, `unit` and `propagate` alike.
///   y = alpha f(x_0, x_1, ...)    dx_i = beta_i dy df/dx_i    f(s_0 a_0, ...) = worth g(a_0, ...)
/// `forward(factor)` returns factor g(a) from the inputs' data (`x.scaled().data()`), made by `Tape::make`; the factor is an Accum<T>.
/// `backward(g)`, g a CustomGradients, gives each input its gradient, g.factor(i) times the sum over y of dy dg/da_i, by g.add(i,
/// dx); it reads data and holds copies, as any backward function.
/// Factors under `unit`: those that the rule states, joined by its constraint; without them an error.
/// Scale under `propagate`: worth / alpha, rounded; dx_i: dy's times worth / (s_i beta_i), rounded. Powers of two, also where worth
/// is none: the rest goes to the factors.
/// Errors: a worth or a factor that is not positive and finite.
/// Reference: Balanca et al. 2024 (Scalify, WANT@ICML). Test: tests/ops/custom_scale_test.cpp
template <class T, std::size_t N, class Forward, class Backward>
[[nodiscard]] Variable<T> custom_scale(const char* op, InputList<T, N> inputs, const CustomRule<N>& rule,
                                       Forward&& forward, Backward backward) {
    Tape<T>& tape = inputs[0].tape(op);
    check_positive(op, "the worth of its data", rule.worth);
    check(!tape.unit_scaled() || rule.unit.has_value(), op,
          ": no rule for scaling 'unit'; state its factors with {.unit = IdealFactors<", N,
          ">{.alpha = a, .betas = {b, ...}}}");
    IdealFactors<N> factors;
    factors.betas.fill(1.0);
    JoinedBy joined_by = JoinedBy::plan;
    const Site site = tape.next_site(op);
    if (tape.uses_factors() && rule.unit) {
        factors = *rule.unit;
        check_positive(op, "alpha", factors.alpha);
        for (const double beta : factors.betas) check_positive(op, "beta", beta);
        joined_by = std::apply(
            [&](auto&... betas) { return join_factors(op, site, tape, rule.constraint, factors.alpha, betas...); },
            factors.betas);
    }
    const double worth = rule.worth, power = tape.propagates() ? pow2_down(worth) : 1.0;
    const Scaled scaled = tape.scaled_alpha(site, factors.alpha, power);
    Tensor<T> output = forward(static_cast<Accum<T>>(scaled.factor * (worth / power)));
    output.set_scale(scaled.scale);
    return tape.record({.name = op,
                        .site = site,
                        .alpha = factors.alpha,
                        .betas = std::span<const double>(factors.betas),
                        .joined_by = joined_by,
                        .reads = rule.reads,
                        .propagates = true},
                       std::span<const Variable<T>>(inputs, N), std::move(output),
                       [worth, power, backward = std::move(backward)](BackwardContext<T>& g) {
                           CustomGradients<T, N> gradients(g, worth, power);
                           backward(gradients);
                       });
}

}  // namespace unitscale::ops
